package dispatchaudit.recorder;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.EOFException;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import java.util.zip.GZIPInputStream;

/** Settings for tests, and the contents of the files that they made. */
final class Reading {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    private Reading() {
    }

    static Settings settings(Path directory, Map<String, String> properties) {
        Settings.Broker broker = new Settings.Broker("test", "localhost:6650", "4.2.4", Map.of("dispatcherMaxReadBatchSize", 100));
        return Settings.read(broker, name -> name.equals("dispatchAuditRecorderDirectory") ? directory.toString()
                : properties.get(name), Map.of());
    }

    static List<Path> files(Path directory, String prefix, String ending) throws IOException {
        try (Stream<Path> files = Files.list(directory)) {
            return files.filter(file -> file.getFileName().toString().startsWith(prefix))
                    .filter(file -> file.getFileName().toString().endsWith(ending)).sorted().toList();
        }
    }

    /** The lines of a gz file, as far as it can be decompressed. */
    static List<String> text(Path file) throws IOException {
        List<String> lines = new ArrayList<>();
        try (BufferedReader reader = new BufferedReader(
                new InputStreamReader(new GZIPInputStream(Files.newInputStream(file)), StandardCharsets.UTF_8))) {
            for (String line = reader.readLine(); line != null; line = reader.readLine()) {
                lines.add(line);
            }
        } catch (EOFException cut) {
            return lines;
        }
        return lines;
    }

    static List<JsonNode> lines(Path file) throws IOException {
        List<JsonNode> lines = new ArrayList<>();
        for (String line : text(file)) {
            lines.add(MAPPER.readTree(line));
        }
        return lines;
    }

    /** The lines of the message log, without headers and footers. */
    static List<JsonNode> messages(Path directory) throws IOException {
        List<JsonNode> lines = new ArrayList<>();
        for (Path file : files(directory, "messages", ".jsonl.gz")) {
            lines.addAll(lines(file));
        }
        return lines.stream().filter(line -> line.has("position")).toList();
    }

    static List<JsonNode> events(Path directory) throws IOException {
        List<JsonNode> lines = new ArrayList<>();
        for (Path file : files(directory, "events", ".jsonl.gz")) {
            lines.addAll(lines(file));
        }
        return lines.stream().filter(line -> line.has("seq")).toList();
    }
}
