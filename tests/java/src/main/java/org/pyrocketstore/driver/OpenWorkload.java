package org.pyrocketstore.driver;

import java.io.File;
import java.net.InetSocketAddress;
import org.apache.rocketmq.store.DefaultMessageStore;

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
        Stores.release(store);
    }

    @Override
    Result unit() throws Exception {
        return timedLoad(count, count);
    }
}
