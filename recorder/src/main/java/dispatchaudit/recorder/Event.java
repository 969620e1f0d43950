package dispatchaudit.recorder;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

/** One line of the event log, without its number, time and dispatcher. Kinds and fields: docs/log-format.md. */
public sealed interface Event {

    /** The line's kind. */
    String kind();

    /** Write the fields of this kind into the line's open object. */
    void write(JsonGenerator json) throws IOException;

    /** The approximate size of the event in memory, in bytes. */
    default int weightBytes() {
        return 64;
    }

    /** The number of entries that the line says were sent. */
    default int sentEntries() {
        return 0;
    }

    /** The event without what only a dispatcher trace adds to its line. */
    default Event plain() {
        return this;
    }

    /** A line of a dispatcher trace: kinds of level T, and kinds of level E with more fields. */
    non-sealed interface Traced extends Event {
    }

    private static void pairs(JsonGenerator json, String name, List<int[]> ranges) throws IOException {
        json.writeArrayFieldStart(name);
        for (int[] range : ranges) {
            json.writeArray(range, 0, 2);
        }
        json.writeEndArray();
    }

    /** Events that are never dropped, because later lines need them: joins and leaves, and the beginning and end of a log. */
    sealed interface Essential extends Event {
    }

    /** Key_Shared policy of a consumer; {@code ranges} is empty unless the mode is STICKY. */
    record KeyShared(String mode, boolean allowOutOfOrder, List<int[]> ranges) {
    }

