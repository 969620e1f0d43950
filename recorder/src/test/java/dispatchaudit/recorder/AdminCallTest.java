package dispatchaudit.recorder;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class AdminCallTest {
    private static final String TOPIC = "/admin/v2/persistent/public/default/";

    private static String by(String method, String path) {
        AdminCall call = AdminCall.of(method, path);
        return call == null ? null : call.operation().get().by;
    }

    @ParameterizedTest
    @CsvSource({
        "POST, orders/subscription/s/skip/5, skip",
        "POST, orders/subscription/s/skip_all, clear_backlog",
        "POST, orders/subscription/s/expireMessages/60, expiry",
        "POST, orders/subscription/s/expireMessages, expiry",
        "POST, orders/all_subscription/expireMessages/60, expiry",
        "POST, orders/subscription/s/resetcursor, reset_cursor",
        "POST, orders/subscription/s/resetcursor/1795249456331, reset_cursor",
        "DELETE, orders/truncate, clear_backlog",
        "GET, orders/subscription/s/skip/5, ",
        "PUT, orders/subscription/s, ",
        "DELETE, orders/subscription/s, ",
        "POST, orders/subscription/s/analyzeBacklog, ",
        "GET, orders/stats, ",
        "PUT, orders/unload, ",
    })
    void callsOfTopics(String method, String path, String by) {
        assertEquals(by, by(method, TOPIC + path));
    }

    @Test
    void callsOfNamespaces() {
        assertEquals("clear_backlog", by("POST", "/admin/v2/namespaces/public/default/clearBacklog"));
        assertEquals("clear_backlog", by("POST", "/admin/v2/namespaces/public/default/0x00000000_0x40000000/clearBacklog"));
        assertNull(by("POST", "/admin/v2/namespaces/public/default/unload"));
        assertNull(by("GET", "/admin/v2/namespaces/public"));
        assertNull(by("GET", "/metrics/"));
        assertNull(by("GET", "/admin/v2"));
    }

    @Test
    void aCallConcernsItsSubscriptions() {
        AdminCall one = AdminCall.of("POST", TOPIC + "or%2Fders+1-partition-0/subscription/my%20sub/skip_all");
        assertTrue(one.concerns("persistent://public/default/or/ders+1-partition-0", "my sub"));
        assertFalse(one.concerns("persistent://public/default/or/ders+1-partition-0", "other"));
        assertFalse(one.concerns("persistent://public/default/or/ders+1-partition-1", "my sub"));
        AdminCall all = AdminCall.of("POST", TOPIC + "orders/all_subscription/expireMessages/60");
        assertTrue(all.concerns("persistent://public/default/orders", "other"));
        AdminCall namespace = AdminCall.of("POST", "/admin/v2/namespaces/public/default/0x0_0x4/clearBacklog/s");
        assertTrue(namespace.concerns("persistent://public/default/orders", "s"));
        assertFalse(namespace.concerns("persistent://public/default/orders", "t"));
        assertFalse(namespace.concerns("persistent://public/default2/orders", "s"));
    }

    @Test
    void theFirstVersionOfTheInterfaceHasTheClusterInItsNames() {
        AdminCall call = AdminCall.of("POST", "/admin/persistent/p/c/ns/orders/subscription/s/skip/5");
        assertNotNull(call);
        assertTrue(call.concerns("persistent://p/c/ns/orders", "s"));
    }
}
