package dispatchaudit.trace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertSame;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import dispatchaudit.recorder.Event;
import java.io.IOException;
import java.io.StringWriter;
import java.util.Arrays;
import java.util.List;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.junit.jupiter.api.Test;

class TraceLineTest {

    private static String text(Event event) throws IOException {
        StringWriter text = new StringWriter();
        try (JsonGenerator json = new JsonFactory().createGenerator(text)) {
            json.writeStartObject();
            event.write(json);
            json.writeEndObject();
        }
        return text.toString();
    }

    @Test
    void fieldsStandInTheirOrder() throws IOException {
        TraceLine line = TraceLine.of("sent", 3).positions(new Places(new long[] {5, 5}, new long[] {0, 7}))
                .set("batch_sizes", new int[] {1, 4}).set("permits_before", -2);
        assertEquals("sent", line.kind());
        assertEquals(2, line.sentEntries());
        assertEquals("{\"consumer\":3,\"positions\":[\"5:0\",\"5:7\"],\"batch_sizes\":[1,4],\"permits_before\":-2}", text(line));
    }

    @Test
    void nullHasNoField() throws IOException {
        TraceLine line = TraceLine.of("cursor_op").set("op", "skip").set("target", (Position) null).set("hashes", (int[]) null)
                .set("read_position", PositionFactory.create(5, -1)).set("retry", false);
        assertEquals("{\"op\":\"skip\",\"read_position\":\"5:-1\",\"retry\":false}", text(line));
        assertEquals(0, line.sentEntries());
    }

    @Test
    void listsOfLists() throws IOException {
        assertEquals("{\"usable\":[[1,2],[]]}", text(TraceLine.of("read_attempt_end").set("usable", new long[][] {{1, 2}, null})));
    }

    @Test
    void aTraceAddsFieldsToAnEventThatStaysWhatItIs() throws IOException {
        Event removed = new Event.ConsumerRemoved(2);
        TraceLine line = TraceLine.of(removed).set("mark_delete", PositionFactory.create(5, 3));
        assertSame(removed, line.plain());
        assertEquals("consumer_removed", line.kind());
        assertEquals("{\"consumer\":2,\"mark_delete\":\"5:3\"}", text(line));
    }

    @Test
    void placesOutliveTheirPositions() {
        List<Position> positions = Arrays.asList(PositionFactory.create(5, 1), null, PositionFactory.create(6, 0));
        Places places = Places.of(positions);
        assertEquals(2, places.count());
        assertEquals(List.of(5L, 6L), Arrays.stream(places.ledgers()).boxed().toList());
        assertEquals(List.of(1L, 0L), Arrays.stream(places.entries()).boxed().toList());
    }
}
