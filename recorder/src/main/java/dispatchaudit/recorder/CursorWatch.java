package dispatchaudit.recorder;

import java.util.ArrayList;
import java.util.BitSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.BooleanSupplier;

/**
 * Follows the cursor of one dispatcher, and finds moves of its mark-delete position that no acknowledgement explains.
 *
 * <p>An acknowledgement is in the order of events before its effect. So if the position has passed an entry that was not
 * acknowledged until then, or has gone back, something else moved the cursor: the operation that is under way, expiry, or an
 * unknown cause. For the writer's thread only. Does not depend on Pulsar.
 */
final class CursorWatch {
    private static final int MOST_OPERATIONS = 100;

    private final BooleanSupplier expires;
    private Place markDelete;
    /** After lost events: positions from here to {@link #markDelete} are older readings. */
    private Place staleFrom;
    private Place ackedUpTo;
    private final Map<Long, BitSet> acked = new HashMap<>();
    /** Of entries that are acknowledged in part, the messages that are not. */
    private final Map<Place, BitSet> rest = new HashMap<>();
    private final TreeMap<Long, Long> lastEntries = new TreeMap<>();
    private final List<CursorOperation> operations = new ArrayList<>();

    /** {@code expires}: true if messages of the subscription expire, or have expired since the last call. */
    CursorWatch(BooleanSupplier expires) {
        this.expires = expires;
    }

    /** Begin with the state in an incarnation's first checkpoint; null = unknown. */
    void begin(State state) {
        forget();
        if (state != null && state.markDelete() != null) {
            markDelete = Place.of(state.markDelete());
            state.ackHoles().forEach(hole -> acknowledged(Place.of(hole)));
            if (state.cut() && state.unsent() != null) { // any entry may be acknowledged
                ackedUpTo = Place.of(state.unsent());
            }
        }
    }

    /**
     * Continue with the broker's present state after events were lost, acknowledgements among them. The events that wait may
     * have older positions.
     */
    void resume(State state) {
        Place before = markDelete == null ? new Place(Long.MIN_VALUE, 0) : markDelete;
        begin(state);
        staleFrom = markDelete == null ? null : before;
        operations.forEach(operation -> operation.before = markDelete);
    }

    /** Note acknowledgements; to be called for all of them, in the order of events. */
    void acknowledged(Event.Ack ack) {
        for (int i = 0; i < ack.ledgers().length; i++) {
            Place place = new Place(ack.ledgers()[i], ack.entries()[i]);
            long[] words = ack.ackSets() == null ? null : ack.ackSets()[i];
            if (words != null && !restIsEmpty(place, words)) {
                place = ack.cumulative() ? new Place(place.ledgerId(), place.entryId() - 1) : null;
            }
            if (place == null) {
                continue;
            }
            if (!ack.cumulative()) {
                acknowledged(place);
            } else if (ackedUpTo == null || place.compareTo(ackedUpTo) > 0) {
                ackedUpTo = place;
            }
        }
    }

    private boolean restIsEmpty(Place place, long[] words) {
        BitSet left = rest.computeIfAbsent(place, unseen -> BitSet.valueOf(words));
        left.and(BitSet.valueOf(words));
        if (left.isEmpty()) {
            rest.remove(place);
            return true;
        }
        return false;
    }

    private void acknowledged(Place place) {
        if (place.entryId() >= 0 && place.entryId() < Integer.MAX_VALUE) {
            acked.computeIfAbsent(place.ledgerId(), ledger -> new BitSet()).set((int) place.entryId());
        }
    }

    /** Take a piece of information in its place of the order; returns the move that it proves, or null. */
    Event.CursorMoved take(Event.Unwritten event) {
        if (event instanceof Event.UnwrittenAck unwritten) {
            acknowledged(unwritten.ack());
        } else if (event instanceof Event.CursorAt at) {
            if (at.ledgers() != null) {
                lastEntries.putAll(at.ledgers());
            }
            Event.CursorMoved moved = at(at.place());
            return moved != null || at.holes() != 0 || !hasAcked() ? moved : resetInPlace();
        } else if (event instanceof Event.OperationBegins begins) {
            Event.CursorMoved moved = at(begins.place());
            begins.operation().before = markDelete;
            operations.add(begins.operation());
            if (operations.size() > MOST_OPERATIONS) {
                operations.remove(0);
            }
            return moved;
        } else if (event instanceof Event.OperationEnds ends) {
            return ended(ends);
        }
        return null;
    }

    private Event.CursorMoved ended(Event.OperationEnds ends) {
        CursorOperation operation = ends.operation();
        if (!ends.succeeded()) {
            operations.remove(operation);
            return at(ends.place());
        }
        Event.CursorMoved moved = at(ends.place());
        if (!operation.answeredEarly) {
            operations.remove(operation);
        }
        if (moved != null || operation.written || operation.answeredEarly || markDelete == null) {
            return moved;
        }
        operation.written = true;
        if (operation.resets) { // to where it was: only the acknowledgements above are forgotten
            forgetAcks();
            return new Event.CursorMoved(operation.by, markDelete, markDelete, 0);
        }
        Place before = operation.before == null ? markDelete : operation.before;
        // it passed only what was acknowledged by now
        return before.equals(markDelete) ? null : new Event.CursorMoved(operation.by, before, markDelete, -1);
    }

