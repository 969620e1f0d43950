package dispatchaudit.trace;

import net.bytebuddy.asm.Advice;
import org.apache.pulsar.broker.service.Consumer;
import org.apache.pulsar.broker.service.DrainingHashesTracker;

/** Advice for {@code DrainingHashesTracker} and {@code PendingAcksMap}. */
public final class DrainingAdvice {
    private DrainingAdvice() {
    }

    public static final class Add {
        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.Argument(0) Consumer consumer, @Advice.Argument(1) int hash) {
            DrainingLines.added(consumer, hash);
        }
    }

    public static final class Release {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This DrainingHashesTracker tracker, @Advice.Argument(0) Consumer consumer,
                                 @Advice.Argument(1) int hash, @Advice.Argument(2) boolean closing) {
            DrainingLines.releases(consumer, hash, closing, tracker.getEntry(hash));
        }
    }

    public static final class Block {
        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.Argument(0) Consumer consumer, @Advice.Argument(1) int hash,
                                @Advice.Return boolean blocks) {
            if (blocks) {
                DrainingLines.blocked(consumer, hash);
            }
        }
    }

    public static final class Clear {
        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.FieldValue("dispatcherName") String dispatcher) {
            DrainingLines.cleared(dispatcher);
        }
    }

    public static final class PendingAckRemoved {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.FieldValue("consumer") Consumer consumer, @Advice.Argument(0) long ledgerId,
                                 @Advice.Argument(1) long entryId, @Advice.Argument(2) int hash) {
            DrainingLines.pendingAckRemoved(consumer, ledgerId, entryId, hash);
        }
    }

    public static final class PendingAckAdded {
        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.FieldValue("consumer") Consumer consumer, @Advice.Argument(0) long ledgerId,
                                @Advice.Argument(1) long entryId, @Advice.Return boolean added) {
            if (!added) {
                DrainingLines.pendingAckRefused(consumer, ledgerId, entryId);
            }
        }
    }
}
