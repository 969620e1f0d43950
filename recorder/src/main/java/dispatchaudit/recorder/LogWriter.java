package dispatchaudit.recorder;

import com.fasterxml.jackson.core.JsonGenerator;
import java.io.IOException;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.LongSupplier;

/**
 * Writes queued events as lines of segments: numbers them, writes gap lines for losses, and begins each segment with headers
 * and checkpoints, so that it can be read alone. For one thread; other threads may read {@link #stats}.
 */
public final class LogWriter {
    /** Reads a dispatcher's state from the broker; null = unknown. */
    public interface Probe {
        State state(DispatcherLog log);
    }

    private static final String VERSION = "1.1";

    private final LogForm form;
    private final Settings settings;
    private final Probe probe;
    private final SegmentSeries events;
    private final SegmentSeries messages;
    private final Set<DispatcherLog> live = new LinkedHashSet<>();
    /** Logs with numbers that are in no file yet. */
    private final Set<DispatcherLog> unkept = new LinkedHashSet<>();
    private final Line text = new Line();
    private long bufferedMessages;
    private long lostMessagesUnreported;
    final Stats stats;

    LogWriter(LogForm form, Settings settings, Probe probe, LongSupplier clockMs, Segment.Disk disk, Stats stats) {
        this.form = form;
        this.settings = settings;
        this.probe = probe;
        this.stats = stats;
        this.events = new SegmentSeries(settings, form.files(), clockMs, disk, new EventSegments());
        this.messages = new SegmentSeries(settings, "messages", clockMs, disk, new MessageSegments());
    }

    /**
     * Write a batch. A failure is counted, and the batch continues; the last failure is thrown at the end. A line that the disk
     * refuses is reported by a gap line once the disk accepts lines again. A line that cannot be built leaves a hole
     * in {@code seq}.
     */
    void write(EventQueue.Batch batch) throws IOException {
        Exception failed = null;
        for (EventQueue.Item item : batch.items()) {
            try {
                if (item.message() != null) {
                    message(item.message());
                } else {
                    event(item);
                }
            } catch (IOException | RuntimeException failure) {
                failed = failure;
            }
        }
        for (EventQueue.LossAtEnd loss : batch.losses()) {
            try {
                dropped(loss.log(), loss.loss(), loss.timeUs());
            } catch (IOException | RuntimeException failure) {
                failed = failure;
            }
        }
        lostMessagesUnreported += batch.lostMessages();
        stats.lostMessages.add(batch.lostMessages());
        if (failed != null) {
            throw failed instanceof IOException disk ? disk : new IOException("a line could not be written", failed);
        }
    }

    /** Flush, sync and rotate when due. */
    void tick() throws IOException {
        try {
            events.tick();
        } finally {
            messages.tick();
        }
    }

    /** Complete both segments. */
    void close() throws IOException {
        try {
            if (unkept.stream().anyMatch(log -> log.numbers.hasLost())) {
                events.ready(); // a last chance to write gap lines
            }
            events.complete();
        } finally {
            messages.complete();
        }
    }

    private void event(EventQueue.Item item) throws IOException {
        DispatcherLog log = item.log();
        Event event = item.event();
        try {
            if (item.before() != null) {
                dropped(log, item.before(), item.timeUs());
            }
        } finally {
            if (event instanceof Event.Ended) {
                log.ended = true;
                live.remove(log);
            } else {
                live.add(log);
                written(log, item.timeUs(), event);
            }
        }
    }

    private void written(DispatcherLog log, long timeUs, Event event) throws IOException {
        Event.CursorMoved moved = moved(log, event);
        try {
            if (moved != null) {
                numbered(log, timeUs, moved);
            }
        } finally {
            if (!(event instanceof Event.Unwritten)) {
                try {
                    numbered(log, timeUs, event);
                } finally {
                    // After the line: if this line opened a segment, the segment has a checkpoint of the state before it.
                    member(log, event.plain());
                }
            }
        }
    }

    /** The move of the cursor that an event proves, or null. */
    private static Event.CursorMoved moved(DispatcherLog log, Event event) {
        if (event instanceof Event.Sent sent) {
            return log.cursor.at(sent.markDelete());
        }
        if (event instanceof Event.Unwritten unwritten) {
            return log.cursor.take(unwritten);
        }
        if (event instanceof Event.Ack ack) {
            log.cursor.acknowledged(ack);
        } else if (event instanceof Event.Checkpoint first) { // later ones do not come from the queue
            log.cursor.begin(first.state());
        }
        return null;
    }

    private static void member(DispatcherLog log, Event event) {
        if (event instanceof Event.ConsumerAdded added) {
            log.connected.put(added.consumer(), added);
        } else if (event instanceof Event.ConsumerRemoved removed) {
            log.connected.remove(removed.consumer());
        } else if (event instanceof Event.Limit limit && limit.active()) {
            log.activeLimits.put(limit.what(), limit);
        } else if (event instanceof Event.Limit limit) {
            log.activeLimits.remove(limit.what());
        }
    }

    /** Write an event or a checkpoint under the dispatcher's next number. */
    private void numbered(DispatcherLog log, long timeUs, Event event) throws IOException {
        boolean written = false;
        boolean open = false;
        try {
            open = events.ready();
            if (open) {
                line(log, log.numbers.next(), timeUs, event.kind(), event::write);
                written = true;
            }
        } finally {
            if (open && !written) {
                log.numbers.hole(stats);
            } else {
                log.numbers.line(!(event instanceof Event.Checkpoint), event.sentEntries(), written,
                        stats);
            }
            unkept.add(log);
        }
        events.settle();
    }

