package org.pyrocketstore.driver;

import java.io.File;
import java.net.InetSocketAddress;
import java.util.Random;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;

/** Puts to each of count= queues of one store, and times the flush that follows. */
final class FlushWorkload extends Workload {
    private final byte[] body;
    private final InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
    private DefaultMessageStore store;

    FlushWorkload(String path, Options options) {
        super(path, options);
        body = new byte[bodySize];
        new Random(1).nextBytes(body);
    }

    @Override
    void prepare() throws Exception {
        removeTree(new File(path));
        store = Stores.open(path, options);
        putToEach();
        flush();
    }

    @Override
    Result unit() throws Exception {
        long before = total();
        putToEach();
        long cpuStart = cpuNanos();
        long start = System.nanoTime();
        flush();
        long end = System.nanoTime();
        Result result = new Result(count, 0, start, end, total() - before);
        result.cpuSeconds = (cpuNanos() - cpuStart) / 1e9;
        return result;
    }

    private void putToEach() throws Exception {
        for (int queueId = 0; queueId < count; queueId++) {
            Messages.put(store, Messages.single(TOPIC, queueId, body, host));
        }
        Stores.awaitDispatch(store);
    }

    private void flush() {
        store.flush();
        for (ConcurrentMap<Integer, ConsumeQueue> queues : store.getConsumeQueueTable().values()) {
            for (ConsumeQueue queue : queues.values()) {
                while (!queue.flush(0)) {
                    continue;
                }
            }
        }
        store.getStoreCheckpoint().flush();
    }

    private long total() {
        long total = 0;
        for (int queueId = 0; queueId < count; queueId++) {
            total += store.getMaxOffsetInQueue(TOPIC, queueId);
        }
        return total;
    }
}
