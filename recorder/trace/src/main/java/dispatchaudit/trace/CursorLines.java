package dispatchaudit.trace;

import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.Position;

/** Lines about a subscription's cursor: reads, acknowledgements in force, operations of administrators and clients. */
public final class CursorLines {
    private CursorLines() {
    }

    public static void readIssued(ManagedCursor cursor, int maxEntries) {
        Tracing.line("read_issued", cursor, trace -> TraceLine.of("read_issued").set("max_entries", maxEntries)
                .set("read_position", cursor.getReadPosition()));
    }

    public static void readCancelled(ManagedCursor cursor, boolean cancelled) {
        Tracing.line("read_cancelled", cursor, trace -> TraceLine.of("read_cancelled").set("cancelled", cancelled));
    }

    public static void rewound(ManagedCursor cursor) {
        Tracing.line("rewind", cursor, trace -> trace.withCursor(TraceLine.of("rewind")));
    }

    public static void markDeleted(ManagedCursor cursor) {
        Tracing.line("mark_delete", cursor, trace -> TraceLine.of("mark_delete").set("mark_delete", cursor.getMarkDeletedPosition()));
    }

    public static void skips(ManagedCursor cursor, int entries) {
        Tracing.line("cursor_op", cursor, trace -> trace.withCursor(operation("skip").set("entries", entries)));
    }

    public static void clears(ManagedCursor cursor) {
        Tracing.line("cursor_op", cursor, trace -> trace.withCursor(operation("clear_backlog")));
    }

    public static void resets(ManagedCursor cursor, Position target) {
        Tracing.line("cursor_op", cursor, trace -> trace.withCursor(operation("reset").set("target", target)));
    }

    public static void marks(ManagedCursor cursor, Position target) {
        Tracing.line("cursor_op", cursor, trace -> trace.withCursor(operation("mark_delete").set("target", target)));
    }

    private static TraceLine operation(String name) {
        return TraceLine.of("cursor_op").set("op", name);
    }
}
