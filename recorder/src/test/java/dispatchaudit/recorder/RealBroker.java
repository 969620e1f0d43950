package dispatchaudit.recorder;

import dispatchaudit.harness.StandaloneBroker;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.apache.pulsar.broker.PulsarService;

/**
 * A standalone broker that loads the NAR through its own configuration: in this JVM, or by {@link #main} as a process of its own
 * that can be killed and started again on its data. The folder {@code recording} holds the segments.
 */
final class RealBroker implements AutoCloseable {
    final Path recording;
    private final StandaloneBroker broker;

    private RealBroker(Path root, int port, int webPort, int bookiePort, Map<String, String> settings) throws Exception {
        this.recording = root.resolve("recording");
        Map<String, String> all = interceptor(root);
        all.putAll(settings);
        broker = new StandaloneBroker(root, port, webPort, bookiePort, all);
    }

    /** A broker in this JVM on a folder that is emptied first. {@code settings}: broker.conf names, added to the harness's. */
    static RealBroker fresh(Path root, Map<String, String> settings) throws Exception {
        StandaloneBroker.empty(root);
        return new RealBroker(root, StandaloneBroker.freePort(), StandaloneBroker.freePort(), StandaloneBroker.freePort(), settings);
    }

    String url() {
        return broker.url();
    }

    String webUrl() {
        return broker.webUrl();
    }

    PulsarService service() throws ReflectiveOperationException {
        return broker.service();
    }

    @Override
    public void close() {
        broker.close();
    }

    /** Bring the NAR, and make the settings that load it. */
    private Map<String, String> interceptor(Path root) throws IOException {
        Path interceptors = Files.createDirectories(root.resolve("interceptors"));
        try (Stream<Path> files = Files.list(Path.of(System.getProperty("recorder.nar.directory")))) {
            Path nar = files.filter(file -> file.toString().endsWith(".nar")).findFirst().orElseThrow();
            Files.copy(nar, interceptors.resolve(nar.getFileName()), StandardCopyOption.REPLACE_EXISTING);
        }
        return new TreeMap<>(Map.of("narExtractionDirectory", root.resolve("nar").toString(), "disableBrokerInterceptors", "false",
                "brokerInterceptorsDirectory", interceptors.toString(), "brokerInterceptors", "dispatch-audit-recorder",
                "dispatchAuditRecorderDirectory", recording.toString(), "dispatchAuditRecorderRotateSeconds", "4",
                "dispatchAuditRecorderFlushMillis", "200", "dispatchAuditRecorderTopics", "persistent://public/.*"));
    }

    /**
     * {@code FOLDER PORT WEB-PORT BOOKIE-PORT [NAME=VALUE...]}: serve until a signal; on earlier data, if there are any.
     * Prints {@code ready} once clients are served.
     */
    public static void main(String[] words) throws Exception {
        Map<String, String> settings = new TreeMap<>();
        for (String word : List.of(words).subList(4, words.length)) {
            settings.put(word.substring(0, word.indexOf('=')), word.substring(word.indexOf('=') + 1));
        }
        new RealBroker(Path.of(words[0]).toAbsolutePath(), Integer.parseInt(words[1]), Integer.parseInt(words[2]),
                Integer.parseInt(words[3]), settings);
        System.out.println("ready");
        Thread.currentThread().join();
    }
}
