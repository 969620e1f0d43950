package dispatchaudit.soak;

import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import dispatchaudit.harness.StandaloneBroker;
import dispatchaudit.harness.Witness;
import dispatchaudit.trace.TraceAgent;
import dispatchaudit.trace.TraceSession;
import dispatchaudit.trace.Tracing;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import org.apache.pulsar.PulsarVersion;
import org.apache.pulsar.client.admin.PulsarAdmin;

/**
 * A broker in this JVM that plays scripts: {@code SoakDriver FOLDER}, with the agent. Prints {@code ready RELEASE}; then for each
 * folder that comes as a line of standard input it plays {@code script.json} of that folder, records into it, and answers
 * {@code done COUNTS} or {@code failed REASON}. Ends with its input.
 */
final class SoakDriver {
    private static final ObjectMapper JSON = new ObjectMapper().configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, true);
    private static final Map<String, String> SETTINGS = Map.of("systemTopicEnabled", "false", "topicLevelPoliciesEnabled", "false",
            "transactionCoordinatorEnabled", "false", "acknowledgmentAtBatchIndexLevelEnabled", "true", "diskUsageThreshold", "0.99",
            "diskUsageWarnThreshold", "0.98", "diskUsageLwmThreshold", "0.97", "managedLedgerMaxEntriesPerLedger", "50000",
            "bookkeeperNumberOfChannelsPerBookie", "2", "numIOThreads", "2");

    private SoakDriver() {
    }

    public static void main(String[] words) throws Exception {
        java.io.PrintStream answers = System.out;
        System.setOut(System.err);
        StandaloneBroker broker = started(Path.of(words[0]).toAbsolutePath());
        try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(broker.webUrl()).build()) {
            answers.println("ready " + PulsarVersion.getVersion() + " " + String.join(",", TraceAgent.missing()));
            Administration administration = new Administration(admin, broker.service());
            BufferedReader folders = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String folder = folders.readLine(); folder != null; folder = folders.readLine()) {
                answers.println(play(broker, administration, Path.of(folder)));
            }
        }
        Runtime.getRuntime().halt(0); // the broker leaves threads behind
    }

    private static StandaloneBroker started(Path folder) {
        try {
            return StandaloneBroker.fresh(folder, SETTINGS);
        } catch (Throwable failure) {
            failure.printStackTrace();
            Runtime.getRuntime().halt(1); // a broker that started in part leaves threads behind, which keep the process
            return null;
        }
    }

    private static String play(StandaloneBroker broker, Administration administration, Path folder) {
        try {
            Script script = JSON.readValue(folder.resolve("script.json").toFile(), Script.class);
            administration.configure(script.config());
            TraceSession session = TraceSession.open(broker.service(), folder.resolve("recording"), TraceAgent.missing());
            Tracing.use(session);
            try (session; Witness witness = new Witness(folder, "soak");
                    Play play = new Play(script, broker.url(), administration, session, witness)) {
                play.run();
            } finally {
                Tracing.use(null);
            }
            return "done " + session.stats();
        } catch (Throwable failure) { // the next script must be played
            failure.printStackTrace();
            return "failed " + failure.toString().replaceAll("\\s+", " ");
        }
    }
}
