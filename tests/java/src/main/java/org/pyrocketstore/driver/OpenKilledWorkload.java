package org.pyrocketstore.driver;

import java.io.File;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;

/**
 * Loads a store that was flushed and then killed: closed, with the file abort made again. With
 * "clean" that file is not made. With "keyless" its messages have neither a key nor a tag.
 */
final class OpenKilledWorkload extends LoadWorkload {
    OpenKilledWorkload(String path, Options options) {
        super(path, options);
    }

    @Override
    void prepare() throws Exception {
        SocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
        byte[] body = new byte[bodySize];
        DefaultMessageStore store = Stores.open(path, options);
        for (int at = 0; at < count; at++) {
            MessageExtBrokerInner message = Messages.single(TOPIC, at % QUEUES, body, host);
            if (!options.has("keyless")) {
                message.setTags("TagA");
                message.setKeys("k" + at);
            }
            Messages.put(store, message);
        }
        Stores.awaitDispatch(store);
        store.shutdown();
    }

    @Override
    Result unit() throws Exception {
        if (!options.has("clean")) {
            new File(path, "abort").createNewFile();
        }
        return timedLoad(QUEUES, -1);
    }
}
