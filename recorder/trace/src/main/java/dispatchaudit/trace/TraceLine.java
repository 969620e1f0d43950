package dispatchaudit.trace;

import com.fasterxml.jackson.core.JsonGenerator;
import dispatchaudit.recorder.Event;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.bookkeeper.mledger.Position;

/**
 * A line of a trace: its kind, and its fields in the order in which they are set. Kinds and fields: docs/log-format.md.
 *
 * <p>The values are numbers, texts and arrays of the line's own, because another thread writes them later. A null value has no
 * field.
 */
final class TraceLine implements Event.Traced {
    private final String kind;
    private final Event plain;
    private final List<String> names = new ArrayList<>(6);
    private final List<Object> values = new ArrayList<>(6);
    private int positions;

    private TraceLine(String kind, Event plain) {
        this.kind = kind;
        this.plain = plain;
    }

    static TraceLine of(String kind) {
        return new TraceLine(kind, null);
    }

    /** A line about a connection, by its number. */
    static TraceLine of(String kind, int consumer) {
        return of(kind).set("consumer", consumer);
    }

    /** The line of an event of level E, to which a trace adds fields. */
    static TraceLine of(Event event) {
        return new TraceLine(event.kind(), event);
    }

    TraceLine set(String name, long value) {
        return add(name, value);
    }

    TraceLine set(String name, boolean value) {
        return add(name, value);
    }

    TraceLine set(String name, String value) {
        return add(name, value);
    }

    TraceLine set(String name, Position value) {
        return add(name, value == null ? null : value.getLedgerId() + ":" + value.getEntryId());
    }

    TraceLine set(String name, int[] values) {
        return add(name, values);
    }

    /** Set a list of lists of numbers; null in it is an empty list. */
    TraceLine set(String name, long[][] values) {
        return add(name, values);
    }

    TraceLine positions(Places places) {
        positions += places.count();
        return add("positions", places);
    }

    private TraceLine add(String name, Object value) {
        if (value != null) {
            names.add(name);
            values.add(value);
        }
        return this;
    }

    @Override
    public String kind() {
        return kind;
    }

    @Override
    public Event plain() {
        return plain == null ? this : plain;
    }

    @Override
    public int sentEntries() {
        return kind.equals("sent") ? positions : 0;
    }

    @Override
    public int weightBytes() {
        return 160 + 24 * positions;
    }

    @Override
    public void write(JsonGenerator json) throws IOException {
        if (plain != null) {
            plain.write(json);
        }
        for (int i = 0; i < names.size(); i++) {
            write(json, names.get(i), values.get(i));
        }
    }

    private static void write(JsonGenerator json, String name, Object value) throws IOException {
        if (value instanceof Places places) {
            Event.Positions.write(json, name, places.ledgers(), places.entries(), places.count());
        } else if (value instanceof int[] numbers) {
            json.writeFieldName(name);
            json.writeArray(numbers, 0, numbers.length);
        } else if (value instanceof long[][] lists) {
            json.writeArrayFieldStart(name);
            for (long[] list : lists) {
                json.writeArray(list == null ? new long[0] : list, 0, list == null ? 0 : list.length);
            }
            json.writeEndArray();
        } else {
            json.writeObjectField(name, value);
        }
    }
}
