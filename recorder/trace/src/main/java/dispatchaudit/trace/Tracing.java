package dispatchaudit.trace;

import dispatchaudit.recorder.Event;
import java.util.function.Function;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.service.Consumer;

/**
 * The way from the advised methods to the present session. Nothing here throws: a line that cannot be made is counted and leaves
 * a gap, and the broker's method continues.
 */
public final class Tracing {
    private static volatile TraceSession session;
    private static volatile Function<PulsarService, TraceSession> opener;

    private Tracing() {
    }

    /** Called by an advice that has failed before it came here: its line is missing, and nobody knows from which trace. */
    public static void adviceFailed(Throwable failure) {
        TraceSession present = session;
        if (present != null) {
            present.failed("an advice", failure);
        }
    }

    /** Makes a line about a connection; null = there is none. */
    interface OfConsumer {
        Event line(DispatcherTrace trace, int consumer) throws Exception;
    }

    /** Makes a line about a dispatcher or cursor; null = there is none. */
    interface OfTrace {
        Event line(DispatcherTrace trace) throws Exception;
    }

    /** Any work for a session. */
    interface Work {
        void run(TraceSession session) throws Exception;
    }

    /** Record into a session from now on; null = record nothing. */
    public static void use(TraceSession next) {
        session = next;
    }

    /** Open a session when the first consumer joins: only then is there a broker to ask for its settings. */
    static void openWith(Function<PulsarService, TraceSession> first) {
        opener = first;
    }

    static void line(String kind, Consumer consumer, OfConsumer maker) {
        TraceSession present = session;
        DispatcherTrace trace = present == null || consumer == null ? null : present.of(consumer);
        if (trace != null) {
            add(present, kind, trace, of -> maker.line(of, of.number(consumer)));
        }
    }

    static void line(String kind, ManagedCursor cursor, OfTrace maker) {
        TraceSession present = session;
        DispatcherTrace trace = present == null || cursor == null ? null : present.of(cursor);
        if (trace != null) {
            add(present, kind, trace, maker);
        }
    }

    /** The same before a decision, which depends on the limits in force. */
    static void decision(String kind, ManagedCursor cursor, OfTrace maker) {
        TraceSession present = session;
        DispatcherTrace trace = present == null || cursor == null ? null : present.of(cursor);
        if (trace != null) {
            work("limit", of -> of.limit(trace));
            add(present, kind, trace, maker);
        }
    }

    static void line(String kind, String dispatcher, OfTrace maker) {
        TraceSession present = session;
        DispatcherTrace trace = present == null ? null : present.named(dispatcher);
        if (trace != null) {
            add(present, kind, trace, maker);
        }
    }

    private static void add(TraceSession present, String kind, DispatcherTrace trace, OfTrace maker) {
        try {
            Event line = maker.line(trace);
            if (line != null) {
                trace.add(line);
            }
        } catch (Throwable failure) { // any failure: the broker must continue
            trace.lose();
            present.failed(kind, failure);
        }
    }

    /** Do work that belongs to no dispatcher's trace. */
    static void work(String what, Work work) {
        TraceSession present = session;
        if (present != null) {
            try {
                work.run(present);
            } catch (Throwable failure) {
                present.failed(what, failure);
            }
        }
    }

    /** Open the session that waits for a broker. */
    static synchronized void serves(PulsarService pulsar) {
        Function<PulsarService, TraceSession> first = opener;
        if (first != null) {
            opener = null;
            session = first.apply(pulsar);
        }
    }

    static boolean waitsForBroker() {
        return opener != null;
    }
}
