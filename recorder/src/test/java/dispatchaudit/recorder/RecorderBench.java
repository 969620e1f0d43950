package dispatchaudit.recorder;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.LongAdder;
import java.util.function.ToDoubleFunction;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import java.util.zip.GZIPInputStream;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Measures the recorder's cost: {@code FOLDER [PAIRS [SECONDS]]}.
 *
 * <p>Two brokers run all the time, each in a process of its own. They differ only in the NAR, which one of them loads. Clients
 * in this process load one of them at a time, as fast as possible. A pair is one run at each, and pairs alternate which broker
 * begins. So the broker without the recorder has no cost of it, not even the calls of an interceptor that leaves the topic out;
 * both are equally warm, and other load of the machine affects both alike. The waiting broker costs next to nothing.
 */
final class RecorderBench {
    private static final int CONSUMERS = 4;
    private static final int KEYS = 1000;
    private static final int PAYLOAD_BYTES = 100;
    private static final int LEAST_PAIRS_FOR_A_VERDICT = 8;
    private static final double LEAST_RATIO = 0.90;
    /** A broker is warm when its compilers take no more than this share of its processor time. */
    private static final double WARM_COMPILER_SHARE = 0.1;
    private static final int MOST_WARM_UPS = 5;
    private static final long SETTLE_MS = 1600; // a flush of the recorder comes each second

    /** The output of the figures; libraries log to stderr. */
    private static final PrintStream OUT = System.out;

    private enum Mode {
        /** One message per entry. */
        UNBATCHED,
        /** A producer's default batches. */
        BATCHED
    }

    /** One run: the messages and their cost. The broker's time does not include the compilers'. */
    private record Run(long messages, double seconds, double brokerCpuS, double writerCpuS, double compilerCpuS, long eventBytes,
                       long messageBytes) {
        double compilerShare() {
            return compilerCpuS / (brokerCpuS + compilerCpuS);
        }

        double rate() {
            return messages / seconds;
        }
    }

    private record Pair(Mode mode, Run off, Run on) {
        double ratio() {
            return on.rate() / off.rate();
        }

        double addedCpuUs() {
            return 1e6 * (on.brokerCpuS() / on.messages() - off.brokerCpuS() / off.messages());
        }
    }

    private RecorderBench() {
    }

    public static void main(String[] words) throws Exception {
        System.setOut(System.err);
        Path root = Path.of(words[0]).toAbsolutePath();
        int pairs = words.length > 1 ? Integer.parseInt(words[1]) : LEAST_PAIRS_FOR_A_VERDICT;
        double seconds = words.length > 2 ? Double.parseDouble(words[2]) : 8;
        List<Pair> measured = new ArrayList<>();
        Path recording;
        try (Served off = new Served(root.resolve("off"), "disableBrokerInterceptors=true", "brokerInterceptors=");
                Served on = new Served(root.resolve("on"), "dispatchAuditRecorderRotateSeconds=600",
                        "dispatchAuditRecorderFlushMillis=1000")) {
            recording = on.recording;
            for (Served broker : List.of(off, on)) {
                warmUp(broker, seconds);
            }
            OUT.printf("%-10s %4s %12s %12s %7s %14s %14s %18s%n", "mode", "pair", "off msg/s", "on msg/s", "ratio",
                    "CPU us/msg", "of it, writer", "compilers off, on");
            for (int number = 1; number <= pairs; number++) {
                for (Mode mode : Mode.values()) {
                    boolean offFirst = number % 2 == 1;
                    Run first = run(offFirst ? off : on, mode, seconds);
                    Run second = run(offFirst ? on : off, mode, seconds);
                    Pair pair = offFirst ? new Pair(mode, first, second) : new Pair(mode, second, first);
                    measured.add(pair);
                    OUT.printf("%-10s %4d %12.0f %12.0f %7.3f %14.2f %14.2f %7.0f %%, %6.0f %%%n", name(mode), number,
                            pair.off().rate(), pair.on().rate(), pair.ratio(), pair.addedCpuUs(),
                            1e6 * pair.on().writerCpuS() / pair.on().messages(), 100 * pair.off().compilerShare(),
                            100 * pair.on().compilerShare());
                }
            }
        }
        Map<String, Object> report = new LinkedHashMap<>();
        report.put("pairs", pairs);
        report.put("seconds", seconds);
        report.put("processors", Runtime.getRuntime().availableProcessors());
        report.put("consumers", CONSUMERS);
        report.put("payload_bytes", PAYLOAD_BYTES);
        boolean kept = true;
        for (Mode mode : Mode.values()) {
            Map<String, Object> outcome = outcome(measured.stream().filter(pair -> pair.mode() == mode).toList());
            report.put(name(mode), outcome);
            OUT.println(name(mode) + ": " + outcome);
            kept &= (double) outcome.get("ratio_median") >= LEAST_RATIO;
        }
        Map<String, Long> lost = lost(recording);
        report.put("lost", lost);
        OUT.println("lost by the recorder, by gap lines, footers and its status: " + lost);
        Path file = root.resolveSibling(root.getFileName() + ".json");
        new ObjectMapper().writerWithDefaultPrettyPrinter().writeValue(file.toFile(), report);
        OUT.println("written to recorder/target/" + file.getFileName());
        boolean complete = lost.values().stream().allMatch(count -> count == 0);
        if (!complete || pairs >= LEAST_PAIRS_FOR_A_VERDICT && !kept) {
            OUT.println(complete ? "The recorder costs more than " + Math.round(100 * (1 - LEAST_RATIO)) + " % of the throughput"
                    : "The recorder lost lines");
            System.exit(1);
        }
        System.exit(0); // a client may leave threads behind
    }

