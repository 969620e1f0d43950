package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class CursorWatchTest {
    private boolean expires;
    private CursorWatch watch;

    @BeforeEach
    void begin() {
        watch = watch("5:9", List.of());
    }

    private CursorWatch watch(String markDelete, List<String> holes) {
        CursorWatch made = new CursorWatch(() -> expires);
        made.begin(new State(markDelete, "5:100", holes, Map.of(), false, 1));
        return made;
    }

    private void acked(long... entries) {
        watch.acknowledged(ack(false, entries));
    }

    private static Event.Ack ack(boolean cumulative, long... entries) {
        long[] ledgers = new long[entries.length];
        java.util.Arrays.fill(ledgers, 5);
        return new Event.Ack(1, cumulative, ledgers, entries, null);
    }

    private Event.CursorMoved at(String position) {
        return watch.at(Place.of(position));
    }

    private static Event.CursorMoved moved(String by, String from, String to, long entries) {
        return new Event.CursorMoved(by, Place.of(from), Place.of(to), entries);
    }

    private CursorOperation begins(CursorOperation operation) {
        assertNull(watch.take(new Event.OperationBegins(operation, null)));
        return operation;
    }

    private Event.CursorMoved ends(CursorOperation operation, boolean succeeded, String position) {
        return watch.take(new Event.OperationEnds(operation, succeeded, position == null ? null : Place.of(position)));
    }

    @Test
    void acknowledgementsExplainTheirMove() {
        acked(11, 10);
        assertNull(at("5:11"));
        watch.acknowledged(ack(true, 20));
        assertNull(at("5:15"));
        assertNull(at("5:20"));
        assertNull(at("5:20"));
    }

    @Test
    void acknowledgementsOfTheTimeBeforeCountToo() {
        watch = watch("5:9", List.of("5:11", "5:12"));
        acked(10);
        assertNull(at("5:12"));
    }

    @Test
    void whatNobodyAcknowledgedWasPassedByAMove() {
        acked(10, 12, 13, 20);
        assertEquals(moved("unknown", "5:10", "5:19", 7), at("5:20"));
        acked(21);
        assertNull(at("5:21"));
    }

    @Test
    void aMoveHasTheNameOfTheOperationUnderWay() {
        CursorOperation skip = begins(CursorOperation.skip());
        acked(10);
        assertEquals(moved("skip", "5:10", "5:15", 5), at("5:15"));
        assertNull(ends(skip, true, "5:15"));
        assertEquals(moved("unknown", "5:15", "5:17", 2), at("5:17"));
    }

    @Test
    void anOperationThatIsRefusedNamesNothing() {
        CursorOperation skip = begins(CursorOperation.skip());
        assertNull(ends(skip, false, "5:9"));
        assertEquals("unknown", at("5:15").by());
    }

    @Test
    void anOperationThatPassesWhatIsAcknowledgedMeanwhileIsNamedWhenItIsAnswered() {
        CursorOperation skip = begins(CursorOperation.skip());
        acked(10, 11);
        assertEquals(moved("skip", "5:9", "5:11", -1), ends(skip, true, "5:11"));
        CursorOperation nothing = begins(CursorOperation.clearBacklog());
        assertNull(ends(nothing, true, "5:11"));
    }

    @Test
    void ofSeveralCallsForOneMoveOneIsNamed() {
        CursorOperation namespace = begins(CursorOperation.clearBacklog());
        CursorOperation bundle = begins(CursorOperation.clearBacklog());
        assertEquals(moved("clear_backlog", "5:9", "5:30", 21), ends(bundle, true, "5:30"));
        assertNull(ends(namespace, true, "5:30"));
    }

    @Test
    void expiryIsNamedByTheBrokersCountOrPolicy() {
        expires = true;
        assertEquals(moved("expiry", "5:9", "5:30", 21), at("5:30"));
        begins(CursorOperation.expiry());
        expires = false;
        assertEquals("expiry", at("5:31").by());
        assertEquals("unknown", at("5:32").by());
    }

    @Test
    void aMoveBackForgetsAcknowledgements() {
        acked(10, 11, 12, 14);
        assertNull(at("5:12"));
        CursorOperation reset = begins(CursorOperation.resetCursor());
        assertEquals(moved("reset_cursor", "5:12", "5:4", -1), at("5:4"));
        assertNull(ends(reset, true, "5:4"));
        assertEquals("unknown", at("5:6").by());
        assertEquals(moved("unknown", "5:6", "5:2", -1), at("5:2"));
    }

    @Test
    void aSeekForwardIsNamedBeforeItsAnswer() {
        begins(CursorOperation.seek());
        assertEquals(moved("seek", "5:9", "5:40", 31), at("5:40"));
    }

    @Test
    void aResetToTheSamePositionIsNoted() {
        acked(12);
        CursorOperation seek = begins(CursorOperation.seek());
        assertNull(watch.take(new Event.CursorAt(Place.of("5:9"), null, 1)));
        assertEquals(moved("seek", "5:9", "5:9", 0), watch.take(new Event.CursorAt(Place.of("5:9"), null, 0)));
        assertNull(ends(seek, true, "5:9"));
        CursorOperation again = begins(CursorOperation.seek());
        assertEquals(moved("seek", "5:9", "5:9", 0), ends(again, true, "5:9"));
    }

    @Test
    void partsOfABatchExplainNothingUntilAllAreAcknowledged() {
        watch.acknowledged(new Event.Ack(1, false, new long[] {5}, new long[] {10}, new long[][] {{0b110}}));
        assertEquals(1, at("5:10").entries());
        watch.acknowledged(new Event.Ack(1, false, new long[] {5}, new long[] {11}, new long[][] {{0b110}}));
        watch.acknowledged(new Event.Ack(1, false, new long[] {5}, new long[] {11}, new long[][] {{0b001}}));
        assertNull(at("5:11"));
        watch.acknowledged(new Event.Ack(1, true, new long[] {5}, new long[] {14}, new long[][] {{0b100}}));
        assertNull(at("5:13"));
        assertEquals(1, at("5:14").entries());
    }

    @Test
    void acknowledgementsWithoutALineExplainToo() {
        assertNull(watch.take(new Event.UnwrittenAck(ack(false, 10))));
        assertNull(at("5:10"));
    }

    @Test
    void ledgersFollowEachOther() {
        watch.take(new Event.CursorAt(Place.of("5:9"), Map.of(5L, 11L, 6L, 2L), -1));
        acked(10, 11);
        assertNull(at("6:-1"));
        assertEquals(moved("unknown", "6:-1", "8:1", 5), at("8:1"));
        assertNull(at("9:-1"), "of a ledger that was deleted unseen nothing is known");
    }

    @Test
    void afterALossThePresentStateCounts() {
        acked(10);
        watch.resume(new State("5:30", "5:100", List.of("5:32"), Map.of(), false, 1));
        assertNull(at("5:10"), "an older reading");
        assertNull(at("5:30"));
        acked(31);
        assertNull(at("5:32"));
        assertEquals("unknown", at("5:3").by());
    }

    @Test
    void anUnknownStateExplainsNothing() {
        watch.begin(null);
        assertNull(at("5:50"));
        assertEquals(moved("unknown", "5:50", "5:51", 1), at("5:51"));
    }
}
