package dispatchaudit.recorder;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * The broker's state of a dispatcher at {@code timeUs}; the queue may hold events from before and after it.
 *
 * @param markDelete  null = unknown
 * @param unsent      nothing from this position on was sent by then, because it was not stored; null = unknown
 * @param ackHoles    positions acknowledged one by one above it
 * @param ackSets     by position the words of a batch that is acknowledged in part: 1 bits are the indexes that are not
 * @param pendingAcks positions by connection
 * @param cut         there were more holes or pending acks than are listed
 * @param hashRanges  by connection the hashes that it owns, pairs of first and last; empty = not read
 */
public record State(String markDelete, String unsent, List<String> ackHoles, Map<String, long[]> ackSets,
             Map<Integer, List<String>> pendingAcks, boolean cut, long timeUs, Map<Integer, List<int[]>> hashRanges) {

    State(String markDelete, String unsent, List<String> ackHoles, Map<Integer, List<String>> pendingAcks, boolean cut,
          long timeUs) {
        this(markDelete, unsent, ackHoles, Map.of(), pendingAcks, cut, timeUs, Map.of());
    }

    /** The same with the hashes that each connection owns. */
    State with(Map<Integer, List<int[]>> ranges) {
        return new State(markDelete, unsent, ackHoles, ackSets, pendingAcks, cut, timeUs, ranges);
    }

    /**
     * The hashes that a connection owns; null if unknown. If the ranges are not those of exactly the connections that the
     * checkpoint names, a consumer joined or left while the events before it waited, and the ranges are of another moment.
     */
    List<int[]> rangesOf(int connection, Set<Integer> connections) {
        return hashRanges.keySet().equals(connections) ? hashRanges.get(connection) : null;
    }

    /** Write the fields of a checkpoint; of pending acks those of the connections that the checkpoint names. */
    void write(JsonGenerator json, Set<Integer> connections) throws IOException {
        if (markDelete != null) {
            json.writeStringField("mark_delete", markDelete);
        }
        if (unsent != null) {
            json.writeStringField("read_position", unsent);
        }
        texts(json, "ack_holes", ackHoles);
        if (!ackSets.isEmpty()) {
            json.writeObjectFieldStart("partly_acked");
            for (Map.Entry<String, long[]> set : ackSets.entrySet()) {
                json.writeFieldName(set.getKey());
                json.writeArray(set.getValue(), 0, set.getValue().length);
            }
            json.writeEndObject();
        }
        json.writeObjectFieldStart("pending_acks");
        for (Map.Entry<Integer, List<String>> pending : pendingAcks.entrySet()) {
            if (connections.contains(pending.getKey())) {
                texts(json, pending.getKey().toString(), pending.getValue());
            }
        }
        json.writeEndObject();
        if (cut) {
            json.writeBooleanField("state_cut", true);
        }
        json.writeNumberField("state_t_us", timeUs);
    }

    private static void texts(JsonGenerator json, String name, List<String> values) throws IOException {
        json.writeArrayFieldStart(name);
        for (String value : values) {
            json.writeString(value);
        }
        json.writeEndArray();
    }
}
