package dispatchaudit.trace;

import com.google.common.collect.MapMaker;
import dispatchaudit.recorder.DispatcherLog;
import dispatchaudit.recorder.Event;
import dispatchaudit.recorder.EventQueue;
import java.util.Map;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.pulsar.broker.service.Consumer;
import org.apache.pulsar.broker.service.Subscription;

/**
 * The trace of one dispatcher object, which is an incarnation: its memory is that object's. Numbers connections in the order in
 * which lines name them first.
 */
final class DispatcherTrace {
    final Subscription subscription;
    final ManagedCursor cursor;
    final DispatcherLog log;
    private final EventQueue queue;
    private final Map<Consumer, Integer> numbers = new MapMaker().weakKeys().makeMap();
    private final Map<Consumer, Integer> usable = new MapMaker().weakKeys().makeMap();
    private int lastNumber;

    DispatcherTrace(Subscription subscription, ManagedCursor cursor, DispatcherLog log, EventQueue queue) {
        this.subscription = subscription;
        this.cursor = cursor;
        this.log = log;
        this.queue = queue;
    }

    /** The connection's number; from 1, never used twice. */
    synchronized int number(Consumer consumer) {
        return numbers.computeIfAbsent(consumer, added -> ++lastNumber);
    }

    /** Add an event at this place of the order, unless the incarnation has ended. */
    void add(Event event) {
        synchronized (log) {
            if (!log.over) {
                queue.offer(log, event);
            }
        }
    }

    /** Count a line that could not be made: a gap line stands in its place. */
    void lose() {
        synchronized (log) {
            if (!log.over) {
                queue.lose(log);
            }
        }
    }

    /** End the incarnation: later lines are dropped. */
    void end(boolean deleted) {
        synchronized (log) {
            if (log.over) {
                return;
            }
            if (deleted) {
                queue.offer(log, new Event.SubscriptionDeleted());
            }
            queue.offer(log, new Event.Ended());
            log.over = true;
        }
    }

    /** True if a consumer's usable permits are not those of the last call. */
    boolean isNewUsable(Consumer consumer, int permits) {
        Integer before = usable.put(consumer, permits);
        return before == null || before != permits;
    }

    /** Add to a line where the cursor is now. */
    TraceLine withCursor(TraceLine line) {
        return line.set("read_position", cursor.getReadPosition()).set("mark_delete", cursor.getMarkDeletedPosition());
    }
}
