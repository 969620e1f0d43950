package dispatchaudit.states;

import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * A state that a subscription can be in, and how clients bring it about.
 *
 * @param name   names the topic and the file
 * @param type   of the subscription
 * @param config settings of the broker, under their broker.conf names
 * @param reason what holds the messages, as {@code dispatch-audit diagnose} names it
 * @param holder name of the consumer that holds them; null = none does
 * @param make   the steps of the clients
 */
record State(String name, SubscriptionType type, Map<String, Object> config, String reason, String holder, Steps make) {
    /** Steps of the clients in a scene. */
    interface Steps {
        void in(Scene scene) throws Exception;
    }

    private static final Map<String, Object> CLASSIC = Map.of("subscriptionKeySharedUseClassicPersistentImplementation", true,
            "subscriptionSharedUseClassicPersistentImplementation", true);

    ObjectNode truth() {
        return new ObjectMapper().createObjectNode().put("reason", reason).put("holder", holder).put("type", type.name())
                .put("settings", new TreeMap<>(config).toString());
    }

    /** All states that a release can be in. */
    static List<State> all(String release) {
        List<State> all = new ArrayList<>();
        for (boolean classic : new boolean[] {false, true}) {
            String suffix = classic ? "-classic" : "";
            Map<String, Object> base = classic ? CLASSIC : Map.of();
            ofAnyDispatcher(all, SubscriptionType.Shared, "shared" + suffix, base);
            ofAnyDispatcher(all, SubscriptionType.Key_Shared, "key-shared" + suffix, base);
            keyShared(all, "key-shared" + suffix, base);
        }
        shared(all);
        withDrainingHashes(all, release);
        recentlyJoined(all);
        busy(all);
        healthy(all);
        singleActive(all);
        return all;
    }

    private static void ofAnyDispatcher(List<State> all, SubscriptionType type, String prefix, Map<String, Object> base) {
        all.add(new State(prefix + "-no-consumer", type, base, "no_consumer", null, scene -> {
            scene.join("c1", 100);
            scene.publish(40, 20);
            scene.receive("c1", 20);
            scene.acknowledge("c1", 10);
            scene.leave("c1");
        }));
        all.add(new State(prefix + "-no-permits", type, base, "no_permits", "c1", scene -> {
            scene.join("c1", 5);
            scene.publish(60, 20);
        }));
        all.add(new State(prefix + "-unacked-consumer", type, with(base, "maxUnackedMessagesPerConsumer", 20),
                "unacked_limit_consumer", "c1", scene -> {
            scene.join("c1", 10);
            scene.publish(100, 20);
            scene.receive("c1", 40);
        }));
        all.add(new State(prefix + "-unacked-subscription", type, with(base, "maxUnackedMessagesPerSubscription", 30),
                "unacked_limit_subscription", "c1", scene -> {
            scene.join("c1", 200);
            scene.publish(40, 20);
            scene.receive("c1", 40);
            scene.publish(100, 20);
        }));
        all.add(new State(prefix + "-lost-read", type, base, "no_read", null, scene -> {
            scene.join("c1", 100);
            scene.publish(10, 5);
            scene.receive("c1", 10);
            scene.acknowledge("c1", 10);
            scene.pause(500);
            scene.loseWaitingRead();
            scene.publish(30, 10);
        }));
        all.add(new State(prefix + "-unacknowledged", type, base, "unacknowledged", "c1", scene -> {
            scene.join("c1", 200);
            scene.publish(50, 20);
            scene.receive("c1", 50);
            scene.acknowledge("c1", 5);
        }));
        all.add(new State(prefix + "-catch-up", type, base, "catching_up", null, scene -> {
            scene.publish(20_000, 500);
            scene.join("c1", 100);
            scene.work("c1", 1);
        }));
    }

