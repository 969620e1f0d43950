package dispatchaudit.recorder;

/**
 * The number of dropped events of one dispatcher, and of sent entries in them. {@link EventQueue} counts them,
 * {@link LogWriter} writes them as a gap line.
 */
record Loss(long events, long sentEntries) {
}
