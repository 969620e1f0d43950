package dispatchaudit.recorder;

/** A call of an administrator or a command of a client that may move a cursor, until it is answered. */
final class CursorOperation {
    private static final long MOST_NS = 120_000_000_000L;

    /** Name in a {@code cursor_moved} line. */
    final String by;
    /** It sets the position, forwards or backwards, and forgets the acknowledgements above it. */
    final boolean resets;
    /** It is answered before its effect, which may also be nothing. */
    final boolean answeredEarly;
    private final long startedNs = System.nanoTime();
    // used by the writer's thread only
    Place before;
    boolean written;

    private CursorOperation(String by, boolean resets, boolean answeredEarly) {
        this.by = by;
        this.resets = resets;
        this.answeredEarly = answeredEarly;
    }

    /** True if it can no longer be the cause of a move: it was never answered, or had no effect. */
    boolean isOver() {
        return System.nanoTime() - startedNs > MOST_NS;
    }

    static CursorOperation seek() {
        return new CursorOperation("seek", true, false);
    }

    static CursorOperation resetCursor() {
        return new CursorOperation("reset_cursor", true, false);
    }

    static CursorOperation skip() {
        return new CursorOperation("skip", false, false);
    }

    static CursorOperation clearBacklog() {
        return new CursorOperation("clear_backlog", false, false);
    }

    static CursorOperation expiry() {
        return new CursorOperation("expiry", false, true);
    }
}
