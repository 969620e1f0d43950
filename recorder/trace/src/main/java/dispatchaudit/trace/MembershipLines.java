package dispatchaudit.trace;

import dispatchaudit.recorder.BrokerView;
import dispatchaudit.recorder.Event;
import java.util.concurrent.CompletableFuture;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.pulsar.broker.service.AbstractTopic;
import org.apache.pulsar.broker.service.Consumer;

/** Lines about joins and leaves, of dispatchers and of their selectors. */
public final class MembershipLines {
    private MembershipLines() {
    }

    public static void joins(Object dispatcher, ManagedCursor cursor, Consumer consumer) {
        if (Tracing.waitsForBroker() && consumer.getSubscription().getTopic() instanceof AbstractTopic topic) {
            Tracing.serves(topic.getBrokerService().getPulsar());
        }
        Tracing.work("join", session -> session.joins(dispatcher, cursor, consumer));
    }

    /** {@code result}: a future that has failed if the dispatcher refused the consumer. */
    public static void added(Consumer consumer, Object result) {
        if (!(result instanceof CompletableFuture<?> future && future.isCompletedExceptionally())) {
            Tracing.line("consumer_added", consumer, (trace, number) ->
                    trace.withCursor(TraceLine.of(BrokerView.added(consumer, number))));
        }
    }

    public static void removing(Consumer consumer) {
        Tracing.line("consumer_removing", consumer, (trace, number) -> TraceLine.of("consumer_removing", number));
    }

    public static void removed(Consumer consumer) {
        Tracing.line("consumer_removed", consumer, (trace, number) ->
                trace.withCursor(TraceLine.of(new Event.ConsumerRemoved(number))));
    }

    public static void allDisconnecting(ManagedCursor cursor) {
        Tracing.line("all_disconnecting", cursor, trace -> TraceLine.of("all_disconnecting"));
    }

    /** {@code result}: a future in 4.x, which fails if the selector refuses the consumer; null if it threw. */
    public static void selectorAdds(Object selector, Consumer consumer, Object result) {
        if (result instanceof CompletableFuture<?> future) {
            future.whenComplete((done, failure) -> selector(failure == null ? "selector_added" : "selector_refused", selector, consumer));
        } else {
            selector(result == null ? "selector_refused" : "selector_added", selector, consumer);
        }
    }

    public static void selectorRemoved(Object selector, Consumer consumer) {
        selector("selector_removed", selector, consumer);
    }

    private static void selector(String kind, Object selector, Consumer consumer) {
        Tracing.line(kind, consumer, (trace, number) -> TraceLine.of(kind, number)
                .set("selector", selector.getClass().getSimpleName()));
    }
}