    private static void shared(List<State> all) {
        SubscriptionType type = SubscriptionType.Shared;
        all.add(new State("shared-no-attempt", type, Map.of(), "no_read", null, scene -> {
            scene.join("c1", 100);
            scene.publish(10, 5);
            scene.receive("c1", 10);
            scene.acknowledge("c1", 10);
            scene.pause(500);
            scene.stopReading();
            scene.publish(30, 10);
        }));
        all.add(new State("shared-delayed", type, Map.of(), "delayed_delivery", null, scene -> {
            scene.join("c1", 100);
            scene.publishDelayed(20, 1);
        }));
        all.add(new State("shared-dispatch-rate", type, Map.of(), "dispatch_rate", null, scene -> {
            scene.join("c1", 100);
            scene.dispatchRate(4);
            scene.publish(200, 20);
            scene.work("c1", 0);
        }));
        all.add(new State("shared-slow-consumer", type, Map.of(), "catching_up", null, scene -> {
            scene.publish(500, 20);
            scene.join("c1", 1);
            scene.work("c1", 40);
        }));
        all.add(new State("shared-two-no-permits", type, Map.of(), "no_permits", null, scene -> {
            scene.join("c1", 5);
            scene.join("c2", 5);
            scene.publish(60, 20);
        }));
        all.add(new State("shared-idle", type, Map.of(), "nothing_waits", null, scene -> {
            scene.join("c1", 100);
            scene.publish(10, 5);
            scene.receive("c1", 10);
            scene.acknowledge("c1", 10);
        }));
    }

    /** Others get their messages meanwhile, and the producer goes on. */
    private static void busy(List<State> all) {
        SubscriptionType type = SubscriptionType.Key_Shared;
        all.add(new State("key-shared-one-without-permits-busy", type, Map.of(), "no_permits", "c1", scene -> {
            scene.join("c1", 5);
            scene.join("c2", 200);
            scene.work("c2", 0);
            scene.keepPublishing(40, 10);
            scene.pause(1000);
        }));
        all.add(new State("key-shared-uncovered-range-busy", type, Map.of(), "uncovered_range", null, scene -> {
            scene.joinSticky("c1", 200, Range.of(0, 20_000));
            scene.joinSticky("c2", 200, Range.of(40_000, 65_535));
            scene.work("c1", 0);
            scene.work("c2", 0);
            scene.keepPublishing(60, 10);
            scene.pause(1000);
        }));
        all.add(new State("key-shared-classic-recently-joined-busy", type, CLASSIC, "recently_joined", "c1", scene -> {
            scene.join("c1", 2000);
            scene.publish(40, 40);
            scene.receive("c1", 40);
            scene.join("c2", 200);
            scene.keepPublishing(40, 10);
            scene.pause(1000);
        }));
        all.add(new State("shared-busy", SubscriptionType.Shared, Map.of(), "catching_up", null, scene -> {
            scene.join("c1", 10);
            scene.work("c1", 15);
            scene.publish(200, 20);
            scene.keepPublishing(20, 10);
        }));
        all.add(new State("shared-batches-no-permits", SubscriptionType.Shared, Map.of(), "no_permits", "c1", scene -> {
            scene.join("c1", 5);
            scene.publishBatches(10, 8);
        }));
        all.add(new State("shared-batches-unacknowledged", SubscriptionType.Shared, Map.of(), "unacknowledged", "c1", scene -> {
            scene.join("c1", 500);
            scene.publishBatches(10, 8);
            scene.receive("c1", 80);
            scene.acknowledge("c1", 3);
        }));
        all.add(new State("key-shared-batches-draining", type, Map.of(), "draining_hash", "c1", scene -> {
            scene.join("c1", 500);
            scene.publishBatches(30, 4);
            scene.receive("c1", 120);
            scene.join("c2", 500);
            scene.work("c2", 0);
            scene.publishBatches(30, 4);
        }));
    }