    /** The acknowledgements above the position are gone while a reset is under way, which has thus taken effect. */
    private Event.CursorMoved resetInPlace() {
        CursorOperation reset = next(true);
        if (reset == null || markDelete == null) {
            return null;
        }
        reset.written = true;
        forgetAcks();
        return new Event.CursorMoved(reset.by, markDelete, markDelete, 0);
    }

    /** Take the mark-delete position in its place of the order; returns the move that it proves, or null. */
    Event.CursorMoved at(Place now) {
        if (now == null) {
            return null;
        }
        if (markDelete == null) {
            markDelete = now;
            return null;
        }
        int order = now.compareTo(markDelete);
        if (staleFrom != null) {
            if (order < 0 && now.compareTo(staleFrom) >= 0) {
                return null;
            }
            staleFrom = null;
        }
        return order == 0 ? null : order < 0 ? back(now) : forward(now);
    }

    private Event.CursorMoved back(Place now) {
        CursorOperation reset = next(true);
        Event.CursorMoved moved = new Event.CursorMoved(named(reset, "unknown"), markDelete, now, -1);
        forgetAcks();
        markDelete = now;
        return moved;
    }

    private Event.CursorMoved forward(Place now) {
        Passed passed = passed(now);
        Event.CursorMoved moved = null;
        if (passed.count > 0) {
            CursorOperation operation = next(false);
            boolean known = operation != null;
            String by = named(operation, expires.getAsBoolean() ? "expiry" : "unknown");
            boolean exact = known || by.equals("expiry");
            moved = new Event.CursorMoved(by, passed.before, exact ? now : passed.last, passed.count);
            if (known && operation.resets) {
                forgetAcks();
            }
            operations.forEach(open -> open.before = now); // several calls may clear one backlog: each bundle's and the namespace's
        }
        markDelete = now;
        acked.keySet().removeIf(ledger -> ledger < now.ledgerId());
        if (!rest.isEmpty()) {
            rest.keySet().removeIf(place -> place.compareTo(now) <= 0);
        }
        return moved;
    }

    /** The first operation without a line, of those that {@code resets} or of all. */
    private CursorOperation next(boolean resets) {
        operations.removeIf(CursorOperation::isOver);
        for (CursorOperation operation : operations) {
            if (!operation.written && (operation.resets || !resets)) {
                return operation;
            }
        }
        return null;
    }

    private String named(CursorOperation operation, String otherwise) {
        if (operation == null) {
            return otherwise;
        }
        operation.written = true;
        if (operation.answeredEarly) {
            operations.remove(operation);
        }
        return operation.by;
    }

    /** Entries that the position passes on its way to a later one although they are not acknowledged. */
    private static final class Passed {
        long count;
        Place before;
        Place last;
    }

    private Passed passed(Place to) {
        Passed passed = new Passed();
        for (long ledger = markDelete.ledgerId(); ledger <= to.ledgerId(); ledger = following(ledger, to.ledgerId())) {
            long first = ledger == markDelete.ledgerId() ? markDelete.entryId() + 1 : 0;
            Long end = ledger == to.ledgerId() ? Long.valueOf(to.entryId()) : lastEntries.get(ledger);
            if (end == null) { // closed and deleted unseen: only acknowledgements are known of it
                continue;
            }
            if (ackedUpTo != null && ledger <= ackedUpTo.ledgerId()) {
                first = ledger < ackedUpTo.ledgerId() ? end + 1 : Math.max(first, ackedUpTo.entryId() + 1);
            }
            count(passed, ledger, first, end);
        }
        return passed;
    }

    private long following(long ledger, long last) {
        if (ledger == last) {
            return last + 1;
        }
        Long next = lastEntries.higherKey(ledger);
        return next == null || next > last ? last : next;
    }

    private void count(Passed passed, long ledger, long first, long last) {
        BitSet entries = acked.getOrDefault(ledger, new BitSet());
        for (long entry = first; entry <= last;) {
            long open = entry > Integer.MAX_VALUE ? entry : entries.nextClearBit((int) entry);
            if (open > last) {
                return;
            }
            int set = open > Integer.MAX_VALUE ? -1 : entries.nextSetBit((int) open);
            long end = set < 0 ? last : Math.min(last, set - 1L);
            if (passed.count == 0) {
                boolean adjoins = ledger == markDelete.ledgerId() || open > 0;
                passed.before = adjoins ? new Place(ledger, open - 1) : markDelete;
            }
            passed.count += end - open + 1;
            passed.last = new Place(ledger, end);
            entry = end + 1;
        }
    }

    private boolean hasAcked() {
        return markDelete != null && acked.entrySet().stream().anyMatch(entries -> entries.getKey() > markDelete.ledgerId()
                ? !entries.getValue().isEmpty()
                : entries.getKey() == markDelete.ledgerId() && entries.getValue().length() > markDelete.entryId() + 1);
    }

    private void forget() {
        forgetAcks();
        staleFrom = null;
        markDelete = null;
    }

    private void forgetAcks() {
        acked.clear();
        rest.clear();
        ackedUpTo = null;
    }
}
