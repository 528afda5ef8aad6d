package org.pyrocketstore.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A client of a running broker.
 *
 * "consume" subscribes to topics=A,B from their first message on, in order, and prints each message
 * until count= have come; with where= those that pass this SQL92 filter. "produce" sends what the lines of from=FILE say and answers each: topic,
 * tags, keys, properties (a list of pairs), body (base64), delay_level; or "batch", a list of them.
 */
final class ClientCommand {
    private static final int SEND_TIMEOUT_MS = 20_000;

    private ClientCommand() {
    }

    static int consume(String nameServer, Options options) throws Exception {
        CountDownLatch left = new CountDownLatch(options.number("count", 0));
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(options.required("group"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // Otherwise the position may be written before the listener has returned.
        consumer.setAwaitTerminationMillisWhenShutdown(SEND_TIMEOUT_MS);
        for (String topic : options.required("topics").split(",")) {
            String where = options.text("where", "");
            consumer.subscribe(topic,
                where.isEmpty() ? MessageSelector.byTag("*") : MessageSelector.bySql(where));
        }
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                say(received(message));
                left.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        boolean all = left.await(options.number("timeout", 60), TimeUnit.SECONDS);
        consumer.shutdown();
        return all ? 0 : Driver.EXIT_EXCEPTION;
    }

    private static JsonLine received(MessageExt message) {
        return new JsonLine().put("topic", message.getTopic())
            .put("queue_id", message.getQueueId())
            .put("queue_offset", message.getQueueOffset())
            .put("phy_offset", message.getCommitLogOffset())
            .put("body", Base64.getEncoder().encodeToString(message.getBody()))
            .put("tags", message.getTags())
            .put("keys", message.getKeys())
            .put("born_host", String.valueOf(message.getBornHost()))
            .put("born_timestamp", message.getBornTimestamp())
            .put("store_timestamp", message.getStoreTimestamp())
            .put("properties", message.getProperties());
    }

    static int produce(String nameServer, Options options) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("driver");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setCompressMsgBodyOverHowmuch(options.number("compressOver", 1 << 12));
        producer.start();
        for (String line : Files.readAllLines(Paths.get(options.required("from")))) {
            JSONObject request = JSON.parseObject(line);
            say(sent(send(producer, request)));
        }
        producer.shutdown();
        return 0;
    }

    private static SendResult send(DefaultMQProducer producer, JSONObject request)
        throws Exception {
        JSONArray batch = request.getJSONArray("batch");
        if (batch == null) {
            return producer.send(message(request));
        }
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < batch.size(); i++) {
            messages.add(message(batch.getJSONObject(i)));
        }
        return producer.send(messages);
    }

    static Message message(JSONObject request) {
        Message message = new Message(request.getString("topic"), request.getString("tags"),
            request.getString("keys"), Base64.getDecoder().decode(request.getString("body")));
        JSONArray pairs = request.getJSONArray("properties");
        for (int i = 0; i < pairs.size(); i++) {
            message.putUserProperty(pairs.getJSONArray(i).getString(0),
                pairs.getJSONArray(i).getString(1));
        }
        if (request.containsKey("delay_level")) {
            message.setDelayTimeLevel(request.getIntValue("delay_level"));
        }
        return message;
    }

    static JsonLine sent(SendResult result) {
        return new JsonLine().put("status", result.getSendStatus().name())
            .put("queue_id", result.getMessageQueue().getQueueId())
            .put("queue_offset", result.getQueueOffset())
            .put("msg_id", result.getMsgId())
            .put("offset_msg_id", result.getOffsetMsgId());
    }

    static void say(JsonLine line) {
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }
}
