package dispatchaudit.recorder;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.ByteArrayOutputStream;
import java.io.IOException;

/** One line of JSON after the other, built in the same memory. Not for several threads. */
final class Line {
    private static final JsonFactory JSON = new JsonFactory().setRootValueSeparator(null);

    private final Bytes bytes = new Bytes(4096);
    private JsonGenerator json;

    /** Writes fields into an open object. */
    interface Fields {
        void write(JsonGenerator json) throws IOException;
    }

    /** Build an object; it stays until the next one is built. */
    Bytes object(Fields fields) throws IOException {
        bytes.reset();
        boolean whole = false;
        try {
            if (json == null) {
                json = JSON.createGenerator(bytes);
            }
            json.writeStartObject();
            fields.write(json);
            json.writeEndObject();
            json.flush();
            whole = true;
        } finally {
            if (!whole) {
                json = null; // it is in the middle of something
            }
        }
        return bytes;
    }

    /** A byte array that can be looked at without a copy. */
    static final class Bytes extends ByteArrayOutputStream {
        Bytes(int capacity) {
            super(capacity);
        }

        byte[] array() {
            return buf;
        }
    }
}
