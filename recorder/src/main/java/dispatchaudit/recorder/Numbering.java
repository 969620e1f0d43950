package dispatchaudit.recorder;

/**
 * The numbers of a dispatcher's lines, and which of them are in a file: a line that was written may still be lost with its
 * block, when the disk refuses that. For the writer's thread only.
 *
 * <p>Numbers are given out in order, and a block takes all that were given out since the last one. So what is not in a file is
 * always one range at the end, from {@link #firstLost} on, and one gap line tells it when writing goes on.
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

    /** The last number given out; 0 = none. */
    long last() {
        return last;
    }

    /** An event, or a checkpoint, takes a number. {@code sentEntries}: how many it names; {@code written}: into a block. */
    void line(boolean event, long sentEntries, boolean written, Stats stats) {
        last++;
        bufferedLines++;
        bufferedEvents += event ? 1 : 0;
        bufferedSentEntries += sentEntries;
        if (!written) {
            failed(stats);
        }
    }

    /** An event takes a number whose line cannot be built, which says nothing about the block. */
    void hole(Stats stats) {
        last++;
        stats.failedLines.increment();
    }

    /** Events that the queue dropped take their numbers, by a gap line that was {@code written} into a block, or was not. */
    void dropped(Loss loss, boolean written, Stats stats) {
        last += loss.events();
        bufferedToldSentEntries += loss.sentEntries();
        if (!written) {
            failed(stats);
        }
    }

    /** All numbers given out so far are in a file, or told by a gap line in it. */
    void kept(Stats stats) {
        stats.events.add(bufferedEvents);
        stats.sentEntries.add(bufferedSentEntries);
        goneSentEntries = 0;
        lastKept = last;
        lastGone = last;
        empty();
    }

    /** What was given out since the last block is in no file. */
    void failed(Stats stats) {
        stats.failedLines.add(bufferedLines);
        goneSentEntries += bufferedSentEntries + bufferedToldSentEntries;
        lastGone = last;
        empty();
    }

    /** Whether numbers are in no file and no gap line in a file tells of them. */
    boolean hasLost() {
        return lastGone > lastKept;
    }

    /** The first of those numbers; {@link #last} is the last of them, if no line was written since. */
    long firstLost() {
        return lastKept + 1;
    }

    /** How many sent entries are among them. */
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
