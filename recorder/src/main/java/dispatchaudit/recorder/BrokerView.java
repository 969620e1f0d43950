package dispatchaudit.recorder;

import com.google.common.collect.Range;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.BooleanSupplier;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.ManagedLedger;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.bookkeeper.mledger.impl.ManagedCursorImpl;
import org.apache.pulsar.PulsarVersion;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.broker.service.AbstractTopic;
import org.apache.pulsar.broker.service.BrokerService;
import org.apache.pulsar.broker.service.Consumer;
import org.apache.pulsar.broker.service.StickyKeyDispatcher;
import org.apache.pulsar.broker.service.Subscription;
import org.apache.pulsar.broker.service.Topic;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.apache.pulsar.common.api.proto.CommandSubscribe.SubType;
import org.apache.pulsar.common.api.proto.IntRange;
import org.apache.pulsar.common.api.proto.KeySharedMeta;
import org.apache.pulsar.common.api.proto.KeySharedMode;
import org.apache.pulsar.common.naming.SystemTopicNames;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.pulsar.common.policies.data.BacklogQuota.RetentionPolicy;
import org.apache.pulsar.common.policies.data.HierarchyTopicPolicies;
import org.apache.pulsar.common.policies.data.PolicyHierarchyValue;
import org.apache.pulsar.common.policies.data.TransactionBufferStats;
import org.apache.pulsar.common.policies.data.impl.DispatchRateImpl;

/** Reads the broker's objects. Takes only two locks: the cursor's for reading, and that of a consumer's pending acks. */
public final class BrokerView {
    /** The settings that a replay of dispatch needs, under their broker.conf names. A setting that a release lacks is left out. */
    private static final List<String> CONFIG = List.of(
            "activeConsumerFailoverDelayTimeMillis", "activeConsumerFailoverConsistentHashing",
            "subscriptionKeySharedUseConsistentHashing", "subscriptionKeySharedConsistentHashingReplicaPoints",
            "subscriptionKeySharedUseClassicPersistentImplementation", "subscriptionSharedUseClassicPersistentImplementation",
            "keySharedLookAheadMsgInReplayThresholdPerConsumer", "keySharedLookAheadMsgInReplayThresholdPerSubscription",
            "keySharedUnblockingIntervalMs",
            "dispatcherMaxReadBatchSize", "dispatcherMinReadBatchSize", "dispatcherMaxReadSizeBytes",
            "dispatcherMaxRoundRobinBatchSize", "dispatcherRetryBackoffInitialTimeInMs", "dispatcherRetryBackoffMaxTimeInMs",
            "dispatcherDispatchMessagesInSubscriptionThread", "maxUnackedMessagesPerConsumer",
            "maxUnackedMessagesPerSubscription", "maxUnackedMessagesPerBroker", "preciseDispatcherFlowControl",
            "acknowledgmentAtBatchIndexLevelEnabled", "subscriptionKeySharedEnable");
    private static final int MOST_POSITIONS = 10_000;
    private static final String COMPACTION = "__compaction";
    private static final String DEDUPLICATION = "pulsar.dedup";

    private BrokerView() {
    }

    /** Describe the broker: cluster, name, release, settings. */
    public static Settings.Broker describe(PulsarService pulsar) {
        ServiceConfiguration configuration = pulsar.getConfiguration();
        Map<String, Object> config = new LinkedHashMap<>();
        for (String name : CONFIG) {
            try {
                java.lang.reflect.Field field = ServiceConfiguration.class.getDeclaredField(name);
                field.setAccessible(true);
                config.put(name, field.get(configuration));
            } catch (ReflectiveOperationException | RuntimeException unknown) {
                // a setting that this release does not have
            }
        }
        Integer port = configuration.getBrokerServicePort().or(configuration::getBrokerServicePortTls).orElse(0);
        String name = pulsar.getAdvertisedAddress() + ":" + port;
        return new Settings.Broker(configuration.getClusterName(), name, PulsarVersion.getVersion(), config);
    }

    /** True if the broker itself uses the topic. */
    public static boolean isSystemTopic(String topic) {
        TopicName name = TopicName.get(topic);
        return SystemTopicNames.isSystemTopic(name) || name.getNamespace().equals("pulsar/system");
    }

    /** True if the broker itself reads through the subscription: compaction, replication, deduplication. */
    public static boolean isSystemSubscription(PulsarService pulsar, String subscription) {
        return subscription.equals(COMPACTION) || subscription.equals(DEDUPLICATION)
                || subscription.startsWith(pulsar.getConfiguration().getReplicatorPrefix() + ".");
    }

