package dispatchaudit.trace;

import java.lang.reflect.AccessibleObject;
import java.lang.reflect.Field;
import java.lang.reflect.Method;

/**
 * A private member of the broker's classes that no advice can name: a field of another class than the advised one, or a method.
 * It is looked for in the object's class, then in those above it.
 */
final class Hidden {
    /** Hash of an entry's key as the dispatcher computes it. */
    static final Hidden STICKY_KEY_HASH = method("getStickyKeyHash", org.apache.bookkeeper.mledger.Entry.class);
    /** Permits of a consumer that a Key_Shared dispatcher may use. */
    static final Hidden USABLE_PERMITS = method("getAvailablePermits", org.apache.pulsar.broker.service.Consumer.class);
    /** Size of a replay set. */
    static final Hidden SIZE = method("size");
    /** References of a draining hash. */
    static final Hidden REF_COUNT = field("refCount");
    /** Consumer that a read was issued for, in its context. */
    static final Hidden READ_FOR = field("consumer");

    private final String name;
    private final boolean isField;
    private final Class<?>[] parameters;
    private final ClassValue<AccessibleObject> found = new ClassValue<>() {
        @Override
        protected AccessibleObject computeValue(Class<?> type) {
            return find(type);
        }
    };

    private Hidden(String name, boolean isField, Class<?>... parameters) {
        this.name = name;
        this.isField = isField;
        this.parameters = parameters;
    }

    static Hidden method(String name, Class<?>... parameters) {
        return new Hidden(name, false, parameters);
    }

    static Hidden field(String name) {
        return new Hidden(name, true);
    }

    /** The field's value, or the method's result. Throws what the method throws, and if the object has no such member. */
    Object of(Object target, Object... arguments) throws ReflectiveOperationException {
        AccessibleObject member = found.get(target.getClass());
        return member instanceof Method method ? method.invoke(target, arguments) : ((Field) member).get(target);
    }

    private AccessibleObject find(Class<?> type) {
        for (Class<?> at = type; at != null; at = at.getSuperclass()) {
            try {
                AccessibleObject member = isField ? at.getDeclaredField(name) : at.getDeclaredMethod(name, parameters);
                member.setAccessible(true);
                return member;
            } catch (NoSuchFieldException | NoSuchMethodException above) {
                // it may be inherited
            }
        }
        throw new IllegalStateException(type.getName() + " has no " + name);
    }
}
