package dispatchaudit.recorder;

import java.util.List;
import java.util.Optional;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
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
    private final ConcurrentHashMap<Subscription, Optional<DispatcherLog>> logs = new ConcurrentHashMap<>();
    private final ConcurrentHashMap<String, Subscription> byName = new ConcurrentHashMap<>();
    private final AtomicLong lastIncarnation = new AtomicLong();

    Subscriptions(PulsarService pulsar, Settings settings, EventQueue queue) {
        this.pulsar = pulsar;
        this.settings = settings;
        this.queue = queue;
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

    /** Record joins and leaves. */
    void refresh(Subscription subscription, SubType type) {
        log(subscription, type).ifPresent(log -> {
            synchronized (log) {
                refresh(log, subscription);
            }
        });
    }

    /** Check all logs: the broker disconnects consumers and unloads topics without notifying an interceptor. */
    void sweep() {
        logs.forEach((subscription, known) -> {
            if (known.isPresent()) {
                refresh(subscription, null);
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
        Optional<DispatcherLog> log = Optional.of(new DispatcherLog(topic, subscription.getName(), BrokerView.typeName(type),
                TopicName.getPartitionIndex(topic), incarnation));
        queue.offer(log.get(), new Event.Checkpoint(List.of(), BrokerView.state(subscription, log.get())));
        logs.put(subscription, log);
        return log;
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
        synchronized (log) {
            for (Event left : log.changes(List.<Consumer>of(), BrokerView::added)) {
                queue.offer(log, left);
            }
            queue.offer(log, new Event.Ended());
            log.over = true;
        }
    }

    private void refresh(DispatcherLog log, Subscription subscription) {
        if (log.over) {
            return; // it ended meanwhile: further events of its connections are late
        }
        List<Event> changes = log.changes(BrokerView.connected(subscription), BrokerView::added);
        for (int i = 0; i < changes.size(); i++) {
            queue.offer(log, changes.get(i));
        }
    }

    private boolean current(Subscription subscription) {
        BrokerService service = pulsar.getBrokerService();
        if (service == null) {
            return true; // the broker is shutting down, and closes its logs itself
        }
        Optional<Topic> topic = service.getTopicReference(subscription.getTopicName());
        return topic.isPresent() && topic.get() == subscription.getTopic()
                && topic.get().getSubscription(subscription.getName()) == subscription;
    }

    private static String name(String topic, String subscription) {
        return topic + '\n' + subscription;
    }
}
