package dispatchaudit.states;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import dispatchaudit.harness.StandaloneBroker;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.PulsarVersion;
import org.apache.pulsar.client.admin.PulsarAdmin;

/**
 * Bring a broker into each known state and write its statistics: {@code KnownStates FOLDER OUT [NAME...]}.
 *
 * <p>{@code OUT/RELEASE/NAME.jsonl} gets one line for each of two moments ({@code taken}, {@code broker_version}, {@code topic},
 * {@code stats}, {@code internal}), as {@code dispatch-audit diagnose --save} writes them, and {@code OUT/RELEASE/states.json} what
 * each state is. The two documents are the broker's own answers.
 */
final class KnownStates {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long SETTLED_MS = 2500;
    private static final long BETWEEN_MS = 3000;
    /** Few points on the ring keep the lists of hash ranges short. */
    private static final Map<String, String> SETTINGS = Map.of("systemTopicEnabled", "false", "topicLevelPoliciesEnabled", "false",
            "transactionCoordinatorEnabled", "false", "subscriptionKeySharedConsistentHashingReplicaPoints", "3",
            "diskUsageThreshold", "0.99", "diskUsageWarnThreshold", "0.98", "diskUsageLwmThreshold", "0.97", "numIOThreads", "2");

    private final StandaloneBroker broker;
    private final PulsarAdmin admin;
    private final HttpClient http = HttpClient.newHttpClient();

    private KnownStates(StandaloneBroker broker, PulsarAdmin admin) {
        this.broker = broker;
        this.admin = admin;
    }

    public static void main(String[] words) throws Exception {
        java.io.PrintStream answers = System.out;
        System.setOut(System.err); // the broker logs to it
        Path folder = Path.of(words[0]).toAbsolutePath();
        String release = PulsarVersion.getVersion();
        Path out = Files.createDirectories(Path.of(words[1]).toAbsolutePath().resolve(release));
        List<String> wanted = List.of(words).subList(2, words.length);
        StandaloneBroker broker = StandaloneBroker.fresh(folder, SETTINGS);
        int failed = 0;
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(broker.webUrl()).build()) {
            KnownStates states = new KnownStates(broker, admin);
            ObjectNode truths = Files.exists(out.resolve("states.json"))
                    ? (ObjectNode) JSON.readTree(out.resolve("states.json").toFile()) : JSON.createObjectNode();
            for (State state : State.all(release)) {
                if (wanted.isEmpty() || wanted.contains(state.name())) {
                    try {
                        Files.write(out.resolve(state.name() + ".jsonl"), states.moments(state, release));
                        truths.set(state.name(), state.truth());
                        answers.println("made " + release + " " + state.name());
                    } catch (Exception failure) { // the other states can still be made
                        failed++;
                        failure.printStackTrace();
                        answers.println("failed " + release + " " + state.name() + ": " + failure);
                    }
                }
            }
            Files.writeString(out.resolve("states.json"), JSON.writerWithDefaultPrettyPrinter().writeValueAsString(truths) + "\n");
        }
        Runtime.getRuntime().halt(failed == 0 ? 0 : 1); // the broker leaves threads behind
    }

    private List<String> moments(State state, String release) throws Exception {
        Map<String, Object> before = broker.set(state.config());
        String topic = "persistent://public/default/" + state.name();
        List<String> lines = new ArrayList<>();
        try (Scene scene = new Scene(broker, admin, topic, state.type())) {
            state.make().in(scene);
            Thread.sleep(SETTLED_MS);
            lines.add(moment(topic, release));
            Thread.sleep(BETWEEN_MS);
            lines.add(moment(topic, release));
        } finally {
            broker.set(before);
        }
        admin.topics().delete(topic, true);
        return lines;
    }

    private String moment(String topic, String release) throws Exception {
        ObjectNode line = JSON.createObjectNode();
        line.put("taken", Instant.ofEpochMilli(System.currentTimeMillis()).toString());
        line.put("broker_version", release);
        line.put("topic", topic);
        line.set("stats", document(topic, "stats"));
        line.set("internal", document(topic, "internalStats"));
        return JSON.writeValueAsString(line);
    }

    private JsonNode document(String topic, String which) throws Exception {
        URI uri = URI.create(broker.webUrl() + "/admin/v2/" + topic.replace("://", "/") + "/" + which);
        HttpResponse<String> answer = http.send(HttpRequest.newBuilder(uri).build(), HttpResponse.BodyHandlers.ofString());
        if (answer.statusCode() != 200) {
            throw new IllegalStateException(uri + ": " + answer.statusCode() + " " + answer.body());
        }
        return JSON.readTree(answer.body());
    }
}