    /**
     * The dispatcher's list of connections, or an empty one. Does not use {@code getDispatcher()}, which takes the
     * subscription's lock: a leaving consumer takes that lock before the dispatcher's, while callers here hold the
     * dispatcher's, so the two could deadlock.
     */
    static List<Consumer> connected(Subscription subscription) {
        return subscription.getConsumers();
    }

    /** The name of a subscription type in the log format. */
    public static String typeName(SubType type) {
        return type == SubType.Key_Shared ? "Key_Shared" : type.name();
    }

    /** The {@code consumer_added} line of a connection. */
    public static Event.ConsumerAdded added(Consumer consumer, int number) {
        return new Event.ConsumerAdded(number, consumer.consumerName(), consumer.consumerId(), consumer.getClientAddress(),
                consumer.getPriorityLevel(), consumer.subType() == SubType.Key_Shared ? keyShared(consumer) : null);
    }

    private static Event.KeyShared keyShared(Consumer consumer) {
        KeySharedMeta meta = consumer.getKeySharedMeta();
        if (meta == null) {
            return new Event.KeyShared("AUTO_SPLIT", false, List.of());
        }
        List<int[]> ranges = new ArrayList<>();
        for (IntRange range : meta.getHashRangesList()) {
            ranges.add(new int[] {range.getStart(), range.getEnd()});
        }
        String mode = meta.getKeySharedMode() == KeySharedMode.STICKY ? "STICKY" : "AUTO_SPLIT";
        return new Event.KeyShared(mode, meta.isAllowOutOfOrderDelivery(), ranges);
    }

    /** The mark-delete position; null outside persistent topics. Takes no lock. */
    static Position markDelete(Subscription subscription) {
        return subscription instanceof PersistentSubscription persistent ? persistent.getCursor().getMarkDeletedPosition() : null;
    }

    /** The number of acknowledged ranges above the mark-delete position; -1 = unknown. */
    static int ackHoles(Subscription subscription) {
        return subscription instanceof PersistentSubscription persistent
                ? persistent.getCursor().getTotalNonContiguousDeletedMessagesRange() : -1;
    }

    /** The topic's last ledger with entries; -1 = unknown. */
    static long lastLedger(Subscription subscription) {
        Position last = subscription instanceof PersistentSubscription persistent
                ? persistent.getCursor().getManagedLedger().getLastConfirmedEntry() : null;
        return last == null ? -1 : last.getLedgerId();
    }

    /** The last entries of the topic's closed ledgers. */
    static Map<Long, Long> lastEntries(Subscription subscription) {
        Map<Long, Long> found = new LinkedHashMap<>();
        if (subscription instanceof PersistentSubscription persistent) {
            ManagedLedger log = persistent.getCursor().getManagedLedger();
            // only the numbers: the class of the values has another name in each release
            for (Long ledger : log.getLedgersInfo().keySet()) {
                Position last = log.getPreviousPosition(PositionFactory.create(ledger, 0));
                found.put(last.getLedgerId(), last.getEntryId());
            }
        }
        return found;
    }

    /** True if the broker serves this object of the subscription: it ends when its topic is unloaded, or it is deleted. */
    public static boolean isServed(BrokerService service, Subscription subscription) {
        Optional<Topic> topic = service.getTopicReference(subscription.getTopicName());
        return topic.isPresent() && topic.get() == subscription.getTopic()
                && topic.get().getSubscription(subscription.getName()) == subscription;
    }

    /** True if the subscription's topic no longer has it: it was deleted. Unloading leaves it there. */
    public static boolean isDeleted(Subscription subscription) {
        return subscription.getTopic().getSubscription(subscription.getName()) != subscription;
    }

    /** Tells whether messages of the subscription expire, or have expired since the last call. */
    static BooleanSupplier expires(Subscription subscription) {
        if (!(subscription instanceof PersistentSubscription persistent)) {
            return () -> false;
        }
        AtomicLong known = new AtomicLong(expired(persistent));
        return () -> {
            long now = expired(persistent);
            return known.getAndSet(now) != now || evicts(persistent.getTopic());
        };
    }

    private static long expired(PersistentSubscription subscription) {
        return subscription.getExpiryMonitor() == null ? 0 : subscription.getExpiryMonitor().getTotalMessageExpired();
    }

