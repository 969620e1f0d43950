package dispatchaudit.trace;

import net.bytebuddy.asm.Advice;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.Position;

/** Advice for {@code ManagedCursorImpl}. */
public final class CursorAdvice {
    private CursorAdvice() {
    }

    public static final class Read {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This ManagedCursor cursor, @Advice.Argument(0) int maxEntries) {
            CursorLines.readIssued(cursor, maxEntries);
        }
    }

    public static final class CancelRead {
        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.This ManagedCursor cursor, @Advice.Return boolean cancelled) {
            CursorLines.readCancelled(cursor, cancelled);
        }
    }

    public static final class Rewind {
        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.This ManagedCursor cursor) {
            CursorLines.rewound(cursor);
        }
    }

    public static final class Acknowledged {
        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.This ManagedCursor cursor) {
            CursorLines.markDeleted(cursor);
        }
    }

    public static final class Skip {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This ManagedCursor cursor, @Advice.Argument(0) int entries) {
            CursorLines.skips(cursor, entries);
        }
    }

    public static final class ClearBacklog {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This ManagedCursor cursor) {
            CursorLines.clears(cursor);
        }
    }

    public static final class Reset {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This ManagedCursor cursor, @Advice.Argument(0) Position target) {
            CursorLines.resets(cursor, target);
        }
    }

    public static final class MarkDelete {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This ManagedCursor cursor, @Advice.Argument(0) Position target) {
            CursorLines.marks(cursor, target);
        }
    }
}
