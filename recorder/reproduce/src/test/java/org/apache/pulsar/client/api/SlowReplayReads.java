package org.apache.pulsar.client.api;

import java.lang.reflect.Field;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.bookkeeper.mledger.AsyncCallbacks.ReadEntriesCallback;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.service.persistent.PersistentTopic;

/**
 * Lets the replay reads of all dispatchers of several consumers take a while, as from a bookie that is slow or from offloaded
 * ledgers: clients act between a read and its round. A dispatcher's cursor is replaced by one whose callbacks of such reads
 * come later; nothing else changes.
 */
final class SlowReplayReads implements AutoCloseable {
    private static final int LOOK_EVERY_MS = 5;

    private final ScheduledExecutorService executor = Executors.newSingleThreadScheduledExecutor();
    private final Set<Object> slowed = ConcurrentHashMap.newKeySet();
    private final PulsarService broker;
    private final long delayMs;

    SlowReplayReads(PulsarService broker, long delayMs) {
        this.broker = broker;
        this.delayMs = delayMs;
        executor.scheduleWithFixedDelay(this::slowNewDispatchers, 0, LOOK_EVERY_MS, TimeUnit.MILLISECONDS);
    }

    @Override
    public void close() {
        executor.shutdownNow();
    }

    private void slowNewDispatchers() {
        broker.getBrokerService().forEachTopic(topic -> {
            if (topic instanceof PersistentTopic) {
                topic.getSubscriptions().values().forEach(subscription -> {
                    if (subscription.getDispatcher() != null && slowed.add(subscription.getDispatcher())) {
                        slow(subscription.getDispatcher());
                    }
                });
            }
        });
    }

    private void slow(Object dispatcher) {
        for (Class<?> type = dispatcher.getClass(); type != null; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                if (field.getType() == ManagedCursor.class) {
                    try {
                        field.setAccessible(true);
                        field.set(dispatcher, slower((ManagedCursor) field.get(dispatcher)));
                    } catch (IllegalAccessException refused) {
                        throw new IllegalStateException("the cursor of " + dispatcher + " cannot be replaced", refused);
                    }
                }
            }
        }
    }

    private ManagedCursor slower(ManagedCursor cursor) {
        return (ManagedCursor) Proxy.newProxyInstance(cursor.getClass().getClassLoader(), new Class<?>[] {ManagedCursor.class},
                (proxy, method, arguments) -> {
                    if (method.getName().equals("asyncReplayEntries")) {
                        for (int at = 0; at < arguments.length; at++) {
                            if (arguments[at] instanceof ReadEntriesCallback callback) {
                                arguments[at] = later(callback);
                            }
                        }
                    }
                    return called(method, cursor, arguments);
                });
    }

    private ReadEntriesCallback later(ReadEntriesCallback callback) {
        return (ReadEntriesCallback) Proxy.newProxyInstance(callback.getClass().getClassLoader(),
                new Class<?>[] {ReadEntriesCallback.class}, (proxy, method, arguments) -> {
                    executor.schedule(() -> called(method, callback, arguments), delayMs, TimeUnit.MILLISECONDS);
                    return null;
                });
    }

    private static Object called(Method method, Object target, Object[] arguments) throws Exception {
        try {
            return method.invoke(target, arguments);
        } catch (InvocationTargetException thrown) {
            throw thrown.getCause() instanceof Exception cause ? cause : thrown;
        }
    }
}
