package org.pyrocketstore.driver;

import java.io.File;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;

/**
 * Puts the half, the commit and the op message of count= transactions into a new store, and reads
 * the half message in between, as a broker does; the parts of a broker around its store are not
 * there. The time ends when the last message can be read by its queue.
 */
final class TransactWorkload extends Workload {
    private final byte[] body;
    private final InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);

    TransactWorkload(String path, Options options) {
        super(path, options);
        body = new byte[bodySize];
        new Random(1).nextBytes(body);
    }

    @Override
    Result unit() throws Exception {
        removeTree(new File(path));
        DefaultMessageStore store = Stores.open(path, options);
        long cpuStart = cpuNanos();
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            transaction(store, i);
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        long end = System.nanoTime();
        double cpuSeconds = (cpuNanos() - cpuStart) / 1e9;
        long found = 0;
        for (int queueId = 0; queueId < QUEUES; queueId++) {
            found += store.getMaxOffsetInQueue(TOPIC, queueId);
        }
        store.shutdown();
        store.destroy();
        removeTree(new File(path));
        Result result = new Result(count, (long) count * bodySize, start, end, found);
        result.cpuSeconds = cpuSeconds;
        return result;
    }

    private void transaction(DefaultMessageStore store, int number) {
        MessageExtBrokerInner half =
            Messages.single(TopicValidator.RMQ_SYS_TRANS_HALF_TOPIC, 0, body, host);
        half.setTags("TagA");
        half.setKeys("k" + number);
        MessageAccessor.putProperty(half, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX,
            MessageClientIDSetter.createUniqID());
        MessageAccessor.putProperty(half, MessageConst.PROPERTY_TRANSACTION_PREPARED, "true");
        MessageAccessor.putProperty(half, MessageConst.PROPERTY_PRODUCER_GROUP, "group");
        MessageAccessor.putProperty(half, MessageConst.PROPERTY_REAL_TOPIC, TOPIC);
        MessageAccessor.putProperty(half, MessageConst.PROPERTY_REAL_QUEUE_ID,
            String.valueOf(number % QUEUES));
        half.setWaitStoreMsgOK(true);
        PutMessageResult prepared = store.putMessage(Messages.encoded(half));
        long phyOffset = prepared.getAppendMessageResult().getWroteOffset();
        MessageExt found = store.lookMessageByOffset(phyOffset);
        MessageExtBrokerInner commit =
            Messages.single(TOPIC, number % QUEUES, found.getBody(), host);
        MessageAccessor.setProperties(commit, found.getProperties());
        MessageAccessor.clearProperty(commit, MessageConst.PROPERTY_REAL_TOPIC);
        MessageAccessor.clearProperty(commit, MessageConst.PROPERTY_REAL_QUEUE_ID);
        commit.setSysFlag(MessageSysFlag.resetTransactionValue(
            found.getSysFlag(), MessageSysFlag.TRANSACTION_COMMIT_TYPE));
        commit.setPreparedTransactionOffset(phyOffset);
        Messages.put(store, commit);
        byte[] offset = String.valueOf(prepared.getAppendMessageResult().getLogicsOffset())
            .getBytes(StandardCharsets.UTF_8);
        MessageExtBrokerInner op =
            Messages.single(TopicValidator.RMQ_SYS_TRANS_OP_HALF_TOPIC, 0, offset, host);
        op.setTags("d");
        Messages.put(store, op);
    }
}
