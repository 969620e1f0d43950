package dispatchaudit.recorder;

/**
 * The numbers of a dispatcher's lines, and which of them are in a file. A line that was written may still be lost with its
 * block if the disk refuses the block. For the writer's thread only.
 *
 * <p>Numbers are assigned in order, and a block contains all numbers assigned since the last block. So the numbers that are in
 * no file are always one range at the end, from {@link #firstLost} on, and one gap line covers it when writing continues.
 */
final class Numbering {
    private long last;
    private long lastKept;
    private long lastGone;
    private long bufferedLines;
    private long bufferedEvents;
    private long bufferedSentEntries;
    private long bufferedToldSentEntries;
    private long goneSentEntries;

    /** The next line's number; from 1. */
    long next() {
        return last + 1;
    }

    /** The last number assigned; 0 = none. */
    long last() {
        return last;
    }

    /** Assign a number to an event or a checkpoint. {@code sentEntries}: entries it names; {@code written}: it is in a block. */
    void line(boolean event, long sentEntries, boolean written, Stats stats) {
        last++;
        bufferedLines++;
        bufferedEvents += event ? 1 : 0;
        bufferedSentEntries += sentEntries;
        if (!written) {
            failed(stats);
        }
    }

    /** Assign a number to an event whose line cannot be built. The block is not affected. */
    void hole(Stats stats) {
        last++;
        stats.failedLines.increment();
    }

    /** Assign the numbers of events that the queue dropped. {@code written}: their gap line is in a block. */
    void dropped(Loss loss, boolean written, Stats stats) {
        last += loss.events();
        bufferedToldSentEntries += loss.sentEntries();
        if (!written) {
            failed(stats);
        }
    }

    /** Note that all numbers assigned so far are in a file, or covered by a gap line in it. */
    void kept(Stats stats) {
        stats.events.add(bufferedEvents);
        stats.sentEntries.add(bufferedSentEntries);
        goneSentEntries = 0;
        lastKept = last;
        lastGone = last;
        empty();
    }

    /** Note that the numbers assigned since the last block are in no file. */
    void failed(Stats stats) {
        stats.failedLines.add(bufferedLines);
        goneSentEntries += bufferedSentEntries + bufferedToldSentEntries;
        lastGone = last;
        empty();
    }

    /** True if some numbers are in no file and not covered by a gap line in a file. */
    boolean hasLost() {
        return lastGone > lastKept;
    }

    /** The first of those numbers; {@link #last} is the last of them, if no line was written since. */
    long firstLost() {
        return lastKept + 1;
    }

    /** The number of sent entries among them. */
    long lostSentEntries() {
        return goneSentEntries;
    }

    private void empty() {
        bufferedLines = 0;
        bufferedEvents = 0;
        bufferedSentEntries = 0;
        bufferedToldSentEntries = 0;
    }
}
