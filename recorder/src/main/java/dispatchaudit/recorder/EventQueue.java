package dispatchaudit.recorder;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/**
 * What lies between the broker's threads and the writer: one order, a bound, and never a wait for the writer.
 *
 * <p>Two lists change places: producers append to one under a lock that is held for some tens of nanoseconds, the writer takes
 * it whole. When the list is full, what comes is dropped and counted at its dispatcher; the next event that is taken (or the
 * end of the list) says how many were lost before it. Events of membership are always taken: they are as many as there are
 * connections, and without them no later line could be read.
 */
public final class EventQueue {
    /** An event or a message in its place. {@code log} and {@code event} are null for a message. */
    record Item(DispatcherLog log, Event event, Message message, long timeUs, long lostBefore) {
    }

    /** A loss at the end of a list, of events behind which none was taken. */
    record Loss(DispatcherLog log, long lines, long timeUs) {
    }

    /** What the writer takes at once. {@code lostMessages} were dropped since the last time. */
    record Batch(List<Item> items, List<Loss> losses, long lostMessages) {
    }

    private final int capacity;
    private final long capacityBytes;
    private final java.util.function.LongSupplier clockUs;
    private List<Item> items = new ArrayList<>();
    private Set<DispatcherLog> losing = new LinkedHashSet<>();
    private Set<DispatcherLog> opened = new LinkedHashSet<>();
    private long bytes;
    private long lostMessages;
    private long lastTimeUs;

    /**
     * @param capacity      items that may wait; as many again may be with the writer
     * @param capacityBytes the same in bytes
     * @param clockUs       microseconds since the epoch; may go back, the times given out do not
     */
    public EventQueue(int capacity, long capacityBytes, java.util.function.LongSupplier clockUs) {
        this.capacity = capacity;
        this.capacityBytes = capacityBytes;
        this.clockUs = clockUs;
    }

    /** Put an event in its place in the order. False if it was dropped (and counted). */
    public synchronized boolean offer(DispatcherLog log, Event event) {
        if (!event.essential() && full()) {
            log.lost++;
            log.openSent = null;
            losing.add(log);
            return false;
        }
        if (event instanceof Event.Sent sent) {
            if (log.openSent != null && log.openSent.takes(sent)) {
                int before = log.openSent.weightBytes();
                log.openSent.append(sent);
                bytes += log.openSent.weightBytes() - before;
                return true;
            }
            log.openSent = sent;
            opened.add(log);
        } else {
            log.openSent = null;
        }
        items.add(new Item(log, event, null, now(), log.lost));
        if (log.lost > 0) {
            log.lost = 0;
            losing.remove(log);
        }
        bytes += event.weightBytes();
        wake();
        return true;
    }

    /** The same for a line of the message log, which has no number: only how many were lost is known. */
    public synchronized boolean offer(Message message) {
        if (full()) {
            lostMessages++;
            return false;
        }
        items.add(new Item(null, null, message, 0, 0));
        bytes += message.weightBytes();
        wake();
        return true;
    }

    /** Take all that waits; waits up to {@code timeoutMs} for a list that is a quarter full. */
    public synchronized Batch take(long timeoutMs) throws InterruptedException {
        if (timeoutMs > 0 && items.size() < capacity / 4) {
            wait(timeoutMs);
        }
        List<Loss> losses = new ArrayList<>(losing.size());
        for (DispatcherLog log : losing) {
            losses.add(new Loss(log, log.lost, now()));
            log.lost = 0;
        }
        for (DispatcherLog log : opened) {
            log.openSent = null;
        }
        Batch batch = new Batch(items, losses, lostMessages);
        items = new ArrayList<>();
        losing = new LinkedHashSet<>();
        opened = new LinkedHashSet<>();
        bytes = 0;
        lostMessages = 0;
        return batch;
    }

    private boolean full() {
        return items.size() >= capacity || bytes >= capacityBytes;
    }

    private long now() {
        lastTimeUs = Math.max(lastTimeUs, clockUs.getAsLong());
        return lastTimeUs;
    }

    private void wake() {
        if (items.size() == capacity / 4) {
            notifyAll();
        }
    }
}
