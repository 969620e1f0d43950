package dispatchaudit.client;

import java.io.IOException;
import java.io.Writer;
import java.net.InetAddress;
import java.net.UnknownHostException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Base64;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerInterceptor;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.TopicMessageId;

/**
 * Logs what a consumer receives, acknowledges and asks for again: a client log (docs/client-log.md). One file, which needs
 * nothing but Pulsar's client: copy it into your application.
 *
 * <pre>{@code
 * client.newConsumer(Schema.STRING).topic("orders").subscriptionName("audit").subscriptionType(SubscriptionType.Key_Shared)
 *         .intercept(new ClientLogInterceptor<>(Path.of("client-logs"), "Key_Shared"))
 *         .subscribe();
 * }</pre>
 *
 * Each consumer needs an interceptor of its own. Close it behind its consumer: Pulsar's client does not. The application is never blocked and never fails because of the log. Lines
 * are kept in a queue of limited length, and a thread writes them. If the queue is full, lines are lost, and the numbers in
 * the log show it. If the disk fails, or the file is too large, logging ends. {@code redeliverUnacknowledgedMessages} is not
 * seen: no interceptor is told of it.
 */
public final class ClientLogInterceptor<T> implements ConsumerInterceptor<T> {
    private static final Logger LOGGER = Logger.getLogger(ClientLogInterceptor.class.getName());
    private static final String LIBRARY = "ClientLogInterceptor 0.1.0";
    private static final int QUEUED_LINES = 100_000;
    private static final long MOST_BYTES = 1L << 30;
    private static final long CLOSE_MS = 5_000;
    private static final long FLUSH_NS = TimeUnit.SECONDS.toNanos(1);
    private static final DateTimeFormatter TIME = DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'").withZone(ZoneOffset.UTC);
    /** Behind the last line. */
    private static final String END = "";

    private final Path folder;
    private final String subscriptionType;
    private final long mostBytes;
    private final BlockingQueue<String> lines;
    private Thread writer;
    private String topic;
    private long seq;
    private long disconnectedMs;
    private volatile boolean closed;
    private volatile boolean ended; // something failed

    /**
     * @param folder gets the file {@code client-<consumer>-<time>-<id>.jsonl}
     * @param subscriptionType Exclusive, Failover, Shared or Key_Shared; null = not known, then no order can be judged
     */
    public ClientLogInterceptor(Path folder, String subscriptionType) {
        this(folder, subscriptionType, QUEUED_LINES, MOST_BYTES);
    }

    /**
     * @param queuedLines lines that wait to be written; what comes when so many wait is lost
     * @param mostBytes size of the file, about; what comes then is lost
     */
    public ClientLogInterceptor(Path folder, String subscriptionType, int queuedLines, long mostBytes) {
        this.folder = folder;
        this.subscriptionType = subscriptionType;
        this.mostBytes = mostBytes;
        this.lines = new ArrayBlockingQueue<>(queuedLines);
    }

    @Override
    public Message<T> beforeConsume(Consumer<T> consumer, Message<T> message) {
        try {
            StringBuilder rest = new StringBuilder();
            if (message.hasKey()) {
                text(rest, "key", message.getKey());
                if (message.hasBase64EncodedKey()) {
                    rest.append(",\"key_b64\":true");
                }
            }
            if (message.hasOrderingKey()) {
                text(rest, "ordering_key_b64", Base64.getEncoder().encodeToString(message.getOrderingKey()));
            }
            if (message.getRedeliveryCount() > 0) {
                rest.append(",\"redelivery_count\":").append(message.getRedeliveryCount());
            }
            put("client_received", consumer, message.getTopicName(), message.getMessageId(), rest);
        } catch (RuntimeException error) {
            end(error);
        }
        return message;
    }

    @Override
    public void onAcknowledge(Consumer<T> consumer, MessageId id, Throwable error) {
        acknowledged(consumer, id, error, "");
    }

    @Override
    public void onAcknowledgeCumulative(Consumer<T> consumer, MessageId id, Throwable error) {
        acknowledged(consumer, id, error, ",\"ack_type\":\"Cumulative\"");
    }

    @Override
    public void onNegativeAcksSend(Consumer<T> consumer, Set<MessageId> ids) {
        askedAgain(consumer, ids);
    }

    @Override
    public void onAckTimeoutSend(Consumer<T> consumer, Set<MessageId> ids) {
        askedAgain(consumer, ids);
    }

