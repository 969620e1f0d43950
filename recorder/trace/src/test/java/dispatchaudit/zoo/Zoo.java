package dispatchaudit.zoo;

import com.fasterxml.jackson.core.type.TypeReference;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import dispatchaudit.harness.StandaloneBroker;
import java.io.PrintStream;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.PulsarVersion;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Plays schedules on a broker of this process: {@code Zoo FOLDER SCHEDULES.json}. Prints a line of JSON for each: its name, the
 * release, the promise that was broken first ({@code kept} = none), and what came of each step.
 */
final class Zoo {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<String, String> SETTINGS = Map.of("systemTopicEnabled", "false", "topicLevelPoliciesEnabled", "false",
            "transactionCoordinatorEnabled", "false", "diskUsageThreshold", "0.99", "diskUsageWarnThreshold", "0.98",
            "diskUsageLwmThreshold", "0.97", "numIOThreads", "8", "activeConsumerFailoverDelayTimeMillis", "4000");
    /** A race can be missed: one of the broker's few threads is stopped, and the connection may be served by the same. */
    private static final int TRIES = 5;

    private Zoo() {
    }

    public static void main(String[] words) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // the broker logs to it
        JsonNode schedules = JSON.readTree(Path.of(words[1]).toFile());
        StandaloneBroker broker = StandaloneBroker.fresh(Path.of(words[0]).toAbsolutePath(), SETTINGS);
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(broker.webUrl()).build();
             PulsarClient client = PulsarClient.builder().serviceUrl(broker.url())
                     .startingBackoffInterval(1, TimeUnit.HOURS).maxBackoffInterval(1, TimeUnit.HOURS).build()) {
            int number = 0;
            for (JsonNode schedule : schedules) {
                ObjectNode answer = JSON.createObjectNode();
                answer.put("name", schedule.get("name").asText());
                answer.put("release", PulsarVersion.getVersion());
                Map<String, Object> before = broker.set(JSON.convertValue(schedule.get("settings"), new TypeReference<>() { }));
                SubscriptionType type = SubscriptionType.valueOf(schedule.get("subscription_type").asText());
                boolean outOfOrder = schedule.get("allow_out_of_order").asBoolean();
                boolean played = false;
                for (int tries = 1; tries <= TRIES && !played; tries++) {
                    String topic = "persistent://public/default/zoo-" + number++;
                    answer.put("tries", tries);
                    try (Play play = new Play(broker, admin, client, topic, type, outOfOrder)) {
                        answer.put("verdict", play.verdict(schedule.get("steps")));
                        answer.set("notes", JSON.valueToTree(play.notes()));
                        played = true;
                    } catch (Play.Missed missed) {
                        System.err.println(schedule.get("name") + ": " + missed.getMessage());
                        answer.put("verdict", "failed: " + missed.getMessage());
                    } catch (Exception | LinkageError failure) { // the other schedules can still be played
                        failure.printStackTrace();
                        answer.put("verdict", "failed: " + failure);
                        played = true;
                    }
                }
                broker.set(before);
                answers.println(answer);
            }
        }
        Runtime.getRuntime().halt(0); // the broker leaves threads behind
    }
}
