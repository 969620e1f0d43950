package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class RecorderTest {
    @TempDir
    Path directory;
    private final Set<String> failures = ConcurrentHashMap.newKeySet();
    private final DispatcherLog log = new DispatcherLog("persistent://public/default/t", "audit", "Shared", -1, 7);

    private Recorder recorder() throws Exception {
        Recorder recorder = new Recorder(LogForm.EVENTS, Reading.settings(directory, Map.of()), log -> null, new Stats(), () -> {
            throw new AssertionError("a set of the broker that changed while it was read");
        }, deleted -> { }, (where, failure) -> failures.add(where + ": " + failure.getClass().getSimpleName()));
        recorder.start();
        return recorder;
    }

    private void join(Recorder recorder) {
        recorder.queue().offer(log, new Event.ConsumerAdded(1, "c1", 1, "127.0.0.1", 0, null));
    }

    @Test
    void anErrorEndsNeitherItsThreadNorTheLog() throws Exception {
        try (Recorder recorder = recorder()) {
            for (int wait = 0; wait < 200 && failures.isEmpty(); wait++) {
                Thread.sleep(10);
            }
            join(recorder);
        }
        assertTrue(failures.contains("sweep: AssertionError"), failures.toString());
        assertEquals(List.of("consumer_added"), kinds());
    }

    @Test
    void whoIsInterruptedAtTheEndStillLeavesAWholeLog() throws Exception {
        Recorder recorder = recorder();
        join(recorder);
        Thread.currentThread().interrupt();
        recorder.close();
        assertTrue(Thread.interrupted(), "the interrupt is the caller's to see");
        assertEquals(List.of("consumer_added"), kinds());
    }

    private List<String> kinds() throws Exception {
        return Reading.events(directory).stream().map(event -> event.get("kind").asText()).toList();
    }
}