    /** Write what waits, for some seconds at most. */
    @Override
    public void close() {
        Thread thread;
        synchronized (this) {
            thread = writer;
            if (thread == null || closed || ended) {
                return;
            }
            offer("footer", new StringBuilder());
            closed = true;
        }
        try {
            if (thread.isAlive() && lines.offer(END, CLOSE_MS, TimeUnit.MILLISECONDS)) {
                thread.join(CLOSE_MS);
            }
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
    }

    private void acknowledged(Consumer<T> consumer, MessageId id, Throwable error, String type) {
        try {
            StringBuilder rest = new StringBuilder(type);
            if (error != null) {
                text(rest, "error", error.toString());
            }
            put("client_acked", consumer, null, id, rest);
        } catch (RuntimeException wrong) {
            end(wrong);
        }
    }

    private void askedAgain(Consumer<T> consumer, Set<MessageId> ids) {
        try {
            for (MessageId id : ids) {
                put("client_nacked", consumer, null, id, new StringBuilder());
            }
        } catch (RuntimeException error) {
            end(error);
        }
    }

    private void put(String kind, Consumer<T> consumer, String ofMessage, MessageId id, StringBuilder rest) {
        if (closed || ended) {
            return;
        }
        MessageIdAdv position = (MessageIdAdv) id;
        StringBuilder line = new StringBuilder(200);
        line.append(",\"position\":\"").append(position.getLedgerId()).append(':').append(position.getEntryId()).append('"');
        if (position.getBatchIndex() >= 0) {
            line.append(",\"batch_index\":").append(position.getBatchIndex());
            if (position.getBatchSize() > position.getBatchIndex()) {
                line.append(",\"batch_size\":").append(position.getBatchSize());
            }
        }
        line.append(rest);
        String name = ofMessage != null ? ofMessage
                : id instanceof TopicMessageId ? ((TopicMessageId) id).getOwnerTopic() : consumer.getTopic();
        long lostMs = consumer.getLastDisconnectedTimestamp();
        if (!consumer.isConnected()) {
            line.append(",\"connected\":false");
        }
        // One lock for number, time and place: a hole in the numbers then shows a line that was lost, and nothing else.
        synchronized (this) {
            if (writer == null) {
                begin(consumer, name);
            }
            if (!name.equals(topic)) {
                text(line, "topic", name);
            }
            if (lostMs > disconnectedMs) {
                disconnectedMs = lostMs;
                line.append(",\"disconnected_us\":").append(1000 * lostMs);
            }
            offer(kind, line);
        }
    }

    /** Add a line to the queue, or lose it. Call with the lock. */
    private void offer(String kind, StringBuilder rest) {
        Instant now = Instant.now();
        seq++;
        lines.offer("{\"seq\":" + seq + ",\"t_us\":" + (1_000_000 * now.getEpochSecond() + now.getNano() / 1000)
                + ",\"kind\":\"" + kind + "\"" + rest + "}\n");
    }

    private void begin(Consumer<T> consumer, String firstTopic) {
        topic = firstTopic;
        String name = consumer.getConsumerName() == null ? "" : consumer.getConsumerName();
        StringBuilder header = new StringBuilder("{\"format\":\"pulsar-client-log\",\"format_version\":\"1.1\"");
        text(header, "topic", firstTopic);
        text(header, "subscription", consumer.getSubscription());
        if (subscriptionType != null) {
            text(header, "subscription_type", subscriptionType);
        }
        text(header, "consumer", name);
        text(header, "library", LIBRARY);
        header.append(",\"records\":[\"client_nacked\",\"disconnected_us\"]");
        String plain = name.replaceAll("[^A-Za-z0-9._-]", "_");
        Path file = folder.resolve("client-" + plain.substring(0, Math.min(80, plain.length())) + "-"
                + TIME.format(Instant.now()) + "-" + UUID.randomUUID().toString().substring(0, 8) + ".jsonl");
        writer = new Thread(() -> write(file, header), "dispatch-client-log");
        writer.setDaemon(true);
        writer.start();
    }

    private void write(Path file, StringBuilder header) {
        try {
            text(header, "host", host());
            Files.createDirectories(folder);
            try (Writer out = Files.newBufferedWriter(file, StandardCharsets.UTF_8, StandardOpenOption.CREATE_NEW)) {
                writeLines(out, header.append("}\n").toString());
            }
        } catch (IOException | RuntimeException error) {
            end(error);
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
    }

    private void writeLines(Writer out, String header) throws IOException, InterruptedException {
        out.write(header);
        long written = header.length();
        long flushedNs = System.nanoTime();
        while (true) {
            if (lines.isEmpty() || System.nanoTime() - flushedNs > FLUSH_NS) {
                out.flush();
                flushedNs = System.nanoTime();
            }
            String line = lines.take();
            if (line.equals(END)) {
                return;
            }
            if (written > mostBytes) {
                end("the file has " + written + " bytes");
                return;
            }
            out.write(line);
            written += line.length();
        }
    }

    /** Looked up by the thread that writes, since it may take long. */
    private static String host() {
        try {
            return InetAddress.getLocalHost().getHostName();
        } catch (UnknownHostException none) {
            return String.valueOf(System.getenv("HOSTNAME"));
        }
    }

    private void end(Object why) {
        if (!ended) {
            ended = true;
            LOGGER.log(Level.WARNING, "The client log in {0} ends here: {1}", new Object[] {folder, why});
        }
    }

    private static void text(StringBuilder to, String name, String value) {
        to.append(",\"").append(name).append("\":\"");
        for (int at = 0; at < value.length(); at++) {
            char c = value.charAt(at);
            boolean high = Character.isHighSurrogate(c) && at + 1 < value.length() && Character.isLowSurrogate(value.charAt(at + 1));
            boolean low = Character.isLowSurrogate(c) && at > 0 && Character.isHighSurrogate(value.charAt(at - 1));
            if (c == '"' || c == '\\') {
                to.append('\\').append(c);
            } else if (c < ' ') {
                to.append(String.format("\\u%04x", (int) c));
            } else if (Character.isSurrogate(c) && !high && !low) {
                to.append('\ufffd');
            } else {
                to.append(c);
            }
        }
        to.append('"');
    }
}