    /** Nothing is wrong, although much moves. */
    private static void healthy(List<State> all) {
        for (SubscriptionType type : SubscriptionType.values()) {
            String prefix = type.name().toLowerCase(java.util.Locale.ROOT).replace('_', '-');
            all.add(new State(prefix + "-healthy-small-queue", type, Map.of(), "catching_up", null, scene -> {
                scene.join("c1", 1);
                scene.work("c1", 2);
                scene.publish(3000, 50);
                scene.keepPublishing(50, 5);
            }));
        }
        all.add(new State("key-shared-healthy-joins", SubscriptionType.Key_Shared, Map.of(), "catching_up", null, scene -> {
            scene.join("c1", 50);
            scene.work("c1", 3);
            scene.publish(4000, 200);
            scene.join("c2", 50);
            scene.work("c2", 3);
            scene.keepPublishing(200, 5);
            scene.join("c3", 50);
            scene.work("c3", 3);
        }));
        all.add(new State("key-shared-classic-healthy-joins", SubscriptionType.Key_Shared, CLASSIC, "catching_up", null, scene -> {
            scene.join("c1", 50);
            scene.work("c1", 3);
            scene.publish(4000, 200);
            scene.join("c2", 50);
            scene.work("c2", 3);
            scene.keepPublishing(200, 5);
        }));
        all.add(new State("shared-healthy-limit", SubscriptionType.Shared, Map.of("maxUnackedMessagesPerConsumer", 10),
                "catching_up", null, scene -> {
            scene.join("c1", 50);
            scene.work("c1", 5);
            scene.publish(4000, 50);
        }));
        all.add(new State("shared-refused", SubscriptionType.Shared, Map.of(), "unacknowledged", "c1", scene -> {
            scene.join("c1", 50);
            scene.refuseAll("c1");
            scene.publish(20, 10);
        }));
    }

    private static void keyShared(List<State> all, String prefix, Map<String, Object> base) {
        SubscriptionType type = SubscriptionType.Key_Shared;
        all.add(new State(prefix + "-one-without-permits", type, base, "no_permits", "c1", scene -> {
            scene.join("c1", 5);
            scene.join("c2", 200);
            scene.work("c2", 0);
            scene.publish(100, 40);
        }));
        all.add(new State(prefix + "-uncovered-range", type, base, "uncovered_range", null, scene -> {
            scene.joinSticky("c1", 200, Range.of(0, 20_000));
            scene.joinSticky("c2", 200, Range.of(40_000, 65_535));
            scene.work("c1", 0);
            scene.work("c2", 0);
            scene.publish(100, 60);
        }));
    }

    private static void withDrainingHashes(List<State> all, String release) {
        SubscriptionType type = SubscriptionType.Key_Shared;
        all.add(new State("key-shared-draining", type, Map.of(), "draining_hash", "c1", scene -> {
            scene.join("c1", 200);
            scene.publish(40, 40);
            scene.receive("c1", 40);
            scene.join("c2", 200);
            scene.work("c2", 0);
            scene.publish(80, 40);
        }));
        all.add(new State("key-shared-draining-of-two", type, Map.of(), "draining_hash", "c1", scene -> {
            scene.join("c1", 200);
            scene.join("c2", 200);
            scene.publish(40, 40);
            scene.receive("c1", 40);
            scene.work("c2", 0);
            scene.join("c3", 200);
            scene.work("c3", 0);
            scene.publish(120, 40);
        }));
        all.add(new State("key-shared-look-ahead", type, Map.of("keySharedLookAheadMsgInReplayThresholdPerConsumer", 20),
                "look_ahead_limit", "c1", scene -> {
            scene.join("c1", 2);
            scene.join("c2", 200);
            scene.work("c2", 0);
            scene.publish(600, 60);
        }));
        all.add(new State("key-shared-look-ahead-draining", type, Map.of("keySharedLookAheadMsgInReplayThresholdPerConsumer", 20),
                "look_ahead_limit", "c1", scene -> {
            scene.join("c1", 200);
            scene.publish(40, 40);
            scene.receive("c1", 40);
            scene.join("c2", 200);
            scene.work("c2", 0);
            scene.publish(600, 40);
        }));
        all.add(new State("key-shared-draining-busy", type, Map.of(), "draining_hash", "c1", scene -> {
            scene.join("c1", 200);
            scene.publish(40, 40);
            scene.receive("c1", 40);
            scene.join("c2", 400);
            scene.work("c2", 0);
            scene.keepPublishing(40, 10);
            scene.pause(1000);
        }));
        if (release.equals("4.0.0")) { // #24736
            all.add(new State("key-shared-counted-twice", type, Map.of(), "draining_hash", "c1", scene -> {
                scene.join("c1", 200);
                scene.publish(40, 40);
                scene.receive("c1", 40);
                scene.join("c2", 200);
                scene.pause(300);
                scene.leave("c2");
                scene.join("c2", 200);
                scene.work("c2", 0);
                scene.publish(80, 40);
                scene.pause(500);
                scene.acknowledge("c1", 40);
                scene.receive("c1", 80);
                scene.acknowledge("c1", 80);
            }));
        }
    }

