package dispatchaudit.recorder;

import io.netty.buffer.ByteBuf;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelOutboundHandlerAdapter;
import io.netty.channel.ChannelPromise;
import java.util.HashMap;
import java.util.Map;
import java.util.function.Consumer;
import org.apache.pulsar.common.api.proto.BaseCommand;

/**
 * Waits for the broker's answers to the SEEK commands of one connection. No interceptor is called for them, so this handler is
 * in the connection's pipeline while an answer is open. For the connection's event loop only.
 */
final class SeekTap extends ChannelOutboundHandlerAdapter {
    static final String NAME = "dispatchAuditSeekTap";
    private static final int SIZES_BYTES = 8;
    private static final int TYPE_TAG = 0x08; // BaseCommand.type: field 1, a varint

    private final Map<Long, Consumer<Boolean>> waiting = new HashMap<>();

    /** Call {@code onAnswer}, which must not throw, with true if the request succeeds. */
    void await(long requestId, Consumer<Boolean> onAnswer) {
        waiting.put(requestId, onAnswer);
    }

    @Override
    public void write(ChannelHandlerContext context, Object message, ChannelPromise promise) throws Exception {
        if (message instanceof ByteBuf frame) {
            look(frame);
        }
        context.write(message, promise);
        if (waiting.isEmpty() && context.pipeline().get(NAME) == this) {
            context.pipeline().remove(this);
        }
    }

    private void look(ByteBuf frame) {
        int at = frame.readerIndex();
        if (frame.readableBytes() < SIZES_BYTES + 2 || frame.getByte(at + SIZES_BYTES) != TYPE_TAG) {
            return;
        }
        int type = frame.getByte(at + SIZES_BYTES + 1);
        int size = (int) frame.getUnsignedInt(at + SIZES_BYTES / 2);
        if (type != BaseCommand.Type.SUCCESS.getValue() && type != BaseCommand.Type.ERROR.getValue()
                || size > frame.readableBytes() - SIZES_BYTES) {
            return;
        }
        BaseCommand command = new BaseCommand();
        command.parseFrom(frame.slice(at + SIZES_BYTES, size), size);
        long requestId = command.hasSuccess() ? command.getSuccess().getRequestId() : command.getError().getRequestId();
        Consumer<Boolean> onAnswer = waiting.remove(requestId);
        if (onAnswer != null) {
            onAnswer.accept(command.hasSuccess());
        }
    }
}
