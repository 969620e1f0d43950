package dispatchaudit.trace;

import io.netty.buffer.ByteBuf;
import net.bytebuddy.asm.Advice;
import org.apache.bookkeeper.mledger.Position;
import org.apache.pulsar.broker.service.Topic;

/** Advice for {@code PersistentTopic}: what is stored. */
public final class MessageAdvice {
    private MessageAdvice() {
    }

    public static final class Arrive {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This Topic topic) {
            MessageLines.arrives(topic);
        }
    }

    public static final class Store {
        @Advice.OnMethodEnter(suppress = Throwable.class)
        public static void enter(@Advice.This Topic topic, @Advice.Argument(0) Position position, @Advice.Argument(1) ByteBuf entry) {
            MessageLines.stored(topic, position, entry);
        }
    }
}
