package org.pyrocketstore.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.stats.StatsItem;
import org.apache.rocketmq.common.stats.StatsItemSet;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Puts what a JSON-lines file lists, and prints what a listener and a dispatcher of the store were
 * called with, in this order: a line for each call, and at the end one for each topic with the
 * counts of the store's statistics. With deliveries=N it waits for N deliveries of delayed messages,
 * and prints the items of BrokerStatsManager, some of which it has counted itself.
 */
final class EventsCommand {
    private EventsCommand() {
    }

    static int run(String root, Options options) throws Exception {
        List<JsonLine> events = Collections.synchronizedList(new ArrayList<>());
        BrokerConfig broker = new BrokerConfig();
        BrokerStatsManager stats = new BrokerStatsManager(broker.getBrokerClusterName(), true);
        DefaultMessageStore store = new DefaultMessageStore(Stores.config(root, options), stats,
            (topic, queueId, offset, tagsCode, time, bitMap, properties) -> events.add(
                new JsonLine().put("event", "arriving").put("topic", topic)
                    .put("queue_id", queueId).put("offset", offset).put("tags_code", tagsCode)
                    .put("store_timestamp", time).put("properties", text(properties))), broker);
        store.getDispatcherList().addLast(request -> events.add(line(request)));
        long confirmed = store.getConfirmOffset();
        if (!store.load()) {
            return Driver.EXIT_LOAD_FAILED;
        }
        store.start();
        TreeSet<String> topics = new TreeSet<>();
        try (BufferedReader lines = Files.newBufferedReader(Paths.get(options.required("from")))) {
            String line;
            while ((line = lines.readLine()) != null) {
                JSONObject spec = JSON.parseObject(line);
                topics.add(spec.getString("topic"));
                PutCommand.put(store, spec);
            }
        }
        Stores.awaitDispatch(store);
        topics.add("SCHEDULE_TOPIC_XXXX");
        awaitDeliveries(stats, Integer.parseInt(options.text("deliveries", "0")));
        stats.incGroupGetNums("g", "t", 3);
        stats.incGroupGetSize("g", "t", 300);
        stats.incQueueGetNums("g", "t", 2, 3);
        stats.incQueueGetSize("g", "t", 2, 300);
        stats.incTopicPutNums("u", 4, 1);
        stats.incTopicPutSize("u", 400);
        stats.incQueuePutNums("u", 1, 4, 1);
        stats.incQueuePutSize("u", 1, 400);
        stats.incBrokerGetNums(3);
        stats.incSendBackNums("g", "t");
        try (PrintStream out = options.output()) {
            events.forEach(out::println);
            for (String topic : topics) {
                out.println(new JsonLine().put("event", "totals").put("topic", topic)
                    .put("times", store.getStoreStatsService()
                        .getSinglePutMessageTopicTimesTotal(topic).longValue())
                    .put("size", store.getStoreStatsService()
                        .getSinglePutMessageTopicSizeTotal(topic).longValue())
                    .put("confirm_offset", confirmed));
            }
            if (options.has("deliveries")) {
                printStats(stats, out);
            }
        }
        store.shutdown();
        return 0;
    }

    private static void awaitDeliveries(BrokerStatsManager stats, int count) throws Exception {
        for (int i = 0; count > 0 && i < 6000; i++) {
            StatsItem item = stats.getStatsItem("GROUP_GET_SIZE",
                "SCHEDULE_TOPIC_XXXX@SCHEDULE_CONSUMER");
            if (item != null && item.getTimes().longValue() >= count) {
                return;
            }
            Thread.sleep(10);
        }
    }

    @SuppressWarnings("unchecked")
    private static void printStats(BrokerStatsManager stats, PrintStream out) throws Exception {
        Field table = BrokerStatsManager.class.getDeclaredField("statsTable");
        table.setAccessible(true);
        Field items = StatsItemSet.class.getDeclaredField("statsItemTable");
        items.setAccessible(true);
        for (StatsItemSet set : ((Map<String, StatsItemSet>) table.get(stats)).values()) {
            for (StatsItem item : ((Map<String, StatsItem>) items.get(set)).values()) {
                out.println(new JsonLine().put("event", "stats").put("topic", "")
                    .put("name", item.getStatsName()).put("key", item.getStatsKey())
                    .put("value", item.getValue().longValue())
                    .put("times", item.getTimes().longValue()));
            }
        }
    }

    private static JsonLine line(DispatchRequest request) {
        return new JsonLine().put("event", "dispatch").put("topic", request.getTopic())
            .put("queue_id", request.getQueueId())
            .put("offset", request.getConsumeQueueOffset())
            .put("tags_code", request.getTagsCode())
            .put("store_timestamp", request.getStoreTimestamp())
            .put("properties", text(request.getPropertiesMap()))
            .put("phy_offset", request.getCommitLogOffset()).put("size", request.getMsgSize())
            .put("keys", request.getKeys()).put("uniq_key", request.getUniqKey())
            .put("sys_flag", request.getSysFlag())
            .put("prepared", request.getPreparedTransactionOffset());
    }

    private static String text(Map<String, String> properties) {
        return properties == null ? null : JSON.toJSONString(new TreeMap<>(properties));
    }
}
