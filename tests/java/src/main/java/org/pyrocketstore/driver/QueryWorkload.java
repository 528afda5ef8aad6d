package org.pyrocketstore.driver;

import java.nio.ByteBuffer;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;

/**
 * Looks up queries= keys of the stored= messages of a store, and with "decode" decodes the hits.
 * The keys follow a fixed stride, the same on both sides.
 */
final class QueryWorkload extends Workload {
    private static final long STRIDE = 7919;

    private final boolean decode;
    private final int stored;
    private DefaultMessageStore store;
    private long at;

    QueryWorkload(String path, Options options) {
        super(path, options);
        decode = options.has("decode");
        stored = options.number("stored", count);
    }

    @Override
    void prepare() throws Exception {
        store = Stores.openLoaded(path, options);
    }

    @Override
    boolean isTimedWhole() {
        return true;
    }

    @Override
    Result unit() {
        long hits = 0;
        long bytes = 0;
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            at = (at + STRIDE) % stored;
            QueryMessageResult result =
                store.queryMessage(TOPIC, "k" + at, 32, 0, Long.MAX_VALUE);
            for (ByteBuffer record : result.getMessageBufferList()) {
                hits++;
                bytes += decode
                    ? MessageDecoder.decode(record.slice(), true, false, false).getStoreSize()
                    : record.remaining();
            }
            result.release();
        }
        return new Result(count, bytes, start, System.nanoTime(), hits);
    }
}
