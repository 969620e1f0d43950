package dispatchaudit.trace;

import java.util.List;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.pulsar.broker.service.Consumer;

/** Lines about the dispatcher of one active consumer, Failover and Exclusive. */
public final class SingleActiveLines {
    private SingleActiveLines() {
    }

    public static void picked(ManagedCursor cursor, List<Consumer> consumers, Consumer active, boolean changed, int partitionIndex) {
        Tracing.line("active_picked", cursor, trace -> {
            TraceLine line = active == null ? TraceLine.of("active_picked") : TraceLine.of("active_picked", trace.number(active));
            return line.set("changed", changed).set("sorted", consumers.stream().mapToInt(trace::number).toArray())
                    .set("partition_index", partitionIndex);
        });
    }

    public static void handoverScheduled(ManagedCursor cursor, boolean pendingRead) {
        Tracing.line("handover_scheduled", cursor, trace -> TraceLine.of("handover_scheduled").set("pending_read", pendingRead));
    }

    /** The consumer has counted the permits at {@code flow}. */
    public static void flowApplied(Consumer consumer) {
        Tracing.line("flow_applied", consumer, (trace, number) -> TraceLine.of("flow_applied", number));
    }

    /** {@code consumer}: the one to read for; null = there is no active one. */
    public static void attempt(ManagedCursor cursor, Consumer consumer) {
        Tracing.decision("read_attempt", cursor, trace -> consumer == null ? TraceLine.of("read_attempt")
                : TraceLine.of("read_attempt", trace.number(consumer)));
    }

    /** {@code context}: the consumer that the read was issued for, or an object that holds it. */
    public static void readDone(ManagedCursor cursor, List<? extends Entry> entries, Object context) {
        Tracing.line("read_done", cursor, trace -> {
            Consumer target = context instanceof Consumer consumer ? consumer : (Consumer) Hidden.READ_FOR.of(context);
            return TraceLine.of("read_done").set("type", "Normal").set("consumer", trace.number(target))
                    .positions(Places.ofEntries(entries)).set("read_position", cursor.getReadPosition());
        });
        MessageLines.read(cursor, entries);
    }

    public static void round(ManagedCursor cursor, Consumer consumer, List<? extends Entry> entries) {
        Tracing.decision("round_begin", cursor, trace -> trace.withCursor(TraceLine.of("round_begin").set("type", "Normal")
                .set("consumer", trace.number(consumer)).positions(Places.ofEntries(entries))));
    }
}
