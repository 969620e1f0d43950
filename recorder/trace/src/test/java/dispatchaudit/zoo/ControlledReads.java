package dispatchaudit.zoo;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.Deque;
import org.apache.bookkeeper.mledger.AsyncCallbacks.ReadEntriesCallback;
import org.apache.bookkeeper.mledger.ManagedCursor;

/**
 * The reads of one dispatcher, which complete when they are told to. The dispatcher's cursor is replaced by a proxy. A normal read
 * that finds entries is kept until it may begin, as it returns what is stored then; one that waits for entries, one of a
 * dispatcher that may have several, and a replay read are kept until their entries may come. Nothing else of the cursor changes.
 */
final class ControlledReads {
    private static final long LONGEST_READ_MS = 10_000;

    private final ManagedCursor cursor;
    private final boolean beginAtOnce;
    private final Deque<Task> replayReads = new ArrayDeque<>();
    private Task normalRead;
    private final Deque<Task> takenEntries = new ArrayDeque<>();
    private boolean entriesStay;
    private boolean released;
    private int called;
    private int replaysIssued;
    private int replaysBack;

    /** What a read still has to do. */
    private interface Task {
        void run() throws Exception;
    }

    private ControlledReads(ManagedCursor cursor, boolean beginAtOnce) {
        this.cursor = cursor;
        this.beginAtOnce = beginAtOnce;
    }

    /** Replace the cursor of a dispatcher that has not read anything yet. {@code beginAtOnce}: it may have several normal reads. */
    static ControlledReads of(Object dispatcher, boolean beginAtOnce) throws IllegalAccessException {
        ControlledReads reads = null;
        for (Class<?> type = dispatcher.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getType() == ManagedCursor.class) {
                    field.setAccessible(true);
                    reads = new ControlledReads((ManagedCursor) field.get(dispatcher), beginAtOnce);
                    field.set(dispatcher, Proxy.newProxyInstance(ManagedCursor.class.getClassLoader(),
                            new Class<?>[] {ManagedCursor.class}, reads::called));
                }
            }
        }
        if (reads == null) {
            throw new IllegalStateException(dispatcher.getClass() + " has no cursor");
        }
        return reads;
    }

    /** Let the normal read complete; false = there is none, or it finds nothing. */
    boolean completeNormalRead() throws Exception {
        return runUntilCalled(nextNormal(false));
    }

    /** Let the cursor have the entries of the normal read, and the dispatcher not yet. */
    boolean takeEntries() throws Exception {
        return runUntilCalled(nextNormal(true));
    }

    /** Let the oldest replay read complete; false = there is none. */
    boolean completeReplayRead() throws Exception {
        return run(nextReplay());
    }

    /** Let all reads complete, from now on as soon as they can: the play has ended. */
    void release() throws Exception {
        synchronized (this) {
            released = true;
            entriesStay = false;
        }
        while (run(nextOfAll())) {
            // the next one
        }
    }

    /** Run what is left of a normal read, and wait until the storage has called back. */
    private boolean runUntilCalled(Task task) throws Exception {
        int before;
        synchronized (this) {
            before = called;
        }
        if (!run(task)) {
            return false;
        }
        long until = System.nanoTime() + LONGEST_READ_MS * 1_000_000;
        synchronized (this) {
            while (called == before && System.nanoTime() < until) {
                wait(10);
            }
        }
        return true;
    }

    // Callbacks run outside of the lock: they take the dispatcher's, and the dispatcher calls the cursor within it.
    private static boolean run(Task task) throws Exception {
        if (task != null) {
            task.run();
        }
        return task != null;
    }

    /** Whether a read is on its way from the storage; a normal read that waits for entries is not. */
    synchronized boolean isReading() {
        return replaysIssued > replaysBack;
    }

    /** What is kept here. */
    @Override
    public synchronized String toString() {
        return "normal read " + (normalRead != null) + ", taken " + takenEntries.size() + ", replay reads " + replayReads.size()
                + ", called " + called;
    }

    private synchronized Task nextNormal(boolean staying) {
        if (!takenEntries.isEmpty()) {
            return staying ? null : takenEntries.poll();
        }
        if (normalRead == null || !cursor.hasMoreEntries()) {
            return null;
        }
        Task next = normalRead;
        normalRead = null;
        entriesStay = staying;
        return next;
    }

    private synchronized Task nextReplay() {
        return replayReads.poll();
    }

    private synchronized Task nextOfAll() {
        Task next = !takenEntries.isEmpty() ? takenEntries.poll() : normalRead != null ? normalRead : replayReads.poll();
        normalRead = next == normalRead ? null : normalRead;
        return next;
    }

    private Object called(Object proxy, Method method, Object[] arguments) throws Exception {
        String name = method.getName();
        if (name.startsWith("asyncRead") && name.endsWith("OrWait")) {
            replaceCallback(arguments, this::normalEntries);
            synchronized (this) {
                if (!released && !beginAtOnce && cursor.hasMoreEntries()) {
                    normalRead = () -> invoke(method, arguments);
                    return null;
                }
                entriesStay = !released && !beginAtOnce;
            }
        } else if (name.equals("asyncReplayEntries")) {
            replaceCallback(arguments, this::replayEntries);
            Collection<?> positions = (Collection<?>) arguments[0];
            Collection<?> deleted = (Collection<?>) invoke(method, arguments);
            synchronized (this) { // all deleted: nothing comes back
                replaysIssued += positions.isEmpty() || deleted.size() < positions.size() ? 1 : 0;
            }
            return deleted;
        }
        return invoke(method, arguments);
    }

    private void normalEntries(Task callback) throws Exception {
        synchronized (this) {
            if (entriesStay || beginAtOnce && !released) {
                entriesStay = false;
                takenEntries.add(() -> dispatch(callback));
                called++;
                return;
            }
        }
        dispatch(callback);
    }

    private void dispatch(Task callback) throws Exception {
        callback.run();
        synchronized (this) {
            called++;
        }
    }

    private void replayEntries(Task callback) throws Exception {
        synchronized (this) {
            replaysBack++;
            if (!released) {
                replayReads.add(callback);
                return;
            }
        }
        callback.run();
    }

    /** Takes the call of a callback. */
    private interface Taker {
        void take(Task callback) throws Exception;
    }

    private void replaceCallback(Object[] arguments, Taker taker) {
        for (int at = 0; at < arguments.length; at++) {
            if (arguments[at] instanceof ReadEntriesCallback callback) {
                arguments[at] = Proxy.newProxyInstance(ReadEntriesCallback.class.getClassLoader(),
                        new Class<?>[] {ReadEntriesCallback.class}, (proxy, method, given) -> {
                            taker.take(() -> invoke(method, callback, given));
                            return null;
                        });
            }
        }
    }

    private Object invoke(Method method, Object[] arguments) throws Exception {
        return invoke(method, cursor, arguments);
    }

    private static Object invoke(Method method, Object target, Object[] arguments) throws Exception {
        try {
            return method.invoke(target, arguments);
        } catch (InvocationTargetException thrown) {
            throw thrown.getCause() instanceof Exception cause ? cause : thrown;
        }
    }
}
