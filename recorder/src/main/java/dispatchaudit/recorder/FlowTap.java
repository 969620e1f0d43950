package dispatchaudit.recorder;

import io.netty.buffer.ByteBuf;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import java.util.function.BiConsumer;
import org.apache.pulsar.common.api.proto.BaseCommand;

/**
 * Reports the FLOW commands of one connection on their arrival.
 *
 * <p>{@code PulsarDecoder} calls no interceptor for them, so this handler is placed before it in the connection's pipeline. A
 * frame is passed on unchanged; of other commands only two bytes are read.
 */
final class FlowTap extends ChannelInboundHandlerAdapter {
    static final String NAME = "dispatchAuditFlowTap";
    private static final int SIZE_BYTES = 4;
    private static final int TYPE_TAG = 0x08; // BaseCommand.type: field 1, a varint
    private static final int FLOW = BaseCommand.Type.FLOW.getValue();

    private final BiConsumer<Long, Long> onFlow;

    /** {@code onFlow} gets the consumer's id and its permits; it must not throw. */
    FlowTap(BiConsumer<Long, Long> onFlow) {
        this.onFlow = onFlow;
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        if (message instanceof ByteBuf frame) {
            look(frame);
        }
        context.fireChannelRead(message);
    }

    private void look(ByteBuf frame) {
        int at = frame.readerIndex();
        if (frame.readableBytes() < SIZE_BYTES + 2 || frame.getByte(at + SIZE_BYTES) != TYPE_TAG
                || frame.getByte(at + SIZE_BYTES + 1) != FLOW) {
            return;
        }
        int size = (int) frame.getUnsignedInt(at);
        if (size > frame.readableBytes() - SIZE_BYTES) {
            return;
        }
        BaseCommand command = new BaseCommand();
        command.parseFrom(frame.slice(at + SIZE_BYTES, size), size);
        if (command.hasFlow()) {
            onFlow.accept(command.getFlow().getConsumerId(), (long) command.getFlow().getMessagePermits());
        }
    }
}
