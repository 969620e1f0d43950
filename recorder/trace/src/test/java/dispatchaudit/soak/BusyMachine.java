package dispatchaudit.soak;

import java.util.ArrayList;
import java.util.List;

/** Threads that use the processors for a while, as other work on the machine does. */
final class BusyMachine {
    private volatile boolean over;
    private final List<Thread> threads = new ArrayList<>();
    private volatile long result;

    void begin() {
        for (int i = 0; i < Runtime.getRuntime().availableProcessors(); i++) {
            Thread thread = new Thread(this::work, "busy-machine");
            thread.setDaemon(true);
            thread.start();
            threads.add(thread);
        }
    }

    private void work() {
        long sum = 0;
        while (!over) {
            for (int i = 0; i < 1_000_000; i++) {
                sum += i * sum + 1;
            }
        }
        result = sum;
    }

    void end() throws InterruptedException {
        over = true;
        for (Thread thread : threads) {
            thread.join();
        }
    }
}
