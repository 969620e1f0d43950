package dispatchaudit.harness;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Writer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;

/**
 * Writes what clients of this JVM saw and did, a line each with the machine's monotonic time. {@code tests/recorder/truth.py}
 * compares it with the recording.
 */
public final class Witness implements AutoCloseable {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private final Writer file;

    public Witness(Path folder, String name) throws IOException {
        file = Files.newBufferedWriter(folder.resolve("journal-" + name + ".jsonl"));
    }

    /** An event of a consumer, or ({@code consumer} null) of the whole subscription, such as {@code reload}. */
    public void note(String what, String consumer) throws IOException {
        write(what, consumer, null, null, null, null);
    }

    /** A consumer that has subscribed; {@code type}: null = Key_Shared. */
    public void joined(String consumer, String type) throws IOException {
        write("joined", consumer, null, null, null, type);
    }

    /** A message, stored under this id. */
    public void published(MessageId id, String key, int number) throws IOException {
        write("published", null, id, key, number, null);
    }

    /** A message that a consumer received ({@code received}), or how it answered ({@code acked}, {@code nacked}). */
    public void message(String what, String consumer, Message<String> message) throws IOException {
        write(what, consumer, message.getMessageId(), message.getKey(), Integer.valueOf(message.getValue()),
                null);
    }

    @Override
    public void close() throws IOException {
        file.close();
    }

    private synchronized void write(String what, String consumer, MessageId id, String key, Integer number, String type)
            throws IOException {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("t_ns", System.nanoTime());
        line.put("what", what);
        line.put("consumer", consumer);
        if (id instanceof MessageIdAdv position) {
            line.put("position", position.getLedgerId() + ":" + position.getEntryId());
            line.put("batch_index", position.getBatchIndex());
            line.put("key", key);
            line.put("number", number);
        }
        if (type != null) {
            line.put("type", type);
        }
        file.write(MAPPER.writeValueAsString(line) + "\n");
    }
}
