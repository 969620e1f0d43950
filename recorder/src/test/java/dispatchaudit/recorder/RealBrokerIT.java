package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Stream;
import org.apache.pulsar.PulsarStandaloneStarter;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.junit.jupiter.api.Test;

/**
 * A real broker that loads the NAR by its own configuration, real clients, and what they saw beside what was recorded.
 *
 * <p>Leaves the segments in {@code recording} and what the clients saw in {@code truth.json}, for the audit to be run on.
 */
class RealBrokerIT {
    private static final String TOPIC = "persistent://public/default/orders";
    private static final int KEYS = 20;
    private static final int MESSAGES = 400;

    private final Path root = Path.of(System.getProperty("recorder.it.directory")).toAbsolutePath();
    private final Path recording = root.resolve("recording");
    private final int port = freePort();
    private final int webPort = freePort();
    private final Map<String, List<String>> seenByKey = new ConcurrentHashMap<>();
    private final AtomicInteger duplicates = new AtomicInteger();
    private final AtomicInteger received = new AtomicInteger();
    private final AtomicInteger acked = new AtomicInteger();
    private final Map<MessageId, Integer> ackedIds = new ConcurrentHashMap<>();
    private int published;

    @Test
    void whatClientsSeeIsWhatIsRecorded() throws Exception {
        clean(root);
        PulsarStandaloneStarter broker = start();
        try {
            PulsarClient client = client();
            life(client);
            client.close();
        } finally {
            broker.close();
        }
        assertRecorded();
        Map<String, Object> truth = new LinkedHashMap<>();
        truth.put("published", published);
        truth.put("received", received.get());
        truth.put("acked", ackedIds.size());
        truth.put("received_after_ack", duplicates.get());
        truth.put("keys_out_of_order", keysOutOfOrder());
        Files.writeString(root.resolve("truth.json"), new ObjectMapper().writeValueAsString(truth));
    }

    /** Joins, a crash with messages in hand, nacks, acks, a batch, an unload; everything is acknowledged in the end. */
    private void life(PulsarClient client) throws Exception {
        Consumer<String> first = subscribe(client, "c1");
        Consumer<String> second = subscribe(client, "c2");
        Producer<String> producer = client.newProducer(Schema.STRING).topic(TOPIC).enableBatching(false).create();
        publish(producer, MESSAGES);
        List<Consumer<String>> both = List.of(first, second);
        consume(both, MESSAGES / 2, 7);
        Consumer<String> third = subscribe(client, "c3");
        PulsarClient crashing = client();
        Consumer<String> fourth = subscribe(crashing, "c4");
        publish(producer, MESSAGES);
        consume(List.of(first, second, third), MESSAGES / 2, 11);
        fourth.receive(2, TimeUnit.SECONDS); // holds it, and is gone
        crashing.shutdown();
        drain(List.of(first, second, third));
        org.apache.pulsar.client.admin.PulsarAdmin admin = org.apache.pulsar.client.admin.PulsarAdmin.builder()
                .serviceHttpUrl("http://127.0.0.1:" + webPort).build();
        admin.topics().unload(TOPIC);
        publish(producer, MESSAGES);
        drain(List.of(first, second, third));
        third.close();
        publish(producer, MESSAGES);
        drain(both);
        admin.close();
        first.close();
        second.close();
    }