    /** Run both modes in turn, because code compiled for one mode is compiled again for both. */
    private static void warmUp(Served broker, double seconds) throws Exception {
        double share = 1;
        for (int round = 0; round < MOST_WARM_UPS && share > WARM_COMPILER_SHARE; round++) {
            run(broker, Mode.BATCHED, seconds / 2);
            share = run(broker, Mode.UNBATCHED, seconds).compilerShare();
        }
    }

    /** Send at full rate for this many seconds, and wait until everything is received and acknowledged. */
    private static Run run(Served broker, Mode mode, double seconds) throws Exception {
        String topic = "persistent://public/default/bench-" + name(mode) + "-" + broker.runs++;
        Semaphore room = new Semaphore(mode == Mode.BATCHED ? 40_000 : 10_000); // messages stored and not received yet
        LongAdder received = new LongAdder();
        long sent = 0;
        double took;
        long[] before;
        long[] bytesBefore;
        try (PulsarClient client = PulsarClient.builder().serviceUrl(broker.url).build()) {
            List<Consumer<byte[]>> consumers = new ArrayList<>();
            for (int number = 0; number < CONSUMERS; number++) {
                consumers.add(client.newConsumer().topic(topic).subscriptionName("bench").consumerName("c" + number)
                        .subscriptionType(SubscriptionType.Key_Shared).messageListener((consumer, message) -> {
                            consumer.acknowledgeAsync(message);
                            received.increment();
                            room.release();
                        }).subscribe());
            }
            ProducerBuilder<byte[]> builder = client.newProducer().topic(topic).blockIfQueueFull(true);
            Producer<byte[]> producer = mode == Mode.BATCHED ? builder.create() : builder.enableBatching(false).create();
            byte[] payload = new byte[PAYLOAD_BYTES];
            before = broker.cpuNs();
            bytesBefore = broker.bytes();
            long start = System.nanoTime();
            long until = start + (long) (seconds * 1e9);
            while (System.nanoTime() < until) {
                if (room.tryAcquire(20, TimeUnit.SECONDS)) {
                    producer.newMessage().key("key-" + sent++ % KEYS).value(payload).sendAsync();
                } else {
                    throw new IllegalStateException("nothing was received for 20 s after " + received.sum() + " messages");
                }
            }
            producer.flush();
            while (received.sum() < sent) {
                if (System.nanoTime() > until + 60e9) {
                    throw new IllegalStateException("received " + received.sum() + " of " + sent + " messages, and no more for 60 s");
                }
                Thread.sleep(1);
            }
            took = (System.nanoTime() - start) / 1e9;
        }
        Thread.sleep(SETTLE_MS);
        long[] after = broker.cpuNs();
        long[] bytes = broker.bytes();
        long compilerNs = after[2] - before[2];
        return new Run(sent, took, (after[0] - before[0] - compilerNs) / 1e9, (after[1] - before[1]) / 1e9, compilerNs / 1e9,
                bytes[0] - bytesBefore[0], bytes[1] - bytesBefore[1]);
    }

    private static Map<String, Object> outcome(List<Pair> pairs) {
        Map<String, Object> outcome = new LinkedHashMap<>();
        outcome.put("ratio_median", median(pairs, Pair::ratio));
        outcome.put("ratio_least", pairs.stream().mapToDouble(Pair::ratio).min().orElseThrow());
        outcome.put("ratio_most", pairs.stream().mapToDouble(Pair::ratio).max().orElseThrow());
        outcome.put("off_messages_per_s", median(pairs, pair -> pair.off().rate()));
        outcome.put("on_messages_per_s", median(pairs, pair -> pair.on().rate()));
        outcome.put("off_cpu_us_per_message", median(pairs, pair -> 1e6 * pair.off().brokerCpuS() / pair.off().messages()));
        outcome.put("added_cpu_us_per_message", median(pairs, Pair::addedCpuUs));
        outcome.put("writer_cpu_us_per_message", median(pairs, pair -> 1e6 * pair.on().writerCpuS() / pair.on().messages()));
        outcome.put("event_bytes_per_million_messages", median(pairs, pair -> 1e6 * pair.on().eventBytes() / pair.on().messages()));
        outcome.put("message_bytes_per_million_messages",
                median(pairs, pair -> 1e6 * pair.on().messageBytes() / pair.on().messages()));
        outcome.replaceAll((name, value) -> Math.round(1000 * (double) value) / 1000.0);
        return outcome;
    }

