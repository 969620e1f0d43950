package dispatchaudit.recorder;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.LinkedHashSet;
import java.util.Map;
import java.util.Set;
import java.util.function.LongSupplier;

/**
 * Turns what was queued into lines of segments: numbers events, says what was lost, begins each segment with what a reader of
 * it alone must know. For one thread; {@link #stats} may be read by others.
 */
final class LogWriter {
    /** Asks the broker; null = it does not say. */
    interface Probe {
        State state(DispatcherLog log);
    }

    /** Writes fields into an open object. */
    private interface Fields {
        void write(JsonGenerator json) throws IOException;
    }

    private static final String VERSION = "1.0";
    private static final JsonFactory JSON = new JsonFactory();

    private final Settings settings;
    private final Probe probe;
    private final SegmentSeries events;
    private final SegmentSeries messages;
    private final Set<DispatcherLog> live = new LinkedHashSet<>();
    private final Bytes buffer = new Bytes();
    private long lostMessagesInSegment;
    final Stats stats;

    LogWriter(Settings settings, Probe probe, LongSupplier clockMs, Stats stats) {
        this.settings = settings;
        this.probe = probe;
        this.stats = stats;
        this.events = new SegmentSeries(settings, "events", clockMs, series -> openEvents(), () -> "");
        this.messages = new SegmentSeries(settings, "messages", clockMs, this::openMessages, this::messagesFooter);
    }

    /** Write a batch. A line that cannot be written leaves a hole in {@code seq}; the failure is raised once per batch. */
    void write(EventQueue.Batch batch) throws IOException {
        IOException failed = null;
        for (EventQueue.Item item : batch.items()) {
            try {
                if (item.message() != null) {
                    message(item.message());
                } else {
                    event(item);
                }
            } catch (IOException one) {
                failed = one;
                stats.failedLines.increment();
            }
        }
        for (EventQueue.Loss loss : batch.losses()) {
            try {
                gap(loss.log(), loss.lines(), loss.timeUs());
            } catch (IOException one) {
                failed = one;
                stats.failedLines.increment();
            }
        }
        lostMessagesInSegment += batch.lostMessages();
        stats.lostMessages.add(batch.lostMessages());
        if (failed != null) {
            throw failed;
        }
    }

    /** Flush, sync and rotate where it is time. */
    void tick() throws IOException {
        events.tick();
        messages.tick();
    }

    /** Complete both segments. */
    void close() throws IOException {
        try {
            events.complete();
        } finally {
            messages.complete();
        }
    }

    private void event(EventQueue.Item item) throws IOException {
        DispatcherLog log = item.log();
        if (item.lostBefore() > 0) {
            gap(log, item.lostBefore(), item.timeUs());
        }
        Event event = item.event();
        if (event instanceof Event.Ended) {
            log.ended = true;
            live.remove(log);
            return;
        }
        if (!log.ended) {
            live.add(log);
        }
        try {
            line(log, 1, item.timeUs(), event.kind(), event::write);
            stats.events.increment();
            if (event instanceof Event.Sent sent) {
                stats.sentEntries.add(sent.count());
            }
        } finally {
            // Behind the line: a segment that this line opened has a checkpoint of the state before it.
            member(log, event);
        }
    }

    private static void member(DispatcherLog log, Event event) {
        if (event instanceof Event.ConsumerAdded added) {
            log.connected.put(added.consumer(), added);
        } else if (event instanceof Event.ConsumerRemoved removed) {
            log.connected.remove(removed.consumer());
        }
    }

    /** What was lost, and the state behind it, so that the log can be judged from there on. */
    private void gap(DispatcherLog log, long lines, long timeUs) throws IOException {
        stats.lostEvents.add(lines);
        line(log, lines, timeUs, "gap", json -> {
            json.writeNumberField("from", log.seq - lines + 1);
            json.writeNumberField("to", log.seq);
            json.writeNumberField("lost", lines);
        });
        checkpoint(log);
    }

