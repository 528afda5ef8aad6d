package org.pyrocketstore.driver;

import java.nio.ByteBuffer;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;

/**
 * Looks up count= keys of the stored= messages of a store. Each hit is decoded and looked into; with
 * "places" only its queue and its offsets are read from its record. The keys follow a fixed stride,
 * the same on both sides.
 */
final class QueryWorkload extends Workload {
    private static final long STRIDE = 7919;
    /** Positions in a record. */
    private static final int QUEUE_ID_AT = 12;
    private static final int QUEUE_OFFSET_AT = 20;
    private static final int PHY_OFFSET_AT = 28;

    private final boolean places;
    private final int stored;
    private DefaultMessageStore store;
    private long at;

    QueryWorkload(String path, Options options) {
        super(path, options);
        places = options.has("places");
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
        long answer = 0;
        long bytes = 0;
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            at = (at + STRIDE) % stored;
            String key = "k" + at;
            QueryMessageResult result = store.queryMessage(TOPIC, key, 32, 0, Long.MAX_VALUE);
            for (ByteBuffer record : result.getMessageBufferList()) {
                if (places) {
                    answer += isPlaceOf(record, at) ? 1 : 0;
                    continue;
                }
                MessageExt message = MessageDecoder.decode(record.slice(), true, false, false);
                if (message.getKeys().equals(key)) {
                    bytes += message.getBody().length;
                    answer += 1 + message.getTags().length() + message.getProperty("TAGS").length();
                }
            }
            result.release();
        }
        return new Result(count, bytes, start, System.nanoTime(), answer);
    }

    private static boolean isPlaceOf(ByteBuffer record, long number) {
        return record.getInt(QUEUE_ID_AT) == number % QUEUES
            && record.getLong(QUEUE_OFFSET_AT) == number / QUEUES
            && record.getLong(PHY_OFFSET_AT) >= 0;
    }
}
