package dispatchaudit.recorder;

import java.util.concurrent.atomic.LongAdder;

/** What the recorder did since the broker's start; counted, never reset. */
public final class Stats {
    /** Lines of events written, without headers, gaps and checkpoints. */
    public final LongAdder events = new LongAdder();
    /** Entries named by the {@code sent} lines among them. */
    public final LongAdder sentEntries = new LongAdder();
    /** Lines of messages written. */
    public final LongAdder messages = new LongAdder();
    /** Events dropped because the queue was full; as many as the gap lines say. */
    public final LongAdder lostEvents = new LongAdder();
    /** Messages dropped for the same reason. */
    public final LongAdder lostMessages = new LongAdder();
    /** Lines that could not be written to disk; holes in {@code seq}. */
    public final LongAdder failedLines = new LongAdder();
    /** Exceptions inside the recorder, none of which reached the broker. */
    public final LongAdder errors = new LongAdder();
    /** Events of connections that the dispatcher no longer held, left out. */
    public final LongAdder lateEvents = new LongAdder();

    @Override
    public String toString() {
        return "{\"events\":%d,\"sent_entries\":%d,\"messages\":%d,\"lost_events\":%d,\"lost_messages\":%d,".formatted(
                        events.sum(), sentEntries.sum(), messages.sum(), lostEvents.sum(), lostMessages.sum())
                + "\"failed_lines\":%d,\"errors\":%d,\"late_events\":%d}".formatted(
                        failedLines.sum(), errors.sum(), lateEvents.sum());
    }
}
