package org.pyrocketstore.driver;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.MessageExtBrokerInner;

/**
 * A message as one JSON object: topic, queue_id, flag, sys_flag, born_timestamp, born_host,
 * store_host ("1.2.3.4:10911" or "[2001:db8::1]:10911"), reconsume_times,
 * prepared_transaction_offset, properties (a list of pairs, put in this order), body (base64).
 * With a member "batch" it is a batch: a list of objects with flag, properties and body.
 */
final class MessageSpec {
    private MessageSpec() {
    }

    static boolean isBatch(JSONObject spec) {
        return spec.containsKey("batch");
    }

    static MessageExtBrokerInner single(JSONObject spec) throws UnknownHostException {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        fillEnvelope(message, spec);
        message.setFlag(spec.getIntValue("flag"));
        message.setPreparedTransactionOffset(spec.getLongValue("prepared_transaction_offset"));
        message.setBody(body(spec));
        message.setPropertiesString(
            MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    static MessageExtBatch batch(JSONObject spec) throws UnknownHostException {
        List<Message> items = new ArrayList<>();
        JSONArray list = spec.getJSONArray("batch");
        for (int i = 0; i < list.size(); i++) {
            JSONObject item = list.getJSONObject(i);
            Message message = new Message();
            message.setTopic(spec.getString("topic"));
            message.setFlag(item.getIntValue("flag"));
            message.setBody(body(item));
            fillProperties(message, item);
            items.add(message);
        }
        MessageExtBatch batch = new MessageExtBatch();
        fillEnvelope(batch, spec);
        batch.setBody(MessageDecoder.encodeMessages(items));
        return batch;
    }

    private static void fillEnvelope(MessageExt message, JSONObject spec)
        throws UnknownHostException {
        message.setTopic(spec.getString("topic"));
        message.setQueueId(spec.getIntValue("queue_id"));
        message.setSysFlag(spec.getIntValue("sys_flag"));
        message.setBornTimestamp(spec.getLongValue("born_timestamp"));
        message.setBornHost(host(spec.getString("born_host")));
        message.setStoreHost(host(spec.getString("store_host")));
        message.setReconsumeTimes(spec.getIntValue("reconsume_times"));
        fillProperties(message, spec);
    }

    private static void fillProperties(Message message, JSONObject spec) {
        JSONArray pairs = spec.getJSONArray("properties");
        for (int i = 0; pairs != null && i < pairs.size(); i++) {
            JSONArray pair = pairs.getJSONArray(i);
            MessageAccessor.putProperty(message, pair.getString(0), pair.getString(1));
        }
    }

    private static byte[] body(JSONObject spec) {
        String text = spec.getString("body");
        return text == null ? null : Base64.getDecoder().decode(text);
    }

    private static InetSocketAddress host(String text) throws UnknownHostException {
        int colon = text.lastIndexOf(':');
        InetAddress address = InetAddress.getByName(text.substring(0, colon));
        return new InetSocketAddress(address, Integer.parseInt(text.substring(colon + 1)));
    }
}
