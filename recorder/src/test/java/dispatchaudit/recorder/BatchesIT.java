package dispatchaudit.recorder;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.junit.jupiter.api.Test;

/** Java clients of a Key_Shared subscription whose entries hold several messages, acknowledged one by one within their batch. */
class BatchesIT {
    private static final int MESSAGES = 600;

    @Test
    void partsOfBatchesAreAcknowledged() throws Exception {
        Path folder = Path.of(System.getProperty("recorder.it.directory"), "java-batches").toAbsolutePath();
        try (RealBroker broker = RealBroker.fresh(folder, Map.of("acknowledgmentAtBatchIndexLevelEnabled", "true"));
                TestClients clients = new TestClients(broker, folder, "persistent://public/default/java-batches")) {
            Consumer<String> first = clients.join(consumer(clients, clients.client, "c1"));
            PulsarClient crashing = clients.another();
            Consumer<String> second = clients.join(consumer(clients, crashing, "c2"));
            Producer<String> producer = clients.client.newProducer(Schema.STRING).topic(clients.topic).enableBatching(true)
                    .batcherBuilder(BatcherBuilder.KEY_BASED).batchingMaxMessages(200)
                    .batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS).create();
            clients.publish(producer, MESSAGES);
            // every other message of both consumers, so that most entries are acknowledged in part
            for (Consumer<String> consumer : List.of(first, second)) {
                List<Message<String>> received = new ArrayList<>();
                for (Message<String> message = clients.receive(consumer, 1000); message != null; message = clients.receive(consumer, 300)) {
                    received.add(message);
                }
                for (int i = 0; i < received.size(); i += 2) {
                    clients.acknowledge(consumer, received.get(i));
                }
                for (int i = 1; i < received.size() && consumer == first; i += 2) {
                    clients.acknowledge(consumer, received.get(i));
                }
            }
            Thread.sleep(1500); // all acknowledgements have reached the broker, so the crash loses none
            clients.witness.note("killed", "c2");
            crashing.shutdown();
            clients.drain(List.of(first));
            Consumer<String> third = clients.join(consumer(clients, clients.client, "c3"));
            clients.publish(producer, MESSAGES);
            clients.drain(List.of(first, third));
            clients.leave(third);
            clients.leave(first);
        }
    }

    /** A consumer with a queue for every message, so that permits never matter. */
    private static ConsumerBuilder<String> consumer(TestClients clients, PulsarClient client, String name) {
        return clients.consumer(client, name).receiverQueueSize(MESSAGES).enableBatchIndexAcknowledgment(true);
    }
}
