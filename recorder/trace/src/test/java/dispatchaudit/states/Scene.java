package dispatchaudit.states;

import dispatchaudit.harness.StandaloneBroker;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.broker.service.Dispatcher;
import org.apache.pulsar.broker.service.persistent.DispatchRateLimiter;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.policies.data.DispatchRate;

/** A topic with one subscription, its producer, and its consumers, each with a connection of its own. */
final class Scene implements AutoCloseable {
    static final String SUBSCRIPTION = "orders";
    private static final String NAMESPACE = "public/default";
    private static final int WAIT_MS = 400;
    private static final int POLICY_MS = 30_000;
    /** A new active consumer gets nothing for a second (activeConsumerFailoverDelayTimeMillis). */
    private static final int FAILOVER_MS = 1500;

    private final StandaloneBroker broker;
    private final PulsarAdmin admin;
    private final String topic;
    private final SubscriptionType type;
    private final PulsarClient client;
    private final Producer<String> producer;
    private final Map<String, PulsarClient> clients = new LinkedHashMap<>();
    private final Map<String, Consumer<String>> consumers = new LinkedHashMap<>();
    private final Map<String, List<Message<String>>> held = new LinkedHashMap<>();
    private volatile boolean ends;
    private boolean rateLimited;

    Scene(StandaloneBroker broker, PulsarAdmin admin, String topic, SubscriptionType type) throws Exception {
        this.broker = broker;
        this.admin = admin;
        this.topic = topic;
        this.type = type;
        this.client = PulsarClient.builder().serviceUrl(broker.url()).build();
        this.producer = client.newProducer(Schema.STRING).topic(topic).enableBatching(false).blockIfQueueFull(true).create();
        admin.topics().createSubscription(topic, SUBSCRIPTION, MessageId.earliest);
    }

    /** Connect a consumer with AUTO_SPLIT hash ranges, if the type has any. */
    void join(String name, int queue) throws Exception {
        join(name, queue, KeySharedPolicy.autoSplitHashRange());
    }

    void joinSticky(String name, int queue, Range... ranges) throws Exception {
        join(name, queue, KeySharedPolicy.stickyHashRange().ranges(ranges));
    }

