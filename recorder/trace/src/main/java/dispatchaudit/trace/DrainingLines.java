package dispatchaudit.trace;

import org.apache.pulsar.broker.service.Consumer;

/** Lines about pending acks and draining hashes (PIP-379). */
public final class DrainingLines {
    private DrainingLines() {
    }

    public static void added(Consumer consumer, int hash) {
        Tracing.line("draining_add", consumer, (trace, number) -> TraceLine.of("draining_add", number).set("hash", hash));
    }

    /** {@code entry}: the tracker's entry of the hash; null = the hash is not draining. */
    public static void releases(Consumer consumer, int hash, boolean closing, Object entry) {
        Tracing.line("draining_release", consumer, (trace, number) -> TraceLine.of("draining_release", number).set("hash", hash)
                .set("closing", closing).set("ref_count_before", entry == null ? 0 : (Integer) Hidden.REF_COUNT.of(entry)));
    }

    public static void blocked(Consumer consumer, int hash) {
        Tracing.line("draining_blocked", consumer, (trace, number) -> TraceLine.of("draining_blocked", number).set("hash", hash));
    }

    public static void cleared(String dispatcher) {
        Tracing.line("draining_clear", dispatcher, trace -> TraceLine.of("draining_clear"));
    }

    public static void pendingAckRemoved(Consumer consumer, long ledgerId, long entryId, int hash) {
        Tracing.line("pending_ack_removed", consumer, (trace, number) -> TraceLine.of("pending_ack_removed", number)
                .positions(Places.of(ledgerId, entryId)).set("hash", hash));
    }

    public static void pendingAckRefused(Consumer consumer, long ledgerId, long entryId) {
        Tracing.line("pending_ack_refused", consumer, (trace, number) -> TraceLine.of("pending_ack_refused", number)
                .positions(Places.of(ledgerId, entryId)));
    }
}
