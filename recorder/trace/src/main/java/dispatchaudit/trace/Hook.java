package dispatchaudit.trace;

import java.util.ArrayList;
import java.util.List;
import net.bytebuddy.asm.Advice;

/**
 * A method of the broker that gives lines.
 *
 * @param type       its class
 * @param signatures the method in the builds that are known, as {@code name(Type,Type)} with simple names; the first that a
 *                   build has is advised
 * @param advice     the class whose code is copied into it
 * @param needs      private members that the advice reads otherwise, as {@code class#name}
 * @param kinds      kinds of the lines that it gives; {@code messages} = the message log
 */
record Hook(String type, List<String> signatures, Class<?> advice, List<String> needs, List<String> kinds) {

    /** The class's name without its package. */
    String simpleType() {
        return type.substring(type.lastIndexOf('.') + 1);
    }

    /** The fields of the advised class, or of one above it, that the advice names. */
    List<String> fields() {
        List<String> names = new ArrayList<>();
        for (java.lang.reflect.Method method : advice.getMethods()) {
            for (java.lang.reflect.Parameter parameter : method.getParameters()) {
                Advice.FieldValue field = parameter.getAnnotation(Advice.FieldValue.class);
                if (field != null && !names.contains(field.value())) {
                    names.add(field.value());
                }
            }
        }
        return names;
    }
}
