package dispatchaudit.recorder;

import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.function.LongSupplier;
import java.util.regex.Pattern;

/** The segments of one kind of log, one after the other. For the writer's thread only. */
final class SegmentSeries {
    /** Writes the beginning and the end of a segment, and is notified which lines reached a file. */
    interface Contents {
        /** A segment was opened: write its first lines. */
        void opened(SegmentSeries series) throws IOException;

        /** More fields for the footer of the segment that ends, each with a comma before it. */
        String footer();

        /** All lines so far are in a file. {@code ended}: their segment also has its footer. */
        void kept(boolean ended);

        /** The lines since the last {@link #kept} are in no file. */
        void failed();
    }

    private final Settings settings;
    private final String log;
    private final LongSupplier clockMs;
    private final Segment.Disk disk;
    private final Contents contents;
    private Segment segment;
    private long openedMs;
    private long flushedMs;
    private long syncedMs;
    private long retryMs;
    private long number;

    SegmentSeries(Settings settings, String log, LongSupplier clockMs, Segment.Disk disk, Contents contents) {
        this.settings = settings;
        this.log = log;
        this.clockMs = clockMs;
        this.disk = disk;
        this.contents = contents;
    }

    /** Number of the open segment, or of the next one. Callers use it to write something once per segment. */
    long number() {
        return number;
    }

    /** Open a segment if none is. False while it is too early to retry after a failure. */
    boolean ready() throws IOException {
        if (segment != null) {
            return true;
        }
        long now = clockMs.getAsLong();
        if (now < retryMs) {
            return false;
        }
        number++;
        openedMs = flushedMs = syncedMs = now;
        try {
            Files.createDirectories(settings.directory());
            Path file = settings.directory().resolve(SegmentName.of(log, settings, now, number));
            segment = new Segment(file, settings.compression(), disk);
            contents.opened(this);
        } catch (IOException failed) {
            fail();
            throw failed;
        }
        return true;
    }

    /** Append a line to the open segment. */
    void line(Line.Bytes text) {
        segment.line(text.array(), text.size());
    }

    /** Flush the lines if they are many; to be called between lines. */
    void settle() throws IOException {
        if (segment != null && segment.full()) {
            guarded(this::flush);
        }
    }

    /** Flush, sync and rotate as the settings say. */
    void tick() throws IOException {
        if (segment == null) {
            return;
        }
        long now = clockMs.getAsLong();
        if (segment.sizeBytes() >= settings.rotateBytes() || now - openedMs >= settings.rotateMs()) {
            complete();
            return;
        }
        guarded(() -> {
            if (now - flushedMs >= settings.flushMs()) {
                flush();
                flushedMs = now;
            }
            if (now - syncedMs >= settings.syncMs()) {
                segment.sync();
                syncedMs = now;
            }
        });
    }

    /** End the open segment, if there is one. */
    void complete() throws IOException {
        if (segment != null) {
            guarded(() -> {
                flush(); // separately: a footer that fails must not count these lines as lost
                segment.complete(contents.footer());
            });
            segment = null;
            contents.kept(true);
        }
    }

    private interface Work {
        void run() throws IOException;
    }

    private void flush() throws IOException {
        segment.flush();
        contents.kept(false);
    }

    /** Give up the segment after a failure; the next one is tried later. */
    private void guarded(Work work) throws IOException {
        try {
            work.run();
        } catch (IOException failed) {
            fail();
            throw failed;
        }
    }

    private void fail() {
        if (segment != null) {
            segment.abandon();
            segment = null;
        }
        contents.failed();
        retryMs = clockMs.getAsLong() + settings.retryMs();
    }

    /** Make readable the segments that earlier runs of this broker left open. Returns their names, for the log. */
    static List<String> recover(Settings settings) throws IOException {
        List<String> found = new ArrayList<>();
        if (!Files.isDirectory(settings.directory())) {
            return found;
        }
        Pattern own = SegmentName.own(settings, true);
        try (DirectoryStream<Path> left = Files.newDirectoryStream(settings.directory(), "*" + Segment.OPEN)) {
            for (Path open : left) {
                if (own.matcher(open.getFileName().toString()).matches()) {
                    found.add(recovered(open));
                }
            }
        }
        return found;
    }

    private static String recovered(Path open) {
        try {
            Path complete = Segment.recover(open);
            return complete == null ? open.getFileName() + " (empty, deleted)" : complete.getFileName().toString();
        } catch (IOException failed) {
            return open.getFileName() + " (left as it is: " + failed + ")";
        }
    }
}
