package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;
import org.junit.jupiter.api.Test;

/**
 * Overloads the recorder: room for 200 events, and a slow disk after each read of the queue. Losses are counted exactly for
 * each subscription, and the broker's clients still get every message.
 *
 * <p>Leaves the segments in {@code overload/recording}.
 */
class OverloadIT {
    private static final String TOPIC = "persistent://public/default/overload";
    private static final int MESSAGES = 40_000;
    private static final int KEYS = 50;
    private static final List<SubscriptionType> TYPES = List.of(SubscriptionType.Key_Shared, SubscriptionType.Shared,
            SubscriptionType.Failover);

    @Test
    void whatIsSentIsRecordedOrCountedAsLost() throws Exception {
        Path root = Path.of(System.getProperty("recorder.it.directory")).toAbsolutePath().resolve("overload");
        Map<String, AtomicLong> received = new LinkedHashMap<>();
        Map<String, Long> sentByStats = new LinkedHashMap<>();
        Path recording;
        try (RealBroker broker = RealBroker.fresh(root, Map.of("dispatchAuditRecorderQueueEvents", "200",
                "dispatchAuditRecorderFlushMillis", "10", "dispatchAuditRecorderSyncMillis", "10"));
                PulsarClient client = PulsarClient.builder().serviceUrl(broker.url()).build();
                PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(broker.webUrl()).build()) {
            recording = broker.recording;
            List<Consumer<byte[]>> consumers = new ArrayList<>();
            for (SubscriptionType type : TYPES) {
                AtomicLong count = received.computeIfAbsent(type.name(), name -> new AtomicLong());
                for (int number = 0; number < 3; number++) {
                    consumers.add(client.newConsumer().topic(TOPIC).subscriptionName(type.name()).subscriptionType(type)
                            .consumerName(type + "-" + number).acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                            .messageListener((consumer, message) -> {
                                count.incrementAndGet();
                                consumer.acknowledgeAsync(message);
                            }).subscribe());
                }
            }
            Producer<byte[]> producer = client.newProducer().topic(TOPIC).enableBatching(false).blockIfQueueFull(true).create();
            for (int number = 0; number < MESSAGES; number++) {
                producer.newMessage().key("key-" + number % KEYS).value(new byte[10]).sendAsync();
            }
            producer.flush();
            long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(90);
            while (received.values().stream().anyMatch(count -> count.get() < MESSAGES)) {
                assertTrue(System.nanoTime() < until, () -> "the clients got " + received + " of " + MESSAGES + " messages");
                Thread.sleep(50);
            }
            var stats = admin.topics().getStats(TOPIC);
            stats.getSubscriptions().forEach((name, subscription) -> sentByStats.put(name, subscription.getMsgOutCounter()));
        }
        assertCounted(recording, received, sentByStats);
    }

    private static void assertCounted(Path recording, Map<String, AtomicLong> received, Map<String, Long> sentByStats)
            throws Exception {
        Map<String, Long> recorded = new HashMap<>();
        Map<String, Long> lostEntries = new HashMap<>();
        Map<String, Long> next = new HashMap<>();
        long lostEvents = 0;
        for (JsonNode event : Reading.events(recording)) {
            String subscription = event.get("subscription").asText();
            boolean gap = event.get("kind").asText().equals("gap");
            assertEquals(next.getOrDefault(subscription, 1L), event.get("seq").asLong(), "no hole in seq without a gap line");
            next.put(subscription, (gap ? event.get("to") : event.get("seq")).asLong() + 1);
            if (event.get("kind").asText().equals("sent")) {
                recorded.merge(subscription, (long) event.get("positions").size(), Long::sum);
            }
            lostEntries.merge(subscription, event.path("lost_sent_entries").asLong(), Long::sum);
            lostEvents += event.path("lost").asLong();
        }
        long messages = 0;
        for (Path file : Reading.files(recording, "messages", ".jsonl.gz")) {
            for (JsonNode line : Reading.lines(file)) {
                messages += line.has("position") ? 1 : line.path("lost").asLong();
            }
        }
        JsonNode status = new ObjectMapper().readTree(Reading.files(recording, "recorder-status", ".json").get(0).toFile());
        System.out.println("overload: clients got " + received + ", stats say " + sentByStats + ", recorded " + recorded
                + ", lost by gap lines " + lostEntries + ", status " + status);
        for (SubscriptionType type : TYPES) {
            String name = type.name();
            assertEquals(sentByStats.get(name), recorded.get(name) + lostEntries.get(name), name);
            assertEquals(received.get(name).get(), recorded.get(name) + lostEntries.get(name), name);
            assertTrue(lostEntries.get(name) > 0, name + ": the queue was never full");
        }
        assertEquals(MESSAGES, messages, "messages recorded, and lost by the footers");
        assertEquals(status.get("lost_events").asLong(), lostEvents, "the gap lines say what the status says");
        assertEquals(0, status.get("errors").asLong());
        assertEquals(0, status.get("failed_lines").asLong());
    }
}
