package org.pyrocketstore.driver;

import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Prints everything that the store answers, in the form that tests/golden/README.md describes.
 * load() recovers the directory in place, so the caller gives a copy. With "started" the store
 * also runs; the process then ends after a clean shutdown.
 */
final class DumpCommand {
    private static final int PULL_COUNT = 32;
    private static final int UNIT_SIZE = ConsumeQueue.CQ_STORE_UNIT_SIZE;
    private static final int UNIT_TAGS_CODE_POSITION = 12;

    private final DefaultMessageStore store;
    private final PrintStream out;
    private final int unitsPerFile;

    private DumpCommand(DefaultMessageStore store, PrintStream out) {
        this.store = store;
        this.out = out;
        this.unitsPerFile =
            store.getMessageStoreConfig().getMappedFileSizeConsumeQueue() / UNIT_SIZE;
    }

    static int run(String root, Options options) throws Exception {
        boolean started = options.has("started");
        DefaultMessageStore store =
            started ? Stores.open(root, options) : Stores.openLoaded(root, options);
        if (store == null) {
            return Driver.EXIT_LOAD_FAILED;
        }
        try (PrintStream out = options.output()) {
            DumpCommand dump = new DumpCommand(store, out);
            dump.storeAndQueues();
            if (options.has("queries")) {
                for (String line : Files.readAllLines(Paths.get(options.required("queries")))) {
                    dump.query(line.split("\t", -1));
                }
            }
        }
        if (started) {
            store.shutdown();
        }
        return 0;
    }

    private void storeAndQueues() throws Exception {
        out.println(new JsonLine().put("store", new JsonLine()
            .put("min_phy_offset", store.getMinPhyOffset())
            .put("max_phy_offset", store.getMaxPhyOffset())));
        Map<String, ConcurrentMap<Integer, ConsumeQueue>> topics =
            new TreeMap<>(DumpCommand::compareCodePoints);
        topics.putAll(store.getConsumeQueueTable());
        for (ConcurrentMap<Integer, ConsumeQueue> queues : topics.values()) {
            for (ConsumeQueue queue : new TreeMap<>(queues).values()) {
                queue(queue);
            }
        }
    }

    private void queue(ConsumeQueue queue) throws Exception {
        String topic = queue.getTopic();
        int queueId = queue.getQueueId();
        long min = store.getMinOffsetInQueue(topic, queueId);
        long max = store.getMaxOffsetInQueue(topic, queueId);
        if (max == 0 && queue.getMaxPhysicOffset() == -1) {
            return;
        }
        out.println(new JsonLine().put("queue", new JsonLine()
            .put("topic", topic).put("queue_id", queueId)
            .put("min_offset", min).put("max_offset", max)
            .put("max_physic_offset", queue.getMaxPhysicOffset())));
        messages(queue, min, max);
        if (max > min && max <= unitsPerFile) {
            offsetsByTime(topic, queueId, max);
        }
    }

    private void messages(ConsumeQueue queue, long min, long max) throws Exception {
        long at = min;
        while (at < max) {
            GetMessageResult pull = store.getMessage("driver", queue.getTopic(),
                queue.getQueueId(), at, PULL_COUNT, null);
            long next = pull.getNextBeginOffset();
            if (pull.getStatus() != GetMessageStatus.FOUND) {
                out.println(new JsonLine().put("get_status", pull.getStatus().name())
                    .put("at", at).put("next", next));
                if (next <= at) {
                    return;
                }
            }
            for (SelectMappedBufferResult found : pull.getMessageMapedList()) {
                message(queue, at++, found);
            }
            pull.release();
            at = next;
        }
    }

