package dispatchaudit.recorder;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Function;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.service.BrokerService;
import org.apache.pulsar.broker.service.Consumer;
import org.apache.pulsar.broker.service.Subscription;
import org.apache.pulsar.broker.service.Topic;
import org.apache.pulsar.common.api.proto.CommandSubscribe.SubType;
import org.apache.pulsar.common.naming.TopicName;

/**
 * Maps the broker's subscription objects to logs, and finds joins and leaves of their dispatchers.
 *
 * <p>A subscription object exists as long as its topic is loaded, so a new object, or another subscription type, is a new
 * incarnation. The connected consumers are read from the dispatcher's own list each time before an event is added. So calls
 * from within the dispatcher's lock see joins and leaves in the order in which they affected dispatch.
 */
final class Subscriptions {
    private final PulsarService pulsar;
    private final Settings settings;
    private final EventQueue queue;
    private final Function<Topic, TopicLog> topics;
    private final ConcurrentHashMap<Subscription, Optional<DispatcherLog>> logs = new ConcurrentHashMap<>();
    private final ConcurrentHashMap<String, Subscription> byName = new ConcurrentHashMap<>();
    private final AtomicLong lastIncarnation = new AtomicLong();

    /** {@code topics}: what was seen of a topic; null = it is not recorded. */
    Subscriptions(PulsarService pulsar, Settings settings, EventQueue queue, Function<Topic, TopicLog> topics) {
        this.pulsar = pulsar;
        this.settings = settings;
        this.queue = queue;
        this.topics = topics;
    }

    /** Receives the log of a dispatcher, with its lock held and its members up to date, and a connection's number in it. */
    interface Use {
        void accept(DispatcherLog log, int consumer);
    }

    /**
     * Call {@code use} for a connection, in the order of the subscription's events. Returns false, without a call, if the
     * subscription is recorded but its dispatcher no longer holds the connection.
     */
    boolean with(Subscription subscription, Consumer consumer, Use use) {
        DispatcherLog log = log(subscription, consumer.subType()).orElse(null);
        if (log == null) {
            return true;
        }
        synchronized (log) {
            refresh(log, subscription);
            int number = log.numberOf(consumer);
            if (number > 0) {
                use.accept(log, number);
            }
            return number > 0;
        }
    }

    /** Add an event without a line for a subscription, if its log is open. */
    void note(Subscription subscription, SubType type, Function<DispatcherLog, Event.Unwritten> event) {
        log(subscription, type).ifPresent(log -> {
            synchronized (log) {
                if (!log.over) {
                    queue.offer(log, event.apply(log));
                }
            }
        });
    }

    /** The mark-delete position in the order of events. Called with the log's lock held. */
    static Place place(DispatcherLog log, Subscription subscription) {
        Position position = BrokerView.markDelete(subscription);
        return position == null ? null : log.place(position, position.getLedgerId(), position.getEntryId());
    }

    /** An operation on one cursor that has arrived and is not answered; {@code answer} says whether it succeeded. */
    record Pending(java.util.function.Consumer<Boolean> answer) {
    }

    /** Note that a client's command or an administrator's call is about to move the cursor. */
    Pending begins(CursorOperation operation, Subscription subscription, SubType type) {
        note(subscription, type, log -> {
            log.resets += operation.resets ? 1 : 0;
            return new Event.OperationBegins(operation, place(log, subscription));
        });
        return new Pending(succeeded -> note(subscription, null, log -> {
            log.resets -= operation.resets ? 1 : 0;
            return new Event.OperationEnds(operation, succeeded, place(log, subscription));
        }));
    }

    /** The same for all subscriptions that a call concerns. */
    List<Pending> begins(AdminCall call) {
        List<Pending> pending = new ArrayList<>();
        logs.forEach((subscription, log) -> {
            if (log.isPresent() && call.concerns(log.get().topic, log.get().subscription)) {
                pending.add(begins(call.operation().get(), subscription, null));
            }
        });
        return pending;
    }

    /** Record which limits hold for the subscriptions of a topic. */
    void limit(Topic topic) {
        logs.forEach((subscription, known) -> known.filter(log -> subscription.getTopic() == topic)
                .ifPresent(log -> limit(subscription, log)));
    }

    private void limit(Subscription subscription, DispatcherLog log) {
        Map<String, Long> now = BrokerView.limits(subscription, log.subscriptionType, topics.apply(subscription.getTopic()));
        synchronized (log) {
            if (!log.over) {
                log.limited(now).forEach(line -> queue.offer(log, line));
            }
        }
    }

    /** Record joins and leaves. */
    void refresh(Subscription subscription, SubType type) {
        log(subscription, type).ifPresent(log -> {
            synchronized (log) {
                refresh(log, subscription);
            }
        });
    }

    /**
     * Check all logs: the broker disconnects consumers, unloads topics, moves cursors and changes policies without notifying an
     * interceptor.
     */
    void sweep() {
        logs.forEach((subscription, known) -> {
            if (known.isPresent()) {
                refresh(subscription, null);
                cursorAt(known.get(), subscription);
                limit(subscription, known.get());
            }
            if (!current(subscription)) {
                end(subscription);
            }
        });
    }

