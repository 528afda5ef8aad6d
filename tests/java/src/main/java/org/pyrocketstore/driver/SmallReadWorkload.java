package org.pyrocketstore.driver;

import java.nio.ByteBuffer;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Reads at offsets and times that follow a stride, the same on both sides. call=pull: one message;
 * call=decode: 32 messages, decoded; call=time: the queue offset of a time.
 */
final class SmallReadWorkload extends Workload {
    private static final long STRIDE = 7919;
    private static final int PULL = 32;

    private final String call;
    private final int stored;
    private DefaultMessageStore store;
    private long[][] times;
    private long at;

    SmallReadWorkload(String path, Options options) {
        super(path, options);
        call = options.required("call");
        stored = options.number("stored", count);
    }

    @Override
    void prepare() throws Exception {
        store = Stores.openLoaded(path, options);
        if (call.equals("time")) {
            times = new long[QUEUES][stored / QUEUES];
            for (int queueId = 0; queueId < QUEUES; queueId++) {
                for (int i = 0; i < times[queueId].length; i++) {
                    times[queueId][i] = store.getMessageStoreTimeStamp(TOPIC, queueId, i);
                }
            }
        }
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
            at = (at + STRIDE) % (stored - PULL * QUEUES);
            int queueId = (int) (at % QUEUES);
            long offset = at / QUEUES;
            switch (call) {
                case "pull":
                    answer += messages(queueId, offset, 1);
                    break;
                case "decode":
                    answer += messages(queueId, offset, PULL) == PULL ? 1 : 0;
                    break;
                default:
                    long time = times[queueId][(int) offset];
                    answer += store.getOffsetInQueueByTime(TOPIC, queueId, time) >= 0 ? 1 : 0;
            }
        }
        return new Result(count, 0, start, System.nanoTime(), answer);
    }

    private int messages(int queueId, long offset, int most) {
        GetMessageResult result = store.getMessage("g", TOPIC, queueId, offset, most, null);
        int found = 0;
        for (SelectMappedBufferResult record : result.getMessageMapedList()) {
            ByteBuffer bytes = record.getByteBuffer();
            if (most == 1 || MessageDecoder.decode(bytes.slice(), true, false, false) != null) {
                found++;
            }
        }
        result.release();
        return found;
    }
}
