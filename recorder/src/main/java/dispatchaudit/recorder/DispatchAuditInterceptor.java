package dispatchaudit.recorder;

import io.netty.buffer.ByteBuf;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import javax.servlet.ServletRequest;
import javax.servlet.ServletResponse;
import javax.servlet.http.HttpServletRequest;
import javax.servlet.http.HttpServletResponse;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.intercept.BrokerInterceptor;
import org.apache.pulsar.broker.service.Consumer;
import org.apache.pulsar.broker.service.Producer;
import org.apache.pulsar.broker.service.ServerCnx;
import org.apache.pulsar.broker.service.Subscription;
import org.apache.pulsar.broker.service.Topic;
import org.apache.pulsar.broker.service.nonpersistent.NonPersistentTopic;
import org.apache.pulsar.common.api.proto.BaseCommand;
import org.apache.pulsar.common.api.proto.CommandAck;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;
import org.apache.pulsar.common.api.proto.CommandRedeliverUnacknowledgedMessages;
import org.apache.pulsar.common.api.proto.CommandSeek;
import org.apache.pulsar.common.api.proto.CommandSubscribe.SubType;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Turns the broker's callbacks into events. docs/recorder.md says when each callback runs, and what that means for the order.
 *
 * <p>No failure in here reaches the broker: it is counted, and logged the first time.
 */
public final class DispatchAuditInterceptor implements BrokerInterceptor {
    private static final Logger LOG = LoggerFactory.getLogger(DispatchAuditInterceptor.class);

    private static final String OPERATIONS = "dispatchAuditRecorder.operations";

    private final Stats stats = new Stats();
    private final Set<String> logged = ConcurrentHashMap.newKeySet();
    private volatile Recorder recorder;
    private volatile Subscriptions subscriptions;
    private volatile Publishes publishes;
    private volatile boolean splitsRanges;

    /** The work of a callback; may throw anything. */
    private interface Work {
        void run() throws Exception;
    }

    @Override
    public void initialize(PulsarService pulsar) {
        guarded("initialize", () -> {
            Settings settings = Settings.read(BrokerView.describe(pulsar), pulsar.getConfiguration().getProperties()::get,
                    System.getenv());
            splitsRanges = Boolean.FALSE.equals(settings.config().get("subscriptionKeySharedUseConsistentHashing"));
            Recorder starting = new Recorder(LogForm.EVENTS, settings, this::probe, stats, this::sweep,
                    deleted -> LOG.info("Dispatch audit: deleted {} segments beyond the limit: {}", deleted.size(), deleted),
                    this::failed);
            for (String name : starting.start()) {
                LOG.warn("Dispatch audit: {} was left open by an earlier run; it is readable up to its last whole block", name);
            }
            publishes = new Publishes(settings, starting.queue(), topic -> subscriptions.limit(topic));
            subscriptions = new Subscriptions(pulsar, settings, starting.queue(), topic -> publishes.see(topic).orElse(null));
            recorder = starting;
            LOG.info("Dispatch audit: recording to {} as broker {}", settings.directory().toAbsolutePath(), settings.broker());
        });
    }

    @Override
    public void close() {
        guarded("close", () -> {
            if (recorder != null) {
                recorder.close();
                LOG.info("Dispatch audit: recording ended: {}", stats);
            }
        });
    }

    @Override
    public void onConnectionCreated(ServerCnx cnx) {
        guarded("onConnectionCreated", () -> {
            var pipeline = cnx.ctx().pipeline();
            if (recorder != null && pipeline.get(FlowTap.NAME) == null) {
                pipeline.addBefore(cnx.ctx().name(), FlowTap.NAME, new FlowTap((id, permits) -> flow(cnx, id, permits)));
            }
        });
    }

    @Override
    public void consumerCreated(ServerCnx cnx, Consumer consumer, Map<String, String> metadata) {
        guarded("consumerCreated", () -> {
            if (recorder != null) {
                subscriptions.refresh(consumer.getSubscription(), consumer.subType());
            }
        });
    }

    @Override
    public void consumerClosed(ServerCnx cnx, Consumer consumer, Map<String, String> metadata) {
        guarded("consumerClosed", () -> {
            if (recorder != null) {
                subscriptions.refresh(consumer.getSubscription(), null);
            }
        });
    }

