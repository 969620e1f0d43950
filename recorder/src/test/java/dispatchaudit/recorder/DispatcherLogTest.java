package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.List;
import org.junit.jupiter.api.Test;

class DispatcherLogTest {
    private final DispatcherLog log = new DispatcherLog("t", "s", "Key_Shared", -1, 1);

    private List<String> see(Object... connected) {
        return log.changes(List.of(connected), (one, number) -> new Event.ConsumerAdded(number, one.toString(), 0, "", 0, null))
                .stream().map(event -> event instanceof Event.ConsumerAdded added ? "+" + added.consumer()
                        : "-" + ((Event.ConsumerRemoved) event).consumer()).toList();
    }

    @Test
    void connectionsAreToldApartByIdentityAndNumbersAreNeverUsedTwice() {
        String one = new String("c");
        String same = new String("c");
        assertEquals(List.of("+1"), see(one));
        assertEquals(List.of(), see(one));
        assertEquals(List.of("+2"), see(one, same));
        assertEquals(List.of("-1", "+3"), see(same, "d"));
        assertEquals(0, log.numberOf(one));
        assertEquals(2, log.numberOf(same));
        assertEquals(List.of("-2", "-3"), see());
        assertTrue(log.empty());
        assertEquals(List.of("+4"), see(one));
        assertFalse(log.empty());
    }

    @Test
    void anotherIncarnationNumbersAnew() {
        see("a", "b");
        DispatcherLog next = new DispatcherLog("t", "s", "Key_Shared", -1, 2);
        List<Event> events = next.changes(List.of("b"), (one, number) -> new Event.ConsumerAdded(number, one, 0, "", 0, null));
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
}
