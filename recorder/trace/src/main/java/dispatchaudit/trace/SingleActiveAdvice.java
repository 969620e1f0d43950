package dispatchaudit.trace;

import java.util.List;
import net.bytebuddy.asm.Advice;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.ManagedCursor;
import org.apache.pulsar.broker.service.AbstractDispatcherSingleActiveConsumer;
import org.apache.pulsar.broker.service.Consumer;

/** Advice for the dispatcher of one active consumer, Failover and Exclusive. */
public final class SingleActiveAdvice {
    private SingleActiveAdvice() {
    }

    public static final class Pick {
        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.This AbstractDispatcherSingleActiveConsumer dispatcher,
                                @Advice.FieldValue("cursor") ManagedCursor cursor,
                                @Advice.FieldValue("partitionIndex") int partitionIndex, @Advice.Return boolean changed) {
            SingleActiveLines.picked(cursor, dispatcher.getConsumers(), dispatcher.getActiveConsumer(), changed, partitionIndex);
        }
    }

    public static final class Handover {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.FieldValue("cursor") ManagedCursor cursor,
                                 @Advice.FieldValue("havePendingRead") boolean pendingRead) {
            SingleActiveLines.handoverScheduled(cursor, pendingRead);
        }
    }

    public static final class Flow {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.Argument(0) Consumer consumer) {
            SingleActiveLines.flowApplied(consumer);
        }
    }

    public static final class Attempt {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.FieldValue("cursor") ManagedCursor cursor, @Advice.Argument(0) Consumer consumer) {
            SingleActiveLines.attempt(cursor, consumer);
        }
    }

    public static final class ReadDone {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.FieldValue("cursor") ManagedCursor cursor,
                                 @Advice.Argument(0) List<? extends Entry> entries, @Advice.Argument(1) Object context) {
            SingleActiveLines.readDone(cursor, entries, context);
        }
    }

    public static final class Round {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.FieldValue("cursor") ManagedCursor cursor, @Advice.Argument(0) Consumer consumer,
                                 @Advice.Argument(1) List<? extends Entry> entries) {
            SingleActiveLines.round(cursor, consumer, entries);
        }
    }
}
