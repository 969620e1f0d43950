package dispatchaudit.trace;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeSet;
import net.bytebuddy.description.method.MethodDescription;
import net.bytebuddy.description.type.TypeDefinition;
import net.bytebuddy.description.type.TypeDescription;
import net.bytebuddy.pool.TypePool;

/**
 * The hooks that a build of the broker has, found in its class files without loading a class.
 *
 * @param found   the method to advise, as a signature, of each hook that can work
 * @param missing a sentence for each hook that cannot
 */
record HookCheck(Map<Hook, String> found, Map<Hook, String> missing) {

    /** Look for the members that the hooks need. */
    static HookCheck of(List<Hook> hooks, TypePool broker) {
        Map<Hook, String> found = new LinkedHashMap<>();
        Map<Hook, String> missing = new LinkedHashMap<>();
        for (Hook hook : hooks) {
            TypePool.Resolution type = broker.describe(hook.type());
            Optional<String> method = type.isResolved()
                    ? hook.signatures().stream().filter(signature -> declares(type.resolve(), signature)).findFirst() : Optional.empty();
            List<String> lacking = new ArrayList<>();
            if (method.isEmpty()) {
                lacking.add(hook.simpleType() + "." + String.join(" or ", hook.signatures()));
            } else {
                hook.fields().stream().filter(field -> !hasField(type.resolve(), field))
                        .forEach(field -> lacking.add(hook.simpleType() + "." + field));
            }
            hook.needs().stream().filter(member -> !hasMember(broker, member)).forEach(lacking::add);
            if (lacking.isEmpty()) {
                found.put(hook, method.get());
            } else {
                missing.put(hook, "this build has no " + String.join(", no ", lacking) + ": no lines "
                        + String.join(", ", hook.kinds()) + " from there");
            }
        }
        return new HookCheck(found, missing);
    }

    /** Kinds of lines that are missing, wholly or in part. */
    List<String> missingKinds() {
        TreeSet<String> kinds = new TreeSet<>();
        missing.keySet().forEach(hook -> kinds.addAll(hook.kinds()));
        return List.copyOf(kinds);
    }

    private static boolean declares(TypeDescription type, String signature) {
        return type.getDeclaredMethods().stream().anyMatch(method -> !method.isAbstract() && signature(method).equals(signature));
    }

    /** A method as {@code name(Type,Type)} with simple names. */
    static String signature(MethodDescription method) {
        List<String> parameters = method.getParameters().asTypeList().asErasures().stream().map(TypeDescription::getSimpleName).toList();
        return method.getName() + "(" + String.join(",", parameters) + ")";
    }

    private static boolean hasField(TypeDescription type, String name) {
        for (TypeDefinition at = type; at != null; at = at.getSuperClass()) {
            if (at.getDeclaredFields().stream().anyMatch(field -> field.getName().equals(name))) {
                return true;
            }
        }
        return false;
    }

    private static boolean hasMember(TypePool broker, String member) {
        String name = member.substring(member.indexOf('#') + 1);
        TypePool.Resolution type = broker.describe(member.substring(0, member.indexOf('#')));
        return type.isResolved() && (hasField(type.resolve(), name)
                || type.resolve().getDeclaredMethods().stream().anyMatch(method -> method.getName().equals(name)));
    }
}
