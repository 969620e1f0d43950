package dispatchaudit.recorder;

import java.util.ConcurrentModificationException;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/**
 * Tells whether a list was changed since it was looked at, at a cost that does not grow with the list.
 *
 * <p>A sublist of a {@link CopyOnWriteArrayList}, which is what a dispatcher keeps its consumers in, holds the array that the
 * list had then, and refuses to answer once the list has another one. Each change gives it another one, so a change is never
 * overlooked; sorting into the same order is taken for a change, which only costs a comparison. The documentation of the JDK
 * leaves open what such a sublist does, so it is tried once; where it does not refuse, and for other lists, nothing is promised
 * and the list has to be compared.
 */
final class ListMark {
    private static final boolean REFUSES = refuses();

    private final List<?> list;
    private final List<?> unchanged;

    /** Marks the list as it is now. Whoever reads it for what the mark is to stand for does so after this. */
    ListMark(List<?> list) {
        this.list = list;
        this.unchanged = REFUSES && list instanceof CopyOnWriteArrayList ? list.subList(0, 0) : null;
    }

    /** Whether it is this list and surely unchanged. */
    boolean holds(List<?> now) {
        return now == list && unchanged != null && answers(unchanged);
    }

    private static boolean answers(List<?> sublist) {
        try {
            return sublist.isEmpty();
        } catch (ConcurrentModificationException changed) {
            return false;
        }
    }

    private static boolean refuses() {
        CopyOnWriteArrayList<Object> tried = new CopyOnWriteArrayList<>(List.of(1));
        List<Object> before = tried.subList(0, 0);
        boolean answered = answers(before);
        tried.set(0, 2);
        return answered && !answers(before);
    }
}
