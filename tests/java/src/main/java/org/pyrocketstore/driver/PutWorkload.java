package org.pyrocketstore.driver;

import java.io.File;
import java.net.InetSocketAddress;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Puts into a new store: what=put singles, what=latency singles each of which is timed, what=batch
 * batches of batch= messages, what=aput singles by asyncPutMessage, each awaited, by threads= threads
 * into queues= queues; with pace= that many puts a second. The time ends when the last message is
 * found by its queue and by its key. With "keep" the store stays where it is (to make
 * the input of the reading workloads). With "open" there is one store for all units of work, whose
 * queues are made before the first. Single messages have properties by named= (client, or how many)
 * and UNIQ_KEY with "unique".
 */
final class PutWorkload extends Workload {
    /** Of the first key: all have as many digits, so that all records have one size. */
    private static final long KEY_BASE = 100_000_000;
    /** With an IPv4 address. */
    private static final int UNIQUE_ID_SIZE = 32;

    private final boolean batched;
    private final boolean async;
    private final double nanosApart;
    private final int batchCount;
    private final int threads;
    private final int queues;
    private final long[] nanos;
    private final byte[] body;
    private final boolean unique;
    private final boolean client;
    private final String[] names;
    private final String[] values;
    private final InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
    private final AtomicLong keyBase = new AtomicLong(KEY_BASE);
    private DefaultMessageStore shared;

    PutWorkload(String path, Options options) {
        super(path, options);
        batched = options.required("what").equals("batch");
        async = options.required("what").equals("aput");
        int pace = options.number("pace", 0);
        nanosApart = pace > 0 ? 1e9 / pace : 0;
        batchCount = options.number("batch", 32);
        threads = options.number("threads", 1);
        queues = options.number("queues", QUEUES);
        nanos = new long[options.required("what").equals("latency") ? count : 0];
        unique = options.has("unique");
        client = options.text("named", "").equals("client");
        names = new String[client ? 0 : options.number("named", 0)];
        values = new String[names.length];
        for (int i = 0; i < names.length; i++) {
            names[i] = String.format("property%02d", i);
            values[i] = String.format("value%08d", i);
        }
        body = new byte[bodySize];
        new Random(1).nextBytes(body);
    }

    @Override
    void prepare() throws Exception {
        if (options.has("open")) {
            removeTree(new File(path));
            shared = Stores.open(path, options);
            for (int queueId = 0; queueId < queues; queueId++) {
                shared.putMessage(single("first" + queueId, queueId));
            }
            Stores.awaitDispatch(shared);
        }
    }

    @Override
    Result unit() throws Exception {
        DefaultMessageStore store = shared == null ? fresh() : shared;
        long before = total(store);
        long base = options.has("keep") ? 0 : keyBase.getAndAdd(count);
        AtomicInteger next = new AtomicInteger();
        AtomicInteger failed = new AtomicInteger();
        long cpuStart = cpuNanos();
        long start = System.nanoTime();
        List<Thread> workers = new ArrayList<>();
        for (int i = 0; i < threads; i++) {
            Thread worker = new Thread(() -> putAll(store, base, next, failed));
            worker.start();
            workers.add(worker);
        }
        for (Thread worker : workers) {
            worker.join();
        }
        awaitFound(store, base);
        long end = System.nanoTime();
        long cpuEnd = cpuNanos();
        if (failed.get() > 0) {
            throw new IllegalStateException(failed + " puts failed");
        }
        long total = total(store) - before;
        long logBytes = -1;
        if (shared == null) {
            logBytes = recordBytes(store);
            store.shutdown();
            if (!options.has("keep")) {
                store.destroy();
                removeTree(new File(path));
            }
        }
        Result result = new Result(count, (long) count * bodySize, start, end, total);
        result.cpuSeconds = (cpuEnd - cpuStart) / 1e9;
        result.logBytes = logBytes;
        addLatencies(result);
        return result;
    }

    private DefaultMessageStore fresh() throws Exception {
        removeTree(new File(path));
        return Stores.open(path, options);
    }

    private long total(DefaultMessageStore store) {
        long total = 0;
        for (int queueId = 0; queueId < queues; queueId++) {
            total += store.getMaxOffsetInQueue(TOPIC, queueId);
        }
        return total;
    }