    /** True if a policy of the topic lets messages expire, or drops a backlog. */
    private static boolean evicts(Topic topic) {
        HierarchyTopicPolicies policies = topic.getHierarchyTopicPolicies();
        return number(policies.getMessageTTLInSeconds().get()) > 0 || policies.getBackLogQuotaMap().values().stream()
                .anyMatch(quota -> quota.get() != null && quota.get().getPolicy() == RetentionPolicy.consumer_backlog_eviction);
    }

    /**
     * The policies and properties that hold deliveries of the subscription back or leave entries out, with their number or null.
     * Takes no lock of a subscription or dispatcher.
     */
    public static Map<String, Long> limits(Subscription subscription, String type, TopicLog seen) {
        Map<String, Long> found = new LinkedHashMap<>();
        if (!(subscription.getTopic() instanceof AbstractTopic topic)) {
            return found;
        }
        if (!(subscription instanceof PersistentSubscription)) { // nothing else has an effect there
            if (topic.getEntryFilters() != null && !topic.getEntryFilters().isEmpty()) {
                found.put("entry_filter", null);
            }
            return found;
        }
        HierarchyTopicPolicies policies = topic.getHierarchyTopicPolicies();
        rate(found, topic, subscription.getName());
        unacked(found, policies.getMaxUnackedMessagesOnConsumer());
        unacked(found, policies.getMaxUnackedMessagesOnSubscription());
        if (topic.getEntryFilters() != null && !topic.getEntryFilters().isEmpty()) {
            found.put("entry_filter", null);
        }
        if (connected(subscription).stream().anyMatch(Consumer::readCompacted)) {
            found.put("compacted_read", null);
        }
        if (subscription.isReplicated()) {
            found.put("replicated_subscription", null);
        }
        if (seen != null && seen.delays && delays(type) && Boolean.TRUE.equals(policies.getDelayedDeliveryEnabled().get())) {
            found.put("delayed_delivery", null);
        }
        if (seen != null && (seen.transactions || hasTransactions(topic))) {
            seen.transactions = true;
            found.put("transactions", null);
        }
        return found;
    }

    /** True if the topic has open or aborted transactions, also from before it was loaded. */
    private static boolean hasTransactions(AbstractTopic topic) {
        if (!(topic instanceof PersistentTopic persistent)
                || !topic.getBrokerService().getPulsar().getConfiguration().isTransactionCoordinatorEnabled()) {
            return false;
        }
        TransactionBufferStats stats = persistent.getTransactionBufferStats(false);
        return stats != null && (stats.ongoingTxnSize > 0 || stats.totalAbortedTransactions > 0);
    }

    /** True if the subscription type, a name of the log format, delays messages; others send them at once. */
    private static boolean delays(String type) {
        return type.equals("Shared") || type.equals("Key_Shared");
    }

    /** The least of the rates of broker, topic and subscription. */
    private static void rate(Map<String, Long> found, AbstractTopic topic, String subscription) {
        long messages = topic.getBrokerDispatchRateLimiter().map(limiter -> limiter.getDispatchRateOnMsg()).orElse(0L);
        long bytes = topic.getBrokerDispatchRateLimiter().map(limiter -> limiter.getDispatchRateOnByte()).orElse(0L);
        DispatchRateImpl[] rates = {topic.getDispatchRate(), topic.getSubscriptionDispatchRate(subscription)};
        for (DispatchRateImpl rate : rates) {
            if (rate != null) {
                long ofRate = rate.getDispatchThrottlingRateInMsg();
                if (ofRate > 0) {
                    long each = Math.max(1, ofRate / Math.max(1, rate.getRatePeriodInSecond()));
                    messages = messages > 0 ? Math.min(messages, each) : each;
                }
                bytes = Math.max(bytes, rate.getDispatchThrottlingRateInByte());
            }
        }
        if (messages > 0 || bytes > 0) {
            found.put("dispatch_rate", messages > 0 ? messages : null);
        }
    }

    /** A limit of unacknowledged messages that is not the broker's own setting. */
    private static void unacked(Map<String, Long> found, PolicyHierarchyValue<Integer> limit) {
        int value = number(limit.get());
        if (value > 0 && value != number(limit.getBrokerValue())) {
            boolean ofNamespace = limit.getTopicValue() == null && number(limit.getNamespaceValue()) == value;
            found.merge(ofNamespace ? "unacked_namespace" : "unacked_topic", (long) value, Math::min);
        }
    }

    private static int number(Integer value) {
        return value == null ? 0 : value;
    }

