package dispatchaudit.trace;

import com.google.common.collect.MapMaker;
import dispatchaudit.recorder.BrokerView;
import dispatchaudit.recorder.DispatcherLog;
import dispatchaudit.recorder.Event;
import dispatchaudit.recorder.LogForm;
import dispatchaudit.recorder.Publishes;
import dispatchaudit.recorder.Recorder;
import dispatchaudit.recorder.Settings;
import dispatchaudit.recorder.Stats;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.service.Consumer;
import org.apache.pulsar.broker.service.Subscription;
import org.apache.pulsar.broker.service.Topic;
import org.apache.pulsar.common.naming.TopicName;

/** A recording under way: its files, the traces of its dispatchers, and the message log. */
public final class TraceSession implements AutoCloseable {
    private final PulsarService pulsar;
    private final Settings settings;
    private final Stats stats = new Stats();
    private final Recorder recorder;
    private final Publishes publishes;
    private final Map<Object, DispatcherTrace> byDispatcher = new MapMaker().weakKeys().makeMap();
    private final Map<ManagedCursor, DispatcherTrace> byCursor = new MapMaker().weakKeys().makeMap();
    private final Map<Consumer, DispatcherTrace> byConsumer = new MapMaker().weakKeys().makeMap();
    private final Map<String, DispatcherTrace> byName = new ConcurrentHashMap<>();
    private final AtomicLong lastIncarnation = new AtomicLong();
    private final Set<String> logged = ConcurrentHashMap.newKeySet();

    private TraceSession(PulsarService pulsar, Settings settings, List<String> missing) {
        this.pulsar = pulsar;
        this.settings = settings;
        this.recorder = new Recorder(LogForm.trace(missing), settings, log -> null, stats, this::sweep, deleted -> {
        }, this::failed);
        this.publishes = new Publishes(settings, recorder.queue(), topic -> {
        });
    }

    /**
     * Start to record into a folder. The settings are the recorder's (docs/recorder.md), but for the folder.
     *
     * @param missing kinds of lines that this broker's build does not give
     */
    public static TraceSession open(PulsarService pulsar, Path directory, List<String> missing) throws IOException {
        Settings settings = Settings.read(BrokerView.describe(pulsar), pulsar.getConfiguration().getProperties()::get,
                System.getenv()).in(directory);
        TraceSession session = new TraceSession(pulsar, settings, missing);
        session.recorder.start();
        return session;
    }

    /** End all traces and complete the files. */
    @Override
    public void close() {
        byName.values().forEach(trace -> trace.end(false));
        recorder.close();
    }

    /** The counts since the beginning. */
    public Stats stats() {
        return stats;
    }

    /** Write a driver's mark, or another line of its own, into the trace of a subscription. */
    public void note(String topic, String subscription, String kind, Map<String, String> fields) {
        DispatcherTrace trace = byName.get(name(topic, subscription));
        if (trace != null) {
            TraceLine line = TraceLine.of(kind);
            fields.forEach(line::set);
            trace.add(line);
        }
    }

    /** Number of lines that are written or wait, over all traces; grows while something happens. */
    public long activity() {
        return recorder.queue().offered();
    }

    Publishes publishes() {
        return publishes;
    }

    /** The trace of a connection's dispatcher; null = it is not recorded. */
    DispatcherTrace of(Consumer consumer) {
        return byConsumer.get(consumer);
    }

    /** The trace of a subscription's dispatcher by its cursor; null = it is not recorded. */
    DispatcherTrace of(ManagedCursor cursor) {
        return byCursor.get(cursor);
    }

    /** The trace of a dispatcher by its name; null = it is not recorded. */
    DispatcherTrace named(String dispatcher) {
        return byName.get(dispatcher);
    }

    /** Note that a connection is about to be added to a dispatcher, and begin the dispatcher's trace with its first one. */
    void joins(Object dispatcher, ManagedCursor cursor, Consumer consumer) {
        Subscription subscription = consumer.getSubscription();
        if (!wanted(subscription)) {
            return;
        }
        DispatcherTrace trace = byDispatcher.computeIfAbsent(dispatcher, first -> begin(subscription, cursor, consumer));
        byConsumer.put(consumer, trace);
    }

    private boolean wanted(Subscription subscription) {
        return settings.takesTopic(subscription.getTopicName()) && settings.takesSubscription(subscription.getName())
                && !BrokerView.isSystemTopic(subscription.getTopicName())
                && !BrokerView.isSystemSubscription(pulsar, subscription.getName());
    }

    private DispatcherTrace begin(Subscription subscription, ManagedCursor cursor, Consumer first) {
        String topic = subscription.getTopicName();
        publishes.see(subscription.getTopic());
        long incarnation = lastIncarnation.updateAndGet(last -> Math.max(last + 1, System.currentTimeMillis()));
        DispatcherLog log = new DispatcherLog(topic, subscription.getName(), BrokerView.typeName(first.subType()),
                TopicName.getPartitionIndex(topic), incarnation);
        DispatcherTrace trace = new DispatcherTrace(subscription, cursor, log, recorder.queue());
        DispatcherTrace before = byName.put(name(topic, subscription.getName()), trace);
        if (before != null) {
            before.end(before.subscription != subscription && BrokerView.isDeleted(before.subscription));
        }
        trace.add(new Event.Checkpoint(List.of(), BrokerView.state(subscription, log)));
        byCursor.put(cursor, trace);
        limit(trace);
        return trace;
    }

    /** Write limits that began or ended, and end the traces of dispatchers that are gone. */
    private void sweep() {
        byName.values().removeIf(trace -> {
            limit(trace);
            boolean over = !BrokerView.isServed(pulsar.getBrokerService(), trace.subscription);
            if (over) {
                trace.end(BrokerView.isDeleted(trace.subscription));
            }
            return over;
        });
    }

    /** Write limits that began or ended: before each decision, so that a line stands where its limit takes effect. */
    void limit(DispatcherTrace trace) {
        Topic topic = trace.subscription.getTopic();
        Map<String, Long> now = BrokerView.limits(trace.subscription, trace.log.subscriptionType, publishes.see(topic).orElse(null));
        List<Event> lines;
        synchronized (trace.log) {
            lines = trace.log.limited(now);
        }
        lines.forEach(trace::add);
    }

    /** The name that dispatchers have in the broker. */
    private static String name(String topic, String subscription) {
        return topic + " / " + subscription;
    }

    /** Count a failure, and report the first of each kind. */
    void failed(String where, Throwable failure) {
        stats.errors.increment();
        if (logged.add(where + failure.getClass().getName())) {
            System.err.println("Dispatch audit trace: " + where + " failed; the broker is not affected, the trace has a gap line "
                    + "in place of the line. Further failures of this kind are counted only: " + failure);
        }
    }
}
