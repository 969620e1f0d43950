package dispatchaudit.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dispatchaudit.recorder.DispatcherLog;
import dispatchaudit.recorder.Event;
import dispatchaudit.recorder.EventQueue;
import dispatchaudit.recorder.LogForm;
import dispatchaudit.recorder.LogWriter;
import dispatchaudit.recorder.Recorder;
import dispatchaudit.recorder.Settings;
import dispatchaudit.recorder.Stats;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import java.util.zip.GZIPInputStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A trace through queue and writer into its file. */
class DispatcherTraceTest {
    @TempDir
    Path directory;
    private final Stats stats = new Stats();
    private final LogWriter.Probe unknown = log -> null;
    private Recorder recorder;
    private DispatcherTrace trace;

    @BeforeEach
    void record() throws IOException {
        Settings.Broker broker = new Settings.Broker("test", "b", "4.2.4", Map.of("dispatcherMaxReadBatchSize", 100));
        Settings settings = Settings.read(broker, name -> null, Map.of()).in(directory);
        recorder = new Recorder(LogForm.trace(List.of("rewind")), settings, unknown, stats, () -> {
        }, deleted -> {
        }, (where, failure) -> {
            throw new AssertionError(where, failure);
        });
        recorder.start();
        trace = new DispatcherTrace(null, null, new DispatcherLog("persistent://a/b/c", "audit", "Key_Shared", -1, 7), recorder.queue());
        trace.add(new Event.Checkpoint(List.of(), null));
    }

    @AfterEach
    void end() {
        recorder.close();
    }

    private List<String> lines() throws IOException {
        recorder.close();
        try (Stream<Path> files = Files.list(directory)) {
            Path file = files.filter(path -> path.getFileName().toString().startsWith("trace-b-")).findFirst().orElseThrow();
            assertTrue(file.toString().endsWith(".jsonl.gz"), file.toString());
            try (BufferedReader reader = new BufferedReader(new InputStreamReader(new GZIPInputStream(Files.newInputStream(file)),
                    StandardCharsets.UTF_8))) {
                return reader.lines().toList();
            }
        }
    }

    private static String event(String line) {
        return line.replaceAll(".*\"seq\":", "").replaceAll("\"t_us\":\\d+,", "");
    }

    @Test
    void theHeaderNamesTheFormatAndWhatIsMissing() throws IOException {
        String header = lines().get(0);
        assertTrue(header.startsWith("{\"format\":\"pulsar-dispatch-trace\",\"format_version\":\"1.1\",\"broker_version\":\"4.2.4\""), header);
        assertTrue(header.contains("\"records\":[\"active_notified\",\"subscription_deleted\""), header);
        assertTrue(header.endsWith("\"missing\":[\"rewind\"]}"), header);
    }

    @Test
    void linesOfBothLevelsAreNumbered() throws IOException {
        trace.add(TraceLine.of(new Event.ConsumerAdded(1, "c1", 0, "127.0.0.1", 0, null)).set("read_position", "5:0"));
        trace.add(TraceLine.of("read_attempt"));
        trace.add(TraceLine.of("sent", 1).positions(Places.of(5, 0)).set("batch_sizes", new int[] {1}));
        List<String> lines = lines();
        assertEquals(List.of("1,\"kind\":\"checkpoint\",\"consumers\":[]}",
                "2,\"kind\":\"consumer_added\",\"consumer\":1,\"name\":\"c1\",\"consumer_id\":0,\"address\":\"127.0.0.1\","
                        + "\"priority_level\":0,\"read_position\":\"5:0\"}",
                "3,\"kind\":\"read_attempt\"}",
                "4,\"kind\":\"sent\",\"consumer\":1,\"positions\":[\"5:0\"],\"batch_sizes\":[1]}"),
                lines.subList(2, 6).stream().map(DispatcherTraceTest::event).toList());
        assertEquals(1, stats.sentEntries.sum());
    }

    @Test
    void aLineThatCannotBeMadeLeavesAGap() throws IOException {
        trace.lose();
        trace.add(TraceLine.of("read_attempt"));
        List<String> lines = lines();
        assertEquals(List.of("2,\"kind\":\"gap\",\"from\":2,\"to\":2,\"lost\":1,\"lost_sent_entries\":0}",
                "3,\"kind\":\"checkpoint\",\"consumers\":[]}", "4,\"kind\":\"read_attempt\"}"),
                lines.subList(3, 6).stream().map(DispatcherTraceTest::event).toList());
        assertEquals(1, stats.lostEvents.sum());
    }

    @Test
    void nothingFollowsTheEnd() throws IOException {
        trace.end(true);
        trace.add(TraceLine.of("read_attempt"));
        trace.lose();
        trace.end(false);
        List<String> lines = lines();
        assertEquals("2,\"kind\":\"subscription_deleted\"}", event(lines.get(3)));
        assertEquals("{\"kind\":\"footer\",\"lines\":4", lines.get(4).substring(0, 26));
        assertEquals(0, stats.lostEvents.sum());
    }

    @Test
    void consumersAreNeverDropped() {
        EventQueue small = new EventQueue(1, 1 << 20, () -> 1);
        DispatcherTrace full = new DispatcherTrace(null, null, new DispatcherLog("t", "s", "Key_Shared", -1, 1), small);
        full.add(TraceLine.of("read_attempt"));
        full.add(TraceLine.of("read_attempt"));
        full.add(TraceLine.of(new Event.ConsumerRemoved(1)));
        assertEquals(2, small.offered());
    }
}
