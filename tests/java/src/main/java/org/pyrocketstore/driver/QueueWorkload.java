package org.pyrocketstore.driver;

import java.io.File;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;

/** Appends units to a new consume queue by single calls. */
final class QueueWorkload extends Workload {
    private static final int RECORD_SIZE = 1100;
    private static final long TAGS_CODE = 12345;
    private static final long STORE_TIMESTAMP = 1_700_000_000_000L;

    private DefaultMessageStore store;

    QueueWorkload(String path, Options options) {
        super(path, options);
    }

    @Override
    void prepare() throws Exception {
        removeTree(new File(path));
        store = Stores.openLoaded(path, options);
    }

    @Override
    Result unit() {
        ConsumeQueue queue = new ConsumeQueue(TOPIC, 0, path + "/queues",
            store.getMessageStoreConfig().getMappedFileSizeConsumeQueue(), store);
        long cpuStart = cpuNanos();
        long start = System.nanoTime();
        for (long i = 0; i < count; i++) {
            queue.putMessagePositionInfoWrapper(new DispatchRequest(TOPIC, 0, i * RECORD_SIZE,
                RECORD_SIZE, TAGS_CODE, STORE_TIMESTAMP, i, null, null, 0, 0, null), false);
        }
        long end = System.nanoTime();
        long cpuEnd = cpuNanos();
        long units = queue.getMaxOffsetInQueue();
        queue.destroy();
        Result result =
            new Result(count, units * ConsumeQueue.CQ_STORE_UNIT_SIZE, start, end, units);
        result.cpuSeconds = (cpuEnd - cpuStart) / 1e9;
        return result;
    }
}