    private void checkpoint(DispatcherLog log) throws IOException {
        State state = log.ended ? null : probe.state(log);
        line(log, 1, log.lastTimeUs, "checkpoint", json -> {
            json.writeArrayFieldStart("consumers");
            for (Event.ConsumerAdded consumer : log.connected.values()) {
                json.writeStartObject();
                consumer.write(json);
                json.writeEndObject();
            }
            json.writeEndArray();
            if (state != null) {
                state.write(json, log.connected.keySet());
            }
        });
    }

    /** Take the dispatcher's next {@code numbers} and write the line under the first of them. */
    private void line(DispatcherLog log, long numbers, long timeUs, String kind, Fields fields) throws IOException {
        boolean ready = false;
        try {
            ready = events.ready();
        } finally {
            log.seq += numbers;
        }
        log.lastTimeUs = Math.max(log.lastTimeUs, timeUs);
        if (!ready) {
            stats.failedLines.increment();
            return;
        }
        if (log.headerInSegment != events.number()) {
            log.headerInSegment = events.number();
            header(log);
        }
        long first = log.seq - numbers + 1;
        object(events, json -> {
            json.writeStringField("topic", log.topic);
            json.writeStringField("subscription", log.subscription);
            json.writeNumberField("incarnation", log.incarnation);
            json.writeNumberField("seq", first);
            json.writeNumberField("t_us", log.lastTimeUs);
            json.writeStringField("kind", kind);
            fields.write(json);
        });
    }

    private void openEvents() throws IOException {
        object(events, json -> {
            fileHeader(json, "pulsar-consumer-events");
            json.writeObjectFieldStart("config");
            for (Map.Entry<String, Object> setting : settings.config().entrySet()) {
                json.writeObjectField(setting.getKey(), setting.getValue());
            }
            json.writeEndObject();
        });
        for (DispatcherLog log : live) {
            if (log.seq > 0) {
                checkpoint(log);
            }
        }
    }

    private void header(DispatcherLog log) throws IOException {
        object(events, json -> {
            fileHeader(json, "pulsar-consumer-events");
            json.writeStringField("topic", log.topic);
            json.writeStringField("subscription", log.subscription);
            json.writeStringField("subscription_type", log.subscriptionType);
            json.writeNumberField("partition_index", log.partitionIndex);
            json.writeNumberField("incarnation", log.incarnation);
        });
    }

    private void fileHeader(JsonGenerator json, String format) throws IOException {
        json.writeStringField("format", format);
        json.writeStringField("format_version", VERSION);
        json.writeStringField("broker_version", settings.brokerVersion());
        json.writeStringField("cluster", settings.cluster());
        json.writeStringField("broker", settings.broker());
    }

    private void message(Message message) throws IOException {
        if (!messages.ready()) {
            stats.failedLines.increment();
            return;
        }
        buffer.reset();
        try (JsonGenerator json = JSON.createGenerator(buffer)) {
            message.write(json, settings.keys());
        }
        messages.line(buffer.array(), buffer.size());
        stats.messages.increment();
    }

    private void openMessages(SegmentSeries series) throws IOException {
        object(series, json -> fileHeader(json, "pulsar-message-log"));
    }

    private String messagesFooter() {
        String lost = lostMessagesInSegment == 0 ? "" : ",\"lost\":" + lostMessagesInSegment;
        lostMessagesInSegment = 0;
        return lost;
    }

    private void object(SegmentSeries series, Fields fields) throws IOException {
        Bytes line = new Bytes();
        try (JsonGenerator json = JSON.createGenerator(line)) {
            json.writeStartObject();
            fields.write(json);
            json.writeEndObject();
        }
        series.line(line.array(), line.size());
    }

    /** A byte array that can be looked at without a copy. */
    private static final class Bytes extends ByteArrayOutputStream {
        Bytes() {
            super(512);
        }

        byte[] array() {
            return buf;
        }
    }
}
