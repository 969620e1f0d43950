package dispatchaudit.recorder;

import java.util.BitSet;
import java.util.HashMap;
import java.util.Map;

/** Which entries of a topic the message log still lacks, because they were stored before the recorder saw the topic. */
final class TopicLog {
    private final long lastLedgerBefore;
    private final long lastEntryBefore;
    private final Map<Long, BitSet> written = new HashMap<>();

    /** The last entry that was stored when the topic was first seen; those behind it are recorded as they are published. */
    TopicLog(long lastLedgerBefore, long lastEntryBefore) {
        this.lastLedgerBefore = lastLedgerBefore;
        this.lastEntryBefore = lastEntryBefore;
    }

    /** Whether the entry is of the time before and is asked for the first time. */
    boolean takeBacklog(long ledgerId, long entryId) {
        boolean before = ledgerId < lastLedgerBefore || ledgerId == lastLedgerBefore && entryId <= lastEntryBefore;
        return before && entryId >= 0 && entryId <= Integer.MAX_VALUE && first(ledgerId, (int) entryId);
    }

    private synchronized boolean first(long ledgerId, int entryId) {
        BitSet entries = written.computeIfAbsent(ledgerId, ledger -> new BitSet());
        boolean first = !entries.get(entryId);
        entries.set(entryId);
        return first;
    }
}
