package dispatchaudit.soak;

import dispatchaudit.harness.Witness;
import dispatchaudit.soak.Script.Step;
import dispatchaudit.trace.TraceSession;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.common.policies.data.ManagedLedgerInternalStats.CursorStats;

/** The run of one script on its own topic. For one thread. */
final class Play implements AutoCloseable {
    private static final String SUBSCRIPTION = "audit";
    private static final int QUIET_AT_MOST_MS = 1000;
    private static final int RACING_MS = 100;
    private static final int STATE_TRIES = 10;
    /** Rounds of the drain that bring nothing, at most; the others end by themselves, with the messages. */
    private static final int EMPTY_ROUNDS = 120;
    /** Rounds of the drain in which nothing happens; a limit or a delay may still hold something back. */
    private static final int IDLE_ROUNDS = 4;
    /** How long messages that nobody gets are waited for, so that the audit names them: longer than its limit stuck_key_ms. */
    private static final int STUCK_MS = 11_000;
    /** Lines without a message mean nothing after this time: a dispatcher may try to read for ever. */
    private static final int TRIES_MS = 5000;
    private static final int POLICY_MS = 700;
    private static final int RECONNECT_MS = 10_000;
    /** A delayed message is sent so long after its time at the latest, delayedDeliveryTickTimeMillis of the broker included. */
    private static final int DELAY_TICK_MS = 1500;

    private final Script script;
    private final String url;
    private final Administration administration;
    private final TraceSession session;
    private final Witness witness;
    private final PulsarClient client;
    private final String topic;
    private final Map<String, SoakConsumer> consumers = new LinkedHashMap<>();
    private final Producer<String> producer;
    private BusyMachine busy;
    private int published;
    private boolean limited;
    /** When all delayed messages so far are due. */
    private long dueMs;

    Play(Script script, String url, Administration administration, TraceSession session, Witness witness) throws Exception {
        this.script = script;
        this.url = url;
        this.administration = administration;
        this.session = session;
        this.witness = witness;
        this.client = PulsarClient.builder().serviceUrl(url).build();
        this.topic = administration.create("persistent://public/default/soak-" + script.name(), script.partitions(), script.partition());
        administration.subscribe(topic, SUBSCRIPTION);
        ProducerBuilder<String> builder = client.newProducer(Schema.STRING).topic(topic).blockIfQueueFull(true)
                .enableBatching(script.batching());
        if (script.batching()) {
            builder.batcherBuilder(script.mixedKeys() ? BatcherBuilder.DEFAULT : BatcherBuilder.KEY_BASED)
                    .batchingMaxMessages(script.batchMessages() == 0 ? 5 : script.batchMessages())
                    .batchingMaxPublishDelay(5, TimeUnit.MILLISECONDS);
        }
        this.producer = builder.create();
    }

    /** Do all steps, then receive and acknowledge what is left. */
    void run() throws Exception {
        for (Step step : script.steps()) {
            perform(step);
            if (script.quietMs() > 0) {
                quiet(script.quietMs());
            }
        }
        drain();
    }

    private void perform(Step step) throws Exception {
        SoakConsumer consumer = consumers.get(step.consumer());
        if (step.consumer() != null && consumer == null && !step.what().equals("join")) {
            return;
        }
        switch (step.what()) {
            case "join" -> join(step);
            case "leave" -> consumers.remove(step.consumer()).leave();
            case "crash" -> consumers.remove(step.consumer()).crash();
            case "publish" -> publish(step);
            case "receive" -> consumer.receive(step.count());
            case "ack" -> consumer.acknowledge(step.count(), step.random());
            case "ack_cumulative" -> consumer.acknowledgeCumulatively(step.count());
            case "ack_parts" -> consumer.acknowledgeParts(step.count(), step.random());
            case "nack" -> consumer.refuse(step.count(), step.random());
            case "redeliver_all" -> consumer.redeliver();
            case "pause" -> Thread.sleep(step.count());
            case "busy" -> busy(step.count() > 0);
            case "skip", "clear_backlog", "expire", "reset", "seek" -> moveCursor(step, consumer);
            case "dispatch_rate" -> limit("dispatch_rate", step.count(), () -> administration.dispatchRate(step.count()));
            case "unacked_limit" -> limit("unacked_namespace", step.count(), () -> administration.unackedLimit(step.count()));
            case "compact" -> administration.compact(topic);
            case "unload" -> unload();
            case "delete_subscription" -> deleteSubscription(consumer, step.consumer());
            default -> throw new IllegalArgumentException("no such step: " + step.what());
        }
    }

