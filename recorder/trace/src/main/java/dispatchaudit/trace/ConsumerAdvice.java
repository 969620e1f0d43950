package dispatchaudit.trace;

import io.netty.util.concurrent.Future;
import java.util.List;
import net.bytebuddy.asm.Advice;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.pulsar.broker.service.Consumer;
import org.apache.pulsar.broker.service.EntryBatchSizes;
import org.apache.pulsar.common.api.proto.CommandAck;

/** Advice for {@code Consumer}: each class is copied into one method, so it only passes on what it is given. */
public final class ConsumerAdvice {
    private ConsumerAdvice() {
    }

    public static final class Send {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static boolean enter(@Advice.This Consumer consumer, @Advice.Argument(0) List<? extends Entry> entries,
                                    @Advice.Argument(1) List<Integer> hashes, @Advice.Argument(2) EntryBatchSizes sizes) {
            ConsumerLines.sends(consumer, entries, hashes, sizes);
            return entries != null && !entries.isEmpty();
        }

        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.This Consumer consumer, @Advice.Enter boolean any, @Advice.Return Future<Void> write) {
            ConsumerLines.sendReturned(consumer, any, write);
        }
    }

    public static final class Flow {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This Consumer consumer, @Advice.Argument(0) int permits) {
            ConsumerLines.flow(consumer, permits);
        }

        @Advice.OnMethodExit(suppress = Throwable.class)
        public static void exit(@Advice.This Consumer consumer) {
            ConsumerLines.flowCounted(consumer);
        }
    }

    public static final class Ack {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This Consumer consumer, @Advice.Argument(0) CommandAck ack) {
            ConsumerLines.ack(consumer, ack);
        }
    }

    public static final class RequestAll {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter() {
            ConsumerLines.requestsAll(true);
        }

        @Advice.OnMethodExit(suppress = Throwable.class, onThrowable = Throwable.class)
        public static void exit() {
            ConsumerLines.requestsAll(false);
        }
    }

    public static final class NotifyActive {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This Consumer consumer, @Advice.Argument(0) Consumer active) {
            ConsumerLines.activeNotified(consumer, active);
        }
    }
}
