package org.pyrocketstore.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * Puts what a JSON-lines file lists (see {@link MessageSpec}; a line {"sleep_ms": n} waits) and
 * answers each line with one: the result, and with "records" also the bytes that are in the log.
 */
final class PutCommand {
    private PutCommand() {
    }

    static int run(String root, Options options) throws Exception {
        DefaultMessageStore store = Stores.open(root, options);
        if (store == null) {
            return Driver.EXIT_LOAD_FAILED;
        }
        try (BufferedReader lines = Files.newBufferedReader(Paths.get(options.required("from")));
            PrintStream out = options.output()) {
            String line;
            while ((line = lines.readLine()) != null) {
                JSONObject spec = JSON.parseObject(line);
                if (spec.containsKey("sleep_ms")) {
                    Thread.sleep(spec.getLongValue("sleep_ms"));
                    continue;
                }
                out.println(answer(store, put(store, spec), options.has("records")));
            }
        }
        Stores.awaitDispatch(store);
        if (options.text("ending", "clean").equals("halt")) {
            Runtime.getRuntime().halt(Driver.EXIT_HALTED);
        }
        store.shutdown();
        return 0;
    }

    static PutMessageResult put(DefaultMessageStore store, JSONObject spec)
        throws Exception {
        return MessageSpec.isBatch(spec)
            ? store.putMessages(MessageSpec.batch(spec))
            : store.putMessage(MessageSpec.single(spec));
    }

    static JsonLine answer(DefaultMessageStore store, PutMessageResult put,
        boolean withRecords) {
        JsonLine line = new JsonLine().put("status", put.getPutMessageStatus().name());
        AppendMessageResult append = put.getAppendMessageResult();
        if (append == null || !append.isOk()) {
            return line.put("append_status", append == null ? null : append.getStatus().name());
        }
        line.put("wrote_offset", append.getWroteOffset())
            .put("wrote_bytes", append.getWroteBytes())
            .put("logics_offset", append.getLogicsOffset())
            .put("msg_num", append.getMsgNum())
            .put("msg_id", append.getMsgId())
            .put("store_timestamp", append.getStoreTimestamp());
        return withRecords ? line.put("records", records(store, append)) : line;
    }

    private static String records(DefaultMessageStore store, AppendMessageResult append) {
        SelectMappedBufferResult bytes = store.getCommitLog()
            .getMessage(append.getWroteOffset(), append.getWroteBytes());
        try {
            ByteBuffer buffer = bytes.getByteBuffer();
            StringBuilder hex = new StringBuilder(2 * buffer.remaining());
            while (buffer.hasRemaining()) {
                int value = buffer.get();
                hex.append(Character.forDigit(value >> 4 & 15, 16));
                hex.append(Character.forDigit(value & 15, 16));
            }
            return hex.toString();
        } finally {
            bytes.release();
        }
    }
}
