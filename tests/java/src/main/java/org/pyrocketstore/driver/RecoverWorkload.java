package org.pyrocketstore.driver;

import java.io.File;
import org.apache.rocketmq.store.DefaultMessageStore;

/**
 * Loads a store after what looks like a crash, from the first commit log file on. what=rebuild
 * takes queues and index away first, what=recover the index alone.
 */
final class RecoverWorkload extends Workload {
    private final boolean withQueues;

    RecoverWorkload(String path, Options options) {
        super(path, options);
        withQueues = options.required("what").equals("recover");
    }

    @Override
    Result unit() throws Exception {
        File root = new File(path);
        if (!withQueues) {
            removeTree(new File(root, "consumequeue"));
        }
        removeTree(new File(root, "index"));
        new File(root, "checkpoint").delete();
        new File(root, "abort").createNewFile();
        DefaultMessageStore store = Stores.create(path, options);
        long start = System.nanoTime();
        boolean loaded = store.load();
        long end = System.nanoTime();
        if (!loaded) {
            throw new IllegalStateException("load() said no");
        }
        long total = 0;
        for (int queueId = 0; queueId < QUEUES; queueId++) {
            total += store.getMaxOffsetInQueue(TOPIC, queueId);
        }
        long bytes = store.getMaxPhyOffset() - store.getMinPhyOffset();
        store.getAllocateMappedFileService().shutdown();
        store.shutdown();
        return new Result(total, bytes, start, end, total);
    }
}
