package dispatchaudit.recorder;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * What the broker says about a dispatcher at {@code timeUs}; the queue may hold events from before and after it.
 *
 * @param markDelete  null = unknown
 * @param unsent      nothing from this position on was sent by then, for it was not stored; null = unknown
 * @param ackHoles    positions acknowledged one by one above it
 * @param pendingAcks positions by connection
 * @param cut         there were more holes or pending acks than are listed
 */
record State(String markDelete, String unsent, List<String> ackHoles, Map<Integer, List<String>> pendingAcks, boolean cut,
             long timeUs) {

    /** Write the fields of a checkpoint; of pending acks those of the connections that the checkpoint names. */
    void write(JsonGenerator json, Set<Integer> connections) throws IOException {
        if (markDelete != null) {
            json.writeStringField("mark_delete", markDelete);
        }
        if (unsent != null) {
            json.writeStringField("read_position", unsent);
        }
        texts(json, "ack_holes", ackHoles);
        json.writeObjectFieldStart("pending_acks");
        for (Map.Entry<Integer, List<String>> one : pendingAcks.entrySet()) {
            if (connections.contains(one.getKey())) {
                texts(json, one.getKey().toString(), one.getValue());
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
