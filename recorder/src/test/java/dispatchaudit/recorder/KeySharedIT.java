package dispatchaudit.recorder;

import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Schema;
import org.junit.jupiter.api.Test;

/** Java clients of a Key_Shared subscription: joins, a crash while holding messages, nacks, an unload. */
class KeySharedIT {
    private static final int MESSAGES = 400;

    @Test
    void joinsCrashNacksUnload() throws Exception {
        Path folder = Path.of(System.getProperty("recorder.it.directory"), "java-key-shared").toAbsolutePath();
        try (RealBroker broker = RealBroker.fresh(folder, Map.of());
                TestClients clients = new TestClients(broker, folder, "persistent://public/default/java-key-shared")) {
            Consumer<String> first = clients.join(clients.consumer(clients.client, "c1"));
            Consumer<String> second = clients.join(clients.consumer(clients.client, "c2"));
            Producer<String> producer = clients.client.newProducer(Schema.STRING).topic(clients.topic).enableBatching(false).create();
            List<Consumer<String>> both = List.of(first, second);
            clients.publish(producer, MESSAGES);
            clients.consume(both, MESSAGES / 2, 7);
            Consumer<String> third = clients.join(clients.consumer(clients.client, "c3"));
            List<Consumer<String>> all = List.of(first, second, third);
            PulsarClient crashing = clients.another();
            Consumer<String> fourth = clients.join(clients.consumer(crashing, "c4"));
            clients.publish(producer, MESSAGES);
            clients.consume(all, MESSAGES / 2, 11);
            clients.receive(fourth, 2000); // receives it and crashes
            clients.witness.note("killed", "c4");
            crashing.shutdown();
            clients.drain(all);
            clients.witness.note("reload", null);
            try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(broker.webUrl()).build()) {
                admin.topics().unload(clients.topic);
            }
            clients.publish(producer, MESSAGES);
            clients.drain(all);
            clients.leave(third);
            clients.publish(producer, MESSAGES);
            clients.drain(both);
            clients.leave(first);
            clients.leave(second);
        }
    }
}
