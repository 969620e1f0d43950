package dispatchaudit.recorder;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.apache.pulsar.PulsarStandaloneStarter;

/**
 * A standalone broker that loads the NAR through its own configuration: in this JVM, or by {@link #main} as a process of its own
 * that can be killed and started again on its data.
 *
 * <p>Everything is below one folder: {@code recording} holds the segments, {@code bookkeeper} and {@code metadata} the data.
 */
final class RealBroker implements AutoCloseable {
    private static final String LOOPBACK = "127.0.0.1";

    final Path recording;
    final int port;
    final int webPort;
    private final PulsarStandaloneStarter starter;

    private RealBroker(Path root, int port, int webPort, int bookiePort, Map<String, String> settings) throws Exception {
        this.recording = root.resolve("recording");
        this.port = port;
        this.webPort = webPort;
        boolean again = Files.exists(root.resolve("metadata"));
        List<String> arguments = new ArrayList<>(List.of("-nfw", "-nss", "-a", LOOPBACK,
                "--bookkeeper-dir", root.resolve("bookkeeper").toString(), "--bookkeeper-port", Integer.toString(bookiePort),
                "--metadata-dir", root.resolve("metadata").toString(), "-c", configuration(root, settings).toString()));
        if (!again) {
            arguments.add("--wipe-data");
        }
        starter = new PulsarStandaloneStarter(arguments.toArray(String[]::new));
        starter.start();
    }

    /** A broker in this JVM on a folder that is emptied first. {@code settings}: broker.conf names, added to the harness's. */
    static RealBroker fresh(Path root, Map<String, String> settings) throws Exception {
        empty(root);
        return new RealBroker(root, freePort(), freePort(), freePort(), settings);
    }

    String url() {
        return "pulsar://" + LOOPBACK + ":" + port;
    }

    String webUrl() {
        return "http://" + LOOPBACK + ":" + webPort;
    }

    @Override
    public void close() {
        starter.close();
    }

    private Path configuration(Path root, Map<String, String> settings) throws IOException {
        Path interceptors = Files.createDirectories(root.resolve("interceptors"));
        try (Stream<Path> files = Files.list(Path.of(System.getProperty("recorder.nar.directory")))) {
            Path nar = files.filter(file -> file.toString().endsWith(".nar")).findFirst().orElseThrow();
            Files.copy(nar, interceptors.resolve(nar.getFileName()), java.nio.file.StandardCopyOption.REPLACE_EXISTING);
        }
        Map<String, String> all = new TreeMap<>();
        for (String line : List.of("clusterName=standalone", "bindAddress=" + LOOPBACK, "advertisedAddress=" + LOOPBACK,
                "brokerServicePort=" + port, "webServicePort=" + webPort, "allowLoopback=true", "journalSyncData=false",
                "managedLedgerDefaultEnsembleSize=1", "managedLedgerDefaultWriteQuorum=1", "managedLedgerDefaultAckQuorum=1",
                "numIOThreads=4", "numHttpServerThreads=4", "loadBalancerEnabled=false", "brokerDeleteInactiveTopicsEnabled=false",
                "narExtractionDirectory=" + root.resolve("nar"), "disableBrokerInterceptors=false",
                "brokerInterceptorsDirectory=" + interceptors, "brokerInterceptors=dispatch-audit-recorder",
                "dispatchAuditRecorderDirectory=" + recording, "dispatchAuditRecorderRotateSeconds=4",
                "dispatchAuditRecorderFlushMillis=200", "dispatchAuditRecorderTopics=persistent://public/.*")) {
            all.put(line.substring(0, line.indexOf('=')), line.substring(line.indexOf('=') + 1));
        }
        all.putAll(settings);
        return Files.write(root.resolve("standalone.conf"), all.entrySet().stream().map(setting -> setting.getKey() + "="
                + setting.getValue()).toList());
    }

    private static int freePort() {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        } catch (IOException none) {
            throw new UncheckedIOException(none);
        }
    }

    private static void empty(Path directory) throws IOException {
        if (Files.exists(directory)) {
            try (Stream<Path> all = Files.walk(directory)) {
                for (Path path : all.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(path);
                }
            }
        }
        Files.createDirectories(directory);
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
