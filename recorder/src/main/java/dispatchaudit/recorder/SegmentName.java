package dispatchaudit.recorder;

import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.regex.Pattern;

/** Names of the files of one broker: {@code events-BROKER-TIME-N.jsonl.gz}. */
final class SegmentName {
    private static final DateTimeFormatter STAMP =
            DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss.SSS'Z'").withZone(ZoneOffset.UTC);

    private SegmentName() {
    }

    /** The name of the segment of {@code log} that was opened at {@code openedMs} as the run's {@code number}-th. */
    static String of(String log, Settings settings, long openedMs, long number) {
        return log + "-" + settings.fileBroker() + "-" + STAMP.format(Instant.ofEpochMilli(openedMs)) + "-" + number
                + settings.compression().ending;
    }

    /** Matches this broker's segments, open ones too if {@code open}, and no other file of the folder. */
    static Pattern own(Settings settings, boolean open) {
        return Pattern.compile("(events|trace|messages)-" + Pattern.quote(settings.fileBroker())
                + "-\\d{8}T\\d{6}\\.\\d{3}Z-\\d+\\.jsonl(\\.gz)?" + (open ? "(\\.open)?" : ""));
    }
}
