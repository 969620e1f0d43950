package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Consumer;
import org.junit.jupiter.api.Test;

class ListMarkTest {
    private final CopyOnWriteArrayList<String> list = new CopyOnWriteArrayList<>(List.of("b", "a", "c"));

    private boolean holdsAfter(Consumer<CopyOnWriteArrayList<String>> change) {
        ListMark mark = new ListMark(list);
        assertTrue(mark.holds(list) && mark.holds(list));
        change.accept(list);
        return mark.holds(list);
    }

    @Test
    void noChangeIsOverlooked() {
        assertFalse(holdsAfter(now -> now.add("d")));
        assertFalse(holdsAfter(now -> now.remove("a")));
        assertFalse(holdsAfter(now -> now.sort(Comparator.naturalOrder())));
        assertFalse(holdsAfter(now -> now.set(0, "x")));
        assertFalse(holdsAfter(now -> {
            now.add(1, "back");
            now.remove("back");
        }), "there and back");
        assertTrue(holdsAfter(now -> now.remove("never there")));
    }

    @Test
    void anotherListIsNotTheMarkedOne() {
        ListMark mark = new ListMark(list);
        assertFalse(mark.holds(new CopyOnWriteArrayList<>(list)));
        List<String> plain = new ArrayList<>(list);
        assertFalse(new ListMark(plain).holds(plain), "nothing is known of other lists");
    }

    /** A list that can be marked and one that must be compared give the same changes. */
    @Test
    void markedAndComparedListsTellTheSameJoinsAndLeaves() {
        DispatcherLog marked = new DispatcherLog("t", "s", "Key_Shared", -1, 1);
        DispatcherLog compared = new DispatcherLog("t", "s", "Key_Shared", -1, 1);
        java.util.Random random = new java.util.Random(7);
        int changes = 0;
        for (int round = 0; round < 2000; round++) {
            for (int change = random.nextInt(4); change > 1; change--) {
                if (random.nextBoolean() || list.isEmpty()) {
                    list.add(random.nextInt(list.size() + 1), "c" + round + "-" + change);
                } else {
                    list.remove(random.nextInt(list.size()));
                }
            }
            List<Event> events = marked.changes(list, ListMarkTest::added);
            assertEquals(compared.changes(new ArrayList<>(list), ListMarkTest::added), events);
            changes += events.size();
        }
        assertTrue(changes > 500);
    }

    private static Event.ConsumerAdded added(Object name, int number) {
        return new Event.ConsumerAdded(number, name.toString(), 0, "", 0, null);
    }
}