    private void join(Step step) throws Exception {
        if (consumers.containsKey(step.consumer())) {
            return;
        }
        SubscriptionType type = SubscriptionType.valueOf(script.type());
        PulsarClient own = PulsarClient.builder().serviceUrl(url).ioThreads(1).listenerThreads(1).build();
        ConsumerBuilder<String> builder = own.newConsumer(Schema.STRING).topic(topic).subscriptionName(SUBSCRIPTION)
                .subscriptionType(type).consumerName(step.consumer()).receiverQueueSize(step.queue()).priorityLevel(step.priority())
                .enableBatchIndexAcknowledgment(true).readCompacted(step.readCompacted())
                .acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).negativeAckRedeliveryDelay(40, TimeUnit.MILLISECONDS);
        if (type == SubscriptionType.Key_Shared) {
            KeySharedPolicy policy = step.ranges() == null ? KeySharedPolicy.autoSplitHashRange() : KeySharedPolicy.stickyHashRange()
                    .ranges(Arrays.stream(step.ranges()).map(range -> Range.of(range[0], range[1])).toArray(Range[]::new));
            builder.keySharedPolicy(policy.setAllowOutOfOrderDelivery(step.outOfOrder()));
        }
        try {
            Consumer<String> consumer = builder.subscribe();
            witness.joined(step.consumer(), type == SubscriptionType.Key_Shared ? null : script.type());
            consumers.put(step.consumer(), new SoakConsumer(step.consumer(), own, consumer, witness));
        } catch (PulsarClientException refused) {
            note("subscribe_rejected", Map.of("name", step.consumer(), "error", refused.getClass().getSimpleName()));
            own.close();
        }
    }

    private void publish(Step step) throws Exception {
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (String key : step.keys()) {
            TypedMessageBuilder<String> message = producer.newMessage().value(Integer.toString(published + sent.size()));
            if (key != null) {
                message.key(key);
            }
            if (step.delayMs() > 0) {
                message.deliverAfter(step.delayMs(), TimeUnit.MILLISECONDS);
                dueMs = System.currentTimeMillis() + step.delayMs() + DELAY_TICK_MS;
            }
            sent.add(message.sendAsync());
        }
        producer.flush();
        for (int i = 0; i < sent.size(); i++) {
            witness.published(sent.get(i).get(30, TimeUnit.SECONDS), step.keys().get(i), published++);
        }
    }

    private void moveCursor(Step step, SoakConsumer consumer) throws Exception {
        note("step", Map.of("note", step.what()));
        switch (step.what()) {
            case "skip" -> administration.skip(topic, SUBSCRIPTION, step.count());
            case "clear_backlog" -> administration.clearBacklog(topic, SUBSCRIPTION);
            case "expire" -> administration.expire(topic, SUBSCRIPTION, step.count());
            case "reset" -> administration.reset(topic, SUBSCRIPTION, step.count());
            default -> consumer.consumer.seek(administration.away(topic, SUBSCRIPTION, step.count()));
        }
        quiet(250);
        state(step.what());
        if (step.what().equals("reset") || step.what().equals("seek")) {
            for (SoakConsumer each : consumers.values()) {
                each.refused(); // they were disconnected, and connect again
            }
        }
    }

    /** Unload the topic, and wait until the clients are connected again. */
    private void unload() throws Exception {
        note("step", Map.of("note", "unload"));
        witness.note("reload", null);
        administration.unload(topic);
        reconnected();
    }

    /** Delete the subscription while one consumer leaves; those that stay make it anew, at the end of the topic. */
    private void deleteSubscription(SoakConsumer leaving, String name) throws Exception {
        note("step", Map.of("note", "delete_subscription"));
        witness.note("reload", null);
        CompletableFuture<Void> deleted = administration.delete(topic, SUBSCRIPTION);
        try {
            consumers.remove(name).leave();
        } catch (PulsarClientException.BrokerMetadataException removed) {
            // The deletion has come first: the broker has removed the consumer already, and says that it was not connected.
            note("step", Map.of("note", "leave refused: " + removed.getClass().getSimpleName()));
        }
        try {
            deleted.get(30, TimeUnit.SECONDS);
        } catch (ExecutionException refused) {
            note("step", Map.of("note", "delete_subscription refused: " + refused.getCause().getClass().getSimpleName()));
        }
        if (consumers.isEmpty()) {
            administration.subscribe(topic, SUBSCRIPTION);
        }
        reconnected();
        for (SoakConsumer each : consumers.values()) {
            each.refused();
        }
    }

    private void reconnected() throws InterruptedException {
        long end = System.currentTimeMillis() + RECONNECT_MS;
        while (System.currentTimeMillis() < end
                && !consumers.values().stream().allMatch(each -> each.consumer.isConnected())) {
            Thread.sleep(10);
        }
        quiet(250);
    }

    /** Set or lift a policy, and wait until the topic has it. The mark stands for a policy that ends before the agent asks for it. */
    private void limit(String what, int value, Policy policy) throws Exception {
        policy.set();
        note("step", Map.of("note", "limit " + what + (value > 0 ? " " + value + " set" : " removed")));
        limited = true;
        Thread.sleep(POLICY_MS);
    }

    private interface Policy {
        void set() throws Exception;
    }

    private void busy(boolean on) throws InterruptedException {
        if (busy != null) {
            busy.end();
            busy = null;
        }
        if (on) {
            busy = new BusyMachine();
            busy.begin();
        }
    }

    private void drain() throws Exception {
        busy(false);
        note("step", Map.of("note", "drain"));
        int idle = 0;
        int empty = 0;
        long lastMs = System.currentTimeMillis();
        while (empty < EMPTY_ROUNDS
                && (idle < IDLE_ROUNDS || System.currentTimeMillis() < dueMs || isStuckSince(lastMs))) {
            int received = 0;
            long before = session.activity();
            for (SoakConsumer consumer : consumers.values()) {
                received += consumer.receive(300);
                consumer.acknowledge(Integer.MAX_VALUE, 0);
            }
            quiet(script.quietMs() > 0 ? script.quietMs() : RACING_MS);
            if (received > 0) {
                lastMs = System.currentTimeMillis();
                idle = 0;
                continue;
            }
            empty++;
            if (session.activity() == before || System.currentTimeMillis() - lastMs > TRIES_MS) {
                idle++;
            }
        }
        state("drain");
    }

    /** Check whether messages may still come, or have not been held back for long enough to say that they never do. */
    private boolean isStuckSince(long lastMs) throws Exception {
        return System.currentTimeMillis() - lastMs < STUCK_MS && !consumers.isEmpty()
                && administration.backlog(topic, SUBSCRIPTION) > 0;
    }

    /**
     * Write where the cursor is when all is quiet, as the broker's statistics show it. What was asked while lines were added is of
     * an earlier moment than the line would be: it is asked again, and no line is written if something always happens.
     */
    private void state(String after) throws Exception {
        for (int i = 0; i < STATE_TRIES; i++) {
            long before = session.activity();
            CursorStats cursor = administration.cursor(topic, SUBSCRIPTION);
            if (cursor == null) {
                return;
            }
            if (session.activity() == before) {
                note("cursor_state", Map.of("after", after, "mark_delete", place(cursor.markDeletePosition), "read_position",
                        place(cursor.readPosition), "individually_deleted", cursor.individuallyDeletedMessages));
                return;
            }
            quiet(RACING_MS);
        }
    }

    /** Return ledger and entry of a position. The broker writes "16:0 (ackSet is null)" for one that may have an ack set. */
    private static String place(String position) {
        return position.split(" ")[0];
    }

    private void note(String kind, Map<String, String> fields) {
        session.note(topic, SUBSCRIPTION, kind, fields);
    }

    /** Wait until no line was added for so long, at most a second: a dispatcher may try to read for ever. */
    private void quiet(int quietMs) throws InterruptedException {
        long end = System.currentTimeMillis() + QUIET_AT_MOST_MS;
        long seen = session.activity();
        long since = System.currentTimeMillis();
        while (System.currentTimeMillis() < end && System.currentTimeMillis() - since < quietMs) {
            Thread.sleep(5);
            long now = session.activity();
            if (now != seen) {
                seen = now;
                since = System.currentTimeMillis();
            }
        }
    }

    @Override
    public void close() throws Exception {
        busy(false);
        if (limited) {
            administration.dispatchRate(0);
            administration.unackedLimit(0);
        }
        for (SoakConsumer consumer : consumers.values()) {
            consumer.leave();
        }
        client.close();
    }
}
