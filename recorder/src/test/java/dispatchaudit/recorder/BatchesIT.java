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
                ClientLife life = new ClientLife(broker, folder, "persistent://public/default/java-batches")) {
            Consumer<String> first = life.join(consumer(life, life.client, "c1"));
            PulsarClient crashing = life.another();
            Consumer<String> second = life.join(consumer(life, crashing, "c2"));
            Producer<String> producer = life.client.newProducer(Schema.STRING).topic(life.topic).enableBatching(true)
                    .batcherBuilder(BatcherBuilder.KEY_BASED).batchingMaxMessages(200)
                    .batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS).create();
            life.publish(producer, MESSAGES);
            // every other message of what both got, so that most entries are acknowledged in part
            for (Consumer<String> consumer : List.of(first, second)) {
                List<Message<String>> held = new ArrayList<>();
                for (Message<String> one = life.receive(consumer, 1000); one != null; one = life.receive(consumer, 300)) {
                    held.add(one);
                }
                for (int i = 0; i < held.size(); i += 2) {
                    life.acknowledge(consumer, held.get(i));
                }
                for (int i = 1; i < held.size() && consumer == first; i += 2) {
                    life.acknowledge(consumer, held.get(i));
                }
            }
            Thread.sleep(1500); // what was acknowledged has reached the broker, so the crash takes nothing back
            life.witness.note("killed", "c2");
            crashing.shutdown();
            life.drain(List.of(first));
            Consumer<String> third = life.join(consumer(life, life.client, "c3"));
            life.publish(producer, MESSAGES);
            life.drain(List.of(first, third));
            life.leave(third);
            life.leave(first);
        }
    }

    /** With room for everything, so that permits never decide who gets what. */
    private static ConsumerBuilder<String> consumer(ClientLife life, PulsarClient client, String name) {
        return life.consumer(client, name).receiverQueueSize(MESSAGES).enableBatchIndexAcknowledgment(true);
    }
}
