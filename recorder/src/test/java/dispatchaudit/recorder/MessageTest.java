package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.io.StringWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Map;
import org.junit.jupiter.api.Test;

class MessageTest {
    private static String line(String key, boolean binary, byte[] ordering, Message.Keys keys) throws IOException {
        StringWriter out = new StringWriter();
        try (JsonGenerator json = new JsonFactory().createGenerator(out)) {
            json.writeStartObject();
            new Message(new Message.Content("t", key, binary, ordering, "p1", 4, 9, 0, 24, null, null), 17, 1).write(json, keys);
            json.writeEndObject();
        }
        return out.toString();
    }

    /** Vectors of MurmurHash3 x86 32, seed 0: 0 for nothing, 0x248bfa47 for hello, 0x2e4ff723 for the fox. */
    @Test
    void h31IsMaskedMurmur3() {
        assertEquals(0, Message.h31(new byte[0]));
        assertEquals(0x248bfa47, Message.h31("hello".getBytes(StandardCharsets.UTF_8)));
        assertEquals(0x2e4ff723, Message.h31("The quick brown fox jumps over the lazy dog".getBytes(StandardCharsets.UTF_8)));
        assertEquals(0x72661cf4 & 0x7fffffff, Message.h31(new byte[] {0x21}));
    }

    @Test
    void keysAsTheFormatHasThem() throws IOException {
        assertTrue(line("k", false, null, Message.Keys.PLAIN).contains("\"position\":\"17:1\",\"key\":\"k\",\"producer\""));
        assertTrue(line("AAEC", true, null, Message.Keys.PLAIN).contains("\"key\":\"AAEC\",\"key_b64\":true"));
        assertTrue(line(null, false, null, Message.Keys.PLAIN).contains("\"key\":null"));
        assertTrue(line("k", false, new byte[] {1}, Message.Keys.PLAIN).contains("\"ordering_key_b64\":\"AQ==\""));
    }

    @Test
    void delayAndTransactionAreNamedWhereTheyAre() throws IOException {
        assertFalse(line("k", false, null, Message.Keys.PLAIN).contains("deliver_at_ms"));
        StringWriter out = new StringWriter();
        try (JsonGenerator json = new JsonFactory().createGenerator(out)) {
            json.writeStartObject();
            new Message(new Message.Content("t", "k", false, null, "p1", 4, 9, 0, 24, 17L, "(1,7)"), 17, 1).write(json, Message.Keys.PLAIN);
            json.writeEndObject();
        }
        assertTrue(out.toString().endsWith("\"size_bytes\":24,\"deliver_at_ms\":17,\"txn\":\"(1,7)\"}"), out.toString());
    }

    @Test
    void keysNeverLeaveTheBrokerWhereTheyMustNot() throws IOException {
        String hello = "\"key_h31\":" + 0x248bfa47;
        String plain = line("hello", false, null, Message.Keys.KEY_H31);
        assertTrue(plain.contains(hello) && !plain.contains("hello"), plain);
        assertTrue(line("aGVsbG8=", true, null, Message.Keys.KEY_H31).contains(hello), "the hash is of the key's bytes");
        assertTrue(line("x", false, "hello".getBytes(StandardCharsets.UTF_8), Message.Keys.KEY_H31).contains(hello),
                "the ordering key goes first");
        assertTrue(!line(null, false, null, Message.Keys.KEY_H31).contains("key"));
    }

    @Test
    void settingsNameWhatIsWrong() {
        IllegalArgumentException wrong = assertThrows(IllegalArgumentException.class,
                () -> Reading.settings(Path.of("x"), Map.of("dispatchAuditRecorderQueueEvents", "many")));
        assertTrue(wrong.getMessage().startsWith("dispatchAuditRecorderQueueEvents = 'many': expected a whole number"));
        Settings settings = Reading.settings(Path.of("x"), Map.of("dispatchAuditRecorderTopics", "persistent://public/.*",
                "dispatchAuditRecorderExcludedTopics", ".*secret"));
        assertTrue(settings.takesTopic("persistent://public/default/t"));
        assertTrue(!settings.takesTopic("persistent://public/default/secret"));
        assertTrue(!settings.takesTopic("non-persistent://public/default/t"));
    }

    @Test
    void nonPersistentTopicsAreRecordedIfTheSettingSaysSo() {
        Settings settings = Reading.settings(Path.of("x"), Map.of("dispatchAuditRecorderNonPersistentTopics", "true",
                "dispatchAuditRecorderTopics", "(non-)?persistent://public/.*"));
        assertTrue(settings.takesTopic("non-persistent://public/default/t"));
        assertTrue(settings.in(Path.of("y")).takesTopic("non-persistent://public/default/t"));
        assertFalse(settings.takesTopic("non-persistent://private/default/t"), "the patterns hold there, too");
        assertTrue(settings.takesTopic("persistent://public/default/t"));
    }
}
