package dispatchaudit.recorder;

import org.apache.pulsar.common.api.proto.CommandAck;
import org.apache.pulsar.common.api.proto.MessageIdData;

/**
 * The positions that an acknowledgement names, as numbers: the broker uses a command's object again.
 *
 * @param ackSets of each position the words whose 1 bits are the batch indexes that stay unacknowledged, null for a whole entry;
 *                null = all positions are whole entries
 */
public record AckedPositions(long[] ledgers, long[] entries, long[][] ackSets) {

    /** Copy the positions of a command. */
    public static AckedPositions of(CommandAck ack) {
        int count = ack.getMessageIdsCount();
        long[] ledgers = new long[count];
        long[] entries = new long[count];
        long[][] ackSets = null;
        for (int i = 0; i < count; i++) {
            MessageIdData id = ack.getMessageIdAt(i);
            ledgers[i] = id.getLedgerId();
            entries[i] = id.getEntryId();
            if (id.getAckSetsCount() > 0) {
                ackSets = ackSets == null ? new long[count][] : ackSets;
                ackSets[i] = words(id);
            }
        }
        return new AckedPositions(ledgers, entries, ackSets);
    }

    private static long[] words(MessageIdData id) {
        long[] words = new long[id.getAckSetsCount()];
        for (int word = 0; word < words.length; word++) {
            words[word] = id.getAckSetAt(word);
        }
        return words;
    }
}
