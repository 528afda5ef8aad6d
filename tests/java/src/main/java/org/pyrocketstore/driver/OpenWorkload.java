package org.pyrocketstore.driver;

import java.io.File;
import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MappedFile;
import org.apache.rocketmq.store.MappedFileQueue;

/** Loads a store of count= queues with one message each, which was stopped cleanly. */
final class OpenWorkload extends LoadWorkload {
    OpenWorkload(String path, Options options) {
        super(path, options);
    }

    @Override
    void prepare() throws Exception {
        removeTree(new File(path));
        DefaultMessageStore store = Stores.open(path, options);
        InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
        for (int queueId = 0; queueId < count; queueId++) {
            Messages.put(store, Messages.single(TOPIC, queueId, new byte[bodySize], host));
        }
        Stores.awaitDispatch(store);
        store.shutdown();
        closeQueues(store);
    }

    @Override
    Result unit() throws Exception {
        return timedLoad(count, count);
    }

    @Override
    void release(DefaultMessageStore store) throws Exception {
        closeQueues(store);
    }

    /** Releases mappings and descriptors, which shutdown keeps: a process has a limited number. */
    private static void closeQueues(DefaultMessageStore store) throws Exception {
        Field files = ConsumeQueue.class.getDeclaredField("mappedFileQueue");
        files.setAccessible(true);
        for (Map<Integer, ConsumeQueue> queues : store.getConsumeQueueTable().values()) {
            for (ConsumeQueue queue : queues.values()) {
                MappedFileQueue sequence = (MappedFileQueue) files.get(queue);
                sequence.shutdown(0);
                for (MappedFile file : sequence.getMappedFiles()) {
                    file.getFileChannel().close();
                }
            }
        }
    }
}
