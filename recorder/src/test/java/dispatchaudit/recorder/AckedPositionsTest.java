package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import org.apache.pulsar.common.api.proto.CommandAck;
import org.junit.jupiter.api.Test;

class AckedPositionsTest {
    private static CommandAck ack(long[]... sets) {
        CommandAck ack = new CommandAck();
        for (int i = 0; i < sets.length; i++) {
            var id = ack.addMessageId().setLedgerId(3 + i).setEntryId(7L * i);
            for (long word : sets[i]) {
                id.addAckSet(word);
            }
        }
        return ack;
    }

    @Test
    void wholeEntriesHaveNoSets() {
        AckedPositions acked = AckedPositions.of(ack(new long[0], new long[0]));

        assertArrayEquals(new long[] {3, 4}, acked.ledgers());
        assertArrayEquals(new long[] {0, 7}, acked.entries());
        assertNull(acked.ackSets());
    }

    @Test
    void setsStandAtTheirPositions() {
        AckedPositions acked = AckedPositions.of(ack(new long[0], new long[] {6, -1}));

        assertArrayEquals(new long[][] {null, {6, -1}}, acked.ackSets());
    }
}
