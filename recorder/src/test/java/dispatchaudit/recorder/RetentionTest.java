package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class RetentionTest {
    private static final long HOUR_MS = 3_600_000;
    private static final long NOW_MS = 1_795_249_223_300L;

    @TempDir
    Path directory;
    private final Stats stats = new Stats();

    private static List<String> excess(long openBytes, long keepMs, long keepBytes) {
        List<Retention.Finished> segments = List.of(
                new Retention.Finished(Path.of("new"), 30, NOW_MS - 1),
                new Retention.Finished(Path.of("oldest"), 50, NOW_MS - 3 * HOUR_MS),
                new Retention.Finished(Path.of("older"), 20, NOW_MS - 2 * HOUR_MS));
        return Retention.excess(segments, openBytes, keepMs, keepBytes, NOW_MS).stream().map(segment -> segment.path().toString()).toList();
    }

    @Test
    void theOldestGoFirstAndNoMoreThanMust() {
        assertEquals(List.of(), excess(0, 0, 0));
        assertEquals(List.of(), excess(0, 3 * HOUR_MS, 100));
        assertEquals(List.of("oldest"), excess(0, 3 * HOUR_MS - 1, 0));
        assertEquals(List.of("oldest"), excess(0, 0, 99));
        assertEquals(List.of("oldest", "older"), excess(20, 0, 50), "what is being written counts too");
        assertEquals(List.of("oldest", "older", "new"), excess(1000, 0, 1));
    }

    private void file(String name, long endedMs) throws IOException {
        Files.writeString(directory.resolve(name), "0123456789");
        Files.setLastModifiedTime(directory.resolve(name), FileTime.fromMillis(endedMs));
    }

    @Test
    void onlyFinishedSegmentsOfThisBrokerAreDeletedAndCounted() throws IOException {
        file("events-localhost_6650-20261122T080000.000Z-1.jsonl.gz", NOW_MS - 3 * HOUR_MS);
        file("messages-localhost_6650-20261122T080000.000Z-1.jsonl", NOW_MS - 3 * HOUR_MS);
        file("events-localhost_6650-20261122T090000.000Z-2.jsonl.gz", NOW_MS - HOUR_MS);
        List<String> others = List.of(
                "events-localhost_6650-20261122T080000.000Z-3.jsonl.gz.open",
                "events-localhost_66501-20261122T080000.000Z-1.jsonl.gz",
                "events-localhost_6650-2-20261122T080000.000Z-1.jsonl.gz",
                "recorder-status-localhost_6650.json",
                "my-events-localhost_6650-20261122T080000.000Z-1.jsonl.gz");
        for (String other : others) {
            file(other, NOW_MS - 3 * HOUR_MS);
        }
        Settings forever = Reading.settings(directory, Map.of());
        assertTrue(new Retention(forever, stats).apply(NOW_MS).isEmpty());
        Settings settings = Reading.settings(directory, Map.of("dispatchAuditRecorderKeepHours", "2"));
        List<String> deleted = new Retention(settings, stats).apply(NOW_MS);
        assertEquals(List.of("events-localhost_6650-20261122T080000.000Z-1.jsonl.gz",
                "messages-localhost_6650-20261122T080000.000Z-1.jsonl"), deleted);
        assertEquals(others.size() + 1, Reading.files(directory, "", "").size());
        assertEquals(2, stats.deletedSegments.sum());
        assertEquals(20, stats.deletedBytes.sum());
    }
}
