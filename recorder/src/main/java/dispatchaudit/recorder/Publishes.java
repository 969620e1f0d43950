package dispatchaudit.recorder;

import io.netty.buffer.ByteBuf;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.service.Topic;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.protocol.Commands;

/** The message log: entries as they are published, and those of before when they are first sent. */
final class Publishes {
    private static final String PROPERTY = "dispatchAuditRecorder.message";
    private static final ThreadLocal<MessageMetadata> METADATA = ThreadLocal.withInitial(MessageMetadata::new);
    private final Settings settings;
    private final EventQueue queue;
    private final ConcurrentHashMap<String, TopicLog> topics = new ConcurrentHashMap<>();

    Publishes(Settings settings, EventQueue queue) {
        this.settings = settings;
        this.queue = queue;
    }

    /** An entry is about to be stored: keep what is in its metadata until its position is known. */
    void arrives(Topic topic, String producer, ByteBuf headersAndPayload, Topic.PublishContext context) {
        String name = topic.getName();
        if (!settings.takesTopic(name) || BrokerView.isSystemTopic(name)) {
            return;
        }
        see(topic);
        MessageMetadata metadata = METADATA.get();
        int size = headersAndPayload.readableBytes();
        Commands.parseMessageMetadata(headersAndPayload.duplicate(), metadata);
        if (!metadata.hasMarkerType()) {
            context.setProperty(PROPERTY, message(name, -1, -1, metadata, size));
        }
    }

    /** The entry has its position. */
    void stored(Topic.PublishContext context, long ledgerId, long entryId) {
        if (ledgerId >= 0 && context.getProperty(PROPERTY) instanceof Message message) {
            queue.offer(new Message(message.topic(), ledgerId, entryId, message.key(), message.keyBinary(),
                    message.orderingKey(), message.producer(), message.sequenceId(), message.publishTimeMs(),
                    message.numMessages(), message.sizeBytes()));
        }
    }

    /** An entry is about to be sent: record it if it was stored before the topic was first seen. */
    void sent(Topic topic, Entry entry, MessageMetadata metadata) {
        if (settings.backlog() && see(topic).takeBacklog(entry.getLedgerId(), entry.getEntryId())) {
            queue.offer(message(topic.getName(), entry.getLedgerId(), entry.getEntryId(), metadata, entry.getLength()));
        }
    }

    /** Remember where the topic's log ended when it was first seen. */
    TopicLog see(Topic topic) {
        return topics.computeIfAbsent(topic.getName(), name -> {
            Position last = topic instanceof PersistentTopic persistent
                    ? persistent.getManagedLedger().getLastConfirmedEntry() : null;
            return last == null ? new TopicLog(-1, -1) : new TopicLog(last.getLedgerId(), last.getEntryId());
        });
    }

    private static Message message(String topic, long ledgerId, long entryId, MessageMetadata metadata, long sizeBytes) {
        return new Message(topic, ledgerId, entryId,
                metadata.hasPartitionKey() ? metadata.getPartitionKey() : null,
                metadata.hasPartitionKey() && metadata.isPartitionKeyB64Encoded(),
                metadata.hasOrderingKey() ? metadata.getOrderingKey() : null,
                metadata.getProducerName(), metadata.getSequenceId(), metadata.getPublishTime(),
                metadata.getNumMessagesInBatch(), sizeBytes);
    }
}
