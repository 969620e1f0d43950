package dispatchaudit.recorder;

import java.util.ConcurrentModificationException;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;

/**
 * Detects whether a list has changed since it was marked, at a cost that does not grow with the list.
 *
 * <p>A dispatcher keeps its consumers in a {@link CopyOnWriteArrayList}. A sublist of such a list keeps the array that the list
 * had then, and throws once the list has another array. Every change replaces the array, so no change is missed. Sorting into
 * the same order counts as a change, which only costs a comparison. The documentation of the JDK does not specify this
 * behaviour, so it is tested once. If the sublist does not throw, and for other lists, the list has to be compared.
 */
final class ListMark {
    private static final boolean REFUSES = refuses();

    private final List<?> list;
    private final List<?> unchanged;

    /** Mark the list as it is now. Read the list after this call, not before. */
    ListMark(List<?> list) {
        this.list = list;
        this.unchanged = REFUSES && list instanceof CopyOnWriteArrayList ? list.subList(0, 0) : null;
    }

    /** True if it is this list and certainly unchanged. */
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
