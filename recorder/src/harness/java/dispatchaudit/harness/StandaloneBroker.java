package dispatchaudit.harness;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.stream.Stream;
import org.apache.pulsar.PulsarStandalone;
import org.apache.pulsar.PulsarStandaloneStarter;
import org.apache.pulsar.broker.PulsarService;
import org.apache.pulsar.broker.ServiceConfiguration;

/** A standalone broker in this JVM. Its data are in {@code bookkeeper} and {@code metadata} below one folder. */
public final class StandaloneBroker implements AutoCloseable {
    private static final String LOOPBACK = "127.0.0.1";
    private static final int LOWEST_PORT = 10_000;
    private static final int LOWEST_OUTGOING_PORT = 32_768; // of Linux; other systems begin higher

    private final int port;
    private final int webPort;
    private final PulsarStandaloneStarter starter;

    /** Start, on earlier data if there are any. {@code settings}: broker.conf names, which replace the harness's own. */
    public StandaloneBroker(Path root, int port, int webPort, int bookiePort, Map<String, String> settings) throws Exception {
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

    /** Start on a folder that is emptied first, and on free ports. */
    public static StandaloneBroker fresh(Path root, Map<String, String> settings) throws Exception {
        empty(root);
        return new StandaloneBroker(root, freePort(), freePort(), freePort(), settings);
    }

    public String url() {
        return "pulsar://" + LOOPBACK + ":" + port;
    }

    public String webUrl() {
        return "http://" + LOOPBACK + ":" + webPort;
    }

    /** The broker's own object, which no public method gives. */
    public PulsarService service() throws ReflectiveOperationException {
        java.lang.reflect.Field field = PulsarStandalone.class.getDeclaredField("broker");
        field.setAccessible(true);
        return (PulsarService) field.get(starter);
    }

    /** Set settings for the topics that are made from now on, by their names; returns their values before. */
    public Map<String, Object> set(Map<String, Object> settings) throws ReflectiveOperationException {
        ServiceConfiguration configuration = service().getConfiguration();
        Map<String, Object> before = new LinkedHashMap<>();
        for (Map.Entry<String, Object> setting : settings.entrySet()) {
            java.lang.reflect.Field field = ServiceConfiguration.class.getDeclaredField(setting.getKey());
            field.setAccessible(true);
            before.put(setting.getKey(), field.get(configuration));
            field.set(configuration, setting.getValue());
        }
        return before;
    }

    @Override
    public void close() {
        starter.close();
    }

    private Path configuration(Path root, Map<String, String> settings) throws IOException {
        Map<String, String> all = new TreeMap<>();
        for (String line : List.of("clusterName=standalone", "bindAddress=" + LOOPBACK, "advertisedAddress=" + LOOPBACK,
                "brokerServicePort=" + port, "webServicePort=" + webPort, "allowLoopback=true", "journalSyncData=false",
                "managedLedgerDefaultEnsembleSize=1", "managedLedgerDefaultWriteQuorum=1", "managedLedgerDefaultAckQuorum=1",
                "numIOThreads=4", "numHttpServerThreads=4", "loadBalancerEnabled=false", "brokerDeleteInactiveTopicsEnabled=false")) {
            all.put(line.substring(0, line.indexOf('=')), line.substring(line.indexOf('=') + 1));
        }
        all.putAll(settings);
        return Files.write(root.resolve("standalone.conf"), all.entrySet().stream().map(setting -> setting.getKey() + "="
                + setting.getValue()).toList());
    }

    /**
     * A free port below those that the system gives to outgoing connections: one of these could take it before the broker does.
     */
    public static int freePort() {
        IOException last = null;
        for (int tries = 0; tries < 100; tries++) {
            try (ServerSocket socket = new ServerSocket(ThreadLocalRandom.current().nextInt(LOWEST_PORT, LOWEST_OUTGOING_PORT))) {
                return socket.getLocalPort();
            } catch (IOException taken) {
                last = taken;
            }
        }
        throw new UncheckedIOException(last);
    }

    /** Make an empty folder. */
    public static void empty(Path directory) throws IOException {
        if (Files.exists(directory)) {
            try (Stream<Path> all = Files.walk(directory)) {
                for (Path path : all.sorted(Comparator.reverseOrder()).toList()) {
                    Files.delete(path);
                }
            }
        }
        Files.createDirectories(directory);
    }
}
