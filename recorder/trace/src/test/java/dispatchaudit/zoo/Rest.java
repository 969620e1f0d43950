package dispatchaudit.zoo;

import dispatchaudit.harness.StandaloneBroker;
import java.lang.reflect.Array;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.bookkeeper.common.util.OrderedExecutor;
import org.apache.bookkeeper.common.util.OrderedScheduler;
import org.apache.bookkeeper.mledger.impl.ManagedLedgerImpl;
import org.apache.pulsar.broker.service.BrokerService;
import org.apache.pulsar.broker.service.Dispatcher;
import org.apache.pulsar.broker.service.persistent.PersistentSubscription;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;
import org.apache.pulsar.client.api.Consumer;

/**
 * Tells when the broker and its clients have done all that follows from a step, however busy the machine is. An empty task goes
 * through each thread that may have work for the topic, and a request through each connection: so whatever was queued there before
 * is done. What these threads have queued for each other shows as a change; there is rest when none comes any more.
 */
final class Rest {
    /** Timers that are part of a step end sooner: the broker attempts a read again after a tenth of a second at most. */
    private static final int TIMERS_MS = 120;
    /** A change that one thread has queued for the next shows after so many rounds. */
    private static final int QUIET_ROUNDS = 3;
    private static final int LONGEST_MS = 60_000;

    private final List<Executor> threads = new ArrayList<>();
    private final List<ScheduledExecutorService> timers = new ArrayList<>();
    private final Object cursor;

    /** Called while a task is waited for, as its thread may be one that is stopped. */
    interface Meanwhile {
        void act() throws Exception;
    }

    Rest(StandaloneBroker broker, PersistentSubscription subscription) throws ReflectiveOperationException {
        BrokerService service = broker.service().getBrokerService();
        OrderedExecutor ordered = service.getTopicOrderedExecutor();
        for (int number = 0; number < threadsOf(ordered); number++) {
            threads.add(ordered.chooseThread(number));
        }
        ManagedLedgerImpl ledger = (ManagedLedgerImpl) ((PersistentTopic) subscription.getTopic()).getManagedLedger();
        threads.add((Executor) valueOf(ledger, "executor"));
        OrderedScheduler scheduler = (OrderedScheduler) valueOf(ledger, "scheduledExecutor");
        for (int number = 0; number < threadsOf(scheduler); number++) {
            timers.add(scheduler.chooseThread(number));
        }
        for (Object loop : (Iterable<?>) service.executor()) {
            timers.add((ScheduledExecutorService) loop);
        }
        cursor = subscription.getCursor();
    }

    private static int threadsOf(OrderedExecutor executor) {
        return Array.getLength(valueOf(executor, "threads"));
    }

    /** Wait for rest; {@code dispatcher}, {@code reads}: null before the first consumer. */
    void await(Collection<Consumer<byte[]>> consumers, Dispatcher dispatcher, ControlledReads reads, Meanwhile meanwhile)
            throws Exception {
        long until = System.nanoTime() + LONGEST_MS * 1_000_000L;
        String before = "";
        int quiet = -1; // the first round shows nothing, and timers come before the last ones
        while (quiet < QUIET_ROUNDS) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException("no rest: " + before);
            }
            List<CompletableFuture<?>> tasks = new ArrayList<>();
            for (ScheduledExecutorService timer : timers) {
                CompletableFuture<Void> task = new CompletableFuture<>();
                timer.schedule(() -> task.complete(null), quiet == 0 ? TIMERS_MS : 0, TimeUnit.MILLISECONDS);
                tasks.add(task);
            }
            done(tasks, meanwhile);
            done(threads.stream().map(thread -> CompletableFuture.runAsync(() -> { }, thread)).toList(), meanwhile);
            tasks.clear();
            for (Consumer<byte[]> consumer : consumers) { // behind the commands on the same connection
                tasks.add(consumer.getLastMessageIdsAsync());
            }
            done(tasks, meanwhile);
            tasks.clear();
            for (Consumer<byte[]> consumer : consumers) {
                tasks.add(CompletableFuture.runAsync(() -> { }, (Executor) valueOf(consumer, "internalPinnedExecutor")));
            }
            done(tasks, meanwhile);
            String now = state(consumers, dispatcher, reads);
            boolean works = (int) valueOf(cursor, "pendingMarkDeletedSubmittedCount") > 0 || reads != null && reads.isReading();
            quiet = works ? -1 : now.equals(before) ? quiet + 1 : Math.min(quiet + 1, 0);
            before = now;
        }
    }

    private static void done(Collection<? extends CompletableFuture<?>> tasks, Meanwhile meanwhile) throws Exception {
        CompletableFuture<Void> all = CompletableFuture.allOf(tasks.toArray(CompletableFuture[]::new));
        while (!all.isDone()) {
            try {
                all.get(10, TimeUnit.MILLISECONDS);
            } catch (TimeoutException late) {
                meanwhile.act();
            }
        }
    }

    private String state(Collection<Consumer<byte[]>> consumers, Dispatcher dispatcher, ControlledReads reads)
            throws ReflectiveOperationException {
        StringBuilder text = new StringBuilder(cursor.toString()).append(reads == null ? "" : reads.toString());
        for (Consumer<byte[]> consumer : consumers) {
            text.append(' ').append(((Collection<?>) valueOf(consumer, "incomingMessages")).size());
        }
        if (dispatcher != null) {
            for (org.apache.pulsar.broker.service.Consumer consumer : dispatcher.getConsumers()) {
                text.append(' ').append(consumer.consumerName()).append(' ').append(consumer.getAvailablePermits())
                        .append(' ').append(consumer.getUnackedMessages()).append(' ').append(consumer.getMsgOutCounter());
            }
        }
        return text.toString();
    }

    /** The value of a private field. */
    static Object valueOf(Object target, String name) {
        for (Class<?> type = target.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getName().equals(name)) {
                    try {
                        field.setAccessible(true);
                        return field.get(target);
                    } catch (IllegalAccessException refused) {
                        throw new IllegalStateException(refused);
                    }
                }
            }
        }
        throw new IllegalStateException(target.getClass() + " has no " + name);
    }
}
