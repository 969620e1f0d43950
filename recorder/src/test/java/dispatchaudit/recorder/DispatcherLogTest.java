package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.lang.reflect.Proxy;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.broker.service.Topic;
import org.junit.jupiter.api.Test;

class DispatcherLogTest {
    private final DispatcherLog log = new DispatcherLog("t", "s", "Key_Shared", -1, 1);

    private List<String> see(Object... connected) {
        return log.changes(List.of(connected), (consumer, number) -> new Event.ConsumerAdded(number, consumer.toString(), 0, "", 0, null))
                .stream().map(event -> event instanceof Event.ConsumerAdded added ? "+" + added.consumer()
                        : "-" + ((Event.ConsumerRemoved) event).consumer()).toList();
    }

    @Test
    void connectionsAreToldApartByIdentityAndNumbersAreNeverUsedTwice() {
        String first = new String("c");
        String same = new String("c");
        assertEquals(List.of("+1"), see(first));
        assertEquals(List.of(), see(first));
        assertEquals(List.of("+2"), see(first, same));
        assertEquals(List.of("-1", "+3"), see(same, "d"));
        assertEquals(0, log.numberOf(first));
        assertEquals(2, log.numberOf(same));
        assertEquals(List.of("-2", "-3"), see());
        assertTrue(log.empty());
        assertEquals(List.of("+4"), see(first));
        assertFalse(log.empty());
    }

    @Test
    void limitsBeginChangeAndEnd() {
        Map<String, Long> filtered = new HashMap<>();
        filtered.put("entry_filter", null);
        assertEquals(List.of(), log.limited(Map.of()));
        assertEquals(List.of(new Event.Limit("dispatch_rate", 15L, true)), log.limited(Map.of("dispatch_rate", 15L)));
        assertEquals(List.of(), log.limited(Map.of("dispatch_rate", 15L)));
        assertEquals(List.of(new Event.Limit("dispatch_rate", 20L, true)), log.limited(Map.of("dispatch_rate", 20L)));
        assertEquals(List.of(new Event.Limit("dispatch_rate", 20L, false), new Event.Limit("entry_filter", null, true)),
                log.limited(filtered));
        assertEquals(List.of(new Event.Limit("entry_filter", null, false)), log.limited(Map.of()));
    }

    @Test
    void anotherIncarnationNumbersAnew() {
        see("a", "b");
        DispatcherLog next = new DispatcherLog("t", "s", "Key_Shared", -1, 2);
        List<Event> events = next.changes(List.of("b"), (consumer, number) -> new Event.ConsumerAdded(number, consumer, 0, "", 0, null));
        assertEquals(1, ((Event.ConsumerAdded) events.get(0)).consumer());
    }

    @Test
    void backlogIsTakenOnceAndOnlyBehindNothingNew() {
        TopicLog topic = new TopicLog(5, 10);
        assertTrue(topic.takeBacklog(4, 99));
        assertTrue(topic.takeBacklog(5, 10));
        assertFalse(topic.takeBacklog(5, 10));
        assertFalse(topic.takeBacklog(5, 11));
        assertFalse(topic.takeBacklog(6, 0));
    }

    /** A topic of which nothing but its identity matters. */
    private static Topic load() {
        return (Topic) Proxy.newProxyInstance(Topic.class.getClassLoader(), new Class<?>[] {Topic.class}, (proxy, method, arguments) -> {
            throw new UnsupportedOperationException(method.getName());
        });
    }

    @Test
    void entriesOfANonPersistentTopicAreNumberedByLoad() {
        TopicLog topic = new TopicLog(-1, -1);
        Topic first = load();
        Topic second = load();
        List<Place> used = new ArrayList<>();
        Place begin = topic.number(first, used::add);
        Place next = topic.number(first, used::add);
        Place reloaded = topic.number(second, used::add);
        assertEquals(0, begin.entryId());
        assertEquals(new Place(begin.ledgerId(), 1), next);
        assertEquals(0, reloaded.entryId());
        assertTrue(reloaded.ledgerId() > begin.ledgerId(), "a later load has a larger ledger id, also within a millisecond");
        assertEquals(List.of(begin, next, reloaded), used);
    }
}
