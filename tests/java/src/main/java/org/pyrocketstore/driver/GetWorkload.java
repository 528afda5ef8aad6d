package org.pyrocketstore.driver;

import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/** Reads all queues of a store, pull= messages a call; each is decoded and looked into. */
final class GetWorkload extends Workload {
    private final int pull;
    private DefaultMessageStore store;

    GetWorkload(String path, Options options) {
        super(path, options);
        pull = options.number("pull", 32);
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
        long messages = 0;
        long bytes = 0;
        long answer = 0;
        long start = System.nanoTime();
        for (int queueId = 0; queueId < QUEUES; queueId++) {
            long at = store.getMinOffsetInQueue(TOPIC, queueId);
            GetMessageResult result = store.getMessage("g", TOPIC, queueId, at, pull, null);
            while (result.getStatus() == GetMessageStatus.FOUND) {
                for (SelectMappedBufferResult record : result.getMessageMapedList()) {
                    MessageExt message = MessageDecoder.decode(
                        record.getByteBuffer().slice(), true, false, false);
                    messages++;
                    bytes += message.getBody().length;
                    answer += message.getTags().length() + message.getKeys().length()
                        + message.getProperty("TAGS").length();
                }
                at = result.getNextBeginOffset();
                result.release();
                result = store.getMessage("g", TOPIC, queueId, at, pull, null);
            }
            result.release();
        }
        return new Result(messages, bytes, start, System.nanoTime(), answer);
    }
}
