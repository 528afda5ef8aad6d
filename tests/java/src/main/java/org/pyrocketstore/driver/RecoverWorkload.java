package org.pyrocketstore.driver;

import java.io.File;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;

/**
 * Loads a store after what looks like a crash, from the first commit log file on. what=rebuild
 * takes queues and index away first, what=recover the index alone.
 */
final class RecoverWorkload extends LoadWorkload {
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
        return timedLoad(QUEUES, -1);
    }

    @Override
    void check(DefaultMessageStore store, long messages) throws Exception {
        for (long number : new long[] {0, messages - 1}) {
            QueryMessageResult hits =
                store.queryMessage(TOPIC, "k" + number, 1, 0, Long.MAX_VALUE);
            if (hits.getMessageBufferList().size() != 1) {
                throw new IllegalStateException("k" + number + " is not found after the load");
            }
            hits.release();
        }
    }
}
