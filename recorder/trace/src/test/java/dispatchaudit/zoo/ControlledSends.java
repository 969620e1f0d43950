package dispatchaudit.zoo;

import java.lang.reflect.Field;
import java.util.concurrent.Executor;
import org.apache.pulsar.broker.service.persistent.PersistentDispatcherSingleActiveConsumer;

/**
 * The read attempts of a Failover dispatcher that follow when a send is written, of which one can be kept: the send takes long. The
 * dispatcher's executor is replaced by one that knows such an attempt by the method that asks for it.
 */
final class ControlledSends {
    private static final String LISTENER = "dispatchEntriesToConsumer";

    private boolean nextIsSlow;
    private boolean released;
    private Runnable kept;

    /** Replace the executor of a dispatcher; other dispatchers stay as they are. */
    void control(Object dispatcher) throws ReflectiveOperationException {
        if (!(dispatcher instanceof PersistentDispatcherSingleActiveConsumer)) {
            return;
        }
        Field field = PersistentDispatcherSingleActiveConsumer.class.getDeclaredField("executor");
        field.setAccessible(true);
        Executor executor = (Executor) field.get(dispatcher);
        field.set(dispatcher, (Executor) task -> {
            if (!keep(task)) {
                executor.execute(task);
            }
        });
    }

    private synchronized boolean keep(Runnable task) {
        if (!nextIsSlow || released || !isBehindSend()) {
            return false;
        }
        nextIsSlow = false;
        kept = task;
        return true;
    }

    private static boolean isBehindSend() {
        return StackWalker.getInstance().walk(frames -> frames.limit(8).anyMatch(frame -> frame.getMethodName().contains(LISTENER)));
    }

    /** Have the next send take long. */
    synchronized boolean slowDown() {
        nextIsSlow = true;
        return true;
    }

    private synchronized Runnable next() {
        Runnable next = kept;
        kept = null;
        return next;
    }

    /** Have the slow send written; false = there is none. */
    boolean end() {
        Runnable next = next();
        if (next != null) {
            next.run();
        }
        return next != null;
    }

    /** Have it written, and no send take long any more: the play has ended. */
    void release() {
        synchronized (this) {
            released = true;
        }
        end();
    }
}
