package dispatchaudit.zoo;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.concurrent.ScheduledExecutorService;

/**
 * The unblock timer of one dispatcher of 4.x (keySharedUnblockingIntervalMs), which ends when it is told to. The executor of its
 * {@code RescheduleReadHandler} is replaced by a proxy that keeps what would run later. Other dispatchers have no such timer.
 */
final class ControlledTimer {
    private static final String HANDLER = "RescheduleReadHandler";

    private final Deque<Runnable> waiting = new ArrayDeque<>();
    private boolean released;

    private ControlledTimer() {
    }

    /** Replace the executor of a dispatcher whose timer has not run yet. */
    static ControlledTimer of(Object dispatcher) throws IllegalAccessException {
        ControlledTimer timer = new ControlledTimer();
        for (Field field : dispatcher.getClass().getDeclaredFields()) {
            if (field.getType().getSimpleName().equals(HANDLER)) {
                field.setAccessible(true);
                timer.control(field.get(dispatcher));
            }
        }
        return timer;
    }

    private void control(Object handler) throws IllegalAccessException {
        for (Field field : handler.getClass().getDeclaredFields()) {
            if (field.getType() == ScheduledExecutorService.class) {
                field.setAccessible(true);
                Object executor = field.get(handler);
                field.set(handler, Proxy.newProxyInstance(getClass().getClassLoader(), new Class<?>[] {ScheduledExecutorService.class},
                        (proxy, method, arguments) -> {
                            if (method.getName().equals("schedule") && keep((Runnable) arguments[0])) {
                                return null; // the handler does not look at it
                            }
                            try {
                                return method.invoke(executor, arguments);
                            } catch (InvocationTargetException thrown) {
                                throw thrown.getCause();
                            }
                        }));
                return;
            }
        }
        throw new IllegalStateException(handler.getClass() + " has no executor");
    }

    private synchronized boolean keep(Runnable end) {
        return !released && waiting.add(end);
    }

    private synchronized Runnable next() {
        return waiting.poll();
    }

    /** Let the timer end; false = it is not running. */
    boolean end() {
        Runnable end = next();
        if (end != null) {
            end.run();
        }
        return end != null;
    }

    /** Let the timer end, from now on by itself: the play has ended. */
    void release() {
        synchronized (this) {
            released = true;
        }
        while (end()) {
            // the next one
        }
    }
}
