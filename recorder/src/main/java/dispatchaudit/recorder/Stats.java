package dispatchaudit.recorder;

import java.util.concurrent.atomic.LongAdder;

/** Counts since the broker's start; never reset. */
public final class Stats {
    /** Lines of events in the files, without headers, gaps and checkpoints. */
    public final LongAdder events = new LongAdder();
    /** Entries named by the {@code sent} lines among them. */
    public final LongAdder sentEntries = new LongAdder();
    /** Lines of messages in the files. */
    public final LongAdder messages = new LongAdder();
    /** Events dropped because the queue was full; gap lines say the same. */
    public final LongAdder lostEvents = new LongAdder();
    /** Messages dropped for the same reason. */
    public final LongAdder lostMessages = new LongAdder();
    /** Lines of events, checkpoints and messages that the disk refused; gap lines and footers report them later. */
    public final LongAdder failedLines = new LongAdder();
    /** Exceptions inside the recorder, none of which reached the broker. */
    public final LongAdder errors = new LongAdder();
    /** Events of connections that the dispatcher no longer held, left out. */
    public final LongAdder lateEvents = new LongAdder();

    /** Segments that retention deleted, and their bytes. */
    public final LongAdder deletedSegments = new LongAdder();
    public final LongAdder deletedBytes = new LongAdder();
    /** Processor time of the writer's thread. */
    public volatile long writerCpuMs;

    @Override
    public String toString() {
        return ("{\"events\":%d,\"sent_entries\":%d,\"messages\":%d,\"lost_events\":%d,\"lost_messages\":%d,"
                + "\"failed_lines\":%d,\"errors\":%d,\"late_events\":%d,\"deleted_segments\":%d,\"deleted_bytes\":%d,"
                + "\"writer_cpu_ms\":%d}").formatted(events.sum(), sentEntries.sum(), messages.sum(), lostEvents.sum(),
                lostMessages.sum(), failedLines.sum(), errors.sum(), lateEvents.sum(), deletedSegments.sum(), deletedBytes.sum(),
                writerCpuMs);
    }
}
