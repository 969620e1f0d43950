package dispatchaudit.soak;

import java.util.concurrent.CompletableFuture;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.client.admin.LongRunningProcessStatus;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.common.naming.TopicName;
import org.apache.pulsar.common.policies.data.DispatchRate;
import org.apache.pulsar.common.policies.data.ManagedLedgerInternalStats.CursorStats;
import org.apache.pulsar.common.policies.data.PersistentTopicInternalStats;

/** What an administrator does during a script: topics, moves of the cursor, policies of the namespace, settings. */
final class Administration {
    private static final String NAMESPACE = "public/default";

    private final PulsarAdmin admin;
    private final PulsarService broker;

    Administration(PulsarAdmin admin, PulsarService broker) {
        this.admin = admin;
        this.broker = broker;
    }

    /** Set settings of the broker for the dispatchers that are made from now on. A setting that a release lacks is left out. */
    void configure(java.util.Map<String, Object> config) throws IllegalAccessException {
        for (var setting : config.entrySet()) {
            java.lang.reflect.Field field;
            try {
                field = broker.getConfiguration().getClass().getDeclaredField(setting.getKey());
            } catch (NoSuchFieldException unknown) {
                continue;
            }
            field.setAccessible(true);
            Object value = setting.getValue();
            field.set(broker.getConfiguration(), value instanceof Number number && field.getType() == long.class
                    ? (Object) number.longValue() : value);
        }
    }

    /** Make a topic; returns the name of the topic, or partition, to use. */
    String create(String topic, int partitions, int partition) throws Exception {
        if (partitions == 0) {
            admin.topics().createNonPartitionedTopic(topic);
            return topic;
        }
        admin.topics().createPartitionedTopic(topic, partitions);
        return topic + "-partition-" + partition;
    }

    /** Make a subscription at the beginning of the topic. One whose deletion was refused is there still. */
    void subscribe(String topic, String subscription) throws Exception {
        try {
            admin.topics().createSubscription(topic, subscription, MessageId.earliest);
        } catch (PulsarAdminException.ConflictException exists) {
            return;
        }
    }

    /** Delete a subscription although consumers are connected: they are disconnected first. */
    CompletableFuture<Void> delete(String topic, String subscription) {
        return admin.topics().deleteSubscriptionAsync(topic, subscription, true);
    }

    /** Unload a topic: the broker closes it, and loads it again when a client asks for it. */
    void unload(String topic) throws Exception {
        admin.topics().unload(topic);
    }

    /** Compact a topic, and wait until that is done, or for 20 s: a compaction whose reader gets nothing never ends. */
    void compact(String topic) throws Exception {
        admin.topics().triggerCompaction(topic);
        long end = System.nanoTime() + 20_000_000_000L;
        while (System.nanoTime() < end
                && admin.topics().compactionStatus(topic).status == LongRunningProcessStatus.Status.RUNNING) {
            Thread.sleep(10);
        }
    }

    CursorStats cursor(String topic, String subscription) throws Exception {
        return admin.topics().getInternalStats(topic).cursors.get(subscription);
    }

    /** The number of entries that the subscription has not acknowledged. */
    long backlog(String topic, String subscription) throws Exception {
        return admin.topics().getStats(topic, true).getSubscriptions().get(subscription).getMsgBacklog();
    }

    void skip(String topic, String subscription, int entries) throws Exception {
        admin.topics().skipMessages(topic, subscription, entries);
    }

    void clearBacklog(String topic, String subscription) throws Exception {
        admin.topics().skipAllMessages(topic, subscription);
    }

    /**
     * Expire everything up to so many entries before the end of the topic. The broker refuses that while another expiry is under
     * way, and for a position that the topic does not have: then nothing expires.
     */
    void expire(String topic, String subscription, int before) throws Exception {
        PersistentTopicInternalStats stats = admin.topics().getInternalStats(topic);
        MessageId last = moved(topic, stats.lastConfirmedEntry, -before);
        try {
            admin.topics().expireMessages(topic, subscription, last, false);
        } catch (PulsarAdminException.ConflictException refused) {
            return;
        }
    }

    /** Reset the cursor by so many entries from its mark-delete position; backwards if negative. */
    void reset(String topic, String subscription, int entries) throws Exception {
        admin.topics().resetCursor(topic, subscription, away(topic, subscription, entries));
    }

    /** The message id that lies so many entries from the mark-delete position, in its ledger. */
    MessageId away(String topic, String subscription, int entries) throws Exception {
        return moved(topic, cursor(topic, subscription).markDeletePosition, entries);
    }

    private static MessageId moved(String topic, String position, int entries) {
        String[] parts = position.split(":");
        return new MessageIdImpl(Long.parseLong(parts[0]), Math.max(0, Long.parseLong(parts[1]) + entries),
                TopicName.getPartitionIndex(topic));
    }

    /** Limit the rate of deliveries of each subscription of the namespace; 0 = no limit. */
    void dispatchRate(int messagesPerSecond) throws Exception {
        if (messagesPerSecond == 0) {
            admin.namespaces().removeSubscriptionDispatchRate(NAMESPACE);
        } else {
            admin.namespaces().setSubscriptionDispatchRate(NAMESPACE, DispatchRate.builder()
                    .dispatchThrottlingRateInMsg(messagesPerSecond).dispatchThrottlingRateInByte(-1).ratePeriodInSecond(1).build());
        }
    }

    /** Limit the unacknowledged messages of a consumer in the namespace; 0 = no policy. */
    void unackedLimit(int messages) throws Exception {
        if (messages == 0) {
            admin.namespaces().removeMaxUnackedMessagesPerConsumer(NAMESPACE);
        } else {
            admin.namespaces().setMaxUnackedMessagesPerConsumer(NAMESPACE, messages);
        }
    }
}