    /** A consumer's connection as the dispatcher's list holds it. {@code keyShared} is null outside Key_Shared. */
    record ConsumerAdded(int consumer, String name, long consumerId, String address, int priorityLevel, KeyShared keyShared)
            implements Essential {
        @Override
        public String kind() {
            return "consumer_added";
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
                pairs(json, "ranges", keyShared.ranges());
                json.writeEndObject();
            }
        }
    }

    /** The dispatcher's list no longer holds the connection. */
    record ConsumerRemoved(int consumer) implements Essential {
        @Override
        public String kind() {
            return "consumer_removed";
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
            Positions.write(json, "positions", ledgers, entries, ledgers.length);
            if (ackSets != null) {
                json.writeArrayFieldStart("ack_sets");
                for (long[] words : ackSets) {
                    json.writeArray(words == null ? new long[0] : words, 0, words == null ? 0 : words.length);
                }
                json.writeEndArray();
            }
        }
    }

    /** The consumer requested redelivery; {@code ledgers} is null = all that it has not acknowledged. */
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
                Positions.write(json, "positions", ledgers, entries, ledgers.length);
            }
        }
    }

    /**
     * The connections in the order of joining, and the broker's state; {@code state} is null if unknown. An incarnation begins
     * with a checkpoint without connections, which holds the cursor's state of the time before.
     */
    record Checkpoint(Collection<ConsumerAdded> connected, State state) implements Essential {
        @Override
        public String kind() {
            return "checkpoint";
        }

        @Override
        public void write(JsonGenerator json) throws IOException {
            Set<Integer> connections = connected.stream().map(ConsumerAdded::consumer).collect(Collectors.toSet());
            json.writeArrayFieldStart("consumers");
            for (ConsumerAdded consumer : connected) {
                json.writeStartObject();
                consumer.write(json);
                List<int[]> ranges = state == null ? null : state.rangesOf(consumer.consumer(), connections);
                if (ranges != null) {
                    pairs(json, "hash_ranges", ranges);
                }
                json.writeEndObject();
            }
            json.writeEndArray();
            if (state != null) {
                state.write(json, connections);
            }
        }
    }

    /** The mark-delete position moved, and not by acknowledgements; {@code entries} -1 = not known. */
    record CursorMoved(String by, Place from, Place to, long entries) implements Essential {
        @Override
        public String kind() {
            return "cursor_moved";
        }

        @Override
        public void write(JsonGenerator json) throws IOException {
            json.writeStringField("by", by);
            json.writeStringField("from", from.toString());
            json.writeStringField("to", to.toString());
            if (entries >= 0) {
                json.writeNumberField("entries", entries);
            }
        }
    }

    /** The subscription, and its cursor with it, was deleted. */
    record SubscriptionDeleted() implements Essential {
        @Override
        public String kind() {
            return "subscription_deleted";
        }

        @Override
        public void write(JsonGenerator json) {
        }
    }

    /** A policy or property that holds deliveries back begins or ends; {@code value} null = it has no number. */
    record Limit(String what, Long value, boolean active) implements Essential {
        @Override
        public String kind() {
            return "limit";
        }

        @Override
        public void write(JsonGenerator json) throws IOException {
            json.writeStringField("what", what);
            if (value != null) {
                json.writeNumberField("value", value);
            }
            json.writeBooleanField("active", active);
        }
    }

    /** Information about the cursor for the writer's thread: it has no line and no number, and is never dropped. */
    sealed interface Unwritten extends Essential {
        @Override
        default void write(JsonGenerator json) {
        }
    }

    /**
     * The mark-delete position at this place of the order.
     *
     * @param place   null = unknown
     * @param ledgers last entries of the topic's closed ledgers; null = as before
     * @param holes   number of acknowledged ranges above it; -1 = not read
     */
    record CursorAt(Place place, Map<Long, Long> ledgers, int holes) implements Unwritten {
        @Override
        public String kind() {
            return "cursor_at";
        }
    }

    /** Acknowledgements without a line: of a transaction, or of a connection that its dispatcher no longer holds. */
    record UnwrittenAck(Ack ack) implements Unwritten {
        @Override
        public String kind() {
            return "unwritten_ack";
        }

        @Override
        public int weightBytes() {
            return ack.weightBytes();
        }
    }

    /** A call or command that may move the cursor has arrived; {@code place}: the mark-delete position then. */
    record OperationBegins(CursorOperation operation, Place place) implements Unwritten {
        @Override
        public String kind() {
            return "operation_begins";
        }
    }

    /** It was answered; {@code place}: the mark-delete position then. */
    record OperationEnds(CursorOperation operation, boolean succeeded, Place place) implements Unwritten {
        @Override
        public String kind() {
            return "operation_ends";
        }
    }

    /** The end of an incarnation: nothing is written, and its dispatcher needs no further checkpoint. */
    record Ended() implements Essential {
        @Override
        public String kind() {
            return "ended";
        }

        @Override
        public void write(JsonGenerator json) {
        }
    }

    /**
     * Entries sent to one connection by one write. Grows while it is the dispatcher's last event, see {@link #takes}; the
     * queue's lock guards it until the writer takes it.
     */
    final class Sent implements Event {
        static final int MOST_ENTRIES = 1000;
        private final int consumer;
        private final long permits;
        private final Place markDelete;
        private long[] ledgers = new long[8];
        private long[] entries = new long[8];
        private int[] batchSizes = new int[8];
        private int count;

        /**
         * {@code permits}: the consumer's permits when the write was assembled; the broker subtracts after it.
         * {@code markDelete}: the mark-delete position then; null = unknown.
         */
        Sent(int consumer, long permits, Place markDelete) {
            this.consumer = consumer;
            this.permits = permits;
            this.markDelete = markDelete;
        }

        Place markDelete() {
            return markDelete;
        }

        @Override
        public String kind() {
            return "sent";
        }

        @Override
        public int weightBytes() {
            return 96 + 20 * ledgers.length;
        }

        @Override
        public int sentEntries() {
            return count;
        }

        /** True if an entry belongs to the same write: same connection, same permits, behind the last. */
        boolean takes(int otherConsumer, long otherPermits, long ledgerId, long entryId) {
            int last = count - 1;
            return otherConsumer == consumer && otherPermits == permits && count < MOST_ENTRIES
                    && (ledgerId > ledgers[last] || ledgerId == ledgers[last] && entryId > entries[last]);
        }

        void add(long ledgerId, long entryId, int batchSize) {
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
            Positions.write(json, "positions", ledgers, entries, count);
            json.writeFieldName("batch_sizes");
            json.writeArray(batchSizes, 0, count);
        }
    }

    /** Positions in the form of the log format. */
    final class Positions {
        private static final int MOST_CHARACTERS = 41;

        private Positions() {
        }

        /** Write a field with a list of positions. */
        public static void write(JsonGenerator json, String name, long[] ledgers, long[] entries, int count) throws IOException {
            char[] text = new char[MOST_CHARACTERS];
            json.writeArrayFieldStart(name);
            for (int i = 0; i < count; i++) {
                int from = digits(text, digits(text, text.length, entries[i], ':'), ledgers[i], '\0');
                json.writeString(text, from, text.length - from);
            }
            json.writeEndArray();
        }

        /** Write a number so that it ends at {@code end}, preceded by {@code before} unless that is 0; returns its start. */
        private static int digits(char[] text, int end, long number, char before) {
            int at = end;
            // ids are never negative, but a wrong id must not turn into another one
            for (long rest = number; at == end || rest != 0; rest /= 10) {
                text[--at] = (char) ('0' + Math.abs(rest % 10));
            }
            if (number < 0) {
                text[--at] = '-';
            }
            if (before != 0) {
                text[--at] = before;
            }
            return at;
        }
    }
}
