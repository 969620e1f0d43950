package dispatchaudit.recorder;

import java.util.List;

/**
 * A kind of log that is written beside the message log (docs/log-format.md).
 *
 * @param files   first word of the names of its files
 * @param format  name of its format in headers
 * @param records optional kinds and fields of format 1.1 that are written in every case
 * @param missing kinds of the format that this broker's build does not give
 */
public record LogForm(String files, String format, List<String> records, List<String> missing) {
    /** Limits, deletions and messages, which the interceptor and the agent write alike. */
    private static final List<String> LIMITS = List.of("subscription_deleted", "dispatch_rate", "unacked_namespace",
            "unacked_topic", "entry_filter", "compacted_read", "replicated_subscription", "delayed_delivery", "transactions",
            "deliver_at_ms", "txn");

    /** The interceptor's log of events (docs/recorder.md). */
    public static final LogForm EVENTS = new LogForm("events", "pulsar-consumer-events", with("cursor_moved"), List.of());

    /** A dispatcher trace, without the lines of {@code missing} kinds. */
    public static LogForm trace(List<String> missing) {
        return new LogForm("trace", "pulsar-dispatch-trace", with("active_notified"), missing);
    }

    private static List<String> with(String more) {
        return java.util.stream.Stream.concat(java.util.stream.Stream.of(more), LIMITS.stream()).toList();
    }
}
