package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Lines that a disk refuses are counted exactly, and reported by gap lines as soon as it accepts lines again. */
class FullDiskTest {
    @TempDir
    Path directory;
    private final AtomicLong clockMs = new AtomicLong(1_795_249_223_300L);
    private final Stats stats = new Stats();
    private final SmallDisk disk = new SmallDisk(Long.MAX_VALUE / 2);
    private final DispatcherLog log = new DispatcherLog("persistent://public/default/t", "audit", "Key_Shared", -1, 7);
    private final DispatcherLog other = new DispatcherLog("persistent://public/default/t", "other", "Shared", -1, 8);
    private EventQueue queue;
    private LogWriter writer;
    private long entry;

    private void begin(Map<String, String> properties) {
        Settings settings = Reading.settings(directory, properties);
        queue = new EventQueue(settings.queueEvents(), settings.queueBytes(), () -> 1000 * clockMs.get());
        writer = new LogWriter(LogForm.EVENTS, settings, log -> null, clockMs::get, disk, stats);
    }

    private static Event.ConsumerAdded added() {
        return new Event.ConsumerAdded(1, "c", 1, "127.0.0.1", 0, null);
    }

    private void sent(DispatcherLog to, int entries) {
        for (int i = 0; i < entries; i++) {
            queue.sent(to, 1, 1_000_000 - entry, 5, entry++, 1, null); // a line each: the permits differ
        }
    }

    /** Write the waiting events, and flush. */
    private void drain() throws IOException, InterruptedException {
        try {
            writer.write(queue.take(0));
        } finally {
            clockMs.addAndGet(1000);
            writer.tick();
        }
    }

    private static long sentEntries(List<JsonNode> events, DispatcherLog of) {
        return events.stream().filter(event -> event.get("incarnation").asLong() == of.incarnation)
                .mapToLong(event -> event.path("positions").size() + event.path("lost_sent_entries").asLong()).sum();
    }

    /** Check that numbers have no hole, with gap lines covering as many as they say; returns their sum. */
    private static long assertNumbered(List<JsonNode> events) {
        Map<Long, Long> next = new HashMap<>();
        long lost = 0;
        for (JsonNode event : events) {
            long incarnation = event.get("incarnation").asLong();
            assertEquals(next.getOrDefault(incarnation, 1L), event.get("seq").asLong(), event::toString);
            boolean gap = event.get("kind").asText().equals("gap");
            next.put(incarnation, (gap ? event.get("to") : event.get("seq")).asLong() + 1);
            lost += event.path("lost").asLong();
        }
        return lost;
    }

    @Test
    void linesOfARefusedBlockAreToldByOneGapLinePerDispatcher() throws Exception {
        begin(Map.of());
        queue.offer(log, added());
        queue.offer(other, added());
        sent(log, 10);
        drain();
        disk.freeBytes = 100;
        sent(log, 20);
        sent(other, 3);
        assertThrows(IOException.class, this::drain);
        assertEquals(23, stats.failedLines.sum());
        sent(log, 4); // not tried: it is too early to retry
        drain();
        assertEquals(27, stats.failedLines.sum());
        List<Path> readable = Reading.files(directory, "events", ".jsonl.gz");
        assertEquals(1, readable.size(), "what was whole has its name at once, not at the broker's next start");
        assertEquals(12, Reading.events(directory).size());
        disk.freeBytes = Long.MAX_VALUE / 2;
        clockMs.addAndGet(5000);
        sent(log, 2);
        drain();
        writer.close();
        List<JsonNode> events = Reading.events(directory);
        assertEquals(27, assertNumbered(events));
        List<JsonNode> gaps = events.stream().filter(event -> event.get("kind").asText().equals("gap")).toList();
        assertEquals(List.of(24L, 3L), gaps.stream().map(event -> event.get("lost").asLong()).toList());
        assertEquals(36, sentEntries(events, log));
        assertEquals(3, sentEntries(events, other));
        assertEquals(14, stats.events.sum(), "only what is in a file");
        assertEquals(12, stats.sentEntries.sum());
        JsonNode checkpoint = events.get(events.indexOf(gaps.get(1)) + 1);
        assertEquals("checkpoint", checkpoint.get("kind").asText());
    }

