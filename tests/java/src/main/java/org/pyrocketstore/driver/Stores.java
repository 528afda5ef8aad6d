package org.pyrocketstore.driver;

import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.RandomAccessFile;
import java.lang.reflect.Field;
import java.nio.channels.Selector;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MappedFile;
import org.apache.rocketmq.store.MappedFileQueue;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.ha.HAService;
import org.apache.rocketmq.store.index.IndexFile;
import org.apache.rocketmq.store.index.IndexService;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Makes stores, and reaches the private fields that the driver cannot do without. */
final class Stores {
    private static final int DISPATCH_WAIT_MS = 120_000;

    private Stores() {
    }

    static MessageStoreConfig config(String root, Options options) throws IOException {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        config.setHaListenPort(0);
        config.setDiskMaxUsedSpaceRatio(99);
        if (options.has("config")) {
            Properties file = new Properties();
            try (InputStream in = new FileInputStream(options.required("config"))) {
                file.load(in);
            }
            MixAll.properties2Object(file, config);
        }
        MixAll.properties2Object(options.properties(), config);
        return config;
    }

    static DefaultMessageStore create(String root, Options options) throws IOException {
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerName("driver");
        BrokerStatsManager stats = new BrokerStatsManager(broker.getBrokerClusterName(), true);
        return new DefaultMessageStore(config(root, options), stats,
            (topic, queueId, offset, tagsCode, time, bitMap, properties) -> { }, broker);
    }

    /** Loaded and started, everything that the log holds dispatched; null if load() said no. */
    static DefaultMessageStore open(String root, Options options) throws Exception {
        DefaultMessageStore store = create(root, options);
        if (!store.load()) {
            return null;
        }
        store.start();
        awaitDispatch(store);
        return store;
    }

    /** Loaded and nothing more, yet willing to answer reads; null if load() said no. */
    static DefaultMessageStore openLoaded(String root, Options options) throws Exception {
        DefaultMessageStore store = create(root, options);
        if (!store.load()) {
            return null;
        }
        Field shutdown = DefaultMessageStore.class.getDeclaredField("shutdown");
        shutdown.setAccessible(true);
        shutdown.setBoolean(store, false);
        return store;
    }

    /** Releases mappings, descriptors and threads that shutdown() keeps. */
    static void release(DefaultMessageStore store) throws Exception {
        release((MappedFileQueue) field(CommitLog.class, store.getCommitLog(), "mappedFileQueue"));
        for (Map<Integer, ConsumeQueue> queues : store.getConsumeQueueTable().values()) {
            for (ConsumeQueue queue : queues.values()) {
                release((MappedFileQueue) field(ConsumeQueue.class, queue, "mappedFileQueue"));
            }
        }
        Object index = field(DefaultMessageStore.class, store, "indexService");
        for (Object file : (List<?>) field(IndexService.class, index, "indexFileList")) {
            release((MappedFile) field(IndexFile.class, file, "mappedFile"));
        }
        store.getBrokerStatsManager().shutdown();
        ((RandomAccessFile) field(DefaultMessageStore.class, store, "lockFile")).close();
        Object client = field(HAService.class, store.getHaService(), "haClient");
        ((Selector) field(client.getClass(), client, "selector")).close();
    }

    private static void release(MappedFileQueue files) throws IOException {
        for (MappedFile file : files.getMappedFiles()) {
            release(file);
        }
    }

    private static void release(MappedFile file) throws IOException {
        file.shutdown(0);
        file.getFileChannel().close();
    }

    private static Object field(Class<?> type, Object owner, String name) throws Exception {
        Field field = type.getDeclaredField(name);
        field.setAccessible(true);
        return field.get(owner);
    }

    static void awaitDispatch(DefaultMessageStore store) throws InterruptedException {
        long deadline = System.currentTimeMillis() + DISPATCH_WAIT_MS;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("dispatch makes no progress");
            }
            Thread.sleep(1);
        }
    }

    @SuppressWarnings("unchecked")
    static List<SelectMappedBufferResult> hits(QueryMessageResult result) throws Exception {
        return (List<SelectMappedBufferResult>)
            field(QueryMessageResult.class, result, "messageMapedList");
    }
}
