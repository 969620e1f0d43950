package dispatchaudit.recorder;

import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;

/**
 * The queue between the broker's threads and the writer: it fixes one order, is bounded, and never waits for the writer.
 *
 * <p>Two lists are swapped: producers append to one under a lock that is held for some tens of nanoseconds, and the writer
 * takes it as a whole. When the list is full, further events are dropped and counted at their dispatcher; the next accepted
 * event (or the end of the list) says how many were lost before it. Events of membership are always accepted: there are only as
 * many as connections, and no later line could be read without them.
 */
public final class EventQueue {
    /**
     * An event or a message in its place. {@code log} and {@code event} are null for a message; {@code before} is null unless
     * events of this dispatcher were dropped ahead of it.
     */
    record Item(DispatcherLog log, Event event, Message message, long timeUs, Loss before) {
    }

    /** A loss at the end of a list: no later event was accepted. */
    record LossAtEnd(DispatcherLog log, Loss loss, long timeUs) {
    }

    /** The batch that the writer takes. {@code lostMessages} were dropped since the last one. */
    record Batch(List<Item> items, List<LossAtEnd> losses, long lostMessages) {
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
    private long offered;

    /**
     * @param capacity      items that may wait; as many again may be with the writer
     * @param capacityBytes the same in bytes
     * @param clockUs       microseconds since the epoch; may go back, the recorded times do not
     */
    public EventQueue(int capacity, long capacityBytes, java.util.function.LongSupplier clockUs) {
        this.capacity = capacity;
        this.capacityBytes = capacityBytes;
        this.clockUs = clockUs;
    }

    /** Append an event; for sent entries use {@link #sent}. False if it was dropped (and counted). */
    public synchronized boolean offer(DispatcherLog log, Event event) {
        log.openSent = null;
        if (!(event.plain() instanceof Event.Essential) && full()) {
            drop(log, event.sentEntries());
            return false;
        }
        append(log, event);
        return true;
    }

    /**
     * The same for an entry that is being sent: it joins the line of its write if that is still the dispatcher's last event.
     *
     * @param permits    the connection's permits before the write
     * @param markDelete the mark-delete position; null = unknown
     */
    public synchronized boolean sent(DispatcherLog log, int consumer, long permits, long ledgerId, long entryId, int batchSize,
                                     Place markDelete) {
        if (full()) {
            log.openSent = null;
            drop(log, 1);
            return false;
        }
        Event.Sent open = log.openSent;
        if (open != null && open.takes(consumer, permits, ledgerId, entryId)) {
            int before = open.weightBytes();
            open.add(ledgerId, entryId, batchSize);
            bytes += open.weightBytes() - before;
            return true;
        }
        open = new Event.Sent(consumer, permits, markDelete);
        open.add(ledgerId, entryId, batchSize);
        log.openSent = open;
        opened.add(log);
        append(log, open);
        return true;
    }

    /** The number of events so far, without those that were dropped or joined to another. */
    public synchronized long offered() {
        return offered;
    }

    /** Count an event that could not be made as lost, so that the log has a gap line in its place. */
    public synchronized void lose(DispatcherLog log) {
        log.openSent = null;
        drop(log, 0);
    }

    private void drop(DispatcherLog log, int sentEntries) {
        log.lostEvents++;
        log.lostSentEntries += sentEntries;
        losing.add(log);
    }

    private void append(DispatcherLog log, Event event) {
        Loss before = null;
        if (log.lostEvents > 0) {
            before = loss(log);
            losing.remove(log);
        }
        items.add(new Item(log, event, null, now(), before));
        offered++;
        bytes += event.weightBytes();
        wake();
    }

    private static Loss loss(DispatcherLog log) {
        Loss loss = new Loss(log.lostEvents, log.lostSentEntries);
        log.lostEvents = 0;
        log.lostSentEntries = 0;
        return loss;
    }

    /** The same for a line of the message log. It has no number, so only the count of lost lines is kept. */
    public synchronized boolean offer(Message message) {
        if (full()) {
            lostMessages++;
            return false;
        }
        items.add(new Item(null, null, message, 0, null));
        bytes += message.weightBytes();
        wake();
        return true;
    }

    /** Take all waiting events; waits up to {@code timeoutMs} for a list that is a quarter full. */
    public synchronized Batch take(long timeoutMs) throws InterruptedException {
        if (timeoutMs > 0 && items.size() < capacity / 4) {
            wait(timeoutMs);
        }
        List<LossAtEnd> losses = new ArrayList<>(losing.size());
        for (DispatcherLog log : losing) {
            losses.add(new LossAtEnd(log, loss(log), now()));
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