    @Override
    public void beforeSendMessage(Subscription subscription, Entry entry, long[] ackSet, MessageMetadata metadata,
                                  Consumer consumer) {
        guarded("beforeSendMessage", () -> {
            if (recorder == null || consumer == null) {
                return;
            }
            if (subscription.getTopic() instanceof NonPersistentTopic topic) {
                sentUnstored(subscription, topic, metadata, consumer);
                return;
            }
            boolean known = subscriptions.with(subscription, consumer, (log, number) -> {
                publishes.sent(subscription.getTopic(), entry, metadata);
                recorder.queue().sent(log, number, consumer.getAvailablePermits(), entry.getLedgerId(), entry.getEntryId(),
                        metadata.getNumMessagesInBatch(), Subscriptions.place(log, subscription));
            });
            countLate(known);
        });
    }

    /**
     * Record an entry of a non-persistent topic. In Key_Shared the broker runs this callback before it looks whether the consumer
     * can take the entry, and drops it if not.
     */
    private void sentUnstored(Subscription subscription, Topic topic, MessageMetadata metadata, Consumer consumer) {
        boolean dropped = consumer.subType() == SubType.Key_Shared
                && (consumer.getAvailablePermits() <= 0 || !consumer.isWritable());
        if (dropped) {
            return;
        }
        countLate(subscriptions.with(subscription, consumer, (log, number) -> {
            Place place = publishes.offered(topic, metadata);
            if (place == null) {
                throw new IllegalStateException(topic.getName() + ": an entry of " + metadata.getProducerName() + " with sequence id "
                        + metadata.getSequenceId() + " is sent by another thread than published it, and has no line");
            }
            recorder.queue().sent(log, number, consumer.getAvailablePermits(), place.ledgerId(), place.entryId(),
                    metadata.getNumMessagesInBatch(), null);
        }));
    }

    @Override
    public void onMessagePublish(Producer producer, ByteBuf headersAndPayload, Topic.PublishContext context) {
        guarded("onMessagePublish", () -> {
            if (recorder != null) {
                publishes.arrives(producer.getTopic(), producer.getProducerName(), headersAndPayload, context);
            }
        });
    }

    @Override
    public void messageProduced(ServerCnx cnx, Producer producer, long startTimeNs, long ledgerId, long entryId,
                                Topic.PublishContext context) {
        guarded("messageProduced", () -> {
            if (recorder != null) {
                publishes.stored(context, ledgerId, entryId);
            }
        });
    }

    @Override
    public void onPulsarCommand(BaseCommand command, ServerCnx cnx) {
        if (recorder == null) {
            return;
        }
        if (command.getType() == BaseCommand.Type.ACK) {
            guarded("ack", () -> ack(command.getAck(), cnx));
        } else if (command.getType() == BaseCommand.Type.REDELIVER_UNACKNOWLEDGED_MESSAGES) {
            guarded("redeliver", () -> redeliver(command.getRedeliverUnacknowledgedMessages(), cnx));
        } else if (command.getType() == BaseCommand.Type.SEEK) {
            guarded("seek", () -> seek(command.getSeek(), cnx));
        }
    }

    @Override
    public void onConnectionClosed(ServerCnx cnx) {
        // the dispatchers' lists and consumerClosed report this
    }

    @Override
    public void onWebserviceRequest(ServletRequest request) {
        guarded("onWebserviceRequest", () -> {
            AdminCall call = recorder != null && request instanceof HttpServletRequest http
                    ? AdminCall.of(http.getMethod(), http.getRequestURI()) : null;
            if (call != null) {
                request.setAttribute(OPERATIONS, subscriptions.begins(call));
            }
        });
    }

    @Override
    public void onWebserviceResponse(ServletRequest request, ServletResponse response) {
        guarded("onWebserviceResponse", () -> {
            if (recorder != null && request.getAttribute(OPERATIONS) instanceof List<?> pending
                    && response instanceof HttpServletResponse http) {
                request.removeAttribute(OPERATIONS);
                boolean succeeded = http.getStatus() / 100 == 2;
                pending.forEach(open -> ((Subscriptions.Pending) open).answer().accept(succeeded));
            }
        });
    }

    private void flow(ServerCnx cnx, long consumerId, long permits) {
        guarded("flow", () -> {
            Consumer consumer = consumer(cnx, consumerId);
            if (consumer != null && permits != 0) {
                boolean known = subscriptions.with(consumer.getSubscription(), consumer, (log, number) ->
                        recorder.queue().offer(log, new Event.Flow(number, permits, consumer.isBlocked())));
                countLate(known);
            }
        });
    }

