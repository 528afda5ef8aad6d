package org.pyrocketstore.driver5;

import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Runs the store of RocketMQ 5.x for the tests of pyrocketstore: {@code put DIR count=N
 * topics=A,B ending=clean|halt [batch=TOPIC] [NAME=VALUE ...]} puts N messages to the topics in
 * turn, and prints a line for each: number, topic, queue id, queue offset, physical offset. NAME is
 * a property of MessageStoreConfig; the topic batch= has a batch consume queue.
 */
public final class Driver5 {
    private static final int QUEUES = 3;
    private static final int EXIT_HALTED = 9;

    private Driver5() {
    }

    public static void main(String[] arguments) throws Exception {
        Properties options = new Properties();
        for (int i = 2; i < arguments.length; i++) {
            int equals = arguments[i].indexOf('=');
            options.setProperty(arguments[i].substring(0, equals), arguments[i].substring(equals + 1));
        }
        MessageStoreConfig config = new MessageStoreConfig();
        MixAll.properties2Object(options, config);
        config.setStorePathRootDir(arguments[1]);
        config.setStorePathCommitLog(arguments[1] + "/commitlog");
        config.setHaListenPort(0);
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        if (options.containsKey("batch")) {
            TopicConfig batch = new TopicConfig(options.getProperty("batch"));
            batch.setAttributes(Collections.singletonMap("queue.type", "BatchCQ"));
            topics.put(batch.getTopicName(), batch);
        }
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("c", true), null, new BrokerConfig(), topics);
        if (!store.load()) {
            throw new IllegalStateException("load() said no");
        }
        store.start();
        putAll(store, options);
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        System.out.flush();
        if ("halt".equals(options.getProperty("ending"))) {
            Runtime.getRuntime().halt(EXIT_HALTED);
        }
        store.shutdown();
        Runtime.getRuntime().halt(0);
    }

    private static void putAll(DefaultMessageStore store, Properties options) {
        String[] topics = options.getProperty("topics").split(",");
        InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
        int count = Integer.parseInt(options.getProperty("count"));
        for (int i = 0; i < count; i++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(topics[i % topics.length]);
            message.setQueueId(i % QUEUES);
            message.setBody(("body " + i + " ").repeat(i % 40).getBytes(StandardCharsets.UTF_8));
            message.setTags(i % 2 == 0 ? "A" : "B");
            message.setKeys("k" + i);
            message.putUserProperty("n", String.valueOf(i));
            message.setBornTimestamp(System.currentTimeMillis());
            message.setBornHost(host);
            message.setStoreHost(host);
            message.setPropertiesString(
                MessageDecoder.messageProperties2String(message.getProperties()));
            PutMessageResult result = store.putMessage(message);
            if (!result.isOk()) {
                throw new IllegalStateException("put " + i + ": " + result);
            }
            System.out.println(i + " " + message.getTopic() + " " + message.getQueueId() + " "
                + result.getAppendMessageResult().getLogicsOffset() + " "
                + result.getAppendMessageResult().getWroteOffset());
        }
    }
}
