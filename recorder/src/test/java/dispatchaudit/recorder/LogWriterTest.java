package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.zip.CRC32;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class LogWriterTest {
    @TempDir
    Path directory;
    private final AtomicLong clockMs = new AtomicLong(1_795_249_223_300L);
    private final Stats stats = new Stats();
    private EventQueue queue;
    private LogWriter writer;
    private final DispatcherLog log = new DispatcherLog("persistent://public/default/t", "audit", "Key_Shared", -1, 7);

    @BeforeEach
    void begin() {
        begin(Map.of());
    }

    private void begin(Map<String, String> properties) {
        Settings settings = Reading.settings(directory, properties);
        queue = new EventQueue(settings.queueEvents(), settings.queueBytes(), () -> 1000 * clockMs.get());
        writer = new LogWriter(LogForm.EVENTS, settings, log -> new State("5:0", "5:9", List.of("5:4"), Map.of(1, List.of("5:1"), 9, List.of("5:2")), false, 1),
                clockMs::get, Segment.DISK, stats);
    }

    private void drain() throws IOException, InterruptedException {
        writer.write(queue.take(0));
        writer.tick();
    }

    private static Event.ConsumerAdded added(int number) {
        return new Event.ConsumerAdded(number, "c" + number, number, "127.0.0.1", 0,
                new Event.KeyShared("STICKY", false, List.of(new int[] {0, 9})));
    }

    private static List<String> kinds(List<JsonNode> lines) {
        return lines.stream().map(line -> line.path("kind").asText(line.has("format") ? "header" : "?")).toList();
    }

    private static void assertNumbered(List<JsonNode> events) {
        long expected = 1;
        for (JsonNode event : events) {
            assertEquals(expected, event.get("seq").asLong());
            expected = event.get("kind").asText().equals("gap") ? event.get("to").asLong() + 1 : expected + 1;
        }
    }

    @Test
    void segmentIsOpenUnderAnotherNameAndEndsWithItsChecksum() throws Exception {
        queue.offer(log, added(1));
        queue.sent(log, 1, 10, 5, 0, 2, null);
        queue.offer(log, new Event.Ack(1, false, new long[] {5, 5}, new long[] {0, 1}, new long[][] {{6, -1}, null}));
        queue.offer(log, new Event.Redeliver(1, null, null));
        drain();
        assertTrue(Reading.files(directory, "events", ".gz").isEmpty());
        assertEquals(1, Reading.files(directory, "events", Segment.OPEN).size());
        writer.close();
        Path file = Reading.files(directory, "events", ".jsonl.gz").get(0);
        List<JsonNode> lines = Reading.lines(file);
        assertEquals(List.of("header", "header", "consumer_added", "sent", "ack", "redeliver", "footer"), kinds(lines));
        assertEquals(100, lines.get(0).get("config").get("dispatcherMaxReadBatchSize").asInt());
        assertEquals("Key_Shared", lines.get(1).get("subscription_type").asText());
        assertEquals("[[6,-1],[]]", lines.get(4).get("ack_sets").toString());
        assertFalse(lines.get(5).has("positions"));
        CRC32 crc = new CRC32();
        for (String line : Reading.text(file).subList(0, 6)) {
            crc.update((line + "\n").getBytes(StandardCharsets.UTF_8));
        }
        assertEquals("%08x".formatted(crc.getValue()), lines.get(6).get("crc32").asText());
        assertEquals(6, lines.get(6).get("lines").asInt());
    }

    @Test
    void fullQueueLeavesGapLinesThatCountExactly() throws Exception {
        begin(Map.of("dispatchAuditRecorderQueueEvents", "1000"));
        queue.offer(log, added(1));
        for (int i = 0; i < 2000; i++) {
            queue.offer(log, new Event.Flow(1, 1, false));
        }
        queue.offer(log, added(2));
        for (int i = 0; i < 7; i++) {
            queue.offer(log, new Event.Flow(1, 1, false));
        }
        drain();
        queue.offer(log, new Event.Flow(1, 1, false));
        drain();
        writer.close();
        List<JsonNode> events = Reading.events(directory);
        assertNumbered(events);
        List<Integer> lost = events.stream().filter(event -> event.has("lost")).map(event -> event.get("lost").asInt()).toList();
        assertEquals(List.of(1001, 7), lost);
        assertEquals(2008, kinds(events).stream().filter("flow"::equals).count() + 1008);
        assertEquals(1008, stats.lostEvents.sum());
        JsonNode behind = events.get(kinds(events).indexOf("checkpoint"));
        assertEquals("5:0", behind.get("mark_delete").asText());
        assertEquals("{\"1\":[\"5:1\"]}", behind.get("pending_acks").toString(), "only of connections that it names");
    }

    @Test
    void lostMessagesStandInTheFooter() throws Exception {
        begin(Map.of("dispatchAuditRecorderQueueEvents", "1000"));
        for (int i = 0; i < 1005; i++) {
            queue.offer(new Message(new Message.Content("persistent://public/default/t", "k", false, null, "p", i, 1, 1, 1, null, null), 5, i));
        }
        drain();
        writer.close();
        List<JsonNode> lines = Reading.lines(Reading.files(directory, "messages", ".jsonl.gz").get(0));
        assertEquals(1002, lines.size());
        assertEquals(5, lines.get(1001).get("lost").asInt());
    }

    @Test
    void rotatesByTimeAndGoesOnWithACheckpointInJoinOrder() throws Exception {
        queue.offer(log, added(2));
        queue.offer(log, added(1));
        queue.offer(log, added(3));
        queue.offer(log, new Event.ConsumerRemoved(3));
        drain();
        clockMs.addAndGet(600_000);
        drain();
        queue.offer(log, new Event.Flow(1, 1, false));
        drain();
        writer.close();
        List<Path> files = Reading.files(directory, "events", ".jsonl.gz");
        assertEquals(2, files.size());
        List<JsonNode> second = Reading.lines(files.get(1));
        assertEquals(List.of("header", "header", "checkpoint", "flow", "footer"), kinds(second));
        JsonNode consumers = second.get(2).get("consumers");
        assertEquals(List.of(2, 1), List.of(consumers.get(0).get("consumer").asInt(), consumers.get(1).get("consumer").asInt()));
        assertEquals("STICKY", consumers.get(0).get("key_shared").get("mode").asText());
        assertNumbered(Reading.events(directory));
    }

    @Test
    void rotatesBySize() throws Exception {
        begin(Map.of("dispatchAuditRecorderRotateMegabytes", "1", "dispatchAuditRecorderQueueEvents", "1000000",
                "dispatchAuditRecorderFlushMillis", "10"));
        java.util.Random random = new java.util.Random(1);
        for (int round = 0; round < 8; round++) {
            for (int i = 0; i < 10_000; i++) {
                queue.offer(log, new Event.Flow(1, random.nextLong() >>> 1, false));
            }
            clockMs.addAndGet(10);
            drain();
        }
        writer.close();
        assertTrue(Reading.files(directory, "events", ".jsonl.gz").size() > 1);
        assertNumbered(Reading.events(directory));
    }

    @Test
    void whatAKilledBrokerLeavesIsReadableAndCompletedAtTheNextStart() throws Exception {
        for (int i = 0; i < 100; i++) {
            queue.offer(log, new Event.Flow(1, i + 1, false));
        }
        drain();
        clockMs.addAndGet(1000);
        drain(); // flushed: this much must survive
        queue.offer(log, new Event.Flow(1, 1, false));
        drain(); // not flushed: this may be lost
        Path open = Reading.files(directory, "events", Segment.OPEN).get(0);
        assertEquals(102, Reading.lines(open).size());
        byte[] whole = Files.readAllBytes(open);
        byte[] torn = java.util.Arrays.copyOf(whole, whole.length + 20);
        System.arraycopy(whole, 0, torn, whole.length, 20); // the next block's beginning
        Files.write(open, torn);
        SegmentSeries.recover(Reading.settings(directory, Map.of()));
        assertEquals(100, Reading.events(directory).size());
        assertEquals(whole.length, Files.size(Reading.files(directory, "events", ".jsonl.gz").get(0)));
        assertTrue(Reading.files(directory, "events", Segment.OPEN).isEmpty());
    }

    @Test
    void incarnationBeginsWithWhatTheCursorRemembers() throws Exception {
        queue.offer(log, new Event.Checkpoint(List.of(), new State("5:0", "5:9", List.of("5:4"), Map.of(), false, 1)));
        queue.offer(log, added(1));
        drain();
        writer.close();
        JsonNode first = Reading.events(directory).get(0);
        assertEquals("checkpoint 1 [] 5:0 [\"5:4\"] 5:9", String.join(" ", first.get("kind").asText(), first.get("seq").asText(),
                first.get("consumers").toString(), first.get("mark_delete").asText(), first.get("ack_holes").toString(),
                first.get("read_position").asText()));
    }

    @Test
    void theHeaderListsWhatIsRecorded() throws Exception {
        queue.offer(log, added(1));
        drain();
        writer.close();
        JsonNode header = Reading.lines(Reading.files(directory, "events", ".jsonl.gz").get(0)).get(0);
        assertEquals("1.1", header.get("format_version").asText());
        assertTrue(header.get("records").toString().startsWith("[\"cursor_moved\",\"subscription_deleted\","));
        assertTrue(header.get("records").toString().endsWith(",\"deliver_at_ms\",\"txn\"]"));
    }

    @Test
    void aMoveOfTheCursorStandsBeforeWhatIsSentAfterIt() throws Exception {
        queue.offer(log, new Event.Checkpoint(List.of(), new State("5:0", "5:9", List.of(), Map.of(), false, 1)));
        queue.sent(log, 1, 10, 5, 1, 1, new Place(5, 0));
        queue.offer(log, new Event.OperationBegins(CursorOperation.skip(), new Place(5, 0)));
        queue.offer(log, new Event.Ack(1, false, new long[] {5}, new long[] {1}, null));
        queue.sent(log, 1, 9, 5, 7, 1, new Place(5, 6));
        drain();
        writer.close();
        List<JsonNode> events = Reading.events(directory);
        assertNumbered(events);
        assertEquals(List.of("checkpoint", "sent", "ack", "cursor_moved", "sent"), kinds(events));
        JsonNode moved = events.get(3);
        assertEquals("skip 5:1 5:6 5", String.join(" ", moved.get("by").asText(), moved.get("from").asText(),
                moved.get("to").asText(), moved.get("entries").asText()));
    }

    @Test
    void aSegmentBeginsWithTheLimitsInForce() throws Exception {
        queue.offer(log, added(1));
        queue.offer(log, new Event.Limit("dispatch_rate", 15L, true));
        queue.offer(log, new Event.Limit("entry_filter", null, true));
        queue.offer(log, new Event.Limit("entry_filter", null, false));
        drain();
        clockMs.addAndGet(600_000);
        drain();
        queue.offer(log, new Event.SubscriptionDeleted());
        drain();
        writer.close();
        List<JsonNode> events = Reading.events(directory);
        assertNumbered(events);
        assertEquals(List.of("consumer_added", "limit", "limit", "limit", "checkpoint", "limit", "subscription_deleted"), kinds(events));
        assertEquals("dispatch_rate 15 true", String.join(" ", events.get(5).get("what").asText(), events.get(5).get("value").asText(),
                events.get(5).get("active").asText()));
    }

    @Test
    void endedIncarnationHasNoCheckpoint() throws Exception {
        queue.offer(log, added(1));
        queue.offer(log, new Event.ConsumerRemoved(1));
        queue.offer(log, new Event.Ended());
        DispatcherLog next = new DispatcherLog(log.topic, log.subscription, "Key_Shared", -1, 8);
        queue.offer(next, added(1));
        drain();
        clockMs.addAndGet(600_000);
        drain();
        queue.offer(next, new Event.Flow(1, 1, false));
        drain();
        writer.close();
        List<JsonNode> events = Reading.events(directory);
        assertEquals(List.of(7L, 7L, 8L, 8L, 8L), events.stream().map(event -> event.get("incarnation").asLong()).toList());
        assertEquals(List.of(1L, 2L, 1L, 2L, 3L), events.stream().map(event -> event.get("seq").asLong()).toList());
    }

    @Test
    void aFolderThatCannotBeMadeIsAGapAndNotTheEnd() throws Exception {
        Path file = directory.resolve("no-directory");
        Files.writeString(file, "");
        Settings settings = Reading.settings(file, Map.of());
        LogWriter failing = new LogWriter(LogForm.EVENTS, settings, log -> null, clockMs::get, Segment.DISK, stats);
        queue.offer(log, added(1));
        EventQueue.Batch batch = queue.take(0);
        org.junit.jupiter.api.Assertions.assertThrows(IOException.class, () -> failing.write(batch));
        Files.delete(file);
        clockMs.addAndGet(settings.retryMs());
        queue.offer(log, new Event.Flow(1, 1, false));
        failing.write(queue.take(0));
        failing.close();
        List<JsonNode> events = Reading.events(file);
        assertEquals(List.of("gap", "checkpoint", "flow"), kinds(events));
        assertEquals(List.of(1L, 2L, 3L), events.stream().map(event -> event.get("seq").asLong()).toList());
        assertEquals(1, events.get(1).get("consumers").size(), "the checkpoint names who came with the lost line");
        assertEquals(1, stats.failedLines.sum());
    }
}
