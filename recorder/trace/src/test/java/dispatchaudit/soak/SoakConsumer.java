package dispatchaudit.soak;

import dispatchaudit.harness.Witness;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.PulsarClient;

/** A consumer with a connection of its own, and the messages that it has received and not answered. */
final class SoakConsumer {
    private static final int WAIT_MS = 15;

    final Consumer<String> consumer;
    private final String name;
    private final PulsarClient client;
    private final Witness witness;
    private final List<Message<String>> held = new ArrayList<>();

    SoakConsumer(String name, PulsarClient client, Consumer<String> consumer, Witness witness) {
        this.name = name;
        this.client = client;
        this.consumer = consumer;
        this.witness = witness;
    }

    /** Receive at most so many messages, as long as they come; returns their number. */
    int receive(int most) throws Exception {
        int received = 0;
        while (received < most) {
            Message<String> message = consumer.receive(WAIT_MS, TimeUnit.MILLISECONDS);
            if (message == null) {
                break;
            }
            witness.message("received", name, message);
            held.add(message);
            received++;
        }
        return received;
    }

    void acknowledge(int count, long random) throws Exception {
        for (Message<String> message : take(count, random)) {
            witness.message("acked", name, message);
            consumer.acknowledge(message);
        }
    }

    /** Acknowledge all that is held with one command, but for the last {@code except} messages. */
    void acknowledgeCumulatively(int except) throws Exception {
        List<Message<String>> acknowledged = held.subList(0, Math.max(0, held.size() - except));
        if (!acknowledged.isEmpty()) {
            for (Message<String> message : acknowledged) {
                witness.message("acked", name, message);
            }
            consumer.acknowledgeCumulative(acknowledged.get(acknowledged.size() - 1));
            acknowledged.clear();
        }
    }

    /**
     * Acknowledge, with one command, every second of the held messages of some entries, so that batches are acknowledged in part.
     *
     * @param entries number of entries, from a random one on
     */
    void acknowledgeParts(int entries, long random) throws Exception {
        if (held.isEmpty()) {
            return;
        }
        List<Message<String>> messages = new ArrayList<>();
        List<String> taken = new ArrayList<>();
        int inEntry = 0;
        for (Message<String> message : held.subList(new Random(random).nextInt(held.size()), held.size())) {
            MessageIdAdv id = (MessageIdAdv) message.getMessageId();
            String entry = id.getLedgerId() + ":" + id.getEntryId();
            if (!taken.contains(entry)) {
                if (taken.size() == entries) {
                    break;
                }
                taken.add(entry);
                inEntry = 0;
            }
            if (inEntry++ % 2 == 0) {
                messages.add(message);
            }
        }
        for (Message<String> message : messages) {
            witness.message("acked", name, message);
        }
        held.removeAll(messages);
        consumer.acknowledge(messages.stream().map(Message::getMessageId).toList());
    }

    void refuse(int count, long random) throws Exception {
        for (Message<String> message : take(count, random)) {
            witness.message("nacked", name, message);
            consumer.negativeAcknowledge(message);
        }
    }

    /** Ask for everything again that is not acknowledged. */
    void redeliver() throws Exception {
        refused();
        consumer.redeliverUnacknowledgedMessages();
    }

    /** Forget what is held: the cursor was moved, and it may come again. */
    void refused() throws Exception {
        for (Message<String> message : held) {
            witness.message("nacked", name, message);
        }
        held.clear();
    }

    void leave() throws Exception {
        witness.note("left", name);
        try {
            consumer.close();
        } finally {
            client.close();
        }
    }

    /** End without closing the consumer: the broker sees the connection end. */
    void crash() throws Exception {
        witness.note("killed", name);
        client.shutdown();
    }

    private List<Message<String>> take(int count, long random) {
        Random choice = new Random(random);
        List<Message<String>> taken = new ArrayList<>();
        while (taken.size() < count && !held.isEmpty()) {
            taken.add(held.remove(random == 0 ? 0 : choice.nextInt(held.size())));
        }
        return taken;
    }
}
