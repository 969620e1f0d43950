package dispatchaudit.recorder;

import com.fasterxml.jackson.core.JsonGenerator;
import com.google.common.hash.Hashing;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;

/** One stored entry: a line of the message log. */
public record Message(Content content, long ledgerId, long entryId) {

    /**
     * The fields that are known before it has a position.
     *
     * @param key          the partition key's text as the producer gave it; null = none
     * @param keyBinary    {@code key} is base64 of the key's bytes
     * @param orderingKey  null = none; dispatch hashes it instead of the key
     * @param deliverAtMs  time before which it is not delivered; null = at once
     * @param txn          transaction in which it was published; null = none
     */
    public record Content(String topic, String key, boolean keyBinary, byte[] orderingKey, String producer, long sequenceId,
                          long publishTimeMs, int numMessages, long sizeBytes, Long deliverAtMs, String txn) {

        /** The bytes that dispatch hashes: ordering key before key, a binary key decoded; null = none. */
        private byte[] dispatchedKey() {
            if (orderingKey != null) {
                return orderingKey;
            }
            if (key == null) {
                return null;
            }
            return keyBinary ? Base64.getDecoder().decode(key) : key.getBytes(StandardCharsets.UTF_8);
        }
    }

    /** The form in which keys are written. */
    public enum Keys {
        /** Unchanged. */
        PLAIN,
        /** Masked murmur3-32 of the bytes that dispatch hashes: keys never leave the broker. */
        KEY_H31
    }

    /** Its approximate size in memory in bytes; the topic's name is the broker's own object. */
    int weightBytes() {
        return 128 + (content.key() == null ? 0 : content.key().length())
                + (content.orderingKey() == null ? 0 : content.orderingKey().length);
    }

    /** MurmurHash3 (x86, 32 bit, seed 0) of the bytes, masked with 0x7fffffff, as {@code key_h31} of the format has it. */
    static int h31(byte[] bytes) {
        return Hashing.murmur3_32_fixed(0).hashBytes(bytes).asInt() & 0x7fffffff;
    }

    /** Write the fields of the line into its open object. */
    void write(JsonGenerator json, Keys keys) throws IOException {
        json.writeStringField("topic", content.topic());
        json.writeStringField("position", ledgerId + ":" + entryId);
        if (keys == Keys.KEY_H31) {
            byte[] dispatched = content.dispatchedKey();
            if (dispatched != null) {
                json.writeNumberField("key_h31", h31(dispatched));
            }
        } else {
            json.writeStringField("key", content.key());
            if (content.key() != null && content.keyBinary()) {
                json.writeBooleanField("key_b64", true);
            }
            if (content.orderingKey() != null) {
                json.writeStringField("ordering_key_b64", Base64.getEncoder().encodeToString(content.orderingKey()));
            }
        }
        json.writeStringField("producer", content.producer());
        json.writeNumberField("sequence_id", content.sequenceId());
        json.writeNumberField("publish_time_ms", content.publishTimeMs());
        json.writeNumberField("num_messages", Math.max(1, content.numMessages()));
        json.writeNumberField("size_bytes", content.sizeBytes());
        if (content.deliverAtMs() != null) {
            json.writeNumberField("deliver_at_ms", content.deliverAtMs());
        }
        if (content.txn() != null) {
            json.writeStringField("txn", content.txn());
        }
    }
}
