package dispatchaudit.recorder;

import io.netty.buffer.ByteBuf;
import java.lang.ref.WeakReference;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.Consumer;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.service.Topic;
import org.apache.pulsar.broker.service.nonpersistent.NonPersistentTopic;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.protocol.Commands;

/** Records the message log: entries when they are published, and earlier entries when they are first sent. */
public final class Publishes {
    private static final String PROPERTY = "dispatchAuditRecorder.message";
    private static final ThreadLocal<MessageMetadata> METADATA = ThreadLocal.withInitial(MessageMetadata::new);
    private static final ThreadLocal<Offered> OFFERED = new ThreadLocal<>();
    private final Settings settings;
    private final EventQueue queue;
    /** By name; empty = not recorded. Kept so that the patterns are matched once per topic and not for each message. */
    private final ConcurrentHashMap<String, Optional<TopicLog>> topics = new ConcurrentHashMap<>();
    private final Consumer<Topic> onFirst;

    /** {@code onFirst} gets a topic when its first message with a time of delivery, or of a transaction, was seen. */
    public Publishes(Settings settings, EventQueue queue, Consumer<Topic> onFirst) {
        this.settings = settings;
        this.queue = queue;
        this.onFirst = onFirst;
    }

    /** Keep the metadata of an entry that is about to be stored, until its position is known. */
    void arrives(Topic topic, String producer, ByteBuf headersAndPayload, Topic.PublishContext context) {
        TopicLog log = see(topic).orElse(null);
        if (log == null) {
            return;
        }
        MessageMetadata metadata = METADATA.get();
        int size = headersAndPayload.readableBytes();
        Commands.parseMessageMetadata(headersAndPayload.duplicate(), metadata);
        if (!metadata.hasMarkerType()) {
            if (isFirst(log, metadata)) {
                onFirst.accept(topic);
            }
            Message.Content content = content(topic.getName(), metadata, size);
            if (topic instanceof NonPersistentTopic) {
                // The lines stand in the order of the numbers, also if several producers publish at once.
                Place place = log.number(topic, number -> queue.offer(new Message(content, number.ledgerId(), number.entryId())));
                OFFERED.set(new Offered(new WeakReference<>(topic), content.producer(), content.sequenceId(), place));
            } else {
                context.setProperty(PROPERTY, content);
            }
        }
    }

    /**
     * The number of an entry of a non-persistent topic that is about to be sent. The broker dispatches it in the thread that
     * published it, so it is the last one that this thread numbered; null = it is not, which never happened.
     */
    Place offered(Topic topic, MessageMetadata metadata) {
        Offered last = OFFERED.get();
        boolean same = last != null && last.topic.get() == topic && last.sequenceId == metadata.getSequenceId()
                && last.producer.equals(metadata.getProducerName());
        return same ? last.place : null;
    }

    /** The entry of a non-persistent topic that a thread published last. */
    private record Offered(WeakReference<Topic> topic, String producer, long sequenceId, Place place) {
    }

    /** Record an entry that got its position. */
    void stored(Topic.PublishContext context, long ledgerId, long entryId) {
        if (ledgerId >= 0 && context.getProperty(PROPERTY) instanceof Message.Content content) {
            queue.offer(new Message(content, ledgerId, entryId));
        }
    }

    /** Record an entry that got its position, from its stored bytes. */
    public void stored(Topic topic, ByteBuf entry, long ledgerId, long entryId) {
        TopicLog log = see(topic).orElse(null);
        if (log == null) {
            return;
        }
        MessageMetadata metadata = METADATA.get();
        int size = parse(entry, metadata);
        if (!metadata.hasMarkerType()) {
            if (isFirst(log, metadata)) {
                onFirst.accept(topic);
            }
            queue.offer(new Message(content(topic.getName(), metadata, size), ledgerId, entryId));
        }
    }

    /** Record an entry that was read, if it was stored before the topic was first seen. */
    public void read(Topic topic, Entry entry) {
        TopicLog log = settings.backlog() ? see(topic).orElse(null) : null;
        if (log != null && log.takeBacklog(entry.getLedgerId(), entry.getEntryId())) {
            MessageMetadata metadata = METADATA.get();
            int size = parse(entry.getDataBuffer(), metadata);
            if (!metadata.hasMarkerType()) {
                isFirst(log, metadata); // a dispatcher's lock is held here, so the next sweep writes the line
                queue.offer(new Message(content(topic.getName(), metadata, size), entry.getLedgerId(), entry.getEntryId()));
            }
        }
    }

    /** Read the metadata of a stored entry, and return its size in bytes without what the broker added. */
    private static int parse(ByteBuf entry, MessageMetadata metadata) {
        ByteBuf bytes = Commands.skipBrokerEntryMetadataIfExist(entry.duplicate());
        int size = bytes.readableBytes();
        Commands.parseMessageMetadata(bytes, metadata);
        return size;
    }

    /** Record an entry that is about to be sent, if it was stored before the topic was first seen. */
    void sent(Topic topic, Entry entry, MessageMetadata metadata) {
        if (!settings.backlog()) {
            return;
        }
        TopicLog log = see(topic).orElse(null);
        if (log != null && log.takeBacklog(entry.getLedgerId(), entry.getEntryId())) {
            isFirst(log, metadata); // a dispatcher's lock is held here, so the next sweep writes the line
            queue.offer(new Message(content(topic.getName(), metadata, entry.getLength()), entry.getLedgerId(), entry.getEntryId()));
        }
    }

    /** Remember the end of the topic's log when it is first seen; empty if it is not recorded. */
    public Optional<TopicLog> see(Topic topic) {
        Optional<TopicLog> known = topics.get(topic.getName());
        return known != null ? known : topics.computeIfAbsent(topic.getName(), name -> {
            if (!settings.takesTopic(name) || BrokerView.isSystemTopic(name)) {
                return Optional.empty();
            }
            Position last = topic instanceof PersistentTopic persistent
                    ? persistent.getManagedLedger().getLastConfirmedEntry() : null;
            return Optional.of(last == null ? new TopicLog(-1, -1) : new TopicLog(last.getLedgerId(), last.getEntryId()));
        });
    }

    /** Note that the topic has transactions. */
    void transaction(Topic topic) {
        see(topic).filter(log -> !log.transactions).ifPresent(log -> {
            log.transactions = true;
            onFirst.accept(topic);
        });
    }

    /** True if the message is the first of the topic with a time of delivery, or of a transaction. */
    private static boolean isFirst(TopicLog log, MessageMetadata metadata) {
        boolean first = metadata.hasDeliverAtTime() && !log.delays || metadata.hasTxnidMostBits() && !log.transactions;
        if (first) {
            log.delays |= metadata.hasDeliverAtTime();
            log.transactions |= metadata.hasTxnidMostBits();
        }
        return first;
    }

    private static Message.Content content(String topic, MessageMetadata metadata, long sizeBytes) {
        return new Message.Content(topic,
                metadata.hasPartitionKey() ? metadata.getPartitionKey() : null,
                metadata.hasPartitionKey() && metadata.isPartitionKeyB64Encoded(),
                metadata.hasOrderingKey() ? metadata.getOrderingKey() : null,
                metadata.getProducerName(), metadata.getSequenceId(), metadata.getPublishTime(),
                metadata.getNumMessagesInBatch(), sizeBytes,
                metadata.hasDeliverAtTime() ? metadata.getDeliverAtTime() : null,
                metadata.hasTxnidMostBits() ? "(" + metadata.getTxnidMostBits() + "," + metadata.getTxnidLeastBits() + ")" : null);
    }
}
