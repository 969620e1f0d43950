package dispatchaudit.zoo;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.MissingNode;
import dispatchaudit.harness.StandaloneBroker;
import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.pulsar.broker.service.Dispatcher;
import org.apache.pulsar.broker.service.StickyKeyConsumerSelector;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
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
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.common.naming.TopicName;

/**
 * One schedule on a topic of its own. After each step the consumers receive what has come, and the promises are checked as
 * {@code dispatch_core.hunt.promises} checks them, as far as clients can see.
 */
final class Play implements AutoCloseable {
    private static final String SUBSCRIPTION = "zoo";
    private static final String NAMESPACE = "public/default";
    /** A policy reaches the topic within so long. */
    private static final int LONGEST_POLICY_MS = 30_000;
    /** What has not come after so many rounds of answers in which nothing moved does not come. */
    private static final int LAST_ROUNDS = 4;
    private static final int QUEUE = 1000;
    /** The broker has an acknowledgement after so long, unless its thread is the one that is stopped. */
    private static final int LONGEST_ACK_MS = 2_000;
    /** The failover delay is over after so long: Zoo's setting is less, and more than a step takes. */
    private static final int LONGEST_DELAY_MS = 60_000;
    /** After so long a read that waits looks again for entries: longer than the failover delay, and by default. */
    private static final int LATE_CHECK_MS = 8_000;
    private static final int CHECK_MS = 10;
    private static final int MANY_PERMITS = 10;

    private final StandaloneBroker broker;
    private final PulsarAdmin admin;
    private final String whole;
    private final String topic;
    private final SubscriptionType type;
    private final boolean outOfOrder;
    private final PulsarClient client;
    private final Producer<byte[]> producer;
    private final List<String> keyOf = new ArrayList<>();
    /** The id of each entry. */
    private final List<MessageId> ids = new ArrayList<>();
    private boolean limited;
    private final Map<String, Consumer<byte[]>> consumers = new LinkedHashMap<>();
    /** Messages that a consumer has received and not answered, by entry. */
    private final Map<String, Map<Integer, List<Message<byte[]>>>> pending = new LinkedHashMap<>();
    private final Map<String, Integer> permits = new LinkedHashMap<>();
    /** Messages that each consumer has received since it joined. */
    private final Map<String, Integer> receipts = new LinkedHashMap<>();
    private final Set<String> hanging = new LinkedHashSet<>();
    /** Consumers of Failover that resets have disconnected: in the end they connect again. */
    private final Set<String> away = new LinkedHashSet<>();
    private final Set<Integer> received = new LinkedHashSet<>();
    private final Set<Integer> acknowledged = new LinkedHashSet<>();
    private boolean skipped;
    /** The consumer that acknowledges while a thread of the broker is stopped, and the stop; {@code null} = no race is due. */
    private String racer;
    private Points.Stop stop;
    private Dispatcher dispatcher;
    private ControlledReads reads;
    private ControlledTimer timer;
    private final ControlledSends sends = new ControlledSends();
    private boolean looksAgainLate;
    private final Rest rest;
    private String broken;
    private final List<String> notes = new ArrayList<>();

    Play(StandaloneBroker broker, PulsarAdmin admin, PulsarClient client, String topic, SubscriptionType type, boolean outOfOrder)
            throws Exception {
        this.broker = broker;
        this.admin = admin;
        this.client = client;
        this.whole = topic;
        // Which consumer is the active one depends on the number of the partition, else on the topic's name.
        this.topic = TopicName.get(topic).getPartition(0).toString();
        this.type = type;
        this.outOfOrder = outOfOrder;
        admin.topics().createPartitionedTopic(topic, 1);
        this.producer = client.newProducer(Schema.BYTES).topic(this.topic).enableBatching(true)
                .batcherBuilder(BatcherBuilder.KEY_BASED).batchingMaxPublishDelay(1, TimeUnit.MINUTES).create();
        admin.topics().createSubscription(this.topic, SUBSCRIPTION, MessageId.earliest);
        readOneEntry();
        this.rest = new Rest(broker, subscription());
    }