    @Test
    void anIncarnationThatEndedMeanwhileIsToldOfToo() throws Exception {
        begin(Map.of());
        queue.offer(log, added());
        drain();
        disk.freeBytes = 0;
        sent(log, 5);
        queue.offer(log, new Event.ConsumerRemoved(1));
        queue.offer(log, new Event.Ended());
        assertThrows(IOException.class, this::drain);
        disk.freeBytes = 100_000;
        clockMs.addAndGet(5000);
        queue.offer(other, added());
        drain();
        writer.close();
        List<JsonNode> events = Reading.events(directory);
        assertEquals(6, assertNumbered(events));
        assertEquals(5, sentEntries(events, log));
    }

    @Test
    void messagesThatTheDiskRefusedStandInTheNextFooter() throws Exception {
        begin(Map.of());
        for (int i = 0; i < 30; i++) {
            queue.offer(new Message(new Message.Content("persistent://public/default/t", "k", false, null, "p", i, 1, 1, 1, null, null), 5, i));
            if (i == 9 || i == 29) {
                drain();
            } else if (i == 19) {
                disk.freeBytes = 0;
                assertThrows(IOException.class, this::drain);
                disk.freeBytes = 100_000;
                clockMs.addAndGet(5000);
            }
        }
        writer.close();
        List<Path> files = Reading.files(directory, "messages", ".jsonl.gz");
        assertEquals(2, files.size());
        assertEquals(11, Reading.lines(files.get(0)).size());
        List<JsonNode> last = Reading.lines(files.get(1));
        assertEquals(10, last.get(last.size() - 1).get("lost").asInt());
        assertEquals(20, stats.messages.sum());
        assertEquals(10, stats.failedLines.sum());
    }

    /** With a disk that fails at random, a queue that overflows, and rotation: sent = recorded + lost. */
    @Test
    void theSumIsExactWhateverFails() throws Exception {
        int failures = 0;
        for (int seed = 1; seed <= 20; seed++) {
            Path own = Files.createDirectory(directory.resolve("seed-" + seed));
            Stats counted = new Stats();
            Settings settings = Reading.settings(own, Map.of("dispatchAuditRecorderQueueEvents", "200",
                    "dispatchAuditRecorderRotateSeconds", "7"));
            queue = new EventQueue(settings.queueEvents(), settings.queueBytes(), () -> 1000 * clockMs.get());
            writer = new LogWriter(LogForm.EVENTS, settings, log -> null, clockMs::get, disk, counted);
            DispatcherLog[] logs = {new DispatcherLog("t", "a", "Key_Shared", -1, 1), new DispatcherLog("t", "b", "Shared", -1, 2)};
            long[] sent = new long[2];
            Random random = new Random(seed);
            for (int round = 0; round < 60; round++) {
                disk.freeBytes = random.nextBoolean() ? 1_000_000 : random.nextInt(1000);
                for (int which = 0; which < 2; which++) {
                    int count = random.nextInt(180);
                    sent(logs[which], count);
                    sent[which] += count;
                    if (random.nextInt(5) == 0) {
                        queue.offer(logs[which], added());
                    }
                }
                clockMs.addAndGet(random.nextInt(3000));
                try {
                    drain();
                } catch (IOException full) {
                    failures++;
                }
            }
            disk.freeBytes = 1_000_000;
            clockMs.addAndGet(5000);
            queue.offer(logs[0], new Event.ConsumerRemoved(1));
            queue.offer(logs[1], new Event.ConsumerRemoved(1));
            drain();
            writer.close();
            List<JsonNode> events = Reading.events(own);
            long lost = assertNumbered(events);
            assertTrue(counted.lostEvents.sum() > 100, "the queue was full in between");
            assertEquals(sent[0], sentEntries(events, logs[0]), "seed " + seed);
            assertEquals(sent[1], sentEntries(events, logs[1]), "seed " + seed);
            assertEquals(LongStream.of(counted.lostEvents.sum(), counted.failedLines.sum()).sum(), lost, "the status says the same");
            assertEquals(events.stream().filter(event -> !List.of("gap", "checkpoint").contains(event.get("kind").asText())).count(),
                    counted.events.sum());
        }
        assertTrue(failures > 100, "the disk failed in between: " + failures);
    }
}
