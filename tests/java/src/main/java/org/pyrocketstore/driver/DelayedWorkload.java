package org.pyrocketstore.driver;

import java.io.File;
import java.net.InetSocketAddress;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Delivers count= delayed messages of the only level, messageDelayLevel= in seconds. what=deliver:
 * they were put and became due while the store was closed; the time goes from the opening to the
 * last delivery. what=lateness: they are put at pace= a second; the latency is the time by which
 * the store time of a delivery is later than it should be, the ms begun counted.
 */
final class DelayedWorkload extends Workload {
    private final byte[] body;
    private final long delayMs;
    private final InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);

    DelayedWorkload(String path, Options options) {
        super(path, options);
        String level = options.required("messageDelayLevel");
        delayMs = Long.parseLong(level.substring(0, level.length() - 1)) * 1000;
        body = new byte[bodySize];
        new Random(1).nextBytes(body);
    }

    @Override
    Result unit() throws Exception {
        removeTree(new File(path));
        Result result = options.required("what").equals("deliver") ? deliver() : lateness();
        removeTree(new File(path));
        return result;
    }

    private Result deliver() throws Exception {
        DefaultMessageStore store = Stores.open(path, options);
        for (int at = 0; at < count; at++) {
            put(store, at);
        }
        final long last = System.currentTimeMillis();
        Stores.awaitDispatch(store);
        if (delivered(store) > 0) {
            throw new IllegalStateException("the puts took longer than the delay");
        }
        store.shutdown();
        Thread.sleep(Math.max(0, last + delayMs - System.currentTimeMillis()));
        long cpuStart = cpuNanos();
        long start = System.nanoTime();
        store = Stores.open(path, options);
        await(store);
        long end = System.nanoTime();
        Result result =
            new Result(count, (long) count * bodySize, start, end, delivered(store));
        result.cpuSeconds = (cpuNanos() - cpuStart) / 1e9;
        store.shutdown();
        return result;
    }

    private Result lateness() throws Exception {
        double nanosApart = 1e9 / options.number("pace", 1000);
        DefaultMessageStore store = Stores.open(path, options);
        long cpuStart = cpuNanos();
        long start = System.nanoTime();
        for (int at = 0; at < count; at++) {
            long early;
            while ((early = (long) (start + at * nanosApart) - System.nanoTime()) > 0) {
                LockSupport.parkNanos(early);
            }
            put(store, at);
        }
        await(store);
        long end = System.nanoTime();
        long[] late = late(store);
        Result result = new Result(count, 0, start, end, late.length);
        result.cpuSeconds = (cpuNanos() - cpuStart) / 1e9;
        store.shutdown();
        Arrays.sort(late);
        addPercentiles(result, late, 1e-3);
        return result;
    }

    private void put(DefaultMessageStore store, int at) {
        MessageExtBrokerInner message = Messages.single(TOPIC, at % QUEUES, body, host);
        message.setDelayTimeLevel(1);
        Messages.put(store, message);
    }

    private long delivered(DefaultMessageStore store) {
        long total = 0;
        for (int queueId = 0; queueId < QUEUES; queueId++) {
            total += store.getMaxOffsetInQueue(TOPIC, queueId);
        }
        return total;
    }

    private void await(DefaultMessageStore store) throws InterruptedException {
        while (delivered(store) < count) {
            Thread.sleep(1);
        }
    }

    /** How late each delivery is: ms, the one begun counted. */
    private long[] late(DefaultMessageStore store) {
        long[] late = new long[(int) delivered(store)];
        int found = 0;
        for (int queueId = 0; queueId < QUEUES; queueId++) {
            ConsumeQueue queue = store.findConsumeQueue(TOPIC, queueId);
            long at = 0;
            SelectMappedBufferResult units;
            while (at < queue.getMaxOffsetInQueue() && (units = queue.getIndexBuffer(at)) != null) {
                for (int i = 0; i < units.getSize(); i += ConsumeQueue.CQ_STORE_UNIT_SIZE) {
                    SelectMappedBufferResult record =
                        store.selectOneMessageByOffset(units.getByteBuffer().getLong(i));
                    long born = record.getByteBuffer().getLong(40);
                    long stored = record.getByteBuffer().getLong(56);
                    late[found++] = stored - born - delayMs + 1;
                    record.release();
                    at++;
                }
                units.release();
            }
        }
        return late;
    }
}