    private static void recentlyJoined(List<State> all) {
        all.add(new State("key-shared-classic-recently-joined", SubscriptionType.Key_Shared, CLASSIC, "recently_joined", "c1",
                scene -> {
            scene.join("c1", 500);
            scene.publish(40, 40);
            scene.receive("c1", 40);
            scene.join("c2", 200);
            scene.work("c2", 0);
            scene.publish(80, 40);
        }));
        all.add(new State("key-shared-classic-two-recently-joined", SubscriptionType.Key_Shared, CLASSIC, "recently_joined", "c1",
                scene -> {
            scene.join("c1", 500);
            scene.publish(40, 40);
            scene.receive("c1", 40);
            scene.join("c2", 200);
            scene.join("c3", 200);
            scene.publish(80, 40);
        }));
    }

    private static void singleActive(List<State> all) {
        for (SubscriptionType type : List.of(SubscriptionType.Failover, SubscriptionType.Exclusive)) {
            String prefix = type.name().toLowerCase(java.util.Locale.ROOT);
            all.add(new State(prefix + "-no-permits", type, Map.of(), "no_permits", "c1", scene -> {
                scene.join("c1", 5);
                scene.publish(60, 20);
            }));
            all.add(new State(prefix + "-no-consumer", type, Map.of(), "no_consumer", null, scene -> scene.publish(60, 20)));
            all.add(new State(prefix + "-lost-read", type, Map.of(), "no_read", null, scene -> {
                scene.join("c1", 100);
                scene.publish(10, 5);
                scene.receive("c1", 10);
                scene.acknowledge("c1", 10);
                scene.pause(500);
                scene.loseWaitingRead();
                scene.publish(30, 10);
            }));
            all.add(new State(prefix + "-catch-up", type, Map.of(), "catching_up", null, scene -> {
                scene.publish(20_000, 500);
                scene.join("c1", 100);
                scene.work("c1", 1);
            }));
            all.add(new State(prefix + "-unacknowledged", type, Map.of(), "unacknowledged", "c1", scene -> {
                scene.join("c1", 200);
                scene.publish(50, 20);
                scene.receive("c1", 50);
                scene.acknowledge("c1", 5);
            }));
        }
        all.add(new State("failover-delay", SubscriptionType.Failover, Map.of("activeConsumerFailoverDelayTimeMillis", 60_000),
                "failover_delay", null, scene -> {
            scene.publish(30, 10);
            scene.join("c1", 100);
        }));
    }

    private static Map<String, Object> with(Map<String, Object> base, String setting, Object value) {
        Map<String, Object> all = new java.util.TreeMap<>(base);
        all.put(setting, value);
        return all;
    }
}