    private void message(ConsumeQueue queue, long queueOffset, SelectMappedBufferResult found)
        throws Exception {
        MessageExt message =
            MessageDecoder.decode(found.getByteBuffer().slice(), true, false, false);
        if (message == null) {
            out.println(new JsonLine().put("undecodable", new JsonLine()
                .put("phy_offset", found.getStartOffset()).put("size", found.getSize())));
            return;
        }
        byte[] body = message.getBody();
        out.println(new JsonLine().put("message", new JsonLine()
            .put("cq_topic", queue.getTopic())
            .put("cq_queue_id", queue.getQueueId())
            .put("cq_offset", queueOffset)
            .put("topic", message.getTopic())
            .put("queue_id", message.getQueueId())
            .put("queue_offset", message.getQueueOffset())
            .put("phy_offset", found.getStartOffset())
            .put("size", found.getSize())
            .put("tags_code", tagsCode(queue, queueOffset))
            .put("decoded_commitlog_offset", message.getCommitLogOffset())
            .put("store_size", message.getStoreSize())
            .put("flag", message.getFlag())
            .put("sys_flag", message.getSysFlag())
            .put("body_crc", message.getBodyCRC())
            .put("born_timestamp", message.getBornTimestamp())
            .put("store_timestamp", message.getStoreTimestamp())
            .put("born_host", String.valueOf(message.getBornHost()))
            .put("store_host", String.valueOf(message.getStoreHost()))
            .put("reconsume_times", message.getReconsumeTimes())
            .put("prepared_transaction_offset", message.getPreparedTransactionOffset())
            .put("msg_id", message.getMsgId())
            .put("body_len", body == null ? 0 : body.length)
            .put("body_sha256_8", body == null ? "" : digest(body))
            .put("properties", message.getProperties())));
    }

    private static long tagsCode(ConsumeQueue queue, long queueOffset) {
        SelectMappedBufferResult unit = queue.getIndexBuffer(queueOffset);
        if (unit == null) {
            return 0;
        }
        try {
            return unit.getByteBuffer().getLong(UNIT_TAGS_CODE_POSITION);
        } finally {
            unit.release();
        }
    }

    private void offsetsByTime(String topic, int queueId, long max) {
        long first = store.getEarliestMessageTime(topic, queueId);
        long last = store.getMessageStoreTimeStamp(topic, queueId, max - 1);
        for (long time : new long[] {first - 1, first, (first + last) / 2, last, last + 1}) {
            out.println(new JsonLine().put("offset_by_time", new JsonLine()
                .put("topic", topic).put("queue_id", queueId).put("timestamp", time)
                .put("offset", store.getOffsetInQueueByTime(topic, queueId, time))));
        }
    }

    /** A line of the query file: topic, key, max_num, begin, end. */
    private void query(String[] parts) throws Exception {
        if (parts.length < 5) {
            return;
        }
        int maxNum = Integer.parseInt(parts[2]);
        long begin = Long.parseLong(parts[3]);
        long end = Long.parseLong(parts[4]);
        QueryMessageResult result = store.queryMessage(parts[0], parts[1], maxNum, begin, end);
        List<Long> phyOffsets = new ArrayList<>();
        for (SelectMappedBufferResult hit : Stores.hits(result)) {
            phyOffsets.add(hit.getStartOffset());
        }
        out.println(new JsonLine().put("query", new JsonLine()
            .put("topic", parts[0]).put("key", parts[1]).put("max_num", maxNum)
            .put("begin", begin).put("end", end).put("phy_offsets", phyOffsets)
            .put("index_last_update_phyoffset", result.getIndexLastUpdatePhyoffset())));
        result.release();
    }

    /** The first eight bytes of the SHA-256, as 16 hex digits. */
    private static String digest(byte[] body) throws Exception {
        byte[] hash = MessageDigest.getInstance("SHA-256").digest(body);
        StringBuilder hex = new StringBuilder();
        for (int i = 0; i < 8; i++) {
            hex.append(String.format("%02x", hash[i]));
        }
        return hex.toString();
    }

    private static int compareCodePoints(String left, String right) {
        int[] a = left.codePoints().toArray();
        int[] b = right.codePoints().toArray();
        return java.util.Arrays.compare(a, b);
    }
}
