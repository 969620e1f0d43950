package dispatchaudit.recorder;

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * A broker of the benchmark, in a process of its own: {@code FOLDER [NAME=VALUE...]}.
 *
 * <p>Prints {@code ready URL}; answers each {@code cpu} on its input with {@code cpu PROCESS-NS WRITER-NS COMPILER-NS}, and
 * ends at {@code end} or at the end of its input. Its own log goes to stderr.
 */
final class BenchBroker {
    private static final long TICK_NS = 10_000_000; // USER_HZ is 100 wherever Linux runs

    private BenchBroker() {
    }

    public static void main(String[] words) throws Exception {
        java.io.PrintStream answers = System.out;
        System.setOut(System.err);
        Map<String, String> settings = new HashMap<>();
        for (String word : List.of(words).subList(1, words.length)) {
            settings.put(word.substring(0, word.indexOf('=')), word.substring(word.indexOf('=') + 1));
        }
        RealBroker broker = RealBroker.fresh(Path.of(words[0]).toAbsolutePath(), settings);
        answers.println("ready " + broker.url());
        BufferedReader questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null && !line.equals("end"); line = questions.readLine()) {
            answers.println("cpu " + ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime() + " "
                    + writerCpuNs() + " " + compilerCpuNs());
        }
        broker.close();
        answers.println("ended");
        Runtime.getRuntime().halt(0); // the broker leaves threads behind
    }

    /** Processor time of the recorder's own thread; 0 if there is none. */
    private static long writerCpuNs() {
        ThreadMXBean threads = ManagementFactory.getThreadMXBean();
        for (long id : threads.getAllThreadIds()) {
            var info = threads.getThreadInfo(id);
            if (info != null && info.getThreadName().equals("dispatch-audit-recorder")) {
                return threads.getThreadCpuTime(id);
            }
        }
        return 0;
    }

    /** Processor time of the compiler threads, which is not a cost of messages; 0 if the system does not report it. */
    private static long compilerCpuNs() throws IOException {
        Path threads = Path.of("/proc/self/task");
        long ticks = 0;
        if (Files.isDirectory(threads)) {
            try (DirectoryStream<Path> all = Files.newDirectoryStream(threads)) {
                for (Path thread : all) {
                    ticks += compilerTicks(thread);
                }
            }
        }
        return ticks * TICK_NS;
    }

    /** User and system time of a compiler thread; 0 for other threads. */
    private static long compilerTicks(Path thread) {
        try {
            String stat = Files.readString(thread.resolve("stat"));
            String[] fields = stat.substring(stat.lastIndexOf(')') + 2).split(" ");
            return stat.contains("CompilerThre") ? Long.parseLong(fields[11]) + Long.parseLong(fields[12]) : 0;
        } catch (IOException ended) {
            return 0;
        }
    }
}
