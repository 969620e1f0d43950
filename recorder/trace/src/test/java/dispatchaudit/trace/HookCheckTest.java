package dispatchaudit.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import net.bytebuddy.asm.Advice;
import net.bytebuddy.dynamic.ClassFileLocator;
import net.bytebuddy.pool.TypePool;
import org.junit.jupiter.api.Test;

/** The table of hooks against the class files of the release in the pom. */
class HookCheckTest {
    private static final String CURSOR = "org.apache.bookkeeper.mledger.impl.ManagedCursorImpl";

    /** Advice that reads a field which no class has. */
    public static final class ReadsAField {
        @Advice.OnMethodEnter
        public static void enter(@Advice.FieldValue("noSuchField") int value) {
        }
    }

    private static HookCheck check(Hook... hooks) {
        ClassFileLocator broker = ClassFileLocator.ForClassLoader.of(HookCheckTest.class.getClassLoader());
        return HookCheck.of(List.of(hooks), TypePool.Default.of(broker));
    }

    private static Hook hook(String type, List<String> signatures, Class<?> advice, String... needs) {
        return new Hook(type, signatures, advice, List.of(needs), List.of("rewind"));
    }

    @Test
    void aReleaseHasAllHooks() {
        HookCheck check = check(HookTable.HOOKS.toArray(Hook[]::new));
        assertEquals(Map.of(), check.missing());
        assertEquals(List.of(), check.missingKinds());
        assertEquals(HookTable.HOOKS.size(), check.found().size());
    }

    @Test
    void noMethodIsAdvisedTwice() {
        Set<String> advised = new HashSet<>();
        check(HookTable.HOOKS.toArray(Hook[]::new)).found()
                .forEach((hook, method) -> assertTrue(advised.add(hook.type() + "." + method), hook.type() + "." + method));
    }

    @Test
    void theFirstSignatureOfTheBuildIsTaken() {
        Hook hook = hook(CURSOR, List.of("rewind(String)", "rewind(boolean)", "rewind()"), CursorAdvice.Rewind.class);
        assertEquals(Map.of(hook, "rewind(boolean)"), check(hook).found());
    }

    @Test
    void aMethodWithAnotherSignatureIsMissing() {
        Hook hook = hook(CURSOR, List.of("rewind(String)"), CursorAdvice.Rewind.class);
        assertEquals(Map.of(hook, "this build has no ManagedCursorImpl.rewind(String): no lines rewind from there"),
                check(hook).missing());
        assertEquals(List.of("rewind"), check(hook).missingKinds());
    }

    @Test
    void aClassIsMissing() {
        Hook hook = hook("org.apache.pulsar.Gone", List.of("rewind()"), CursorAdvice.Rewind.class);
        assertEquals(Map.of(hook, "this build has no Gone.rewind(): no lines rewind from there"), check(hook).missing());
    }

    @Test
    void aFieldThatTheAdviceReadsIsMissing() {
        Hook hook = hook(CURSOR, List.of("rewind()"), ReadsAField.class);
        assertEquals(Map.of(hook, "this build has no ManagedCursorImpl.noSuchField: no lines rewind from there"),
                check(hook).missing());
    }

    @Test
    void aMemberOfAnotherClassIsMissing() {
        Hook hook = hook(CURSOR, List.of("rewind()"), CursorAdvice.Rewind.class, CURSOR + "#noSuchMember");
        assertEquals(Map.of(hook, "this build has no " + CURSOR + "#noSuchMember: no lines rewind from there"),
                check(hook).missing());
    }
}
