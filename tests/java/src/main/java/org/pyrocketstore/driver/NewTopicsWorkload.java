package org.pyrocketstore.driver;

import java.io.File;
import java.net.InetSocketAddress;
import java.util.Random;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;

/**
 * Puts the first message of each of count= topics into a new store, what=put_new. The time ends
 * when all of them can be read by queue. A store stays on disk until its worker ends: a file
 * system reuses the numbers of files that were just deleted only after a long search.
 */
final class NewTopicsWorkload extends Workload {
    private final byte[] body;
    private final InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
    private int units;

    NewTopicsWorkload(String path, Options options) {
        super(path, options);
        body = new byte[bodySize];
        new Random(1).nextBytes(body);
    }

    @Override
    void prepare() throws Exception {
        removeTree(new File(path));
    }

    @Override
    Result unit() throws Exception {
        DefaultMessageStore store = Stores.open(path + "/" + units++, options);
        long cpuStart = cpuNanos();
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            if (!store.putMessage(message("topic-" + i)).isOk()) {
                throw new IllegalStateException("put " + i + " failed");
            }
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        long end = System.nanoTime();
        double cpuSeconds = (cpuNanos() - cpuStart) / 1e9;
        long found = 0;
        for (int i = 0; i < count; i++) {
            found += store.getMaxOffsetInQueue("topic-" + i, 0);
        }
        store.shutdown();
        Result result = new Result(count, (long) count * bodySize, start, end, found);
        result.cpuSeconds = cpuSeconds;
        return result;
    }

    private MessageExtBrokerInner message(String topic) {
        MessageExtBrokerInner message = Messages.single(topic, 0, body, host);
        message.setTags("TagA");
        return Messages.encoded(message);
    }
}
