package org.pyrocketstore.driver;

import org.apache.rocketmq.store.DefaultMessageStore;

/** Work whose timed part is load() of the store at `path`. */
abstract class LoadWorkload extends Workload {
    LoadWorkload(String path, Options options) {
        super(path, options);
    }

    /** Looks at the loaded store, which has so many messages in the counted queues. */
    void check(DefaultMessageStore store, long messages) throws Exception {
    }

    /**
     * Loads the store; the answer is the number of messages in the first queues of TOPIC.
     *
     * @param items what a rate counts; negative for these messages
     */
    Result timedLoad(int queues, long items) throws Exception {
        DefaultMessageStore store = Stores.create(path, options);
        long cpuStart = cpuNanos();
        long start = System.nanoTime();
        boolean loaded = store.load();
        long end = System.nanoTime();
        long cpuEnd = cpuNanos();
        if (!loaded) {
            throw new IllegalStateException("load() said no");
        }
        long messages = 0;
        for (int queueId = 0; queueId < queues; queueId++) {
            messages += store.getMaxOffsetInQueue(TOPIC, queueId);
        }
        long bytes = store.getMaxPhyOffset() - store.getMinPhyOffset();
        check(store, messages);
        store.getAllocateMappedFileService().shutdown();
        store.shutdown();
        store.getStoreCheckpoint().shutdown(); // which shutdown() of a store without threads keeps
        Stores.release(store);
        Result result = items < 0
            ? new Result(messages, bytes, start, end, messages)
            : new Result(items, 0, start, end, messages);
        result.cpuSeconds = (cpuEnd - cpuStart) / 1e9;
        return result;
    }
}
