package dispatchaudit.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Stream;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.impl.BatchMessageIdImpl;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ClientLogInterceptorTest {
    private static final String TOPIC = "persistent://public/default/orders";
    private static final MessageId FIRST = new MessageIdImpl(3, 1, -1);

    @TempDir
    Path folder;
    private long lostMs;

    @Test
    void writesWhatTheConsumerSees() throws IOException {
        ClientLogInterceptor<String> log = new ClientLogInterceptor<>(folder, "Key_Shared");
        Message<String> message = message(FIRST, TOPIC, Map.of("hasKey", true, "getKey", "a\"b\\\n\ud800ü"));
        assertSame(message, log.beforeConsume(consumer(), message));
        log.beforeConsume(consumer(), message(new BatchMessageIdImpl(3, 2, -1, 1, 4, null), TOPIC + "-partition-1",
                Map.of("hasOrderingKey", true, "getOrderingKey", "ü".getBytes(StandardCharsets.UTF_8), "getRedeliveryCount", 2)));
        log.onAcknowledge(consumer(), FIRST, null);
        lostMs = 1_795_249_463_000L;
        log.onAcknowledgeCumulative(consumer(), FIRST, new IllegalStateException("closed"));
        log.onNegativeAcksSend(consumer(), Set.of(FIRST));
        log.onAckTimeoutSend(consumer(), Set.of(FIRST));
        log.close();
        log.onAcknowledge(consumer(), FIRST, null); // nothing
        List<JsonNode> lines = lines();
        assertEquals("pulsar-client-log", lines.get(0).get("format").asText());
        assertEquals("w/1", lines.get(0).get("consumer").asText());
        assertEquals(TOPIC, lines.get(0).get("topic").asText());
        assertEquals("Key_Shared", lines.get(0).get("subscription_type").asText());
        assertFalse(lines.get(0).get("host").asText().isEmpty());
        lines.remove(0);
        List<String> kinds = lines.stream().map(line -> line.get("kind").asText()).toList();
        assertEquals(List.of("client_received", "client_received", "client_acked", "client_acked", "client_nacked",
                "client_nacked", "footer"), kinds);
        for (int at = 0; at < lines.size(); at++) {
            assertEquals(at + 1, lines.get(at).get("seq").asInt());
        }
        assertEquals("a\"b\\\n\ufffdü", lines.get(0).get("key").asText());
        assertEquals("3:1", lines.get(0).get("position").asText());
        assertFalse(lines.get(0).has("batch_index"));
        assertEquals(TOPIC + "-partition-1", lines.get(1).get("topic").asText());
        assertEquals("w7w=", lines.get(1).get("ordering_key_b64").asText());
        assertEquals(List.of(1, 4, 2), Stream.of("batch_index", "batch_size", "redelivery_count")
                .map(name -> lines.get(1).get(name).asInt()).toList());
        assertFalse(lines.get(2).has("error") || lines.get(2).has("ack_type") || lines.get(2).has("disconnected_us")
                || lines.get(2).has("connected"));
        assertEquals("Cumulative", lines.get(3).get("ack_type").asText());
        assertTrue(lines.get(3).get("error").asText().contains("closed"));
        assertEquals(1000 * lostMs, lines.get(3).get("disconnected_us").asLong());
        assertFalse(lines.get(3).get("connected").asBoolean(true));
        assertFalse(lines.get(4).has("disconnected_us"));
    }

    @Test
    void endsWithADiskThatFailsAndTheApplicationGoesOn() throws Exception {
        Path file = Files.createFile(folder.resolve("file"));
        ClientLogInterceptor<String> log = new ClientLogInterceptor<>(file, "Shared");
        Message<String> message = message(FIRST, TOPIC, Map.of());
        for (int at = 0; at < 1000; at++) {
            assertSame(message, log.beforeConsume(consumer(), message));
            Thread.sleep(0, 10_000);
        }
        log.close();
        assertEquals(0, Files.size(file));
    }

    @Test
    void endsWithAnUnusualMessageAndTheApplicationGoesOn() throws IOException {
        ClientLogInterceptor<String> log = new ClientLogInterceptor<>(folder, "Shared");
        Message<String> unusual = message(null, null, Map.of());
        assertSame(unusual, log.beforeConsume(consumer(), unusual));
        log.onAcknowledge(consumer(), FIRST, null);
        log.close();
        assertEquals(0, files().size());
    }

    @Test
    void losesLinesWhereTheyAreTooManyAndShowsIt() throws IOException {
        ClientLogInterceptor<String> log = new ClientLogInterceptor<>(folder, "Shared", 2, 1L << 30);
        for (int at = 0; at < 20_000; at++) {
            log.onAcknowledge(consumer(), FIRST, null);
        }
        log.close();
        List<JsonNode> lines = lines();
        int last = lines.get(lines.size() - 1).get("seq").asInt();
        assertTrue(lines.size() - 1 < last, lines.size() + " lines, the last is " + last);
    }

    @Test
    void endsWhenTheFileIsTooLarge() throws IOException {
        ClientLogInterceptor<String> log = new ClientLogInterceptor<>(folder, "Shared", 10_000, 5_000);
        for (int at = 0; at < 5_000; at++) {
            log.onAcknowledge(consumer(), FIRST, null);
        }
        log.close();
        long size = Files.size(files().get(0));
        assertTrue(size > 5_000 && size < 6_000, size + " bytes");
    }

    private List<Path> files() throws IOException {
        try (Stream<Path> all = Files.list(folder)) {
            return all.toList();
        }
    }

    private List<JsonNode> lines() throws IOException {
        List<JsonNode> read = new ArrayList<>();
        Path file = files().get(0);
        assertTrue(file.getFileName().toString().startsWith("client-w_1-"), file.toString());
        for (String line : Files.readAllLines(file)) {
            read.add(new ObjectMapper().readTree(line));
        }
        return read;
    }

    @SuppressWarnings("unchecked")
    private Consumer<String> consumer() {
        return (Consumer<String>) proxy(Consumer.class, Map.of("getTopic", TOPIC, "getSubscription", "audit",
                "getConsumerName", "w/1", "getLastDisconnectedTimestamp", lostMs, "isConnected", lostMs == 0));
    }

    @SuppressWarnings("unchecked")
    private static Message<String> message(MessageId id, String topic, Map<String, Object> values) {
        Map<String, Object> all = new HashMap<>(Map.of("hasKey", false, "hasBase64EncodedKey", false, "hasOrderingKey", false,
                "getRedeliveryCount", 0));
        all.put("getMessageId", id);
        all.put("getTopicName", topic);
        all.putAll(values);
        return (Message<String>) proxy(Message.class, all);
    }

    private static Object proxy(Class<?> type, Map<String, Object> values) {
        return Proxy.newProxyInstance(type.getClassLoader(), new Class<?>[] {type}, (self, method, arguments) -> {
            if (!values.containsKey(method.getName())) {
                throw new UnsupportedOperationException(method.getName());
            }
            return values.get(method.getName());
        });
    }
}