    private void seek(CommandSeek seek, ServerCnx cnx) {
        Consumer consumer = consumer(cnx, seek.getConsumerId());
        if (consumer == null || !seek.hasMessageId() && !seek.hasMessagePublishTime()) {
            return; // the broker refuses it
        }
        Subscriptions.Pending pending = subscriptions.begins(CursorOperation.seek(), consumer.getSubscription(), consumer.subType());
        var pipeline = cnx.ctx().pipeline();
        SeekTap tap = (SeekTap) pipeline.get(SeekTap.NAME);
        if (tap == null) {
            tap = new SeekTap();
            pipeline.addBefore(cnx.ctx().name(), SeekTap.NAME, tap);
        }
        tap.await(seek.getRequestId(), succeeded -> guarded("seek", () -> pending.answer().accept(succeeded)));
    }

    /**
     * Leave out acknowledgements that the broker ignores, and those of transactions, which take effect later or never. Those of
     * transactions and of connections that left have no line, but they may move the cursor.
     */
    private void ack(CommandAck ack, ServerCnx cnx) {
        Consumer consumer = consumer(cnx, ack.getConsumerId());
        boolean cumulative = ack.getAckType() == AckType.Cumulative;
        if (consumer == null || ack.getMessageIdsCount() == 0
                || cumulative && (Subscription.isIndividualAckMode(consumer.subType()) || ack.getMessageIdsCount() != 1)) {
            return;
        }
        AckedPositions acked = AckedPositions.of(ack);
        Subscription subscription = consumer.getSubscription();
        if (subscription.getTopic() instanceof NonPersistentTopic) {
            return; // it changes nothing
        }
        boolean known = !ack.hasTxnidMostBits() && subscriptions.with(subscription, consumer, (log, number) ->
                recorder.queue().offer(log, event(number, cumulative, acked)));
        if (ack.hasTxnidMostBits()) {
            publishes.transaction(subscription.getTopic());
        } else {
            countLate(known);
        }
        if (!known) {
            subscriptions.note(subscription, null, log ->
                    new Event.UnwrittenAck(event(0, cumulative, acked)));
        }
    }

    private static Event.Ack event(int consumer, boolean cumulative, AckedPositions acked) {
        return new Event.Ack(consumer, cumulative, acked.ledgers(), acked.entries(), acked.ackSets());
    }

    private void redeliver(CommandRedeliverUnacknowledgedMessages command, ServerCnx cnx) {
        Consumer consumer = consumer(cnx, command.getConsumerId());
        if (consumer == null || consumer.getSubscription().getTopic() instanceof NonPersistentTopic) {
            return;
        }
        // as in the broker: a list counts only if single messages are acknowledged
        int count = Subscription.isIndividualAckMode(consumer.subType()) ? command.getMessageIdsCount() : 0;
        long[] ledgers = count == 0 ? null : new long[count];
        long[] entries = count == 0 ? null : new long[count];
        for (int i = 0; i < count; i++) {
            ledgers[i] = command.getMessageIdAt(i).getLedgerId();
            entries[i] = command.getMessageIdAt(i).getEntryId();
        }
        countLate(subscriptions.with(consumer.getSubscription(), consumer, (log, number) ->
                recorder.queue().offer(log, new Event.Redeliver(number, ledgers, entries))));
    }

    private static Consumer consumer(ServerCnx cnx, long consumerId) {
        CompletableFuture<Consumer> future = cnx.getConsumers().get(consumerId);
        return future != null && future.isDone() && !future.isCompletedExceptionally() ? future.getNow(null) : null;
    }

    private void countLate(boolean known) {
        if (!known) {
            stats.lateEvents.increment();
        }
    }

    private State probe(DispatcherLog log) {
        try {
            Subscription subscription = subscriptions == null ? null : subscriptions.subscription(log);
            if (subscription == null) {
                return null;
            }
            State state = BrokerView.state(subscription, log);
            // on a ring the owners follow from the connected consumers; if ranges are split, also from earlier ones
            return splitsRanges ? state.with(BrokerView.hashRanges(subscription, log)) : state;
        } catch (Throwable failure) { // a checkpoint without ranges is valid too
            failed("checkpoint", failure);
            return null;
        }
    }

    private void sweep() {
        guarded("sweep", () -> {
            if (subscriptions != null) {
                subscriptions.sweep();
            }
        });
    }

    private void guarded(String where, Work work) {
        try {
            work.run();
        } catch (Throwable failure) { // any failure: the broker must continue
            failed(where, failure);
        }
    }

    private void failed(String where, Throwable failure) {
        stats.errors.increment();
        if (logged.add(where + failure.getClass().getName())) {
            LOG.error("Dispatch audit: {} failed; the broker is not affected, the log may lack lines. "
                    + "Further failures of this kind are counted only", where, failure);
        }
    }
}
