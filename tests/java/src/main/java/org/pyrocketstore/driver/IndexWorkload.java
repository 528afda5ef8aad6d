package org.pyrocketstore.driver;

import java.io.File;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.store.index.IndexFile;

/** Puts count= keys into a new index file, or selects from one that holds stored= keys. */
final class IndexWorkload extends Workload {
    private static final int RECORD_SIZE = 1100;
    private static final long BASE_TIMESTAMP = 1_700_000_000_000L;
    private static final long STRIDE = 7919;
    private static final String FILE_NAME = "/20260101010101000";

    private final boolean selecting;
    private final int stored;
    private final int slots;
    private final int indexes;
    private IndexFile filled;
    private long at;

    IndexWorkload(String path, Options options) {
        super(path, options);
        selecting = options.required("what").equals("index_select");
        stored = options.number("stored", count);
        slots = options.number("slots", 5_000_000);
        indexes = options.number("indexes", 20_000_000);
    }

    @Override
    void prepare() throws Exception {
        removeTree(new File(path));
        if (!new File(path).mkdirs()) {
            throw new IllegalStateException("cannot make " + path);
        }
        if (selecting) {
            filled = create();
            for (int i = 0; i < stored; i++) {
                put(filled, "T#k" + i, i);
            }
        }
    }

    @Override
    Result unit() throws Exception {
        return selecting ? select() : fill();
    }

    private Result fill() throws Exception {
        String[] keys = new String[count];
        for (int i = 0; i < count; i++) {
            keys[i] = new String(("T#k" + i).toCharArray());
        }
        IndexFile index = create();
        long cpuStart = cpuNanos();
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            put(index, keys[i], i);
        }
        long end = System.nanoTime();
        long cpuEnd = cpuNanos();
        long last = index.getEndPhyOffset();
        index.destroy(0);
        Result result = new Result(count, 20L * count, start, end, last);
        result.cpuSeconds = (cpuEnd - cpuStart) / 1e9;
        return result;
    }

    private Result select() {
        String[] keys = new String[count];
        for (int i = 0; i < count; i++) {
            at = (at + STRIDE) % stored;
            keys[i] = new String(("T#k" + at).toCharArray());
        }
        List<Long> found = new ArrayList<>();
        long hits = 0;
        long cpuStart = cpuNanos();
        long start = System.nanoTime();
        for (String key : keys) {
            found.clear();
            filled.selectPhyOffset(found, key, 32, 0, Long.MAX_VALUE, false);
            hits += found.size();
        }
        Result result = new Result(count, 0, start, System.nanoTime(), hits);
        result.cpuSeconds = (cpuNanos() - cpuStart) / 1e9;
        return result;
    }

    private IndexFile create() throws Exception {
        return new IndexFile(path + FILE_NAME, slots, indexes, 0, 0);
    }

    private static void put(IndexFile index, String key, long number) {
        index.putKey(key, number * RECORD_SIZE, BASE_TIMESTAMP + number / 10);
    }
}
