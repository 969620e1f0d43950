package dispatchaudit.trace;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.instrument.Instrumentation;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import net.bytebuddy.agent.builder.AgentBuilder;
import net.bytebuddy.asm.Advice;
import net.bytebuddy.dynamic.ClassFileLocator;
import net.bytebuddy.dynamic.DynamicType;
import net.bytebuddy.matcher.ElementMatchers;
import net.bytebuddy.pool.TypePool;
import net.bytebuddy.utility.JavaModule;

/**
 * The agent: {@code -javaagent:dispatch-audit-trace.jar=FOLDER} records a dispatcher trace of a broker into a folder
 * (docs/soak.md). Without a folder it only advises the classes, and the program opens the sessions ({@link TraceSession#open}).
 */
public final class TraceAgent {
    private static final TreeSet<String> MISSING = new TreeSet<>();

    private TraceAgent() {
    }

    public static void premain(String folder, Instrumentation instrumentation) {
        ClassLoader loader = ClassLoader.getSystemClassLoader();
        HookCheck check = HookCheck.of(HookTable.HOOKS, TypePool.Default.of(ClassFileLocator.ForClassLoader.of(loader)));
        check.missing().values().forEach(TraceAgent::report);
        MISSING.addAll(check.missingKinds());
        install(check, instrumentation);
        load(check, loader);
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
        synchronized (MISSING) {
            return List.copyOf(MISSING);
        }
    }

    private static void install(HookCheck check, Instrumentation instrumentation) {
        Map<String, Map<Hook, String>> byType = new LinkedHashMap<>();
        check.found().forEach((hook, method) -> byType.computeIfAbsent(hook.type(), type -> new LinkedHashMap<>()).put(hook, method));
        AgentBuilder agent = new AgentBuilder.Default().disableClassFormatChanges()
                .with(AgentBuilder.RedefinitionStrategy.RETRANSFORMATION).with(new Failures(byType));
        for (Map.Entry<String, Map<Hook, String>> type : byType.entrySet()) {
            agent = agent.type(ElementMatchers.named(type.getKey()))
                    .transform((builder, description, loader, module, domain) -> advised(builder, type.getValue()));
        }
        agent.installOn(instrumentation);
    }

    private static DynamicType.Builder<?> advised(DynamicType.Builder<?> builder, Map<Hook, String> hooks) {
        DynamicType.Builder<?> result = builder;
        for (Map.Entry<Hook, String> hook : hooks.entrySet()) {
            result = result.visit(Advice.to(hook.getKey().advice())
                    .on(method -> !method.isAbstract() && HookCheck.signature(method).equals(hook.getValue())));
        }
        return result;
    }

    /** Load the classes now, so that one that cannot be advised is reported before anything is recorded. */
    private static void load(HookCheck check, ClassLoader loader) {
        for (Hook hook : check.found().keySet()) {
            try {
                Class.forName(hook.type(), false, loader);
            } catch (ClassNotFoundException | LinkageError failed) {
                report(hook.simpleType() + " cannot be loaded: " + failed);
            }
        }
    }

    private static void report(String sentence) {
        System.err.println("Dispatch audit trace: " + sentence);
    }

    /** Reports classes that cannot be advised. */
    private static final class Failures extends AgentBuilder.Listener.Adapter {
        private final Map<String, Map<Hook, String>> hooks;

        Failures(Map<String, Map<Hook, String>> hooks) {
            this.hooks = hooks;
        }

        @Override
        public void onError(String type, ClassLoader loader, JavaModule module, boolean loaded, Throwable failure) {
            if (hooks.containsKey(type)) {
                synchronized (MISSING) {
                    hooks.get(type).keySet().forEach(hook -> MISSING.addAll(hook.kinds()));
                }
                report(type + " cannot be advised: " + failure);
            }
        }
    }
}
