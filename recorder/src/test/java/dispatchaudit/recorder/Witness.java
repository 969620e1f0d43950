package dispatchaudit.recorder;

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
final class Witness implements AutoCloseable {
    private static final ObjectMapper MAPPER = new ObjectMapper();
    private final Writer file;

    Witness(Path folder, String name) throws IOException {
        file = Files.newBufferedWriter(folder.resolve("journal-" + name + ".jsonl"));
    }

    /** An event of a consumer, or ({@code consumer} null) of the whole subscription, such as {@code reload}. */
    void note(String what, String consumer) throws IOException {
        write(what, consumer, null, null, null);
    }

    /** A message, stored under this id. */
    void published(MessageId id, String key, int number) throws IOException {
        write("published", null, id, key, number);
    }

    /** A message that a consumer received ({@code received}), or how it answered ({@code acked}, {@code nacked}). */
    void message(String what, String consumer, Message<String> message) throws IOException {
        write(what, consumer, message.getMessageId(), message.getKey(), Integer.valueOf(message.getValue()));
    }

    @Override
    public void close() throws IOException {
        file.close();
    }

    private synchronized void write(String what, String consumer, MessageId id, String key, Integer number) throws IOException {
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
        file.write(MAPPER.writeValueAsString(line) + "\n");
    }
}
