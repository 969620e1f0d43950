package dispatchaudit.recorder;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.util.zip.DataFormatException;
import java.util.zip.GZIPOutputStream;
import java.util.zip.Inflater;

/**
 * Encodes blocks of lines as bytes of a segment. Each block is a whole gzip member (or a line), so a segment can be
 * decompressed up to the end of any block. There is no zstd: a broker of 4.2 has no zstd-jni on its class path.
 */
public enum Compression {
    NONE(".jsonl") {
        @Override
        byte[] block(byte[] lines, int length) {
            return java.util.Arrays.copyOf(lines, length);
        }

        @Override
        int nextBlock(byte[] segment, int from) {
            for (int at = from; at < segment.length; at++) {
                if (segment[at] == '\n') {
                    return at + 1;
                }
            }
            return -1;
        }
    },
    GZ(".jsonl.gz") {
        @Override
        byte[] block(byte[] lines, int length) throws IOException {
            ByteArrayOutputStream out = new ByteArrayOutputStream(length / 4 + 64);
            try (GZIPOutputStream gzip = new Gzip(out)) {
                gzip.write(lines, 0, length);
            }
            return out.toByteArray();
        }

        @Override
        int nextBlock(byte[] segment, int from) {
            final int header = 10;
            final int trailer = 8;
            if (segment.length - from < header + trailer || segment[from] != 0x1f || segment[from + 1] != (byte) 0x8b) {
                return -1;
            }
            Inflater inflater = new Inflater(true);
            try {
                inflater.setInput(segment, from + header, segment.length - from - header);
                byte[] sink = new byte[65536];
                while (!inflater.finished()) {
                    if (inflater.inflate(sink) == 0 && !inflater.finished()) {
                        return -1;
                    }
                }
                long end = from + header + inflater.getBytesRead() + trailer;
                return end <= segment.length ? (int) end : -1;
            } catch (DataFormatException damaged) {
                return -1;
            } finally {
                inflater.end();
            }
        }
    };

    /** Level 3 takes half the processor time of the default and an eighth more bytes; lower levels save little. */
    private static final class Gzip extends GZIPOutputStream {
        private static final int LEVEL = 3;

        Gzip(OutputStream out) throws IOException {
            super(out, 1 << 16);
            def.setLevel(LEVEL);
        }
    }

    /** The ending of a segment's name. */
    final String ending;

    Compression(String ending) {
        this.ending = ending;
    }

    /** The first {@code length} bytes of {@code lines} as a block of their own. */
    abstract byte[] block(byte[] lines, int length) throws IOException;

    /** The end of the block that begins at {@code from}, or -1 if it is not whole. */
    abstract int nextBlock(byte[] segment, int from);

    /** The number of bytes at a segment's start that are whole blocks. */
    int wholeBlocks(byte[] segment) {
        int end = 0;
        while (end < segment.length) {
            int next = nextBlock(segment, end);
            if (next < 0) {
                break;
            }
            end = next;
        }
        return end;
    }

    static Compression ofFile(String name) {
        for (Compression compression : values()) {
            if (name.endsWith(compression.ending)) {
                return compression;
            }
        }
        throw new IllegalArgumentException(name + ": no segment's name");
    }
}
