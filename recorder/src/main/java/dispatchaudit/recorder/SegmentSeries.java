package dispatchaudit.recorder;

import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.ArrayList;
import java.util.List;
import java.util.function.LongSupplier;
import java.util.function.Supplier;

/** The segments of one kind of log, one after the other. For the writer's thread only. */
final class SegmentSeries {
    /** Writes what every segment begins with. */
    interface Opening {
        void write(SegmentSeries series) throws IOException;
    }

    private static final DateTimeFormatter STAMP =
            DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss.SSS'Z'").withZone(ZoneOffset.UTC);

    private final Settings settings;
    private final String prefix;
    private final LongSupplier clockMs;
    private final Opening opening;
    private final Supplier<String> footerMore;
    private Segment segment;
    private long openedMs;
    private long flushedMs;
    private long syncedMs;
    private long retryMs;
    private long number;

    SegmentSeries(Settings settings, String prefix, LongSupplier clockMs, Opening opening, Supplier<String> footerMore) {
        this.settings = settings;
        this.prefix = prefix;
        this.clockMs = clockMs;
        this.opening = opening;
        this.footerMore = footerMore;
    }

    /** Number of the open segment, or of the next one; for "was it said in this segment". */
    long number() {
        return number;
    }

    /** Open a segment if none is. False while a failed one is not to be tried again yet. */
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
            String name = prefix + "-" + settings.fileBroker() + "-" + STAMP.format(Instant.ofEpochMilli(now)) + "-" + number;
            segment = new Segment(settings.directory().resolve(name + settings.compression().ending), settings.compression());
            opening.write(this);
        } catch (IOException failed) {
            fail();
            throw failed;
        }
        return true;
    }

    /** Append a line to the open segment. After a failure the segment is given up, and the next one is tried later. */
    void line(byte[] text, int length) throws IOException {
        try {
            segment.line(text, length);
        } catch (IOException failed) {
            fail();
            throw failed;
        }
    }

    /** Flush, sync and rotate as the settings say. */
    void tick() throws IOException {
        if (segment == null) {
            return;
        }
        long now = clockMs.getAsLong();
        try {
            if (segment.sizeBytes() >= settings.rotateBytes() || now - openedMs >= settings.rotateMs()) {
                complete();
                return;
            }
            if (now - flushedMs >= settings.flushMs()) {
                segment.flush();
                flushedMs = now;
            }
            if (now - syncedMs >= settings.syncMs()) {
                segment.sync();
                syncedMs = now;
            }
        } catch (IOException failed) {
            fail();
            throw failed;
        }
    }

    /** End the open segment, if there is one. */
    void complete() throws IOException {
        if (segment == null) {
            return;
        }
        Segment done = segment;
        segment = null;
        done.complete(footerMore.get());
    }

    private void fail() {
        if (segment != null) {
            segment.abandon();
            segment = null;
        }
        retryMs = clockMs.getAsLong() + settings.retryMs();
    }

    /** Make readable what earlier runs of this broker left open. Returns the names, for the log. */
    static List<String> recover(Settings settings) throws IOException {
        List<String> found = new ArrayList<>();
        if (!Files.isDirectory(settings.directory())) {
            return found;
        }
        String own = "*-" + settings.fileBroker() + "-*" + Segment.OPEN;
        try (DirectoryStream<Path> left = Files.newDirectoryStream(settings.directory(), own)) {
            for (Path open : left) {
                Path complete = Segment.recover(open);
                found.add(complete == null ? open.getFileName() + " (empty)" : complete.getFileName().toString());
            }
        }
        return found;
    }
}
