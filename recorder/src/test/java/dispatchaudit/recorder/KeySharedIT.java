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

/** Java clients of a Key_Shared subscription: joins, a crash with messages in hand, nacks, an unload. */
class KeySharedIT {
    private static final int MESSAGES = 400;

    @Test
    void joinsCrashNacksUnload() throws Exception {
        Path folder = Path.of(System.getProperty("recorder.it.directory"), "java-key-shared").toAbsolutePath();
        try (RealBroker broker = RealBroker.fresh(folder, Map.of());
                ClientLife life = new ClientLife(broker, folder, "persistent://public/default/java-key-shared")) {
            Consumer<String> first = life.join(life.consumer(life.client, "c1"));
            Consumer<String> second = life.join(life.consumer(life.client, "c2"));
            Producer<String> producer = life.client.newProducer(Schema.STRING).topic(life.topic).enableBatching(false).create();
            List<Consumer<String>> both = List.of(first, second);
            life.publish(producer, MESSAGES);
            life.consume(both, MESSAGES / 2, 7);
            Consumer<String> third = life.join(life.consumer(life.client, "c3"));
            List<Consumer<String>> all = List.of(first, second, third);
            PulsarClient crashing = life.another();
            Consumer<String> fourth = life.join(life.consumer(crashing, "c4"));
            life.publish(producer, MESSAGES);
            life.consume(all, MESSAGES / 2, 11);
            life.receive(fourth, 2000); // holds it, and is gone
            life.witness.note("killed", "c4");
            crashing.shutdown();
            life.drain(all);
            life.witness.note("reload", null);
            try (PulsarAdmin admin = PulsarAdmin.builder().serviceHttpUrl(broker.webUrl()).build()) {
                admin.topics().unload(life.topic);
            }
            life.publish(producer, MESSAGES);
            life.drain(all);
            life.leave(third);
            life.publish(producer, MESSAGES);
            life.drain(both);
            life.leave(first);
            life.leave(second);
        }
    }
}
