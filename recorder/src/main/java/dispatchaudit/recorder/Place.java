package dispatchaudit.recorder;

/** A position of a topic's log; entry -1 is the place before a ledger's first entry. */
record Place(long ledgerId, long entryId) implements Comparable<Place> {

    /** Read {@code ledger:entry}. */
    static Place of(String text) {
        int colon = text.indexOf(':');
        return new Place(Long.parseLong(text.substring(0, colon)), Long.parseLong(text.substring(colon + 1)));
    }

    @Override
    public int compareTo(Place other) {
        return ledgerId != other.ledgerId ? Long.compare(ledgerId, other.ledgerId) : Long.compare(entryId, other.entryId);
    }

    @Override
    public String toString() {
        return ledgerId + ":" + entryId;
    }
}
