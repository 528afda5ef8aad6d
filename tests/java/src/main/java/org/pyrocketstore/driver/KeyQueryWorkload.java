package org.pyrocketstore.driver;

import java.io.File;
import java.net.InetSocketAddress;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.QueryMessageResult;

/**
 * Queries a store of its own: what=absent absent keys, with files= index files of maxIndexNum=
 * entries; what=old_window the key of all messages=, in a window of time before them.
 */
final class KeyQueryWorkload extends Workload {
    private static final int SMOKE_MESSAGES = 5_000;

    private final boolean absent;
    private final int messages;
    private final InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
    private DefaultMessageStore store;
    private long before;
    private long at;

    KeyQueryWorkload(String path, Options options) {
        super(path, options);
        absent = options.required("what").equals("absent");
        if (absent) {
            messages = options.number("files", 1) * (options.number("maxIndexNum", 0) - 1);
        } else {
            messages = options.has("slots") ? SMOKE_MESSAGES : options.number("messages", 0);
        }
    }

    @Override
    void prepare() throws Exception {
        removeTree(new File(path));
        store = Stores.open(path, options);
        for (int i = 0; i < messages; i++) {
            MessageExtBrokerInner message = Messages.single(TOPIC, 0, new byte[20], host);
            message.setKeys(absent ? "k" + i : "k");
            Messages.put(store, message);
        }
        Stores.awaitDispatch(store);
        before = store.getEarliestMessageTime(TOPIC, 0) - 1000;
    }

    @Override
    boolean isTimedWhole() {
        return true;
    }

    @Override
    Result unit() {
        long answer = 0;
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            QueryMessageResult result = absent
                ? store.queryMessage(TOPIC, "absent" + at++, 32, 0, Long.MAX_VALUE)
                : store.queryMessage(TOPIC, "k", 32, 1, before);
            answer += result.getMessageBufferList().isEmpty() ? 1 : 0;
            result.release();
        }
        return new Result(count, 0, start, System.nanoTime(), answer);
    }
}
