package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.junit.jupiter.api.Test;

class EventQueueTest {
    private final AtomicLong clock = new AtomicLong(100);
    private final DispatcherLog log = new DispatcherLog("t", "s", "Key_Shared", -1, 1);
    private final DispatcherLog other = new DispatcherLog("t", "s2", "Key_Shared", -1, 2);

    private EventQueue queue(int capacity) {
        return new EventQueue(capacity, 1 << 20, clock::get);
    }

    private static Event flow() {
        return new Event.Flow(1, 10, false);
    }

    @Test
    void fullQueueDropsAndCountsPerDispatcher() throws InterruptedException {
        EventQueue queue = queue(3);
        assertTrue(queue.offer(log, flow()));
        assertTrue(queue.offer(other, flow()));
        assertTrue(queue.offer(log, flow()));
        assertFalse(queue.offer(log, flow()));
        assertFalse(queue.offer(other, flow()));
        assertFalse(queue.offer(log, flow()));
        assertFalse(queue.offer(new Message(new Message.Content("t", null, false, null, "p", 0, 0, 1, 1, null, null), 1, 1)));
        EventQueue.Batch batch = queue.take(0);
        assertEquals(3, batch.items().size());
        assertEquals(List.of(2L, 1L), batch.losses().stream().map(lost -> lost.loss().events()).toList());
        assertEquals(1, batch.lostMessages());
        assertTrue(queue.take(0).losses().isEmpty(), "a loss is reported once");
    }

    @Test
    void whoIsConnectedIsNeverDroppedAndTellsWhatWasLostBeforeIt() throws InterruptedException {
        EventQueue queue = queue(1);
        queue.offer(log, flow());
        queue.offer(log, flow());
        assertTrue(queue.offer(log, new Event.ConsumerRemoved(1)));
        queue.offer(log, flow());
        assertFalse(queue.sent(log, 1, 5, 5, 0, 1, null));
        EventQueue.Batch batch = queue.take(0);
        assertEquals(new Loss(1, 0), batch.items().get(1).before());
        assertEquals(new Loss(2, 1), batch.losses().get(0).loss());
    }

    @Test
    void timesNeverGoBack() throws InterruptedException {
        EventQueue queue = queue(10);
        queue.offer(log, flow());
        clock.set(50);
        queue.offer(log, flow());
        assertEquals(List.of(100L, 100L), queue.take(0).items().stream().map(EventQueue.Item::timeUs).toList());
    }

    @Test
    void entriesOfOneWriteBecomeOneLine() throws InterruptedException {
        EventQueue queue = queue(100);
        queue.sent(log, 1, 50, 5, 0, 1, null);
        queue.sent(log, 1, 50, 5, 2, 3, null);
        queue.offer(other, flow());
        queue.sent(log, 1, 50, 6, 0, 1, null);
        queue.sent(log, 1, 46, 6, 1, 1, null); // permits were counted: the next write
        queue.sent(log, 2, 46, 6, 2, 1, null); // another connection
        queue.sent(log, 2, 46, 6, 1, 1, null); // not behind the last
        queue.offer(log, flow());
        queue.sent(log, 2, 46, 6, 3, 1, null); // another event lies between
        List<Integer> counts = new ArrayList<>();
        for (EventQueue.Item item : queue.take(0).items()) {
            counts.add(item.event().sentEntries());
        }
        assertEquals(List.of(3, 0, 1, 1, 1, 0, 1), counts);
        queue.sent(log, 2, 46, 6, 4, 1, null); // the writer has taken the line before
        assertEquals(1, queue.take(0).items().size());
    }
}