    /** Write a gap line for dropped events, and a checkpoint behind it, so that the log can be judged from there on. */
    private void dropped(DispatcherLog log, Loss loss, long timeUs) throws IOException {
        stats.lostEvents.add(loss.events());
        State state = state(log);
        log.cursor.resume(state);
        boolean written = false;
        try {
            if (events.ready()) {
                long from = log.numbers.next();
                gap(log, timeUs, from, from + loss.events() - 1, loss.sentEntries());
                written = true;
            }
        } finally {
            log.numbers.dropped(loss, written, stats);
            unkept.add(log);
        }
        if (written) {
            numbered(log, log.lastTimeUs, new Event.Checkpoint(log.connected.values(), state));
        }
    }

    private void gap(DispatcherLog log, long timeUs, long from, long to, long sentEntries) throws IOException {
        line(log, from, timeUs, "gap", json -> {
            json.writeNumberField("from", from);
            json.writeNumberField("to", to);
            json.writeNumberField("lost", to - from + 1);
            json.writeNumberField("lost_sent_entries", sentEntries);
        });
    }

    /** Write the state and the limits in force, with which a segment begins. */
    private void checkpoint(DispatcherLog log) throws IOException {
        numbered(log, log.lastTimeUs, new Event.Checkpoint(log.connected.values(), state(log)));
        for (Event.Limit limit : log.activeLimits.values()) {
            numbered(log, log.lastTimeUs, limit);
        }
    }

    private State state(DispatcherLog log) {
        return log.ended ? null : probe.state(log);
    }

    private void line(DispatcherLog log, long number, long timeUs, String kind, Line.Fields fields) throws IOException {
        log.lastTimeUs = Math.max(log.lastTimeUs, timeUs);
        if (log.headerInSegment != events.number()) {
            log.headerInSegment = events.number();
            header(log);
        }
        events.line(text.object(json -> {
            json.writeStringField("topic", log.topic);
            json.writeStringField("subscription", log.subscription);
            json.writeNumberField("incarnation", log.incarnation);
            json.writeNumberField("seq", number);
            json.writeNumberField("t_us", log.lastTimeUs);
            json.writeStringField("kind", kind);
            fields.write(json);
        }));
    }

    private void header(DispatcherLog log) throws IOException {
        events.line(text.object(json -> {
            fileHeader(json, form.format());
            json.writeStringField("topic", log.topic);
            json.writeStringField("subscription", log.subscription);
            json.writeStringField("subscription_type", log.subscriptionType);
            json.writeNumberField("partition_index", log.partitionIndex);
            json.writeNumberField("incarnation", log.incarnation);
        }));
    }

    private void fileHeader(JsonGenerator json, String format) throws IOException {
        json.writeStringField("format", format);
        json.writeStringField("format_version", VERSION);
        json.writeStringField("broker_version", settings.brokerVersion());
        json.writeStringField("cluster", settings.cluster());
        json.writeStringField("broker", settings.broker());
    }

    private static void strings(JsonGenerator json, List<String> values) throws IOException {
        json.writeArray(values.toArray(String[]::new), 0, values.size());
    }

    private void message(Message message) throws IOException {
        boolean written = false;
        try {
            if (messages.ready()) {
                messages.line(text.object(json -> message.write(json, settings.keys())));
                written = true;
            }
        } finally {
            if (written) {
                bufferedMessages++;
            } else {
                lostMessagesUnreported++;
                stats.failedLines.increment();
            }
        }
        messages.settle();
    }

    /** Begin a segment of events with the state of every live dispatcher, so that it can be read without earlier ones. */
    private final class EventSegments implements SegmentSeries.Contents {
        @Override
        public void opened(SegmentSeries series) throws IOException {
            series.line(text.object(json -> {
                fileHeader(json, form.format());
                json.writeObjectFieldStart("config");
                for (Map.Entry<String, Object> setting : settings.config().entrySet()) {
                    json.writeObjectField(setting.getKey(), setting.getValue());
                }
                json.writeEndObject();
                json.writeFieldName("records");
                strings(json, form.records());
                if (!form.missing().isEmpty()) {
                    json.writeFieldName("missing");
                    strings(json, form.missing());
                }
            }));
            for (DispatcherLog log : List.copyOf(unkept)) {
                if (log.numbers.hasLost()) {
                    gap(log, log.lastTimeUs, log.numbers.firstLost(), log.numbers.last(), log.numbers.lostSentEntries());
                }
            }
            for (DispatcherLog log : live) {
                if (log.numbers.last() > 0) {
                    checkpoint(log);
                }
            }
        }

        @Override
        public String footer() {
            return "";
        }

        @Override
        public void kept(boolean ended) {
            unkept.forEach(log -> log.numbers.kept(stats));
            unkept.clear();
        }

        @Override
        public void failed() {
            unkept.forEach(log -> log.numbers.failed(stats));
        }
    }

    /** Messages have no numbers: the footer says how many were lost since the last footer. */
    private final class MessageSegments implements SegmentSeries.Contents {
        @Override
        public void opened(SegmentSeries series) throws IOException {
            series.line(text.object(json -> fileHeader(json, "pulsar-message-log")));
        }

        @Override
        public String footer() {
            return lostMessagesUnreported == 0 ? "" : ",\"lost\":" + lostMessagesUnreported;
        }

        @Override
        public void kept(boolean ended) {
            stats.messages.add(bufferedMessages);
            bufferedMessages = 0;
            if (ended) {
                lostMessagesUnreported = 0;
            }
        }

        @Override
        public void failed() {
            stats.failedLines.add(bufferedMessages);
            lostMessagesUnreported += bufferedMessages;
            bufferedMessages = 0;
        }
    }
}
