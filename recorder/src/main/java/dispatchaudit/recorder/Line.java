package dispatchaudit.recorder;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.ByteArrayOutputStream;
import java.io.IOException;

/** Builds lines of JSON, each in the memory of the one before. Not thread-safe. */
final class Line {
    private static final JsonFactory JSON = new JsonFactory().setRootValueSeparator(null);

    private final Bytes bytes = new Bytes(4096);
    private JsonGenerator json;

    /** Writes fields into an open object. */
    interface Fields {
        void write(JsonGenerator json) throws IOException;
    }

    /** Build an object; it is valid until the next one is built. */
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
                json = null; // it stopped in the middle of an object
            }
        }
        return bytes;
    }

    /** A byte array that can be read without a copy. */
    static final class Bytes extends ByteArrayOutputStream {
        Bytes(int capacity) {
            super(capacity);
        }

        byte[] array() {
            return buf;
        }
    }
}
