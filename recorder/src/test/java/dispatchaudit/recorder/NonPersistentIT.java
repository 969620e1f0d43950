package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.service.Subscription;
import org.apache.pulsar.broker.service.Topic;
import org.apache.pulsar.broker.service.nonpersistent.NonPersistentDispatcher;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.junit.jupiter.api.Test;

/** Java clients of a non-persistent topic: joins and leaves, consumers that take nothing, and what the broker counts as dropped. */
class NonPersistentIT {
    private static final int KEYS = 20;
    private static final int QUEUE = 10;

    private final String topic = "non-persistent://public/default/np";
    private int published;

    @Test
    void whatWasReceivedWasRecordedAndTheRestWasDropped() throws Exception {
        record("java-non-persistent", false);
    }

    /** A batch costs more permits than the one that it needs, so consumers have less than none, in Shared at the cost of others. */
    @Test
    void batchesTakePermitsThatAConsumerDoesNotHave() throws Exception {
        record("java-non-persistent-batches", true);
    }

    private void record(String name, boolean batches) throws Exception {
        Path folder = Path.of(System.getProperty("recorder.it.directory"), name).toAbsolutePath();
        Set<String> received = new HashSet<>();
        Path recording;
        long dropped;
        try (RealBroker broker = RealBroker.fresh(folder, Map.of("dispatchAuditRecorderNonPersistentTopics", "true",
                "dispatchAuditRecorderTopics", "non-persistent://public/.*", "dispatchAuditRecorderRotateSeconds", "600"));
                PulsarClient client = PulsarClient.builder().serviceUrl(broker.url()).build()) {
            recording = broker.recording;
            Producer<String> producer = client.newProducer(Schema.STRING).topic(topic).producerName("p").enableBatching(batches)
                    .batcherBuilder(BatcherBuilder.KEY_BASED).batchingMaxMessages(60).batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS)
                    .create();
            publish(producer, 5); // there is no subscription yet
            List<List<Consumer<String>>> all = new ArrayList<>();
            for (SubscriptionType type : List.of(SubscriptionType.Key_Shared, SubscriptionType.Shared, SubscriptionType.Failover)) {
                all.add(new ArrayList<>(List.of(consumer(client, type, "c1"), consumer(client, type, "c2"))));
            }
            publish(producer, 15);
            take(all, received);
            for (List<Consumer<String>> consumers : all) {
                consumers.add(consumer(client, SubscriptionType.valueOf(consumers.get(0).getSubscription()), "c3"));
            }
            publish(producer, 100); // more than the queues hold, and nobody takes any
            take(all, received);
            publish(producer, 30);
            take(all, received);
            for (List<Consumer<String>> consumers : all) {
                consumers.remove(0).close();
            }
            publish(producer, 40);
            take(all, received);
            dropped = dropped(broker.service());
            for (List<Consumer<String>> consumers : all) {
                for (Consumer<String> consumer : consumers) {
                    consumer.close();
                }
            }
            publish(producer, 3); // there is none any more
        }
        List<JsonNode> messages = Reading.messages(recording);
        List<String> positions = messages.stream().map(line -> line.get("position").asText()).toList();
        assertEquals(published, messages.stream().mapToInt(line -> line.get("num_messages").asInt()).sum());
        assertEquals(batches, positions.size() < published);
        assertEquals(positions.size(), new HashSet<>(positions).size());
        for (int i = 1; i < positions.size(); i++) {
            assertEquals(Place.of(positions.get(i - 1)).entryId() + 1, Place.of(positions.get(i)).entryId(), positions.get(i));
        }
        Set<String> sent = new HashSet<>();
        int sentMessages = 0;
        for (JsonNode line : Reading.events(recording)) {
            if (line.path("kind").asText().equals("sent")) {
                for (JsonNode size : line.get("batch_sizes")) {
                    sentMessages += size.asInt();
                }
                for (JsonNode position : line.get("positions")) {
                    int number = (int) Place.of(position.asText()).entryId();
                    assertTrue(sent.add(line.get("subscription").asText() + " " + number), "sent once: " + line);
                }
            }
        }
        assertEquals(received.size(), sentMessages);
        if (!batches) {
            assertEquals(received, sent);
        }
        assertTrue(dropped > 0, "the broker dropped nothing");
        long before = entries(messages, 0, 5);
        long behind = entries(messages, published - 3, published);
        long offered = 3L * (positions.size() - before - behind);
        assertEquals(offered - sent.size(), dropped, "each entry was offered to three subscriptions, and the broker counts its drops");
    }

    /** The entries that hold messages from one number to before another; none holds some of both sides. */
    private static long entries(List<JsonNode> messages, int from, int to) {
        long found = 0;
        int number = 0;
        for (JsonNode line : messages) {
            found += number >= from && number < to ? 1 : 0;
            number += line.get("num_messages").asInt();
        }
        return found;
    }

    private Consumer<String> consumer(PulsarClient client, SubscriptionType type, String name) throws Exception {
        return client.newConsumer(Schema.STRING).topic(topic).subscriptionName(type.name()).consumerName(name).subscriptionType(type)
                .receiverQueueSize(QUEUE).subscribe();
    }

    private void publish(Producer<String> producer, int count) throws Exception {
        List<CompletableFuture<?>> acknowledged = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            acknowledged.add(producer.newMessage().key("key-" + published % KEYS).value(Integer.toString(published++)).sendAsync());
        }
        for (CompletableFuture<?> each : acknowledged) {
            each.get(30, TimeUnit.SECONDS);
        }
    }

    /** Receive until nothing more comes; the permits of what was taken have reached the broker by then. */
    private static void take(List<List<Consumer<String>>> all, Set<String> received) throws Exception {
        for (boolean any = true; any;) {
            any = false;
            for (List<Consumer<String>> consumers : all) {
                for (Consumer<String> consumer : consumers) {
                    for (Message<String> message = consumer.receive(100, TimeUnit.MILLISECONDS); message != null;
                            message = consumer.receive(100, TimeUnit.MILLISECONDS)) {
                        any = true;
                        assertTrue(received.add(consumer.getSubscription() + " " + message.getValue()), "received once");
                    }
                }
            }
        }
        Thread.sleep(300);
    }

    /** The entries that the broker has counted as dropped, of all subscriptions. */
    private long dropped(PulsarService service) {
        Topic served = service.getBrokerService().getTopicReference(topic).orElseThrow();
        return served.getSubscriptions().values().stream().map(Subscription::getDispatcher)
                .mapToLong(dispatcher -> ((NonPersistentDispatcher) dispatcher).getMessageDropRate().getTotalCount()).sum();
    }
}
