package dispatchaudit.trace;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.instrument.Instrumentation;
import java.lang.instrument.UnmodifiableClassException;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentSkipListSet;
import net.bytebuddy.agent.builder.AgentBuilder;
import net.bytebuddy.asm.Advice;
import net.bytebuddy.description.type.TypeDescription;
import net.bytebuddy.dynamic.ClassFileLocator;
import net.bytebuddy.dynamic.DynamicType;
import net.bytebuddy.implementation.bytecode.member.MethodInvocation;
import net.bytebuddy.matcher.ElementMatchers;
import net.bytebuddy.pool.TypePool;
import net.bytebuddy.utility.JavaModule;

/**
 * The agent: {@code -javaagent:dispatch-audit-trace.jar=FOLDER} records a dispatcher trace of a broker into a folder
 * (docs/soak.md). Without a folder it only advises the classes, and the program opens the sessions ({@link TraceSession#open}).
 */
public final class TraceAgent {
    private static final Set<String> MISSING = new ConcurrentSkipListSet<>();
    /** An exception of an advice is counted, and the broker's method continues. */
    private static final Advice.ExceptionHandler FAILED = new Advice.ExceptionHandler.Simple(MethodInvocation.invoke(
            new TypeDescription.ForLoadedType(Tracing.class).getDeclaredMethods().filter(ElementMatchers.named("adviceFailed")).getOnly()));

    private TraceAgent() {
    }

    public static void premain(String folder, Instrumentation instrumentation) {
        ClassLoader loader = ClassLoader.getSystemClassLoader();
        HookCheck check = HookCheck.of(HookTable.HOOKS, TypePool.Default.of(ClassFileLocator.ForClassLoader.of(loader)));
        check.missing().values().forEach(TraceAgent::report);
        MISSING.addAll(check.missingKinds());
        install(check, instrumentation, loader);
        if (folder != null && !folder.isBlank()) {
            Path directory = Path.of(folder.trim());
            Tracing.openWith(pulsar -> {
                try {
                    TraceSession session = TraceSession.open(pulsar, directory, missing());
                    Runtime.getRuntime().addShutdownHook(new Thread(session::close, "dispatch-audit-trace-end"));
                    return session;
                } catch (IOException failed) {
                    throw new UncheckedIOException(failed);
                }
            });
        }
        report("%d of %d hooks%s".formatted(check.found().size(), HookTable.HOOKS.size(),
                MISSING.isEmpty() ? "" : ", lines missing: " + String.join(", ", MISSING)));
    }

    /** Kinds of lines that this broker's build does not give, wholly or in part. */
    public static List<String> missing() {
        return List.copyOf(MISSING);
    }

    /** Advise the classes, and load them now: one that cannot be advised is reported before anything is recorded. */
    private static void install(HookCheck check, Instrumentation instrumentation, ClassLoader loader) {
        Map<String, Map<Hook, String>> byType = new LinkedHashMap<>();
        check.found().forEach((hook, method) -> byType.computeIfAbsent(hook.type(), type -> new LinkedHashMap<>()).put(hook, method));
        Outcome outcome = new Outcome();
        AgentBuilder agent = new AgentBuilder.Default().disableClassFormatChanges()
                .with(AgentBuilder.RedefinitionStrategy.RETRANSFORMATION).with(outcome);
        for (Map.Entry<String, Map<Hook, String>> type : byType.entrySet()) {
            agent = agent.type(ElementMatchers.named(type.getKey()))
                    .transform((builder, description, of, module, domain) -> advised(builder, type.getValue()));
        }
        agent.installOn(instrumentation);
        byType.forEach((type, hooks) -> {
            try {
                Class<?> loaded = Class.forName(type, false, loader);
                if (!outcome.advised.contains(type)) { // it was loaded while another class was being advised
                    instrumentation.retransformClasses(loaded);
                }
            } catch (ClassNotFoundException | UnmodifiableClassException | LinkageError failed) {
                report(type + ": " + failed);
            }
            if (!outcome.advised.contains(type)) {
                hooks.keySet().forEach(hook -> MISSING.addAll(hook.kinds()));
                report(type + " cannot be advised: no lines from there");
            }
        });
    }

    private static DynamicType.Builder<?> advised(DynamicType.Builder<?> builder, Map<Hook, String> hooks) {
        DynamicType.Builder<?> result = builder;
        for (Map.Entry<Hook, String> hook : hooks.entrySet()) {
            result = result.visit(Advice.to(hook.getKey().advice()).withExceptionHandler(FAILED)
                    .on(method -> !method.isAbstract() && HookCheck.signature(method).equals(hook.getValue())));
        }
        return result;
    }

    private static void report(String sentence) {
        System.err.println("Dispatch audit trace: " + sentence);
    }

    /** Notes which classes were advised. */
    private static final class Outcome extends AgentBuilder.Listener.Adapter {
        private final Set<String> advised = ConcurrentHashMap.newKeySet();

        @Override
        public void onTransformation(TypeDescription type, ClassLoader loader, JavaModule module, boolean loaded, DynamicType made) {
            advised.add(type.getName());
        }

        @Override
        public void onError(String type, ClassLoader loader, JavaModule module, boolean loaded, Throwable failure) {
            report(type + ": " + failure);
        }
    }
}
