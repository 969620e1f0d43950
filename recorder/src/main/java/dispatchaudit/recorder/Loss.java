package dispatchaudit.recorder;

/**
 * Events of one dispatcher that were dropped, and how many entries sent were among them: counted by {@link EventQueue}, written
 * as a gap line by {@link LogWriter}.
 */
record Loss(long events, long sentEntries) {
}
