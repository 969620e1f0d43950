package dispatchaudit.trace;

import net.bytebuddy.asm.Advice;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.pulsar.broker.service.Consumer;
import org.apache.pulsar.broker.service.StickyKeyDispatcher;

/** Advice for adding and removing a consumer, in dispatchers and in selectors. */
public final class MembershipAdvice {
    private MembershipAdvice() {
    }

    /** Of the class that keeps the list of consumers; a Key_Shared dispatcher calls it first. */
    public static final class Add {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This Object dispatcher, @Advice.FieldValue("cursor") ManagedCursor cursor,
                                 @Advice.Argument(0) Consumer consumer) {
            MembershipLines.joins(dispatcher, cursor, consumer);
        }

        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.Argument(0) Consumer consumer, @Advice.Return Object result) {
            MembershipLines.added(consumer, result);
        }
    }

    /** Of a Key_Shared dispatcher, or of a dispatcher of one active consumer: all of the removal. */
    public static final class Remove {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.Argument(0) Consumer consumer) {
            MembershipLines.removing(consumer);
        }

        @Advice.OnMethodExit(suppress = Throwable.class, onThrowable = Throwable.class)
        public static void exit(@Advice.Argument(0) Consumer consumer) {
            MembershipLines.removed(consumer);
        }
    }

    /** Of a Shared dispatcher: a Key_Shared one calls it in the middle of its own removal. */
    public static final class RemoveShared {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This Object dispatcher, @Advice.Argument(0) Consumer consumer) {
            if (!(dispatcher instanceof StickyKeyDispatcher)) {
                MembershipLines.removing(consumer);
            }
        }

        @Advice.OnMethodExit(suppress = Throwable.class, onThrowable = Throwable.class)
        public static void exit(@Advice.This Object dispatcher, @Advice.Argument(0) Consumer consumer) {
            if (!(dispatcher instanceof StickyKeyDispatcher)) {
                MembershipLines.removed(consumer);
            }
        }
    }

    /** Of a dispatcher of one active consumer, which chooses none any more from then on. */
    public static final class DisconnectAll {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.FieldValue("cursor") ManagedCursor cursor) {
            MembershipLines.allDisconnecting(cursor);
        }
    }

    public static final class SelectorAdd {
        @Advice.OnMethodExit(suppress = Throwable.class, onThrowable = Throwable.class)
        public static void exit(@Advice.This Object selector, @Advice.Argument(0) Consumer consumer, @Advice.Return Object result) {
            MembershipLines.selectorAdds(selector, consumer, result);
        }
    }

    public static final class SelectorRemove {
        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.This Object selector, @Advice.Argument(0) Consumer consumer) {
            MembershipLines.selectorRemoved(selector, consumer);
        }
    }
}
