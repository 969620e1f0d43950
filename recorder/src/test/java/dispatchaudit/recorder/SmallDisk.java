package dispatchaudit.recorder;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.channels.ReadableByteChannel;
import java.nio.channels.WritableByteChannel;
import java.nio.file.Path;

/** A disk with a limited number of free bytes. Like a real one, it writes the part that fits and refuses the rest. */
final class SmallDisk implements Segment.Disk {
    /** The number of free bytes. */
    long freeBytes;

    SmallDisk(long freeBytes) {
        this.freeBytes = freeBytes;
    }

    @Override
    public FileChannel create(Path file) throws IOException {
        return new Channel(Segment.DISK.create(file));
    }

    private final class Channel extends FileChannel {
        private final FileChannel under;

        Channel(FileChannel under) {
            this.under = under;
        }

        @Override
        public int write(ByteBuffer bytes) throws IOException {
            if (freeBytes == 0) {
                throw new IOException("No space left on device");
            }
            int length = (int) Math.min(freeBytes, bytes.remaining());
            under.write(bytes.slice(bytes.position(), length));
            bytes.position(bytes.position() + length);
            freeBytes -= length;
            return length;
        }

        @Override
        public FileChannel truncate(long size) throws IOException {
            freeBytes += under.size() - size;
            under.truncate(size);
            return this;
        }

        @Override
        public void force(boolean metaData) throws IOException {
            under.force(metaData);
        }

        @Override
        protected void implCloseChannel() throws IOException {
            under.close();
        }

        @Override
        public long size() throws IOException {
            return under.size();
        }

        @Override
        public int read(ByteBuffer bytes) {
            throw new UnsupportedOperationException();
        }

        @Override
        public long read(ByteBuffer[] bytes, int offset, int length) {
            throw new UnsupportedOperationException();
        }

        @Override
        public int read(ByteBuffer bytes, long position) {
            throw new UnsupportedOperationException();
        }

        @Override
        public long write(ByteBuffer[] bytes, int offset, int length) {
            throw new UnsupportedOperationException();
        }

        @Override
        public int write(ByteBuffer bytes, long position) {
            throw new UnsupportedOperationException();
        }

        @Override
        public long position() {
            throw new UnsupportedOperationException();
        }

        @Override
        public FileChannel position(long position) {
            throw new UnsupportedOperationException();
        }

        @Override
        public long transferTo(long position, long count, WritableByteChannel target) {
            throw new UnsupportedOperationException();
        }

        @Override
        public long transferFrom(ReadableByteChannel source, long position, long count) {
            throw new UnsupportedOperationException();
        }

        @Override
        public MappedByteBuffer map(MapMode mode, long position, long size) {
            throw new UnsupportedOperationException();
        }

        @Override
        public FileLock lock(long position, long size, boolean shared) {
            throw new UnsupportedOperationException();
        }

        @Override
        public FileLock tryLock(long position, long size, boolean shared) {
            throw new UnsupportedOperationException();
        }
    }
}