    /** The race could not be played: the thread that was stopped had to take the acknowledgement as well. */
    static final class Missed extends Exception {
        Missed(String thread) {
            super("the acknowledgement did not come while " + thread + " was stopped");
        }
    }

    /** What came of each step. */
    List<String> notes() {
        return notes;
    }

    /** Take the steps and let everything settle; returns the promise that was broken first, or {@code kept}. */
    String verdict(JsonNode steps) throws Exception {
        for (JsonNode step : steps) {
            boolean possible = take(step);
            settled();
            receive();
            notes.add(step + (possible ? "" : " (not possible)") + ": " + pendingNow());
            if (broken != null) {
                return broken;
            }
        }
        settle();
        if (broken == null && stop != null) {
            throw new IllegalStateException("no thread has come to the point where " + racer + " races it");
        }
        return broken == null ? "kept" : broken;
    }

    private boolean take(JsonNode step) throws Exception {
        String name = step.path("name").asText();
        if (!name.isEmpty() && consumers.containsKey(name) == step.get("do").asText().equals("join")) {
            return false; // it is connected already, or it is not
        }
        switch (step.get("do").asText()) {
            case "store":
                store(step.get("key").asText(), step.get("messages").asInt());
                return true;
            case "join":
                join(name, step.get("permits").asInt(), step.path("priority").asInt(), step.path("ranges"));
                return true;
            case "leave":
                leave(name);
                return true;
            case "flow":
                grant(name, 1);
                return true;
            case "ack_first":
                return acknowledge(name, first(name, false));
            case "ack_last":
                return acknowledge(name, first(name, true));
            case "ack_up_to":
                return acknowledgeUpTo(name, first(name, true));
            case "ack_part":
                return acknowledgePart(name, first(name, false));
            case "ack_in_scan":
                return race(name, Points.SCAN);
            case "ack_in_round":
                return race(name, Points.ROUND);
            case "nack_first":
                if (type != SubscriptionType.Failover) {
                    return requestAgain(name, first(name, false));
                } // its consumers request everything
                // fall through
            case "nack_all":
                pending.get(name).clear();
                consumers.get(name).redeliverUnacknowledgedMessages();
                return true;
            case "read":
                return reads != null && reads.completeNormalRead();
            case "cursor":
                return reads != null && reads.takeEntries();
            case "replay":
                return reads != null && reads.completeReplayRead();
            case "hang":
                hanging.add(name);
                return true;
            case "clear":
                admin.topics().skipAllMessages(topic, SUBSCRIPTION);
                skipped = true;
                return true;
            case "skip":
                return skip();
            case "reset":
                return reset();
            case "limit":
                limit(step.get("limit").asInt());
                return true;
            case "timer":
                return endTimer();
            case "slow_send":
                return sends.slowDown();
            case "slow_check":
                looksAgainLate = true;
                lookAgainAfter(LATE_CHECK_MS);
                return true;
            case "retry":
                return type != SubscriptionType.Failover || sends.end(); // of others there is no rest before its timer has ended
            default:
                throw new IllegalArgumentException("no step of a schedule: " + step);
        }
    }

