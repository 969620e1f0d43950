package dispatchaudit.recorder;

import java.lang.ref.WeakReference;
import java.util.BitSet;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.pulsar.broker.service.Topic;

/**
 * Finds the entries of a topic that the message log lacks because they were stored before the recorder saw the topic, and numbers
 * those of a non-persistent topic.
 */
public final class TopicLog {
    private final long lastLedgerBefore;
    private final long lastEntryBefore;
    private final Map<Long, BitSet> written = new HashMap<>();
    private WeakReference<Topic> load = new WeakReference<>(null);
    private long ledgerId;
    private long nextEntryId;
    /** A message with a time of delivery was seen. */
    volatile boolean delays;
    /** A message or an acknowledgement of a transaction was seen. */
    volatile boolean transactions;

    /** The arguments are the last entry that was stored when the topic was first seen. Later ones are recorded when published. */
    TopicLog(long lastLedgerBefore, long lastEntryBefore) {
        this.lastLedgerBefore = lastLedgerBefore;
        this.lastEntryBefore = lastEntryBefore;
    }

    /** True at the first call for an entry that was stored before. */
    boolean takeBacklog(long ledgerId, long entryId) {
        boolean before = ledgerId < lastLedgerBefore || ledgerId == lastLedgerBefore && entryId <= lastEntryBefore;
        return before && entryId >= 0 && entryId <= Integer.MAX_VALUE && first(ledgerId, (int) entryId);
    }

    /**
     * Number the next entry of a non-persistent topic, which the broker gives no position, and pass on the number. Numbers begin at 0
     * for each load of the topic, with a ledger id of its own that is larger than those before.
     */
    synchronized Place number(Topic load, Consumer<Place> use) {
        if (load != this.load.get()) {
            this.load = new WeakReference<>(load);
            ledgerId = Math.max(ledgerId + 1, System.currentTimeMillis());
            nextEntryId = 0;
        }
        Place place = new Place(ledgerId, nextEntryId++);
        use.accept(place);
        return place;
    }

    private synchronized boolean first(long ledgerId, int entryId) {
        BitSet entries = written.computeIfAbsent(ledgerId, ledger -> new BitSet());
        boolean first = !entries.get(entryId);
        entries.set(entryId);
        return first;
    }
}