    private void join(String name, int queue, KeySharedPolicy policy) throws Exception {
        PulsarClient own = PulsarClient.builder().serviceUrl(broker.url()).ioThreads(1).listenerThreads(1).build();
        ConsumerBuilder<String> builder = own.newConsumer(Schema.STRING).topic(topic).subscriptionName(SUBSCRIPTION)
                .subscriptionType(type).consumerName(name).receiverQueueSize(queue).acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS)
                .negativeAckRedeliveryDelay(100, TimeUnit.MILLISECONDS)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
        if (type == SubscriptionType.Key_Shared) {
            builder.keySharedPolicy(policy);
        }
        consumers.put(name, builder.subscribe());
        clients.put(name, own);
        held.put(name, new ArrayList<>());
        if (type == SubscriptionType.Failover) {
            Thread.sleep(FAILOVER_MS);
        }
    }

    void leave(String name) throws Exception {
        consumers.remove(name).close();
        clients.remove(name).close();
        held.remove(name);
    }

    /** Publish so many messages, of as many keys. */
    void publish(int messages, int keys) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (int number = 0; number < messages; number++) {
            sent.add(producer.newMessage().key("key-" + number % keys).value("value-" + number).sendAsync());
        }
        CompletableFuture.allOf(sent.toArray(CompletableFuture[]::new)).get(60, TimeUnit.SECONDS);
    }

    /** Publish batches of so many messages each. */
    void publishBatches(int batches, int messages) throws Exception {
        try (Producer<String> batching = client.newProducer(Schema.STRING).topic(topic).enableBatching(true)
                .batcherBuilder(BatcherBuilder.KEY_BASED).batchingMaxMessages(messages)
                .batchingMaxPublishDelay(1, TimeUnit.SECONDS).create()) {
            List<CompletableFuture<MessageId>> sent = new ArrayList<>();
            for (int number = 0; number < batches * messages; number++) {
                sent.add(batching.newMessage().key("key-" + number / messages).value("value-" + number).sendAsync());
            }
            batching.flush();
            CompletableFuture.allOf(sent.toArray(CompletableFuture[]::new)).get(60, TimeUnit.SECONDS);
        }
    }

    /** Publish until the end, one message after each pause. */
    void keepPublishing(int keys, int pauseMs) {
        Thread publisher = new Thread(() -> {
            for (int number = 0; !ends; number++) {
                try {
                    producer.newMessage().key("key-" + number % keys).value("value-" + number).send();
                    Thread.sleep(pauseMs);
                } catch (Exception closed) {
                    return; // the scene has ended
                }
            }
        });
        publisher.setDaemon(true);
        publisher.start();
    }

    void publishDelayed(int messages, int hours) throws Exception {
        for (int number = 0; number < messages; number++) {
            producer.newMessage().value("value-" + number).deliverAfter(hours, TimeUnit.HOURS).send();
        }
    }

    /** Receive and keep what comes, at most so many. */
    void receive(String name, int most) throws Exception {
        for (int received = 0; received < most; received++) {
            Message<String> message = consumers.get(name).receive(WAIT_MS, TimeUnit.MILLISECONDS);
            if (message == null) {
                return;
            }
            held.get(name).add(message);
        }
    }

    /** Acknowledge the first so many of what a consumer keeps. */
    void acknowledge(String name, int count) throws Exception {
        List<Message<String>> first = held.get(name).subList(0, Math.min(count, held.get(name).size()));
        for (Message<String> message : first) {
            consumers.get(name).acknowledge(message);
        }
        first.clear();
    }

    /** Let a consumer receive and acknowledge until the end, with a pause after each message. */
    void work(String name, int pauseMs) {
        Consumer<String> consumer = consumers.get(name);
        Thread worker = new Thread(() -> {
            while (!ends) {
                try {
                    Message<String> message = consumer.receive(WAIT_MS, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        Thread.sleep(pauseMs);
                        consumer.acknowledge(message);
                    }
                } catch (Exception closed) {
                    return; // the scene has ended
                }
            }
        });
        worker.setDaemon(true);
        worker.start();
    }

    /** Let a consumer refuse all that it gets until the end: it comes again at once. */
    void refuseAll(String name) {
        Consumer<String> consumer = consumers.get(name);
        Thread worker = new Thread(() -> {
            while (!ends) {
                try {
                    Message<String> message = consumer.receive(WAIT_MS, TimeUnit.MILLISECONDS);
                    if (message != null) {
                        consumer.negativeAcknowledge(message);
                    }
                } catch (Exception closed) {
                    return; // the scene has ended
                }
            }
        });
        worker.setDaemon(true);
        worker.start();
    }

    /** Set a dispatch rate, and wait until it is in force. A consumer must have joined. */
    void dispatchRate(int messagesPerSecond) throws Exception {
        rateLimited = true;
        admin.namespaces().setSubscriptionDispatchRate(NAMESPACE, DispatchRate.builder()
                .dispatchThrottlingRateInMsg(messagesPerSecond).dispatchThrottlingRateInByte(-1).ratePeriodInSecond(1).build());
        long until = System.currentTimeMillis() + POLICY_MS;
        while (!subscription().getDispatcher().getRateLimiter().map(DispatchRateLimiter::isDispatchRateLimitingEnabled).orElse(false)) {
            if (System.currentTimeMillis() > until) {
                throw new IllegalStateException("the dispatch rate did not reach the dispatcher");
            }
            Thread.sleep(20);
        }
    }

    /** Lose the read that waits for new entries: the cursor forgets it, and the dispatcher still counts on its callback. */
    void loseWaitingRead() throws Exception {
        if (!subscription().getCursor().cancelPendingReadRequest()) {
            throw new IllegalStateException("no read was waiting");
        }
    }

    /** Cancel the waiting read with the dispatcher's own method, after which nobody issues the next one. */
    void stopReading() throws Exception {
        Dispatcher dispatcher = subscription().getDispatcher();
        synchronized (dispatcher) {
            for (Class<?> owner = dispatcher.getClass(); owner != null; owner = owner.getSuperclass()) {
                for (Method method : owner.getDeclaredMethods()) {
                    if (method.getName().equals("cancelPendingRead") && method.getParameterCount() == 0) {
                        method.setAccessible(true);
                        method.invoke(dispatcher);
                        return;
                    }
                }
            }
        }
        throw new IllegalStateException(dispatcher.getClass() + " has no cancelPendingRead");
    }

    private PersistentSubscription subscription() throws Exception {
        return (PersistentSubscription) broker.service().getBrokerService().getTopicReference(topic).orElseThrow()
                .getSubscription(SUBSCRIPTION);
    }

    void pause(int ms) throws InterruptedException {
        Thread.sleep(ms);
    }

    @Override
    public void close() throws Exception {
        ends = true;
        if (rateLimited) {
            admin.namespaces().removeSubscriptionDispatchRate(NAMESPACE);
        }
        for (PulsarClient own : clients.values()) {
            own.close();
        }
        client.close();
    }
}