    /**
     * The hashes that each connection of a Key_Shared dispatcher owns now. Takes the subscription's lock, so a thread that
     * holds the dispatcher's must not call it (see {@link #connected}).
     */
    static Map<Integer, List<int[]>> hashRanges(Subscription subscription, DispatcherLog log) {
        Map<Integer, List<int[]>> found = new LinkedHashMap<>();
        if (subscription.getDispatcher() instanceof StickyKeyDispatcher dispatcher) {
            dispatcher.getConsumerKeyHashRanges().forEach((consumer, ranges) -> {
                int number;
                synchronized (log) {
                    number = log.numberOf(consumer);
                }
                found.put(number, ranges.stream().map(range -> new int[] {range.getStart(), range.getEnd()}).toList());
            });
        }
        return found;
    }

    /** The cursor's acknowledgements and the pending acks at this moment; a non-persistent topic has neither. */
    public static State state(Subscription subscription, DispatcherLog log) {
        String markDelete = null;
        String unsent = null;
        List<String> holes = new ArrayList<>();
        Map<String, long[]> ackSets = Map.of();
        if (subscription instanceof PersistentSubscription persistent) {
            // Read under the cursor's lock: acknowledgements change the set of holes, and reading a set while it changes fails.
            Position position = persistent.getCursor() instanceof ManagedCursorImpl cursor
                    ? cursor.processIndividuallyDeletedMessagesAndGetMarkDeletedPosition(range -> add(holes, range))
                    : persistent.getCursor().getMarkDeletedPosition();
            ackSets = ackSets(persistent.getCursor());
            markDelete = position == null ? null : position.getLedgerId() + ":" + position.getEntryId();
            Position last = persistent.getCursor().getManagedLedger().getLastConfirmedEntry();
            unsent = last == null ? null : last.getLedgerId() + ":" + (last.getEntryId() + 1);
        }
        Map<Integer, List<String>> pending = new LinkedHashMap<>();
        int[] left = {MOST_POSITIONS};
        for (Consumer consumer : connected(subscription)) {
            int number;
            synchronized (log) {
                number = log.numberOf(consumer);
            }
            if (number > 0 && consumer.getPendingAcks() != null && subscription instanceof PersistentSubscription) {
                List<String> positions = new ArrayList<>();
                consumer.getPendingAcks().forEach((ledgerId, entryId, batchSize, hash) -> {
                    if (left[0]-- > 0) {
                        positions.add(ledgerId + ":" + entryId);
                    }
                });
                pending.put(number, positions);
            }
        }
        boolean cut = left[0] < 0 || holes.size() >= MOST_POSITIONS || ackSets.size() >= MOST_POSITIONS;
        return new State(markDelete, unsent, holes, ackSets, pending, cut, nowUs(), Map.of());
    }

    /**
     * The batches that are acknowledged in part, which the cursor keeps in a field of its own; none if this release has no such
     * field. Takes no lock.
     */
    private static Map<String, long[]> ackSets(ManagedCursor cursor) {
        Map<String, long[]> found = new LinkedHashMap<>();
        try {
            java.lang.reflect.Field field = ManagedCursorImpl.class.getDeclaredField("batchDeletedIndexes");
            field.setAccessible(true);
            // only the keys: the class of the values has another name in each release
            if (cursor instanceof ManagedCursorImpl && field.get(cursor) instanceof Map<?, ?> indexes) {
                for (Object key : indexes.keySet()) {
                    long[] words = cursor.getDeletedBatchIndexesAsLongArray((Position) key);
                    if (words != null && found.size() < MOST_POSITIONS) {
                        found.put(((Position) key).getLedgerId() + ":" + ((Position) key).getEntryId(), words);
                    }
                }
            }
        } catch (ReflectiveOperationException | RuntimeException unknown) {
            // a field that this release does not have
        }
        return found;
    }

    /** The present time, not before that of any event so far. */
    private static long nowUs() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1000 + 1;
    }

    /** Add the entries of a range (lower, upper] that the cursor keeps. False = the limit is reached. */
    private static boolean add(List<String> holes, Range<Position> range) {
        Position upper = range.upperEndpoint();
        boolean sameLedger = range.lowerEndpoint().getLedgerId() == upper.getLedgerId();
        long first = sameLedger ? range.lowerEndpoint().getEntryId() + 1 : 0;
        for (long entry = first; entry <= upper.getEntryId() && holes.size() < MOST_POSITIONS; entry++) {
            holes.add(upper.getLedgerId() + ":" + entry);
        }
        return holes.size() < MOST_POSITIONS;
    }
}
