package dispatchaudit.recorder;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.function.Consumer;

/** The queue, its writer's thread, and their end. Knows nothing of Pulsar. */
public final class Recorder implements AutoCloseable {
    private static final long POLL_MS = 100;
    private static final long STATUS_MS = 5000;
    private static final long SWEEP_MS = 1000;
    private static final long CLOSE_MS = 20_000;

    private final Settings settings;
    private final EventQueue queue;
    private final LogWriter writer;
    private final Stats stats;
    private final Runnable sweep;
    private final Consumer<Throwable> onFailure;
    private final Thread thread;
    private volatile boolean closing;

    /**
     * @param sweep     called about once a second by the writer's thread: look for what no callback tells
     * @param onFailure told of each failure of the writer, which goes on
     */
    Recorder(Settings settings, LogWriter.Probe probe, Stats stats, Runnable sweep, Consumer<Throwable> onFailure) {
        this.settings = settings;
        this.stats = stats;
        this.sweep = sweep;
        this.onFailure = onFailure;
        this.queue = new EventQueue(settings.queueEvents(), settings.queueBytes(), Recorder::nowUs);
        this.writer = new LogWriter(settings, probe, System::currentTimeMillis, stats);
        this.thread = new Thread(this::run, "dispatch-audit-recorder");
        this.thread.setDaemon(true);
    }

    /** Where events and messages go in. */
    EventQueue queue() {
        return queue;
    }

    /** Complete what an earlier run left, and begin. Returns the names of the segments that were left open. */
    java.util.List<String> start() throws IOException {
        Files.createDirectories(settings.directory());
        java.util.List<String> recovered = SegmentSeries.recover(settings);
        thread.start();
        return recovered;
    }

    /** Write what waits, end the segments. Waits for it, at most 20 s. */
    @Override
    public void close() {
        closing = true;
        try {
            thread.join(CLOSE_MS);
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
        }
    }

    private void run() {
        long sweptMs = System.currentTimeMillis();
        long statusMs = 0;
        boolean last = false;
        while (!last) {
            last = closing;
            try {
                long now = System.currentTimeMillis();
                if (now - sweptMs >= SWEEP_MS) {
                    sweptMs = now;
                    sweep.run();
                }
                if (now - statusMs >= STATUS_MS) {
                    statusMs = now;
                    status();
                }
                writer.write(queue.take(last ? 0 : POLL_MS));
                writer.tick();
            } catch (InterruptedException interrupted) {
                last = true;
            } catch (IOException | RuntimeException | LinkageError failed) {
                onFailure.accept(failed);
            }
        }
        try {
            writer.write(queue.take(0));
            writer.close();
            status();
        } catch (IOException | RuntimeException | InterruptedException failed) {
            onFailure.accept(failed);
        }
    }

    /** {@code recorder-status-BROKER.json}: the counts, for people and tests; no part of the log. */
    private void status() throws IOException {
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
