package org.pyrocketstore.driver;

import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Field;
import java.util.List;
import java.util.Properties;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Makes stores, and reaches the two private fields that the driver cannot do without. */
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
        Field list = QueryMessageResult.class.getDeclaredField("messageMapedList");
        list.setAccessible(true);
        return (List<SelectMappedBufferResult>) list.get(result);
    }
}