    /** The subscription's object; null once its log is over. */
    Subscription subscription(DispatcherLog log) {
        Subscription subscription = byName.get(name(log.topic, log.subscription));
        return subscription != null && logs.getOrDefault(subscription, Optional.empty()).orElse(null) == log ? subscription : null;
    }

    private Optional<DispatcherLog> log(Subscription subscription, SubType type) {
        Optional<DispatcherLog> known = logs.get(subscription);
        if (known == null) {
            // late callbacks of an unloaded topic's connections must not begin a new log
            return type == null || !current(subscription) ? Optional.empty() : begin(subscription, type);
        }
        if (type != null && known.isPresent() && !known.get().subscriptionType.equals(BrokerView.typeName(type))) {
            return renew(subscription, type, known.get());
        }
        return known;
    }

    private synchronized Optional<DispatcherLog> begin(Subscription subscription, SubType type) {
        Optional<DispatcherLog> known = logs.get(subscription);
        if (known != null) {
            return known;
        }
        String topic = subscription.getTopicName();
        boolean wanted = settings.takesTopic(topic) && settings.takesSubscription(subscription.getName())
                && !BrokerView.isSystemTopic(topic) && !BrokerView.isSystemSubscription(pulsar, subscription.getName());
        if (!wanted) {
            logs.put(subscription, Optional.empty());
            return Optional.empty();
        }
        Subscription before = byName.put(name(topic, subscription.getName()), subscription);
        if (before != null && before != subscription) {
            end(before);
        }
        long incarnation = lastIncarnation.updateAndGet(last -> Math.max(last + 1, System.currentTimeMillis()));
        DispatcherLog log = new DispatcherLog(topic, subscription.getName(), BrokerView.typeName(type),
                TopicName.getPartitionIndex(topic), incarnation, BrokerView.expires(subscription));
        queue.offer(log, new Event.Checkpoint(List.of(), BrokerView.state(subscription, log)));
        cursorAt(log, subscription);
        limit(subscription, log);
        logs.put(subscription, Optional.of(log));
        return Optional.of(log);
    }

    /** Begin a new incarnation: a consumer with another subscription type joined while nobody was connected. */
    private synchronized Optional<DispatcherLog> renew(Subscription subscription, SubType type, DispatcherLog old) {
        if (logs.get(subscription).orElse(null) == old) {
            end(subscription);
        }
        return begin(subscription, type);
    }

    private void end(Subscription subscription) {
        Optional<DispatcherLog> known = logs.remove(subscription);
        if (known == null || known.isEmpty()) {
            return;
        }
        DispatcherLog log = known.get();
        byName.remove(name(log.topic, log.subscription), subscription);
        cursorAt(log, subscription);
        synchronized (log) {
            for (Event left : log.changes(List.<Consumer>of(), BrokerView::added)) {
                queue.offer(log, left);
            }
            if (BrokerView.isDeleted(subscription)) {
                queue.offer(log, new Event.SubscriptionDeleted());
            }
            queue.offer(log, new Event.Ended());
            log.over = true;
        }
    }

    private void refresh(DispatcherLog log, Subscription subscription) {
        if (log.over) {
            return; // it ended meanwhile: further events of its connections are late
        }
        boolean empty = log.empty();
        List<Consumer> connected = BrokerView.connected(subscription);
        List<Event> changes = log.changes(connected, BrokerView::added);
        if (changes.isEmpty()) {
            return;
        }
        if (!log.empty()) { // a move that disconnected all of them stands before the first that comes back
            int holes = empty && log.resets > 0 ? BrokerView.ackHoles(subscription) : -1;
            queue.offer(log, new Event.CursorAt(place(log, subscription), null, holes));
        }
        for (int i = 0; i < changes.size(); i++) {
            queue.offer(log, changes.get(i));
        }
        log.limited(BrokerView.limits(subscription, log.subscriptionType, topics.apply(subscription.getTopic())))
                .forEach(line -> queue.offer(log, line));
    }

    /** Note where the cursor is, if it has moved, and which ledgers are closed, if there are new ones. */
    private void cursorAt(DispatcherLog log, Subscription subscription) {
        long last = BrokerView.lastLedger(subscription);
        synchronized (log) {
            boolean isNew = log.isNewLedger(last);
            if (!log.over && (isNew || log.hasMoved(BrokerView.markDelete(subscription)))) {
                Map<Long, Long> closed = isNew ? BrokerView.lastEntries(subscription) : null;
                queue.offer(log, new Event.CursorAt(place(log, subscription), closed, -1));
            }
        }
    }

    private boolean current(Subscription subscription) {
        BrokerService service = pulsar.getBrokerService();
        if (service == null) {
            return true; // the broker is shutting down, and closes its logs itself
        }
        return BrokerView.isServed(service, subscription);
    }

    private static String name(String topic, String subscription) {
        return topic + '\n' + subscription;
    }
}
