package dispatchaudit.recorder;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.function.BiConsumer;
import java.util.function.Consumer;

/** Runs the queue and its writer's thread, and stops them. Does not depend on Pulsar. */
public final class Recorder implements AutoCloseable {
    private static final long POLL_MS = 100;
    private static final long STATUS_MS = 5000;
    private static final long SWEEP_MS = 1000;
    private static final long RETENTION_MS = 10_000;
    private static final long CLOSE_MS = 20_000;

    private final Settings settings;
    private final EventQueue queue;
    private final LogWriter writer;
    private final Stats stats;
    private final Runnable sweep;
    private final Retention retention;
    private final Consumer<List<String>> onDeleted;
    private final BiConsumer<String, Throwable> onFailure;
    private final Thread thread;
    private volatile boolean closing;

    /**
     * @param form      the kind of log
     * @param sweep     called about once a second by the writer's thread: finds changes that no callback reports
     * @param onDeleted gets the names of the segments that retention deleted
     * @param onFailure gets each failure of the writer's thread, which continues, and the step that failed
     */
    public Recorder(LogForm form, Settings settings, LogWriter.Probe probe, Stats stats, Runnable sweep, Consumer<List<String>> onDeleted,
             BiConsumer<String, Throwable> onFailure) {
        this.settings = settings;
        this.stats = stats;
        this.sweep = sweep;
        this.onDeleted = onDeleted;
        this.onFailure = onFailure;
        this.retention = new Retention(settings, stats);
        this.queue = new EventQueue(settings.queueEvents(), settings.queueBytes(), Recorder::nowUs);
        this.writer = new LogWriter(form, settings, probe, System::currentTimeMillis, Segment.DISK, stats);
        this.thread = new Thread(this::run, "dispatch-audit-recorder");
        this.thread.setDaemon(true);
    }

    /** The queue for events and messages. */
    public EventQueue queue() {
        return queue;
    }

    /** Complete the segments that an earlier run left open, and start. Returns the names of these segments. */
    public List<String> start() throws IOException {
        Files.createDirectories(settings.directory());
        List<String> recovered = SegmentSeries.recover(settings);
        thread.start();
        return recovered;
    }

    /**
     * Write the waiting events, and end the segments. Waits at most 20 s for that. A broker that shuts down interrupts slow
     * threads, but events left then would be lost without being counted. So the interrupt is deferred to the caller.
     */
    @Override
    public void close() {
        closing = true;
        long until = System.nanoTime() + CLOSE_MS * 1_000_000;
        boolean interrupted = false;
        while (thread.isAlive() && System.nanoTime() < until) {
            try {
                thread.join(Math.max(1, (until - System.nanoTime()) / 1_000_000));
            } catch (InterruptedException early) {
                interrupted = true;
            }
        }
        if (interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private void run() {
        Duty sweeping = new Duty("sweep", SWEEP_MS, sweep::run);
        Duty telling = new Duty("status", STATUS_MS, this::status);
        Duty deleting = new Duty("retention", RETENTION_MS, this::delete);
        Duty writing = new Duty("writer", 0, () -> writer.write(queue.take(POLL_MS)));
        Duty filing = new Duty("writer", 0, writer::tick);
        while (!closing) {
            sweeping.perform();
            telling.perform();
            deleting.perform();
            writing.perform();
            filing.perform();
        }
        new Duty("writer", 0, () -> writer.write(queue.take(0))).perform();
        new Duty("writer", 0, writer::close).perform();
        new Duty("status", 0, this::status).perform();
    }

    private interface Work {
        void run() throws Exception;
    }

    /** A periodic step; its failure does not affect the other steps. */
    private final class Duty {
        private final String name;
        private final long everyMs;
        private final Work work;
        private long lastMs;

        Duty(String name, long everyMs, Work work) {
            this.name = name;
            this.everyMs = everyMs;
            this.work = work;
        }

        void perform() {
            long now = System.currentTimeMillis();
            if (now - lastMs < everyMs) {
                return;
            }
            lastMs = now;
            try {
                work.run();
            } catch (InterruptedException ended) {
                closing = true;
            } catch (Throwable failed) { // errors too: without this thread every event would be lost silently
                onFailure.accept(name, failed);
            }
        }
    }

    private void delete() throws IOException {
        List<String> deleted = retention.apply(System.currentTimeMillis());
        if (!deleted.isEmpty()) {
            onDeleted.accept(deleted);
        }
    }

    /** {@code recorder-status-BROKER.json}: the counts, for people and tests; not part of the log. */
    private void status() throws IOException {
        stats.writerCpuMs = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() / 1_000_000;
        Path file = settings.directory().resolve("recorder-status-" + settings.fileBroker() + ".json");
        Path next = file.resolveSibling(file.getFileName() + Segment.OPEN + "-status");
        Files.write(next, (stats + "\n").getBytes(StandardCharsets.UTF_8));
        Files.move(next, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
    }

    private static long nowUs() {
        java.time.Instant now = java.time.Instant.now();
        return now.getEpochSecond() * 1_000_000 + now.getNano() / 1000;
    }
}
