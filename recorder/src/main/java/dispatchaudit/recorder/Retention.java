package dispatchaudit.recorder;

import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.regex.Pattern;

/** Deletes this broker's oldest finished segments beyond the limits of the settings. Without a limit, deletes nothing. */
final class Retention {
    /** A finished segment; {@code endedMs} = when its last line was written. */
    record Finished(Path path, long bytes, long endedMs) {
    }

    private final Settings settings;
    private final Stats stats;
    private final Pattern finished;
    private final Pattern open;

    Retention(Settings settings, Stats stats) {
        this.settings = settings;
        this.stats = stats;
        this.finished = SegmentName.own(settings, false);
        this.open = SegmentName.own(settings, true);
    }

    /**
     * The segments to delete, oldest first, events and messages alike: those that ended more than {@code keepMs} ago, then as
     * many as bring all files down to {@code keepBytes}. 0 = no such limit.
     *
     * @param openBytes size of the segments that are being written
     */
    static List<Finished> excess(List<Finished> segments, long openBytes, long keepMs, long keepBytes, long nowMs) {
        List<Finished> oldestFirst = new ArrayList<>(segments);
        oldestFirst.sort(Comparator.comparingLong(Finished::endedMs).thenComparing(Finished::path));
        long bytes = openBytes + segments.stream().mapToLong(Finished::bytes).sum();
        List<Finished> excess = new ArrayList<>();
        for (Finished segment : oldestFirst) {
            boolean tooOld = keepMs > 0 && nowMs - segment.endedMs() > keepMs;
            boolean tooMuch = keepBytes > 0 && bytes > keepBytes;
            if (tooOld || tooMuch) {
                excess.add(segment);
                bytes -= segment.bytes();
            }
        }
        return excess;
    }

    /** Delete the segments beyond the limits, and return their names. A failed deletion is tried again the next time. */
    List<String> apply(long nowMs) throws IOException {
        if (settings.keepMs() == 0 && settings.keepBytes() == 0) {
            return List.of();
        }
        List<Finished> segments = new ArrayList<>();
        long openBytes = 0;
        try (DirectoryStream<Path> files = Files.newDirectoryStream(settings.directory())) {
            for (Path file : files) {
                String name = file.getFileName().toString();
                try {
                    if (finished.matcher(name).matches()) {
                        segments.add(new Finished(file, Files.size(file), Files.getLastModifiedTime(file).toMillis()));
                    } else if (open.matcher(name).matches()) {
                        openBytes += Files.size(file);
                    }
                } catch (NoSuchFileException moved) {
                    // a reader moved it away
                }
            }
        }
        List<String> deleted = new ArrayList<>();
        for (Finished segment : excess(segments, openBytes, settings.keepMs(), settings.keepBytes(), nowMs)) {
            if (Files.deleteIfExists(segment.path())) {
                stats.deletedSegments.increment();
                stats.deletedBytes.add(segment.bytes());
                deleted.add(segment.path().getFileName().toString());
            }
        }
        return deleted;
    }
}