    private void publish(Producer<String> producer, int count) throws Exception {
        List<java.util.concurrent.CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            sent.add(producer.newMessage().key("key-" + i % KEYS).value(Integer.toString(published++)).sendAsync());
        }
        for (var one : sent) {
            one.get(30, TimeUnit.SECONDS);
        }
    }

    /** Take about so many messages in turn; every {@code nackEvery}-th is refused once. */
    private void consume(List<Consumer<String>> consumers, int count, int nackEvery) throws Exception {
        int taken = 0;
        for (int idle = 0; taken < count && idle < 20;) {
            boolean any = false;
            for (Consumer<String> consumer : consumers) {
                Message<String> message = consumer.receive(50, TimeUnit.MILLISECONDS);
                if (message != null) {
                    any = true;
                    taken++;
                    saw(message);
                    if (taken % nackEvery == 0) {
                        consumer.negativeAcknowledge(message);
                    } else {
                        acknowledge(consumer, message);
                    }
                }
            }
            idle = any ? 0 : idle + 1;
        }
    }

    private void drain(List<Consumer<String>> consumers) throws Exception {
        long quietSince = System.nanoTime();
        while (ackedIds.size() < published || System.nanoTime() - quietSince < TimeUnit.MILLISECONDS.toNanos(1500)) {
            assertTrue(System.nanoTime() - quietSince < TimeUnit.SECONDS.toNanos(40), "nothing comes any more: "
                    + ackedIds.size() + " of " + published + " acknowledged");
            for (Consumer<String> consumer : consumers) {
                Message<String> message = consumer.receive(20, TimeUnit.MILLISECONDS);
                if (message != null) {
                    quietSince = System.nanoTime();
                    saw(message);
                    acknowledge(consumer, message);
                }
            }
        }
    }

    private void acknowledge(Consumer<String> consumer, Message<String> message) throws Exception {
        consumer.acknowledge(message);
        acked.incrementAndGet();
        ackedIds.put(message.getMessageId(), 1);
    }

    private void saw(Message<String> message) {
        received.incrementAndGet();
        if (ackedIds.containsKey(message.getMessageId())) {
            duplicates.incrementAndGet();
        }
        seenByKey.computeIfAbsent(message.getKey(), key -> new ArrayList<>()).add(message.getValue());
    }

    /** Keys whose messages were seen for the first time in another order than they were published. */
    private long keysOutOfOrder() {
        return seenByKey.values().stream().filter(values -> {
            List<Integer> first = values.stream().distinct().map(Integer::valueOf).toList();
            return !first.equals(first.stream().sorted().toList());
        }).count();
    }

    private void assertRecorded() throws IOException {
        List<JsonNode> events = Reading.events(recording).stream()
                .filter(one -> one.get("topic").asText().equals(TOPIC)).toList();
        Map<Long, Long> next = new HashMap<>();
        Map<String, Integer> kinds = new LinkedHashMap<>();
        for (JsonNode event : events) {
            long seq = event.get("seq").asLong();
            assertEquals(next.getOrDefault(event.get("incarnation").asLong(), 1L), seq, "no hole in seq");
            next.put(event.get("incarnation").asLong(), seq + 1);
            kinds.merge(event.get("kind").asText(), 1, Integer::sum);
        }
        System.out.println("recorded: " + kinds + " in " + next.size() + " incarnations");
        assertEquals(2, next.size(), "the unload began an incarnation");
        for (String kind : List.of("consumer_added", "consumer_removed", "flow", "sent", "ack", "redeliver")) {
            assertTrue(kinds.containsKey(kind), kind);
        }
        assertEquals(7, kinds.get("consumer_added"));
        assertEquals(7, kinds.get("consumer_removed"));
        assertEquals(acked.get(), kinds.get("ack").intValue(), "one ack line for each acknowledgement");
        List<JsonNode> messages = new ArrayList<>();
        for (Path file : Reading.files(recording, "messages", ".jsonl.gz")) {
            Reading.lines(file).stream().filter(line -> line.path("topic").asText().equals(TOPIC)).forEach(messages::add);
        }
        assertEquals(published, messages.size());
        assertTrue(Reading.files(recording, "", Segment.OPEN).isEmpty(), "all segments are complete");
        try (Stream<Path> files = Files.list(recording)) {
            Path status = files.filter(file -> file.getFileName().toString().startsWith("recorder-status")).findFirst().orElseThrow();
            JsonNode counts = new ObjectMapper().readTree(status.toFile());
            System.out.println("status: " + counts);
            assertEquals(0, counts.get("errors").asInt() + counts.get("lost_events").asInt() + counts.get("lost_messages").asInt());
        }
    }

    private PulsarClient client() throws Exception {
        return PulsarClient.builder().serviceUrl("pulsar://127.0.0.1:" + port).build();
    }

    private static Consumer<String> subscribe(PulsarClient client, String name) throws Exception {
        return client.newConsumer(Schema.STRING).topic(TOPIC).subscriptionName("audit").consumerName(name)
                .subscriptionType(SubscriptionType.Key_Shared).receiverQueueSize(50).acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                .negativeAckRedeliveryDelay(300, TimeUnit.MILLISECONDS).subscribe();
    }

    private PulsarStandaloneStarter start() throws Exception {
        Path interceptors = Files.createDirectories(root.resolve("interceptors"));
        try (Stream<Path> files = Files.list(Path.of(System.getProperty("recorder.nar.directory")))) {
            Path nar = files.filter(file -> file.toString().endsWith(".nar")).findFirst().orElseThrow();
            Files.copy(nar, interceptors.resolve(nar.getFileName()));
        }
        Path configuration = Files.write(root.resolve("standalone.conf"), List.of(
                "clusterName=standalone", "bindAddress=127.0.0.1", "advertisedAddress=127.0.0.1", "brokerServicePort=" + port,
                "webServicePort=" + webPort, "allowLoopback=true", "journalSyncData=false", "managedLedgerDefaultEnsembleSize=1",
                "managedLedgerDefaultWriteQuorum=1", "managedLedgerDefaultAckQuorum=1", "numIOThreads=4", "numHttpServerThreads=4",
                "loadBalancerEnabled=false", "brokerDeleteInactiveTopicsEnabled=false",
                "narExtractionDirectory=" + root.resolve("nar"), "disableBrokerInterceptors=false",
                "brokerInterceptorsDirectory=" + interceptors, "brokerInterceptors=dispatch-audit-recorder",
                "dispatchAuditRecorderDirectory=" + recording, "dispatchAuditRecorderRotateSeconds=4",
                "dispatchAuditRecorderFlushMillis=200", "dispatchAuditRecorderTopics=persistent://public/.*"));
        PulsarStandaloneStarter starter = new PulsarStandaloneStarter(new String[] {"--wipe-data", "-nfw", "-nss",
            "--bookkeeper-dir", root.resolve("bookkeeper").toString(), "--metadata-dir", root.resolve("metadata").toString(),
            "-c", configuration.toString(), "-a", "127.0.0.1"});
        starter.start();
        return starter;
    }

    private static int freePort() {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        } catch (IOException none) {
            throw new java.io.UncheckedIOException(none);
        }
    }

    private static void clean(Path directory) throws IOException {
        if (Files.exists(directory)) {
            try (Stream<Path> all = Files.walk(directory)) {
                for (Path one : all.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(one);
                }
            }
        }
        Files.createDirectories(directory);
    }
}
