package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.StringWriter;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.junit.jupiter.api.Test;

class StateTest {
    private static final Map<Integer, List<int[]>> RANGES = Map.of(
            1, List.of(new int[] {0, 16383}, new int[] {32768, 65535}), 2, List.of(new int[] {16384, 32767}));

    @Test
    void rangesStandAtTheConnectionsThatOwnThem() throws Exception {
        JsonNode line = checkpoint(1, 2);
        assertEquals("[[0,16383],[32768,65535]]", line.get("consumers").get(0).get("hash_ranges").toString());
        assertEquals("[[16384,32767]]", line.get("consumers").get(1).get("hash_ranges").toString());
    }

    @Test
    void rangesOfAnotherMomentAreLeftOut() throws Exception {
        for (int[] connected : List.of(new int[] {1}, new int[] {1, 2, 3}, new int[] {1, 3})) {
            checkpoint(connected).get("consumers").forEach(consumer -> assertFalse(consumer.has("hash_ranges")));
        }
        assertNull(new State(null, null, List.of(), Map.of(), false, 1).rangesOf(1, java.util.Set.of(1)));
    }

    @Test
    void batchesAcknowledgedInPartHaveTheirSets() throws Exception {
        Map<String, long[]> sets = new TreeMap<>(Map.of("5:2", new long[] {6}, "5:7", new long[] {-1, 1}));
        State state = new State("5:0", null, List.of(), sets, Map.of(), false, 1, Map.of());

        assertEquals("{\"5:2\":[6],\"5:7\":[-1,1]}", checkpoint(state.with(RANGES), 1, 2).get("partly_acked").toString());
        assertFalse(checkpoint(1, 2).has("partly_acked"));
    }

    private static JsonNode checkpoint(int... connected) throws Exception {
        return checkpoint(new State("5:0", null, List.of(), Map.of(), false, 1).with(RANGES), connected);
    }

    private static JsonNode checkpoint(State state, int... connected) throws Exception {
        List<Event.ConsumerAdded> added = new ArrayList<>();
        for (int number : connected) {
            added.add(new Event.ConsumerAdded(number, "c" + number, number, "/127.0.0.1:1", 0, null));
        }
        StringWriter text = new StringWriter();
        try (JsonGenerator json = new JsonFactory().createGenerator(text)) {
            json.writeStartObject();
            new Event.Checkpoint(added, state).write(json);
            json.writeEndObject();
        }
        return new ObjectMapper().readTree(text.toString());
    }
}
