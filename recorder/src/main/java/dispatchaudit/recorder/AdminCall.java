package dispatchaudit.recorder;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.function.Supplier;

/**
 * A call of the broker's admin API that may move cursors.
 *
 * @param operation    makes the operation of one of the cursors
 * @param topic        full name; null = all topics of the namespace
 * @param namespace    {@code tenant/namespace}
 * @param subscription null = all subscriptions
 */
record AdminCall(Supplier<CursorOperation> operation, String topic, String namespace, String subscription) {
    private static final String SUBSCRIPTION = "subscription";

    /** Read a request's method and undecoded path; null = it is no such call. */
    static AdminCall of(String method, String path) {
        if (!path.startsWith("/admin/")) {
            return null;
        }
        List<String> words = Arrays.stream(path.substring(1).split("/")).map(AdminCall::decoded).toList();
        boolean second = words.size() > 1 && words.get(1).matches("v[0-9]+");
        int at = second ? 2 : 1;
        int names = second ? 2 : 3; // the first version of the API has the cluster in a namespace's name
        if (words.size() <= at + 1 + names) {
            return null;
        }
        String namespace = String.join("/", words.subList(at + 1, at + 1 + names));
        List<String> more = words.subList(at + 1 + names, words.size());
        return switch (words.get(at)) {
            case "persistent" -> ofTopic(method, namespace, more);
            case "namespaces" -> ofNamespace(method, namespace, more);
            default -> null;
        };
    }

    private static AdminCall ofTopic(String method, String namespace, List<String> words) {
        String topic = "persistent://" + namespace + "/" + words.get(0);
        String first = words.size() > 1 ? words.get(1) : "";
        if (method.equals("DELETE") && first.equals("truncate")) {
            return new AdminCall(CursorOperation::clearBacklog, topic, namespace, null);
        }
        if (!method.equals("POST")) {
            return null;
        }
        if (first.equals("all_subscription") && words.size() > 2 && words.get(2).equals("expireMessages")) {
            return new AdminCall(CursorOperation::expiry, topic, namespace, null);
        }
        if (!first.equals(SUBSCRIPTION) || words.size() < 4) {
            return null;
        }
        Supplier<CursorOperation> operation = switch (words.get(3)) {
            case "skip" -> CursorOperation::skip;
            case "skip_all" -> CursorOperation::clearBacklog;
            case "expireMessages" -> CursorOperation::expiry;
            case "resetcursor" -> CursorOperation::resetCursor;
            default -> null;
        };
        return operation == null ? null : new AdminCall(operation, topic, namespace, words.get(2));
    }

    private static AdminCall ofNamespace(String method, String namespace, List<String> words) {
        int clear = words.indexOf("clearBacklog");
        if (!method.equals("POST") || clear < 0 || clear > 1) {
            return null;
        }
        String subscription = words.size() > clear + 1 ? words.get(clear + 1) : null;
        return new AdminCall(CursorOperation::clearBacklog, null, namespace, subscription);
    }

    /** True if it is about this subscription. */
    boolean concerns(String ofTopic, String name) {
        boolean topicMatches = topic == null ? ofTopic.startsWith("persistent://" + namespace + "/") : topic.equals(ofTopic);
        return topicMatches && (subscription == null || subscription.equals(name));
    }

    private static String decoded(String word) {
        return URLDecoder.decode(word.replace("+", "%2B"), StandardCharsets.UTF_8);
    }
}
