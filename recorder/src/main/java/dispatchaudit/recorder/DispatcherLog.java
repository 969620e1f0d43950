package dispatchaudit.recorder;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.IdentityHashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Set;
import java.util.function.BiFunction;
import java.util.function.BooleanSupplier;

/**
 * One incarnation of one dispatcher: its connections and the numbers of its lines.
 *
 * <p>The fields have three owners: callbacks of the broker hold this object's lock, {@link EventQueue} holds its own lock, and
 * the writer's thread needs none. Locks are taken in this order: this object's, then the queue's.
 */
public final class DispatcherLog {
    public final String topic;
    public final String subscription;
    public final String subscriptionType;
    public final int partitionIndex;
    public final long incarnation;

    // guarded by this
    private final Map<Object, Integer> members = new IdentityHashMap<>();
    private Object[] lastSeen = {};
    private ListMark lastList = new ListMark(List.of());
    private int lastNumber;
    /** The incarnation has ended: no further event is added. */
    public boolean over;
    private Object lastPosition;
    private Place lastPlace;
    private long lastLedgerId = -1;
    /** What {@code limit} lines say: the limits in force, and their numbers. */
    private Map<String, Long> limits = Map.of();
    /** Seeks and resets that are not answered. */
    int resets;

    // guarded by the queue's lock
    long lostEvents;
    long lostSentEntries;
    Event.Sent openSent;

    // used by the writer's thread only
    final Numbering numbers = new Numbering();
    long lastTimeUs;
    long headerInSegment = -1;
    boolean ended;
    final Map<Integer, Event.ConsumerAdded> connected = new LinkedHashMap<>();
    final Map<String, Event.Limit> activeLimits = new LinkedHashMap<>();
    final CursorWatch cursor;

    public DispatcherLog(String topic, String subscription, String subscriptionType, int partitionIndex, long incarnation) {
        this(topic, subscription, subscriptionType, partitionIndex, incarnation, () -> false);
    }

    /** {@code expires}: true if messages of the subscription expire, or have expired since the last call. */
    DispatcherLog(String topic, String subscription, String subscriptionType, int partitionIndex, long incarnation,
                  BooleanSupplier expires) {
        this.topic = topic;
        this.subscription = subscription;
        this.subscriptionType = subscriptionType;
        this.partitionIndex = partitionIndex;
        this.incarnation = incarnation;
        this.cursor = new CursorWatch(expires);
    }

    /** The place of a position that the broker replaces by another object when it changes. Called with the lock held. */
    Place place(Object position, long ledgerId, long entryId) {
        if (position != lastPosition) {
            lastPosition = position;
            lastPlace = new Place(ledgerId, entryId);
        }
        return lastPlace;
    }

    /** True unless the position is that of the last {@link #place}. Called with the lock held. */
    boolean hasMoved(Object position) {
        return position != lastPosition;
    }

    /** True unless the topic's last ledger is that of the last call. Called with the lock held. */
    boolean isNewLedger(long ledgerId) {
        boolean isNew = ledgerId != lastLedgerId;
        lastLedgerId = ledgerId;
        return isNew;
    }

    /** Lines for the limits that began, changed or ended. Called with the lock held. */
    public List<Event> limited(Map<String, Long> now) {
        if (now.equals(limits)) {
            return List.of();
        }
        List<Event> lines = new ArrayList<>();
        limits.forEach((what, value) -> {
            if (!now.containsKey(what)) {
                lines.add(new Event.Limit(what, value, false));
            }
        });
        now.forEach((what, value) -> {
            if (!limits.containsKey(what) || !Objects.equals(limits.get(what), value)) {
                lines.add(new Event.Limit(what, value, true));
            }
        });
        limits = now;
        return lines;
    }

    /**
     * Compare the broker's list of connections with the known ones and return the changes in order: leaves, then joins.
     * Connections are compared by identity, and numbers are never used twice.
     *
     * <p>Call this with this object's lock held, and read the list under the same lock, so that a later call never sees an
     * older list. {@code describe} gives the line of a new connection under its number.
     */
    public <C> List<Event> changes(List<C> now, BiFunction<C, Integer, Event.ConsumerAdded> describe) {
        if (lastList.holds(now)) {
            return List.of();
        }
        lastList = new ListMark(now);
        Object[] seen = now.toArray();
        if (same(seen, lastSeen)) {
            return List.of();
        }
        List<Event> changes = new ArrayList<>(2);
        Set<Object> present = java.util.Collections.newSetFromMap(new IdentityHashMap<>());
        present.addAll(Arrays.asList(seen));
        for (Object member : lastSeen) {
            if (!present.contains(member)) {
                changes.add(new Event.ConsumerRemoved(members.remove(member)));
            }
        }
        for (Object member : seen) {
            if (!members.containsKey(member)) {
                int number = lastNumber + 1;
                @SuppressWarnings("unchecked")
                Event.ConsumerAdded added = describe.apply((C) member, number);
                members.put(member, number);
                lastNumber = number;
                changes.add(added);
            }
        }
        lastSeen = seen;
        return changes;
    }

    /** The connection's number, or 0 if it is not, or no longer, in the dispatcher's list. Called with the lock held. */
    public int numberOf(Object member) {
        return members.getOrDefault(member, 0);
    }

    /** True if no connection is known. Called with the lock held. */
    public boolean empty() {
        return members.isEmpty();
    }

    private static boolean same(Object[] known, Object[] current) {
        if (known.length != current.length) {
            return false;
        }
        for (int i = 0; i < known.length; i++) {
            if (known[i] != current[i]) {
                return false;
            }
        }
        return true;
    }
}