    /** Bytes of the records that the queues name. */
    private long recordBytes(DefaultMessageStore store) {
        long bytes = 0;
        for (int queueId = 0; queueId < queues; queueId++) {
            ConsumeQueue queue = store.findConsumeQueue(TOPIC, queueId);
            long at = 0;
            SelectMappedBufferResult units;
            while (at < queue.getMaxOffsetInQueue() && (units = queue.getIndexBuffer(at)) != null) {
                for (int i = 0; i < units.getSize(); i += ConsumeQueue.CQ_STORE_UNIT_SIZE) {
                    bytes += units.getByteBuffer().getInt(i + Long.BYTES);
                    at++;
                }
                units.release();
            }
        }
        return bytes;
    }

    private void addLatencies(Result result) {
        if (nanos.length > 0) {
            long[] sorted = nanos.clone();
            Arrays.sort(sorted);
            addPercentiles(result, sorted, 1e3);
        }
    }

    private void putAll(DefaultMessageStore store, long base, AtomicInteger next,
        AtomicInteger failed) {
        int step = batched ? batchCount : 1;
        long began = System.nanoTime();
        int at;
        while ((at = next.getAndAdd(step)) < count) {
            while (nanosApart > 0 && System.nanoTime() - began < at * nanosApart) {
                LockSupport.parkNanos(1_000_000);
            }
            boolean ok = batched
                ? store.putMessages(batch(base, at)).isOk()
                : putOne(store, base, at);
            if (!ok) {
                failed.incrementAndGet();
            }
        }
    }

    private boolean putOne(DefaultMessageStore store, long base, int at) {
        if (async) {
            return store.asyncPutMessage(single(base, at)).join().isOk();
        }
        if (nanos.length == 0) {
            return store.putMessage(single(base, at)).isOk();
        }
        String key = "k" + (base + at);
        long start = System.nanoTime();
        boolean ok = store.putMessage(single(key, at)).isOk();
        nanos[at] = System.nanoTime() - start;
        return ok;
    }

    private MessageExtBrokerInner single(long base, int at) {
        return single("k" + (base + at), at);
    }

    private MessageExtBrokerInner single(String key, int at) {
        MessageExtBrokerInner message = Messages.single(TOPIC, at % queues, body, host);
        message.setTags("TagA");
        message.setKeys(key);
        addProperties(message, key);
        return Messages.encoded(message);
    }

    private void addProperties(Message message, String key) {
        if (unique) {
            // Without the start of an IPv6 address: records then have one size on every machine.
            String id = MessageClientIDSetter.createUniqID();
            id = id.substring(Math.max(0, id.length() - UNIQUE_ID_SIZE));
            MessageAccessor.putProperty(message,
                MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, id);
        }
        if (client) {
            message.setWaitStoreMsgOK(true);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_CLUSTER, "DefaultCluster");
            message.putUserProperty("orderId", key);
            message.putUserProperty("source", "checkout");
        }
        for (int i = 0; i < names.length; i++) {
            message.putUserProperty(names[i], values[i]);
        }
    }

    private MessageExtBatch batch(long base, int at) {
        int size = Math.min(batchCount, count - at);
        List<Message> items = new ArrayList<>(size);
        for (int i = 0; i < size; i++) {
            // Its other constructor adds the property WAIT, which single puts do not have.
            Message item = new Message();
            item.setTopic(TOPIC);
            item.setBody(body);
            item.setTags("TagA");
            item.setKeys("k" + (base + at + i));
            items.add(item);
        }
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic(TOPIC);
        batch.setQueueId(at / batchCount % queues);
        batch.setBornTimestamp(System.currentTimeMillis());
        batch.setBornHost(host);
        batch.setStoreHost(host);
        batch.setBody(MessageDecoder.encodeMessages(items));
        return batch;
    }

    private void awaitFound(DefaultMessageStore store, long base) throws Exception {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        String lastKey = "k" + (base + count - 1);
        while (store.queryMessage(TOPIC, lastKey, 1, 0, Long.MAX_VALUE)
            .getMessageBufferList().isEmpty()) {
            Thread.sleep(1);
        }
    }
}
