package dispatchaudit.trace;

import dispatchaudit.recorder.AckedPositions;
import io.netty.util.concurrent.Future;
import java.util.List;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.pulsar.broker.service.Consumer;
import org.apache.pulsar.broker.service.EntryBatchSizes;
import org.apache.pulsar.common.api.proto.CommandAck;
import org.apache.pulsar.common.api.proto.CommandAck.AckType;

/** Lines about a connection: what it is sent, and the commands of its client. */
public final class ConsumerLines {
    private static final ThreadLocal<Boolean> REQUESTS_ALL = ThreadLocal.withInitial(() -> false);

    private ConsumerLines() {
    }

    public static void sends(Consumer consumer, List<? extends Entry> entries, List<Integer> hashes, EntryBatchSizes sizes) {
        if (entries == null || entries.isEmpty()) {
            return;
        }
        Tracing.line("sent", consumer, (trace, number) -> {
            int[] batches = new int[entries.size()];
            int count = 0;
            for (int i = 0; i < entries.size(); i++) {
                if (entries.get(i) != null) {
                    batches[count++] = sizes.getBatchSize(i);
                }
            }
            return TraceLine.of("sent", number).positions(Places.ofEntries(entries))
                    .set("batch_sizes", java.util.Arrays.copyOf(batches, count))
                    .set("hashes", hashes == null ? null : hashes.stream().mapToInt(Integer::intValue).toArray())
                    .set("permits_before", consumer.getAvailablePermits());
        });
    }

    public static void sendReturned(Consumer consumer, boolean any, Future<Void> write) {
        if (any) {
            Tracing.line("send_returned", consumer, (trace, number) -> TraceLine.of("send_returned", number)
                    .set("written", write.isDone()).set("permits_after", consumer.getAvailablePermits()));
        }
    }

    /** A request for everything, which reaches the dispatcher as a list of all that is pending, begins or ends. */
    public static void requestsAll(boolean begins) {
        REQUESTS_ALL.set(begins);
    }

    /** Whether the redelivery request of this thread is one for everything. */
    static boolean requestsAll() {
        return REQUESTS_ALL.get();
    }

    public static void flow(Consumer consumer, int permits) {
        Tracing.line("flow", consumer, (trace, number) -> TraceLine.of("flow", number).set("permits", permits)
                .set("blocked", consumer.isBlocked()));
    }

    public static void flowCounted(Consumer consumer) {
        Tracing.line("flow_counted", consumer, (trace, number) -> TraceLine.of("flow_counted", number)
                .set("permits_after", consumer.getAvailablePermits()).set("blocked_after", consumer.isBlocked()));
    }

    public static void ack(Consumer consumer, CommandAck ack) {
        Tracing.line("ack", consumer, (trace, number) -> {
            AckedPositions acked = AckedPositions.of(ack);
            return TraceLine.of("ack", number).set("ack_type", ack.getAckType() == AckType.Cumulative ? "Cumulative" : "Individual")
                    .positions(new Places(acked.ledgers(), acked.entries())).set("ack_sets", acked.ackSets());
        });
    }

    public static void activeNotified(Consumer consumer, Consumer active) {
        if (active != null) {
            Tracing.line("active_notified", consumer, (trace, number) -> TraceLine.of("active_notified", number)
                    .set("active", trace.number(active)));
        }
    }
}