    /** End the unblock timer, or wait for the end of the failover delay; false = none runs. */
    private boolean endTimer() throws Exception {
        if (type != SubscriptionType.Failover) {
            return timer != null && timer.end();
        }
        long until = System.nanoTime() + LONGEST_DELAY_MS * 1_000_000L;
        boolean runs = false;
        while (dispatcher != null && Rest.valueOf(dispatcher, "readOnActiveConsumerTask") != null) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException("the failover delay does not end");
            }
            runs = true;
            Thread.sleep(1);
        }
        return runs;
    }

    /** Have reads that wait from now on look again after a time (managedLedgerNewEntriesCheckDelayInMillis). */
    private void lookAgainAfter(int waitMs) throws Exception {
        ((PersistentTopic) subscription().getTopic()).getManagedLedger().getConfig().setNewEntriesCheckDelayInMillis(waitMs);
    }

    /** Wait until the broker has all commands, and has done what follows from them. */
    private void settled() throws Exception {
        rest.await(consumers.values(), dispatcher, reads, this::meet);
    }

    /** Stop the next thread that comes to a point; what the consumer holds first is acknowledged then. */
    private boolean race(String name, String point) {
        if (stop != null) {
            return false;
        }
        racer = name;
        stop = Points.stopAt(point);
        return true;
    }

    /** Let the acknowledgement come, and the thread go on, if a thread is stopped. */
    private void meet() throws Exception {
        if (stop == null || !stop.isReached(0)) {
            return;
        }
        Integer entry = pending.containsKey(racer) ? first(racer, false) : null;
        if (entry != null) {
            int before = unackedOf(racer);
            acknowledge(racer, entry);
            long until = System.nanoTime() + LONGEST_ACK_MS * 1_000_000L;
            while (unackedOf(racer) == before && System.nanoTime() < until) {
                Thread.sleep(1);
            }
            if (unackedOf(racer) == before || stop.isOver()) {
                throw new Missed(stop.thread().getName());
            }
        }
        notes.add(racer + " acknowledges " + entry + " while " + stop.thread().getName() + " is stopped");
        stop.end();
        stop = null;
    }

    private int unackedOf(String name) {
        return dispatcher.getConsumers().stream().filter(consumer -> consumer.consumerName().equals(name)).findFirst()
                .orElseThrow().getUnackedMessages();
    }

    /** Let the cursor read an entry: its first read asks for one entry only, whatever the permits are (applyMaxSizeCap). */
    private void readOneEntry() throws Exception {
        producer.newMessage().key("before").value(new byte[1]).sendAsync();
        producer.flush();
        ManagedCursor cursor = subscription().getCursor();
        for (Entry entry : cursor.readEntries(1)) {
            cursor.markDelete(entry.getPosition());
            entry.release();
        }
    }

    private PersistentSubscription subscription() throws Exception {
        return (PersistentSubscription) broker.service().getBrokerService().getTopicReference(topic).orElseThrow()
                .getSubscription(SUBSCRIPTION);
    }

    // --- clients ---------------------------------------------------------------------------------------------------

    private void store(String key, int messages) throws Exception {
        int entry = keyOf.size();
        keyOf.add(key);
        CompletableFuture<MessageId> first = null;
        for (int index = 0; index < messages; index++) {
            CompletableFuture<MessageId> sent = producer.newMessage().key(key).value(Integer.toString(entry).getBytes()).sendAsync();
            if (index == 0) {
                first = sent;
            }
        }
        producer.flush();
        ids.add(first.get());
    }

    private void leave(String name) throws Exception {
        consumers.remove(name).close();
        pending.remove(name);
        permits.remove(name);
        hanging.remove(name);
    }

    /** Skip the first entry that is not acknowledged. */
    private boolean skip() throws Exception {
        for (int entry = 0; entry < keyOf.size(); entry++) {
            if (acknowledged.add(entry)) {
                admin.topics().skipMessages(topic, SUBSCRIPTION, 1);
                return true;
            }
        }
        return false;
    }

    /**
     * Reset the cursor to the first entry. The broker disconnects consumers: all, of Failover the active one. Their clients would
     * connect again by themselves after a long time (Zoo), so they are closed then.
     */
    private boolean reset() throws Exception {
        if (ids.isEmpty()) {
            return false;
        }
        admin.topics().resetCursor(topic, SUBSCRIPTION, ids.get(0));
        List<String> connected = dispatcher == null ? List.of() : dispatcher.getConsumers().stream()
                .map(org.apache.pulsar.broker.service.Consumer::consumerName).toList();
        for (String name : consumers.keySet().stream().filter(name -> !connected.contains(name)).toList()) {
            leave(name);
            away.add(name);
        }
        received.clear();
        acknowledged.clear();
        skipped = false;
        return true;
    }

    /** Set the limit of unacknowledged messages per consumer by a policy of the namespace; 0 = the broker's own. */
    private void limit(int messages) throws Exception {
        limited = messages > 0;
        if (limited) {
            admin.namespaces().setMaxUnackedMessagesPerConsumer(NAMESPACE, messages);
        } else {
            admin.namespaces().removeMaxUnackedMessagesPerConsumer(NAMESPACE);
        }
        PersistentTopic persistent = (PersistentTopic) subscription().getTopic();
        int expected = limited ? messages : broker.service().getConfiguration().getMaxUnackedMessagesPerConsumer();
        long until = System.nanoTime() + LONGEST_POLICY_MS * 1_000_000L;
        while (persistent.getHierarchyTopicPolicies().getMaxUnackedMessagesOnConsumer().get() != expected) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException("the topic does not hear of the policy");
            }
            Thread.sleep(1);
        }
    }

    private void join(String name, int count, int priority, JsonNode ranges) throws Exception {
        ConsumerBuilder<byte[]> builder = client.newConsumer(Schema.BYTES).topic(topic).subscriptionName(SUBSCRIPTION)
                .subscriptionType(type).consumerName(name).receiverQueueSize(QUEUE).startPaused(true)
                .enableBatchIndexAcknowledgment(true).acknowledgmentGroupTime(0, TimeUnit.MILLISECONDS).priorityLevel(priority);
        if (type == SubscriptionType.Key_Shared) {
            KeySharedPolicy policy = KeySharedPolicy.autoSplitHashRange();
            if (ranges.isArray()) {
                List<Range> all = new ArrayList<>();
                ranges.forEach(range -> all.add(Range.of(range.get(0).asInt(), range.get(1).asInt())));
                policy = KeySharedPolicy.stickyHashRange().ranges(all);
            }
            builder.keySharedPolicy(policy.setAllowOutOfOrderDelivery(outOfOrder));
        }
        consumers.put(name, builder.subscribe());
        pending.put(name, new LinkedHashMap<>());
        permits.put(name, 0);
        receipts.put(name, 0);
        if (subscription().getDispatcher() != dispatcher) {
            dispatcher = subscription().getDispatcher();
            reads = ControlledReads.of(dispatcher, type == SubscriptionType.Failover);
            timer = ControlledTimer.of(dispatcher);
            sends.control(dispatcher);
        }
        grant(name, count);
    }

    /** Grant permits; the client grants none by itself, because it is paused. */
    private void grant(String name, int count) throws Exception {
        Consumer<byte[]> consumer = consumers.get(name);
        Object connection = method(consumer, "cnx", 0).invoke(consumer);
        method(consumer, "sendFlowPermitsToBroker", 2).invoke(consumer, connection, count);
        permits.merge(name, count, Integer::sum);
    }

    private Integer first(String name, boolean last) {
        return pending.get(name).keySet().stream().reduce((entry, other) -> last == entry < other ? other : entry).orElse(null);
    }

    private boolean acknowledge(String name, Integer entry) throws Exception {
        if (entry == null) {
            return false;
        }
        for (Message<byte[]> message : pending.get(name).remove(entry)) {
            consumers.get(name).acknowledge(message);
        }
        acknowledged.add(entry);
        return true;
    }

    /** Acknowledge cumulatively: what others hold up to there is acknowledged, too. */
    private boolean acknowledgeUpTo(String name, Integer entry) throws Exception {
        if (entry == null) {
            return false;
        }
        List<Message<byte[]>> messages = pending.get(name).get(entry);
        consumers.get(name).acknowledgeCumulative(messages.get(messages.size() - 1));
        pending.values().forEach(entries -> entries.keySet().removeIf(earlier -> earlier <= entry));
        for (int earlier = 0; earlier <= entry; earlier++) {
            acknowledged.add(earlier);
        }
        return true;
    }

    private boolean acknowledgePart(String name, Integer entry) throws Exception {
        if (entry == null || pending.get(name).get(entry).size() < 2) {
            return false;
        }
        consumers.get(name).acknowledge(pending.get(name).get(entry).remove(0));
        return true;
    }

    private boolean requestAgain(String name, Integer entry) throws Exception {
        if (entry == null) {
            return false;
        }
        Set<MessageId> ids = new LinkedHashSet<>();
        for (Message<byte[]> message : pending.get(name).remove(entry)) {
            ids.add(message.getMessageId());
        }
        Consumer<byte[]> consumer = consumers.get(name);
        method(consumer, "redeliverUnacknowledgedMessages", 1).invoke(consumer, ids);
        return true;
    }

    private static Method method(Object target, String name, int parameters) {
        for (Class<?> type = target.getClass(); type != null; type = type.getSuperclass()) {
            for (Method method : type.getDeclaredMethods()) {
                if (method.getName().equals(name) && method.getParameterCount() == parameters) {
                    method.setAccessible(true);
                    return method;
                }
            }
        }
        throw new IllegalStateException(target.getClass() + " has no " + name);
    }

    // --- promises --------------------------------------------------------------------------------------------------

    /** Receive what has come; returns whether anything has. */
    private boolean receive() throws Exception {
        Set<Integer> before = new LinkedHashSet<>(received);
        boolean came = false;
        for (Map.Entry<String, Consumer<byte[]>> consumer : consumers.entrySet()) {
            Message<byte[]> message = consumer.getValue().receive(0, TimeUnit.MILLISECONDS);
            while (message != null) {
                came = true;
                note(consumer.getKey(), Integer.parseInt(new String(message.getValue())), message, before);
                message = consumer.getValue().receive(0, TimeUnit.MILLISECONDS);
            }
        }
        return came;
    }

    private void note(String name, int entry, Message<byte[]> message, Set<Integer> before) {
        permits.merge(name, -1, Integer::sum);
        receipts.merge(name, 1, Integer::sum);
        String key = keyOf.get(entry);
        boolean inOrder = type != SubscriptionType.Shared && !outOfOrder;
        List<Message<byte[]>> messages = pending.get(name).get(entry);
        boolean same = messages != null && messages.stream().anyMatch(other -> other.getMessageId().equals(message.getMessageId()));
        for (Map.Entry<String, Map<Integer, List<Message<byte[]>>>> other : pending.entrySet()) {
            if (other.getValue().containsKey(entry) && !other.getKey().equals(name)) {
                same = true;
            }
            boolean ofKey = other.getValue().keySet().stream().anyMatch(held -> held != entry && keyOf.get(held).equals(key));
            if (inOrder && ofKey && !other.getKey().equals(name) && broken == null && !same) {
                broken = "split_key";
            }
        }
        if (same && broken == null) {
            broken = "double_outstanding";
        }
        boolean overtaken = before.stream().anyMatch(later -> later > entry && keyOf.get(later).equals(key));
        if (inOrder && overtaken && !received.contains(entry) && broken == null) {
            broken = "out_of_order";
        }
        received.add(entry);
        pending.get(name).computeIfAbsent(entry, none -> new ArrayList<>()).add(message);
    }

    /** Let clients acknowledge all and grant permits, and reads complete, until nothing moves. */
    private void settle() throws Exception {
        int quiet = 0;
        if (looksAgainLate) {
            Thread.sleep(LATE_CHECK_MS);
            lookAgainAfter(CHECK_MS);
        }
        for (String name : type == SubscriptionType.Failover ? away : Set.<String>of()) {
            if (!consumers.containsKey(name)) {
                join(name, MANY_PERMITS, 0, MissingNode.getInstance());
            }
        }
        while (quiet < LAST_ROUNDS && broken == null) {
            boolean moved = receive();
            for (String name : consumers.keySet()) {
                if (hanging.contains(name)) {
                    continue;
                }
                while (acknowledge(name, first(name, false))) {
                    moved = true;
                }
                if (permits.get(name) <= 0) {
                    grant(name, MANY_PERMITS);
                    moved = true;
                }
            }
            settled();
            boolean replayed = reads != null && reads.completeReplayRead();
            settled();
            boolean read = reads != null && reads.completeNormalRead();
            settled();
            boolean ended = endTimer() | sends.end();
            settled();
            moved |= receive() || replayed || read || ended;
            quiet = moved ? 0 : quiet + 1;
            notes.add("settling" + (replayed ? ", a replay read" : "") + (read ? ", a normal read" : "")
                    + (ended ? ", the end of the timer" : "") + ": " + pendingNow());
        }
        if (broken == null && !consumers.isEmpty()) {
            noteWhatIsLeft();
        }
    }

    private void noteWhatIsLeft() throws Exception {
        Set<String> stays = new LinkedHashSet<>();
        pending.values().forEach(entries -> entries.keySet().forEach(entry -> stays.add(keyOf.get(entry))));
        for (int entry = 0; entry < keyOf.size(); entry++) {
            String key = keyOf.get(entry);
            boolean waits = !skipped && !acknowledged.contains(entry) && !isPending(entry) && !stays.contains(key);
            if (waits && broken == null && !hanging.contains(ownerOf(key))) {
                broken = hanging.isEmpty() ? "stuck" : "starved";
            }
        }
        if (type == SubscriptionType.Failover) { // its dispatcher counts no permits
            noteWhatClientsDiscard();
            return;
        }
        int total = number(dispatcher, "totalAvailablePermits");
        int sum = 0;
        int unacked = 0;
        for (org.apache.pulsar.broker.service.Consumer consumer : dispatcher.getConsumers()) {
            sum += consumer.getAvailablePermits();
            unacked += consumer.getUnackedMessages();
        }
        notes.add("permits " + total + " in all, " + sum + " of the consumers; unacknowledged " + unacked);
        if (broken == null && hanging.isEmpty() && (unacked != 0 || total != sum)) {
            broken = "leak";
        }
    }

    /**
     * A client discards what was read before its last redelivery request (the consumer's epoch, PIP-84), so only the broker's own
     * counter tells that it was sent twice.
     */
    private void noteWhatClientsDiscard() throws Exception {
        for (org.apache.pulsar.broker.service.Consumer consumer : dispatcher.getConsumers()) {
            long sent = consumer.getStats().getMsgOutCounter();
            notes.add(consumer.consumerName() + " was sent " + sent + " messages, and received " + receipts.get(consumer.consumerName()));
            if (broken == null && sent > receipts.get(consumer.consumerName())) {
                broken = "double_outstanding";
            }
        }
    }

    /** The name of the consumer that owns a key; {@code null} = the subscription has no owners. */
    private String ownerOf(String key) throws Exception {
        if (type != SubscriptionType.Key_Shared) {
            return null;
        }
        StickyKeyConsumerSelector selector = (StickyKeyConsumerSelector) method(dispatcher, "getSelector", 0).invoke(dispatcher);
        org.apache.pulsar.broker.service.Consumer owner = selector.select(key.getBytes());
        return owner == null ? null : owner.consumerName();
    }

    private boolean isPending(int entry) {
        return pending.values().stream().anyMatch(entries -> entries.containsKey(entry));
    }

    private static int number(Object target, String name) {
        return ((Number) Rest.valueOf(target, name)).intValue();
    }

    private String pendingNow() {
        Map<String, Set<Integer>> entries = new LinkedHashMap<>();
        pending.forEach((name, held) -> entries.put(name, held.keySet()));
        return entries.toString();
    }

    @Override
    public void close() throws Exception {
        if (stop != null) {
            stop.end();
        }
        if (reads != null) {
            timer.release();
            sends.release();
            reads.release();
        }
        for (Consumer<byte[]> consumer : consumers.values()) {
            consumer.close();
        }
        if (limited) {
            limit(0);
        }
        producer.close();
        admin.topics().deletePartitionedTopic(whole, true);
    }
}
