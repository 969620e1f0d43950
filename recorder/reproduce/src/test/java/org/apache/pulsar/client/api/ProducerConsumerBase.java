package org.apache.pulsar.client.api;

import dispatchaudit.harness.StandaloneBroker;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.nio.file.Path;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.TreeMap;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.common.policies.data.TenantInfo;

/**
 * Stands for the class of that name among Pulsar's own tests, whose test artifacts are not all published: it has what a test
 * that {@code dispatch-audit minimize} writes uses of it, on a standalone broker in this process.
 */
public abstract class ProducerConsumerBase {
    protected final ServiceConfiguration conf = new ServiceConfiguration();
    protected PulsarAdmin admin;
    protected PulsarClient pulsarClient;
    private StandaloneBroker broker;
    private SlowReplayReads slowReads;

    protected abstract void setup() throws Exception;

    protected abstract void cleanup() throws Exception;

    /** Start the broker with the settings of {@code conf} that are not the defaults. */
    protected void internalSetup() throws Exception {
        broker = StandaloneBroker.fresh(Path.of("target", "broker"), changedSettings());
        slowReads = new SlowReplayReads(broker.service(), Long.getLong("replay.delay.ms", 0));
        admin = PulsarAdmin.builder().serviceHttpUrl(broker.webUrl()).build();
        pulsarClient = PulsarClient.builder().serviceUrl(broker.url()).build();
    }

    /** Create the namespace in which the test's topics are. */
    protected void producerBaseSetup() throws Exception {
        String cluster = admin.clusters().getClusters().get(0);
        admin.tenants().createTenant("my-property", TenantInfo.builder().allowedClusters(Set.of(cluster)).build());
        admin.namespaces().createNamespace("my-property/my-ns", Set.of(cluster));
    }

    protected void internalCleanup() throws Exception {
        pulsarClient.close();
        admin.close();
        slowReads.close();
        broker.close();
    }

    private Map<String, String> changedSettings() throws IllegalAccessException {
        ServiceConfiguration defaults = new ServiceConfiguration();
        Map<String, String> changed = new TreeMap<>();
        for (Field field : ServiceConfiguration.class.getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers())) {
                continue;
            }
            field.setAccessible(true);
            Object value = field.get(conf);
            if (value != null && !Objects.equals(value, field.get(defaults))) {
                changed.put(field.getName(), value.toString());
            }
        }
        return changed;
    }
}
