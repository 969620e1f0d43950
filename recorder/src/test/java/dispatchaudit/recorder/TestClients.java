package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertTrue;

import dispatchaudit.harness.Witness;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;

/** Java clients of one topic and subscription, with their {@link Witness}. For one thread. */
final class TestClients implements AutoCloseable {
    static final int KEYS = 20;
    private static final long QUIET_MS = 1500;
    private static final long GIVE_UP_MS = 40_000;

    final String topic;
    final Witness witness;
    final PulsarClient client;
    private final String url;
    private final Set<Integer> open = ConcurrentHashMap.newKeySet();
    private int published;
    private int taken;

    TestClients(RealBroker broker, Path folder, String topic) throws Exception {
        this.url = broker.url();
        this.topic = topic;
        this.witness = new Witness(folder, "java");
        this.client = another();
    }

    /** A client with a connection of its own. */
    PulsarClient another() throws Exception {
        return PulsarClient.builder().serviceUrl(url).build();
    }

    ConsumerBuilder<String> consumer(PulsarClient of, String name) {
        return of.newConsumer(Schema.STRING).topic(topic).subscriptionName("audit").consumerName(name)
                .subscriptionType(SubscriptionType.Key_Shared).receiverQueueSize(50).acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                .negativeAckRedeliveryDelay(300, TimeUnit.MILLISECONDS);
    }

    Consumer<String> join(ConsumerBuilder<String> builder) throws Exception {
        Consumer<String> consumer = builder.subscribe();
        witness.note("joined", consumer.getConsumerName());
        return consumer;
    }

    void leave(Consumer<String> consumer) throws Exception {
        witness.note("left", consumer.getConsumerName());
        consumer.close();
    }

    /** Publish this many messages, cycling over the keys, and wait until all are stored. */
    void publish(Producer<String> producer, int count) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        int first = published;
        for (int i = 0; i < count; i++) {
            open.add(published);
            sent.add(producer.newMessage().key(key(published)).value(Integer.toString(published++)).sendAsync());
        }
        for (int i = 0; i < count; i++) {
            witness.published(sent.get(i).get(30, TimeUnit.SECONDS), key(first + i), first + i);
        }
    }

    private static String key(int number) {
        return "key-" + number % KEYS;
    }

    /** Receive about this many messages in turn; every {@code nackEvery}-th is acknowledged negatively. */
    void consume(List<Consumer<String>> consumers, int count, int nackEvery) throws Exception {
        int until = taken + count;
        for (int idle = 0; taken < until && idle < 20;) {
            boolean any = false;
            for (Consumer<String> consumer : consumers) {
                Message<String> message = receive(consumer, 50);
                if (message != null) {
                    any = true;
                    if (taken % nackEvery == 0) {
                        witness.message("nacked", consumer.getConsumerName(), message);
                        consumer.negativeAcknowledge(message);
                    } else {
                        acknowledge(consumer, message);
                    }
                }
            }
            idle = any ? 0 : idle + 1;
        }
    }

    /** Receive and acknowledge until everything published is acknowledged, and nothing more comes. */
    void drain(List<Consumer<String>> consumers) throws Exception {
        long quietSince = System.nanoTime();
        while (!open.isEmpty() || System.nanoTime() - quietSince < TimeUnit.MILLISECONDS.toNanos(QUIET_MS)) {
            assertTrue(System.nanoTime() - quietSince < TimeUnit.MILLISECONDS.toNanos(GIVE_UP_MS),
                    "nothing comes any more, and not acknowledged are: " + open);
            for (Consumer<String> consumer : consumers) {
                Message<String> message = receive(consumer, 20);
                if (message != null) {
                    quietSince = System.nanoTime();
                    acknowledge(consumer, message);
                }
            }
        }
    }

    /** Receive a message; null = none came in time. */
    Message<String> receive(Consumer<String> consumer, int timeoutMs) throws Exception {
        Message<String> message = consumer.receive(timeoutMs, TimeUnit.MILLISECONDS);
        if (message != null) {
            taken++;
            witness.message("received", consumer.getConsumerName(), message);
        }
        return message;
    }

    void acknowledge(Consumer<String> consumer, Message<String> message) throws Exception {
        witness.message("acked", consumer.getConsumerName(), message);
        consumer.acknowledge(message);
        open.remove(Integer.valueOf(message.getValue()));
    }

    @Override
    public void close() throws Exception {
        client.close();
        witness.close();
    }
}
