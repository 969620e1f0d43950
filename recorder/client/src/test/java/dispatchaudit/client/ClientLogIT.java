package dispatchaudit.client;

import dispatchaudit.harness.StandaloneBroker;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.junit.jupiter.api.Test;

/** Two consumers of a partitioned topic: batches, negative acknowledgements, an unload, a consumer that leaves. */
class ClientLogIT {
    private static final String TOPIC = "persistent://public/default/client-log";
    private static final int MESSAGES = 300;

    @Test
    void twoConsumersNacksUnload() throws Exception {
        Path folder = Path.of(System.getProperty("client.it.directory"), "client-log").toAbsolutePath();
        Path logs = folder.resolve("logs");
        try (StandaloneBroker broker = StandaloneBroker.fresh(folder, Map.of());
                PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(broker.webUrl()).build();
                PulsarClient client = PulsarClient.builder().serviceUrl(broker.url()).build()) {
            Files.createDirectories(logs);
            admin.topics().createPartitionedTopic(TOPIC, 2);
            List<Consumer<String>> consumers = new ArrayList<>();
            List<ClientLogInterceptor<String>> written = new ArrayList<>();
            for (String name : List.of("w1", "w2")) {
                ClientLogInterceptor<String> log = new ClientLogInterceptor<>(logs, "Key_Shared");
                written.add(log);
                consumers.add(client.newConsumer(Schema.STRING).topic(TOPIC).subscriptionName("audit").consumerName(name)
                        .subscriptionType(SubscriptionType.Key_Shared).receiverQueueSize(50)
                        .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                        .intercept(log).subscribe());
            }
            Producer<String> producer = client.newProducer(Schema.STRING).topic(TOPIC).batcherBuilder(BatcherBuilder.KEY_BASED)
                    .batchingMaxPublishDelay(20, TimeUnit.MILLISECONDS).create();
            publish(producer);
            consume(consumers, MESSAGES / 3, 7);
            admin.topics().unload(TOPIC);
            consume(consumers, Integer.MAX_VALUE, 11);
            publish(producer);
            consume(consumers, MESSAGES / 2, Integer.MAX_VALUE);
            consumers.remove(0).close();
            written.remove(0).close();
            consume(consumers, Integer.MAX_VALUE, Integer.MAX_VALUE);
            consumers.remove(0).close();
            written.remove(0).close();
        }
    }

    private static void publish(Producer<String> producer) throws Exception {
        for (int at = 0; at < MESSAGES; at++) {
            producer.newMessage().key("key-" + at % 40).value("m" + at).sendAsync();
        }
        producer.flush();
    }

    /** Acknowledge up to {@code most} messages; negatively every {@code nacked}-th one. Ends when nothing comes for a while. */
    private static void consume(List<Consumer<String>> consumers, int most, int nacked) throws Exception {
        int received = 0;
        for (int quiet = 0; quiet < 6 && received < most;) {
            quiet++;
            for (Consumer<String> consumer : consumers) {
                Message<String> message;
                while (received < most && (message = consumer.receive(200, TimeUnit.MILLISECONDS)) != null) {
                    quiet = 0;
                    if (++received % nacked == 0) {
                        consumer.negativeAcknowledge(message);
                    } else {
                        consumer.acknowledge(message);
                    }
                }
            }
        }
    }
}
