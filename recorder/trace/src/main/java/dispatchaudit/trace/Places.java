package dispatchaudit.trace;

import java.util.Collection;
import java.util.List;
import java.util.Objects;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.Position;

/** Positions as numbers: the broker recycles entries, and changes sets, after a line was made. */
record Places(long[] ledgers, long[] entries) {

    static Places of(Collection<? extends Position> positions) {
        List<? extends Position> known = positions.stream().filter(Objects::nonNull).map(position -> (Position) position).toList();
        return new Places(known.stream().mapToLong(Position::getLedgerId).toArray(),
                known.stream().mapToLong(Position::getEntryId).toArray());
    }

    static Places of(long ledgerId, long entryId) {
        return new Places(new long[] {ledgerId}, new long[] {entryId});
    }

    /** The positions of entries; null entries, which a filter or an earlier check took out, are passed over. */
    static Places ofEntries(List<? extends Entry> entries) {
        List<? extends Entry> present = present(entries);
        return new Places(present.stream().mapToLong(Entry::getLedgerId).toArray(),
                present.stream().mapToLong(Entry::getEntryId).toArray());
    }

    static List<? extends Entry> present(List<? extends Entry> entries) {
        return entries.stream().filter(Objects::nonNull).toList();
    }

    int count() {
        return ledgers.length;
    }
}
