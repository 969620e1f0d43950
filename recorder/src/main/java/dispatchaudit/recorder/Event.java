package dispatchaudit.recorder;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.util.Arrays;
import java.util.List;

/** What one line of the event log says, without its number, time and dispatcher. Kinds and fields: docs/log-format.md. */
public sealed interface Event {

    /** The line's kind. */
    String kind();

    /** Write the fields of this kind into the line's open object. */
    void write(JsonGenerator json) throws IOException;

    /** About how many bytes the event keeps in memory. */
    default int weightBytes() {
        return 64;
    }

    /** Whether it must not be lost because the lines after it would be meaningless: who is connected. */
    default boolean essential() {
        return false;
    }

    /** Key_Shared terms of a consumer; {@code ranges} is empty unless the mode is STICKY. */
    record KeyShared(String mode, boolean allowOutOfOrder, List<int[]> ranges) {
    }

    /** A consumer's connection as the dispatcher's list holds it. {@code keyShared} is null outside Key_Shared. */
    record ConsumerAdded(int consumer, String name, long consumerId, String address, int priorityLevel, KeyShared keyShared)
            implements Event {
        @Override
        public String kind() {
            return "consumer_added";
        }

        @Override
        public boolean essential() {
            return true;
        }

        @Override
        public void write(JsonGenerator json) throws IOException {
            json.writeNumberField("consumer", consumer);
            json.writeStringField("name", name);
            json.writeNumberField("consumer_id", consumerId);
            json.writeStringField("address", address);
            json.writeNumberField("priority_level", priorityLevel);
            if (keyShared != null) {
                json.writeObjectFieldStart("key_shared");
                json.writeStringField("mode", keyShared.mode());
                json.writeBooleanField("allow_out_of_order", keyShared.allowOutOfOrder());
                json.writeArrayFieldStart("ranges");
                for (int[] range : keyShared.ranges()) {
                    json.writeArray(range, 0, 2);
                }
                json.writeEndArray();
                json.writeEndObject();
            }
        }
    }

    /** The dispatcher's list no longer holds the connection. */
    record ConsumerRemoved(int consumer) implements Event {
        @Override
        public String kind() {
            return "consumer_removed";
        }

        @Override
        public boolean essential() {
            return true;
        }

        @Override
        public void write(JsonGenerator json) throws IOException {
            json.writeNumberField("consumer", consumer);
        }
    }

    /** The client granted permits; {@code blocked}: the consumer was blocked on unacknowledged messages then. */
    record Flow(int consumer, long permits, boolean blocked) implements Event {
        @Override
        public String kind() {
            return "flow";
        }

        @Override
        public void write(JsonGenerator json) throws IOException {
            json.writeNumberField("consumer", consumer);
            json.writeNumberField("permits", permits);
            json.writeBooleanField("blocked", blocked);
        }
    }

    /** An acknowledgement as it arrived. {@code ackSets} is null, or holds null where a whole entry is acknowledged. */
    record Ack(int consumer, boolean cumulative, long[] ledgers, long[] entries, long[][] ackSets) implements Event {
        @Override
        public String kind() {
            return "ack";
        }

        @Override
        public int weightBytes() {
            return 80 + 16 * ledgers.length * (ackSets == null ? 1 : 3);
        }

        @Override
        public void write(JsonGenerator json) throws IOException {
            json.writeNumberField("consumer", consumer);
            json.writeStringField("ack_type", cumulative ? "Cumulative" : "Individual");
            Positions.write(json, ledgers, entries, ledgers.length);
            if (ackSets != null) {
                json.writeArrayFieldStart("ack_sets");
                for (long[] words : ackSets) {
                    json.writeArray(words == null ? new long[0] : words, 0, words == null ? 0 : words.length);
                }
                json.writeEndArray();
            }
        }
    }

    /** The consumer asked for messages again; {@code ledgers} is null = all that it has not acknowledged. */
    record Redeliver(int consumer, long[] ledgers, long[] entries) implements Event {
        @Override
        public String kind() {
            return "redeliver";
        }

        @Override
        public int weightBytes() {
            return 80 + (ledgers == null ? 0 : 16 * ledgers.length);
        }

        @Override
        public void write(JsonGenerator json) throws IOException {
            json.writeNumberField("consumer", consumer);
            if (ledgers != null) {
                Positions.write(json, ledgers, entries, ledgers.length);
            }
        }
    }

    /** The incarnation begins: nobody is connected, and this is what the cursor remembers of the time before. */
    record Started(State state) implements Event {
        @Override
        public String kind() {
            return "checkpoint";
        }

        @Override
        public boolean essential() {
            return true;
        }

        @Override
        public void write(JsonGenerator json) throws IOException {
            json.writeArrayFieldStart("consumers");
            json.writeEndArray();
            state.write(json, java.util.Set.of());
        }
    }

    /** Nothing to write: the incarnation is over and its dispatcher needs no checkpoint any more. */
    record Ended() implements Event {
        @Override
        public String kind() {
            return "ended";
        }

        @Override
        public boolean essential() {
            return true;
        }

        @Override
        public void write(JsonGenerator json) {
        }
    }

    /**
     * Entries given to one connection by one write. Grows while it is the dispatcher's last event, see {@link #takes};
     * the queue's lock guards it until the writer has it.
     */
    final class Sent implements Event {
        static final int MOST_ENTRIES = 1000;
        private final int consumer;
        private final long permits;
        private long[] ledgers = new long[8];
        private long[] entries = new long[8];
        private int[] batchSizes = new int[8];
        private int count;

        /** {@code permits} = what the consumer had when the write was put together; the broker subtracts after it. */
        public Sent(int consumer, long permits, long ledgerId, long entryId, int batchSize) {
            this.consumer = consumer;
            this.permits = permits;
            add(ledgerId, entryId, batchSize);
        }

        @Override
        public String kind() {
            return "sent";
        }

        @Override
        public int weightBytes() {
            return 96 + 20 * ledgers.length;
        }

        int count() {
            return count;
        }

        /** Whether the one entry of {@code next} belongs to the same write: same connection, same permits, behind the last. */
        boolean takes(Sent next) {
            int last = count - 1;
            boolean behind = next.ledgers[0] > ledgers[last]
                    || next.ledgers[0] == ledgers[last] && next.entries[0] > entries[last];
            return next.consumer == consumer && next.permits == permits && behind && count < MOST_ENTRIES;
        }

        void append(Sent next) {
            add(next.ledgers[0], next.entries[0], next.batchSizes[0]);
        }

        private void add(long ledgerId, long entryId, int batchSize) {
            if (count == ledgers.length) {
                ledgers = Arrays.copyOf(ledgers, 2 * count);
                entries = Arrays.copyOf(entries, 2 * count);
                batchSizes = Arrays.copyOf(batchSizes, 2 * count);
            }
            ledgers[count] = ledgerId;
            entries[count] = entryId;
            batchSizes[count++] = Math.max(1, batchSize);
        }

        @Override
        public void write(JsonGenerator json) throws IOException {
            json.writeNumberField("consumer", consumer);
            Positions.write(json, ledgers, entries, count);
            json.writeFieldName("batch_sizes");
            json.writeArray(batchSizes, 0, count);
        }
    }

    /** Positions as the format writes them. */
    final class Positions {
        private Positions() {
        }

        static void write(JsonGenerator json, long[] ledgers, long[] entries, int count) throws IOException {
            json.writeArrayFieldStart("positions");
            for (int i = 0; i < count; i++) {
                json.writeString(ledgers[i] + ":" + entries[i]);
            }
            json.writeEndArray();
        }
    }
}