    private static double median(List<Pair> pairs, ToDoubleFunction<Pair> of) {
        double[] sorted = pairs.stream().mapToDouble(of).sorted().toArray();
        return (sorted[(sorted.length - 1) / 2] + sorted[sorted.length / 2]) / 2;
    }

    /** The losses that the recording itself reports. */
    private static Map<String, Long> lost(Path recording) throws IOException {
        long gaps = 0;
        long footers = 0;
        for (Path file : Reading.files(recording, "", ".jsonl.gz")) {
            try (BufferedReader lines = new BufferedReader(
                    new InputStreamReader(new GZIPInputStream(Files.newInputStream(file), 1 << 16), StandardCharsets.UTF_8))) {
                for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                    gaps += line.contains("\"kind\":\"gap\"") ? 1 : 0;
                    footers += line.startsWith("{\"kind\":\"footer\"") && line.contains("\"lost\":") ? 1 : 0;
                }
            }
        }
        Map<String, Long> lost = new LinkedHashMap<>(Map.of("gap_lines", gaps));
        lost.put("footers_with_lost_messages", footers);
        var status = new ObjectMapper().readTree(Reading.files(recording, "recorder-status", ".json").get(0).toFile());
        for (String count : List.of("lost_events", "lost_messages", "failed_lines", "errors", "late_events")) {
            lost.put(count, status.get(count).asLong());
        }
        return lost;
    }

    private static String name(Mode mode) {
        return mode.name().toLowerCase(java.util.Locale.ROOT);
    }

    /** A {@link BenchBroker}. */
    private static final class Served implements AutoCloseable {
        final Path recording;
        final String url;
        int runs;
        private final Process process;
        private final BufferedReader answers;
        private final PrintStream questions;

        Served(Path folder, String... settings) throws Exception {
            Files.createDirectories(folder.getParent());
            this.recording = folder.resolve("recording");
            List<String> command = new ArrayList<>(List.of(Path.of(System.getProperty("java.home"), "bin", "java").toString()));
            command.addAll(Stream.of(System.getProperty("broker.options").split("\\s+")).toList());
            command.addAll(List.of("-Drecorder.nar.directory=" + System.getProperty("recorder.nar.directory"),
                    "-cp", withoutRecorder(System.getProperty("java.class.path")), BenchBroker.class.getName(), folder.toString()));
            command.addAll(Arrays.asList(settings));
            process = new ProcessBuilder(command).redirectError(folder.resolveSibling(folder.getFileName() + ".log").toFile()).start();
            answers = new BufferedReader(new InputStreamReader(process.getInputStream(), StandardCharsets.UTF_8));
            questions = new PrintStream(process.getOutputStream(), true, StandardCharsets.UTF_8);
            url = answer("ready")[0];
        }

        /** The recorder must come from the NAR. */
        private static String withoutRecorder(String classPath) {
            return Stream.of(classPath.split(File.pathSeparator)).filter(entry -> !entry.endsWith("target/classes"))
                    .collect(Collectors.joining(File.pathSeparator));
        }

        /** Processor time so far: of the process, of the recorder's thread, of the compilers. */
        long[] cpuNs() throws IOException {
            questions.println("cpu");
            return Stream.of(answer("cpu")).mapToLong(Long::parseLong).toArray();
        }

        /** Bytes recorded so far: events, messages. */
        long[] bytes() throws IOException {
            long[] bytes = new long[2];
            if (Files.isDirectory(recording)) {
                for (Path file : Reading.files(recording, "events", "")) {
                    bytes[0] += Files.size(file);
                }
                for (Path file : Reading.files(recording, "messages", "")) {
                    bytes[1] += Files.size(file);
                }
            }
            return bytes;
        }

        private String[] answer(String word) throws IOException {
            String line = answers.readLine();
            while (line != null && !line.startsWith(word)) {
                line = answers.readLine(); // a line that a library printed
            }
            if (line == null) {
                throw new IllegalStateException("a broker of the benchmark ended; its log lies beside its folder " + recording.getParent());
            }
            return line.substring(word.length()).trim().split(" ");
        }

        @Override
        public void close() throws Exception {
            questions.println("end");
            if (!process.waitFor(60, TimeUnit.SECONDS)) {
                process.destroyForcibly();
            }
        }
    }
}
