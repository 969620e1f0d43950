package dispatchaudit.recorder;

import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/**
 * The recorder's settings. Names, defaults and meanings: docs/recorder.md.
 *
 * <p>A name is looked up as system property {@code dispatchAuditRecorder.directory}, then in the environment as
 * {@code DISPATCH_AUDIT_RECORDER_DIRECTORY}, then among the broker's properties as {@code dispatchAuditRecorderDirectory}.
 */
public record Settings(Path directory, String cluster, String broker, String brokerVersion, Map<String, Object> config,
                       Compression compression, Message.Keys keys, int queueEvents, long queueBytes, long rotateBytes,
                       long rotateMs, long flushMs, long syncMs, long retryMs, long keepMs, long keepBytes, boolean backlog, boolean nonPersistent, List<Pattern> topics,
                       List<Pattern> excludedTopics, List<Pattern> subscriptions, List<Pattern> excludedSubscriptions) {

    private static final String PREFIX = "dispatchAuditRecorder";
    private static final Pattern NO_FILE_NAME = Pattern.compile("[^A-Za-z0-9._-]");

    /** The broker's own description. {@code config}: the dispatch-relevant settings under their broker.conf names. */
    public record Broker(String cluster, String name, String version, Map<String, Object> config) {
    }

    /**
     * Read the settings. Raises {@code IllegalArgumentException} naming the setting, its value and what was expected.
     *
     * @param properties the broker's own, by name; null if there is none
     */
    public static Settings read(Broker broker, Function<String, Object> properties, Map<String, String> environment) {
        Reader reader = new Reader(properties, environment);
        return new Settings(
                Path.of(reader.text("Directory", "data/dispatch-audit")),
                broker.cluster(),
                reader.text("Broker", broker.name()),
                broker.version(),
                broker.config(),
                reader.choice("Compression", Compression.GZ),
                reader.choice("Keys", Message.Keys.PLAIN),
                (int) reader.number("QueueEvents", 100_000, 100, 100_000_000),
                reader.number("QueueMegabytes", 64, 1, 100_000) << 20,
                reader.number("RotateMegabytes", 64, 1, 1024) << 20,
                1000 * reader.number("RotateSeconds", 600, 1, 86_400),
                reader.number("FlushMillis", 1000, 10, 600_000),
                reader.number("SyncMillis", 5000, 10, 600_000),
                5000,
                3_600_000 * reader.number("KeepHours", 0, 0, 1_000_000),
                reader.number("KeepGigabytes", 0, 0, 1_000_000) << 30,
                reader.flag("Backlog", true),
                reader.flag("NonPersistentTopics", false),
                reader.patterns("Topics", ".*"),
                reader.patterns("ExcludedTopics", ""),
                reader.patterns("Subscriptions", ".*"),
                reader.patterns("ExcludedSubscriptions", ""));
    }

    /** The same for another folder. */
    public Settings in(Path other) {
        return new Settings(other, cluster, broker, brokerVersion, config, compression, keys, queueEvents, queueBytes, rotateBytes,
                rotateMs, flushMs, syncMs, retryMs, keepMs, keepBytes, backlog, nonPersistent, topics, excludedTopics, subscriptions,
                excludedSubscriptions);
    }

    /** True if the topic is to be recorded: of a kind that is, it matches the patterns, and is not excluded. */
    public boolean takesTopic(String topic) {
        boolean kind = topic.startsWith("persistent://") || nonPersistent && topic.startsWith("non-persistent://");
        return kind && matches(topics, topic) && !matches(excludedTopics, topic);
    }

    /** The same for a subscription's name. */
    public boolean takesSubscription(String subscription) {
        return matches(subscriptions, subscription) && !matches(excludedSubscriptions, subscription);
    }

    /** The broker's name as used in file names. */
    String fileBroker() {
        return NO_FILE_NAME.matcher(broker).replaceAll("_");
    }

    private static boolean matches(List<Pattern> patterns, String name) {
        return patterns.stream().anyMatch(pattern -> pattern.matcher(name).matches());
    }

    private record Reader(Function<String, Object> properties, Map<String, String> environment) {

        String text(String name, String fallback) {
            String dotted = PREFIX + "." + Character.toLowerCase(name.charAt(0)) + name.substring(1);
            String variable = "DISPATCH_AUDIT_RECORDER_" + name.replaceAll("(?<=.)([A-Z])", "_$1").toUpperCase(Locale.ROOT);
            String value = System.getProperty(dotted, environment.get(variable));
            if (value == null) {
                Object own = properties.apply(PREFIX + name);
                value = own == null ? null : own.toString();
            }
            return value == null || value.isBlank() ? fallback : value.trim();
        }

        long number(String name, long fallback, long least, long most) {
            String value = text(name, Long.toString(fallback));
            try {
                long number = Long.parseLong(value);
                if (number >= least && number <= most) {
                    return number;
                }
            } catch (NumberFormatException other) {
                // refused below
            }
            throw refused(name, value, "a whole number from " + least + " to " + most);
        }

        boolean flag(String name, boolean fallback) {
            String value = text(name, Boolean.toString(fallback)).toLowerCase(Locale.ROOT);
            if (value.equals("true") || value.equals("false")) {
                return value.equals("true");
            }
            throw refused(name, value, "true or false");
        }

        <E extends Enum<E>> E choice(String name, E fallback) {
            String value = text(name, fallback.name());
            try {
                return Enum.valueOf(fallback.getDeclaringClass(), value.toUpperCase(Locale.ROOT));
            } catch (IllegalArgumentException unknown) {
                throw refused(name, value, "one of "
                        + java.util.Arrays.toString(fallback.getDeclaringClass().getEnumConstants()).toLowerCase(Locale.ROOT));
            }
        }

        /** Regular expressions, separated by blanks or commas. */
        List<Pattern> patterns(String name, String fallback) {
            String value = text(name, fallback);
            try {
                return java.util.Arrays.stream(value.split("[\\s,]+")).filter(text -> !text.isEmpty()).map(Pattern::compile).toList();
            } catch (PatternSyntaxException wrong) {
                throw refused(name, value, "regular expressions separated by blanks (" + wrong.getDescription() + ")");
            }
        }

        private static IllegalArgumentException refused(String name, String value, String expected) {
            return new IllegalArgumentException(PREFIX + name + " = '" + value + "': expected " + expected
                    + "; nothing is recorded until it is corrected and the broker restarted");
        }
    }
}
