package dispatchaudit.trace;

import io.netty.buffer.ByteBuf;
import java.util.List;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.service.Topic;

/** Lines of the message log: entries when they are stored, and earlier ones when they are first read. */
public final class MessageLines {
    private MessageLines() {
    }

    /** Note where the topic's log ends, before its first message from now on is stored. */
    public static void arrives(Topic topic) {
        Tracing.work("message", session -> session.publishes().see(topic));
    }

    public static void stored(Topic topic, Position position, ByteBuf entry) {
        Tracing.work("message", session -> session.publishes().stored(topic, entry, position.getLedgerId(), position.getEntryId()));
    }

    static void read(ManagedCursor cursor, List<? extends Entry> entries) {
        Tracing.work("message", session -> {
            DispatcherTrace trace = session.of(cursor);
            if (trace != null) {
                Places.present(entries).forEach(entry -> session.publishes().read(trace.subscription.getTopic(), entry));
            }
        });
    }
}
