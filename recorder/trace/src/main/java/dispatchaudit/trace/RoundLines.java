package dispatchaudit.trace;

import java.util.Collection;
import java.util.List;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.service.Consumer;
import org.apache.pulsar.broker.service.StickyKeyDispatcher;

/** Lines about read attempts and rounds of the dispatchers of several consumers, Key_Shared and Shared. */
public final class RoundLines {
    /** An attempt asks for usable permits itself; what this agent asks for its own line is no line. */
    private static final ThreadLocal<Boolean> ASKING = ThreadLocal.withInitial(() -> false);

    private RoundLines() {
    }

    public static void flowApplied(Consumer consumer, int permits) {
        Tracing.line("flow_applied", consumer, (trace, number) -> TraceLine.of("flow_applied", number).set("permits", permits));
    }

    public static void attempt(ManagedCursor cursor) {
        Tracing.decision("read_attempt", cursor, trace -> TraceLine.of("read_attempt"));
    }

    public static void attemptEnds(Object dispatcher, ManagedCursor cursor, List<Consumer> consumers, int totalPermits,
                                   boolean pendingRead, boolean pendingReplay) {
        Tracing.line("read_attempt_end", cursor, trace -> {
            long[][] usable = new long[consumers.size()][];
            int at = 0;
            for (Consumer consumer : consumers) {
                usable[at++] = new long[] {trace.number(consumer), usable(dispatcher, consumer), consumer.getAvailablePermits(),
                        consumer.getUnackedMessages()};
            }
            return TraceLine.of("read_attempt_end").set("total_permits", totalPermits).set("usable", usable)
                    .set("pending_read", pendingRead).set("pending_replay", pendingReplay);
        });
    }

    private static int usable(Object dispatcher, Consumer consumer) throws ReflectiveOperationException {
        if (!(dispatcher instanceof StickyKeyDispatcher)) {
            return consumer.getAvailablePermits();
        }
        ASKING.set(true);
        try {
            return (Integer) Hidden.USABLE_PERMITS.of(dispatcher, consumer);
        } finally {
            ASKING.set(false);
        }
    }

    public static void usableSeen(Consumer consumer, int permits) {
        if (!ASKING.get()) {
            Tracing.line("usable_seen", consumer, (trace, number) -> trace.isNewUsable(consumer, permits)
                    ? TraceLine.of("usable_seen", number).set("value", permits) : null);
        }
    }

    public static void replayReadIssued(ManagedCursor cursor, Collection<? extends Position> positions) {
        Tracing.line("replay_read_issued", cursor, trace -> TraceLine.of("replay_read_issued").positions(Places.of(positions)));
    }

    public static void alreadyDeleted(ManagedCursor cursor, Collection<? extends Position> positions) {
        if (positions != null && !positions.isEmpty()) {
            Tracing.line("replay_already_deleted", cursor, trace ->
                    TraceLine.of("replay_already_deleted").positions(Places.of(positions)));
        }
    }

    public static void readDone(Object dispatcher, ManagedCursor cursor, List<? extends Entry> entries, Object type) {
        Tracing.line("read_done", cursor, trace -> {
            int[] hashes = new int[entries.size()];
            for (int i = 0; i < hashes.length; i++) {
                hashes[i] = (Integer) Hidden.STICKY_KEY_HASH.of(dispatcher, entries.get(i));
            }
            return TraceLine.of("read_done").set("type", String.valueOf(type)).positions(Places.ofEntries(entries))
                    .set("hashes", hashes).set("read_position", cursor.getReadPosition());
        });
        MessageLines.read(cursor, entries);
    }

    public static void begins(ManagedCursor cursor, Object type, List<? extends Entry> entries) {
        Tracing.decision("round_begin", cursor, trace -> trace.withCursor(TraceLine.of("round_begin")
                .set("type", String.valueOf(type)).positions(Places.ofEntries(entries))));
    }

    /** {@code lookAhead}: null where the dispatcher does not look ahead. */
    public static void ends(ManagedCursor cursor, boolean retry, Object replaySet, Boolean lookAhead) {
        Tracing.line("round_end", cursor, trace -> {
            TraceLine line = TraceLine.of("round_end").set("retry", retry).set("in_replay", (Integer) Hidden.SIZE.of(replaySet));
            return (lookAhead == null ? line : line.set("look_ahead", lookAhead)).set("has_more", cursor.hasMoreEntries());
        });
    }

    /** {@code positions}: null = all that the consumer has not acknowledged. */
    public static void redeliver(Consumer consumer, Collection<? extends Position> positions) {
        Tracing.line("redeliver", consumer, (trace, number) -> {
            TraceLine line = TraceLine.of("redeliver", number);
            return positions == null || ConsumerLines.requestsAll() ? line : line.positions(Places.of(positions));
        });
    }

    public static void recentlyJoinedPruned(ManagedCursor cursor) {
        Tracing.line("recently_joined_pruned", cursor, trace -> trace.withCursor(TraceLine.of("recently_joined_pruned")));
    }
}
