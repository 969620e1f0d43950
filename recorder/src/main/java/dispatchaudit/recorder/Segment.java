package dispatchaudit.recorder;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.zip.CRC32;

/**
 * One file being written. Its name ends with {@link SegmentName#OPEN} until its footer is in it.
 *
 * <p>Lines are collected in a block, and a flush writes the block as a whole (a gzip member). Not thread-safe.
 */
final class Segment {
    /** The ending of the name until the footer is in the file; no reader matches it. */
    static final String OPEN = ".open";

    /** The folder of the files. */
    interface Disk {
        FileChannel create(Path file) throws IOException;
    }

    static final Disk DISK = file -> FileChannel.open(file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE);
    private static final int BLOCK_BYTES = 1 << 20;

    private final Path complete;
    private final Path open;
    private final Compression compression;
    private final FileChannel channel;
    private final Line.Bytes block = new Line.Bytes(BLOCK_BYTES + 4096);
    private final CRC32 crc = new CRC32();
    private long lines;
    private long writtenBytes;
    private boolean unsynced;

    /** Create the file beside {@code complete}, the name it gets when it is complete. */
    Segment(Path complete, Compression compression, Disk disk) throws IOException {
        this.complete = complete;
        this.compression = compression;
        this.open = complete.resolveSibling(complete.getFileName() + Segment.OPEN);
        this.channel = disk.create(open);
    }

    /** Append a line, given without its line end, to the block. */
    void line(byte[] text, int length) {
        crc.update(text, 0, length);
        crc.update('\n');
        lines++;
        append(text, length);
    }

    private void append(byte[] text, int length) {
        block.write(text, 0, length);
        block.write('\n');
    }

    /** True if the block has reached its size. */
    boolean full() {
        return block.size() >= BLOCK_BYTES;
    }

    /** Write all lines so far into the file, in a form that is readable without later ones. */
    void flush() throws IOException {
        if (block.size() == 0) {
            return;
        }
        ByteBuffer bytes = ByteBuffer.wrap(compression.block(block.array(), block.size()));
        block.reset();
        int length = bytes.remaining();
        while (bytes.hasRemaining()) {
            channel.write(bytes);
        }
        writtenBytes += length;
        unsynced = true;
    }

    /** Sync to the disk what was flushed. */
    void sync() throws IOException {
        if (unsynced) {
            channel.force(false);
            unsynced = false;
        }
    }

    /** Size of the file in bytes; waiting lines count a tenth, about their compressed size. */
    long sizeBytes() {
        return writtenBytes + block.size() / 10;
    }

    /** Write the footer and give the file its name. */
    void complete(String footerMore) throws IOException {
        byte[] footer = "{\"kind\":\"footer\",\"lines\":%d,\"crc32\":\"%08x\"%s}".formatted(lines, crc.getValue(), footerMore)
                .getBytes(StandardCharsets.UTF_8);
        append(footer, footer.length);
        flush();
        channel.force(true);
        channel.close();
        Files.move(open, complete, StandardCopyOption.ATOMIC_MOVE);
    }

    /**
     * Give up a file that cannot be written any more: cut it behind its last whole block and rename it, without a footer. If
     * even that fails it stays open, and {@link #recover} tries again at the broker's next start.
     */
    void abandon() {
        try (channel) {
            channel.truncate(writtenBytes);
            if (writtenBytes == 0) {
                Files.delete(open);
            } else {
                Files.move(open, complete, StandardCopyOption.ATOMIC_MOVE);
            }
        } catch (IOException left) {
            // the caller reports the failure that led here
        }
    }

    /**
     * Complete the file that a killed broker left: cut it behind its last whole block and rename it. It has no footer, which
     * tells readers that lines may be missing at its end. A file without a whole block is deleted.
     *
     * @return the path of the file that is readable now, or null
     */
    static Path recover(Path open) throws IOException {
        String name = open.getFileName().toString();
        Path complete = open.resolveSibling(name.substring(0, name.length() - Segment.OPEN.length()));
        int whole = Compression.ofFile(complete.getFileName().toString()).wholeBlocks(Files.readAllBytes(open));
        if (whole == 0) {
            Files.delete(open);
            return null;
        }
        try (FileChannel channel = FileChannel.open(open, StandardOpenOption.WRITE)) {
            channel.truncate(whole);
            channel.force(true);
        }
        Files.move(open, complete, StandardCopyOption.ATOMIC_MOVE);
        return complete;
    }
}
