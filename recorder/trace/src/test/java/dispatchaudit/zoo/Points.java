package dispatchaudit.zoo;

import java.lang.instrument.Instrumentation;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import net.bytebuddy.agent.builder.AgentBuilder;
import net.bytebuddy.asm.Advice;
import net.bytebuddy.matcher.ElementMatchers;

/**
 * Points of the broker's code at which a thread can be stopped until a schedule lets it go on, so that a race of threads is played
 * and not waited for. This class is the agent that advises the dispatcher: {@code -javaagent} needs a jar that names it.
 */
public final class Points {
    /** The dispatcher looks through its replay set, and has looked at the first entry. */
    static final String SCAN = "scan";
    /** The dispatcher chooses consumers for a read result, and has chosen for the first entry. */
    static final String ROUND = "round";
    private static final String DISPATCHER = "org.apache.pulsar.broker.service.persistent.PersistentStickyKeyDispatcherMultipleConsumers";
    /** A thread that nobody lets go on does so by itself: it may be the one that would. */
    private static final int LONGEST_STOP_MS = 5_000;
    private static final Map<String, Stop> STOPS = new ConcurrentHashMap<>();
    private static final Set<String> ADVISED = ConcurrentHashMap.newKeySet();

    private Points() {
    }

    /** The next thread that comes to a point is stopped there. */
    static final class Stop {
        private final CountDownLatch reached = new CountDownLatch(1);
        private final CountDownLatch end = new CountDownLatch(1);
        private volatile Thread thread;
        private volatile boolean over;

        /** Wait until a thread is at the point; false = none has come. */
        boolean isReached(int waitMs) throws InterruptedException {
            return reached.await(waitMs, TimeUnit.MILLISECONDS);
        }

        /** The thread at the point. */
        Thread thread() {
            return thread;
        }

        /** Let the thread go on, and stop none that comes later. */
        void end() {
            STOPS.values().remove(this);
            end.countDown();
        }

        /** Whether the thread has gone on by itself. */
        boolean isOver() {
            return over;
        }

        private void stop() throws InterruptedException {
            thread = Thread.currentThread();
            reached.countDown();
            over = !end.await(LONGEST_STOP_MS, TimeUnit.MILLISECONDS);
        }
    }

    /** Stop the next thread that comes to a point. */
    static Stop stopAt(String point) {
        if (!ADVISED.contains(point)) {
            throw new IllegalStateException("no thread can be stopped at the point " + point + ": this build has no such method");
        }
        Stop stop = new Stop();
        STOPS.put(point, stop);
        return stop;
    }

    /** Called by the advice. */
    public static void reached(String point) throws InterruptedException {
        Stop stop = STOPS.remove(point);
        if (stop != null) {
            stop.stop();
        }
    }

    /** Of the filter that is asked for each entry of the replay set. */
    public static final class EntryOfScan {
        private EntryOfScan() {
        }

        @Advice.OnMethodExit
        public static void exit() throws InterruptedException {
            reached(SCAN);
        }
    }

    /** Of the check whether an entry of a read result can go to the owner of its key. */
    public static final class EntryOfRound {
        private EntryOfRound() {
        }

        @Advice.OnMethodExit
        public static void exit() throws InterruptedException {
            reached(ROUND);
        }
    }

    public static void premain(String options, Instrumentation instrumentation) {
        advise(instrumentation, SCAN, DISPATCHER + "$ReplayPositionFilter", "test", EntryOfScan.class);
        advise(instrumentation, ROUND, DISPATCHER, "canDispatchEntry", EntryOfRound.class);
    }

    private static void advise(Instrumentation instrumentation, String point, String type, String method, Class<?> advice) {
        new AgentBuilder.Default().disableClassFormatChanges().type(ElementMatchers.named(type))
                .transform((builder, description, loader, module, domain) -> {
                    if (description.getDeclaredMethods().stream().anyMatch(declared -> declared.getName().equals(method))) {
                        ADVISED.add(point);
                    }
                    return builder.visit(Advice.to(advice).on(ElementMatchers.named(method)
                            .and(ElementMatchers.not(ElementMatchers.isBridge()))));
                })
                .installOn(instrumentation);
        try {
            Class.forName(type, false, ClassLoader.getSystemClassLoader());
        } catch (ClassNotFoundException none) {
            System.err.println("Points: this build has no " + type);
        }
    }
}
