package dispatchaudit.trace;

import java.util.Collection;
import java.util.List;
import net.bytebuddy.asm.Advice;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.service.AbstractDispatcherMultipleConsumers;
import org.apache.pulsar.broker.service.Consumer;
import org.apache.pulsar.broker.service.StickyKeyDispatcher;

/** Advice for the dispatchers of several consumers, Key_Shared and Shared, and their classic forms. */
public final class RoundAdvice {
    private RoundAdvice() {
    }

    public static final class Flow {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.Argument(0) Consumer consumer, @Advice.Argument(1) int permits) {
            RoundLines.flowApplied(consumer, permits);
        }
    }

    public static final class Attempt {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.FieldValue("cursor") ManagedCursor cursor) {
            RoundLines.attempt(cursor);
        }

        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.This AbstractDispatcherMultipleConsumers dispatcher,
                                @Advice.FieldValue("cursor") ManagedCursor cursor,
                                @Advice.FieldValue("totalAvailablePermits") int totalPermits,
                                @Advice.FieldValue("havePendingRead") boolean pendingRead,
                                @Advice.FieldValue("havePendingReplayRead") boolean pendingReplay) {
            RoundLines.attemptEnds(dispatcher, cursor, dispatcher.getConsumers(), totalPermits, pendingRead, pendingReplay);
        }
    }

    public static final class UsablePermits {
        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.Argument(0) Consumer consumer, @Advice.Return int permits) {
            RoundLines.usableSeen(consumer, permits);
        }
    }

    public static final class ReplayRead {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.FieldValue("cursor") ManagedCursor cursor,
                                 @Advice.Argument(0) Collection<? extends Position> positions) {
            RoundLines.replayReadIssued(cursor, positions);
        }

        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.FieldValue("cursor") ManagedCursor cursor,
                                @Advice.Return Collection<? extends Position> deleted) {
            RoundLines.alreadyDeleted(cursor, deleted);
        }
    }

    public static final class ReadDone {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This Object dispatcher, @Advice.FieldValue("cursor") ManagedCursor cursor,
                                 @Advice.Argument(0) List<? extends Entry> entries, @Advice.Argument(1) Object type) {
            RoundLines.readDone(dispatcher, cursor, entries, type);
        }
    }

    /** Of a Key_Shared dispatcher. */
    public static final class Round {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.FieldValue("cursor") ManagedCursor cursor, @Advice.Argument(0) Object type,
                                 @Advice.Argument(1) List<? extends Entry> entries) {
            RoundLines.begins(cursor, type, entries);
        }

        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.FieldValue("cursor") ManagedCursor cursor, @Advice.Return boolean retry,
                                @Advice.FieldValue("redeliveryMessages") Object replaySet,
                                @Advice.FieldValue("skipNextReplayToTriggerLookAhead") boolean lookAhead) {
            RoundLines.ends(cursor, retry, replaySet, lookAhead);
        }
    }

    /** Of a classic Key_Shared dispatcher. */
    public static final class ClassicRound {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.FieldValue("cursor") ManagedCursor cursor, @Advice.Argument(0) Object type,
                                 @Advice.Argument(1) List<? extends Entry> entries) {
            RoundLines.begins(cursor, type, entries);
        }

        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.FieldValue("cursor") ManagedCursor cursor, @Advice.Return boolean retry,
                                @Advice.FieldValue("redeliveryMessages") Object replaySet,
                                @Advice.FieldValue("isDispatcherStuckOnReplays") boolean stuck) {
            RoundLines.ends(cursor, retry, replaySet, stuck);
        }
    }

    /** Of a Shared dispatcher; a Key_Shared one has a method of its own. */
    public static final class SharedRound {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This Object dispatcher, @Advice.FieldValue("cursor") ManagedCursor cursor,
                                 @Advice.Argument(0) Object type, @Advice.Argument(1) List<? extends Entry> entries) {
            if (!(dispatcher instanceof StickyKeyDispatcher)) {
                RoundLines.begins(cursor, type, entries);
            }
        }

        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.This Object dispatcher, @Advice.FieldValue("cursor") ManagedCursor cursor,
                                @Advice.Return boolean retry, @Advice.FieldValue("redeliveryMessages") Object replaySet) {
            if (!(dispatcher instanceof StickyKeyDispatcher)) {
                RoundLines.ends(cursor, retry, replaySet, null);
            }
        }
    }

    public static final class RedeliverAll {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.Argument(0) Consumer consumer) {
            RoundLines.redeliver(consumer, null);
        }
    }

    public static final class Redeliver {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.Argument(0) Consumer consumer,
                                 @Advice.Argument(1) Collection<? extends Position> positions) {
            RoundLines.redeliver(consumer, positions);
        }
    }

    public static final class PruneRecentlyJoined {
        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.FieldValue("cursor") ManagedCursor cursor, @Advice.Return boolean pruned) {
            if (pruned) {
                RoundLines.recentlyJoinedPruned(cursor);
            }
        }
    }
}
