package org.pyrocketstore.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Paths;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.common.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.store.schedule.DelayOffsetSerializeWrapper;

/**
 * Answers each line {"file": NAME, "text": TEXT} with {"content": JSON}, the content that a broker
 * reads from this text in ROOT/config/NAME; or with {"refused": REASON}. The file "" is a plain
 * object.
 */
final class ConfigCommand {
    private ConfigCommand() {
    }

    static int run(Options options) throws Exception {
        try (PrintStream out = options.output();
             BufferedReader lines = Files.newBufferedReader(Paths.get(options.required("from")))) {
            String line;
            while ((line = lines.readLine()) != null) {
                out.println(answer(JSON.parseObject(line)));
            }
        }
        return 0;
    }

    private static JsonLine answer(JSONObject request) {
        try {
            Object content = decoded(request.getString("file"), request.getString("text"));
            return new JsonLine().put("content", JSON.toJSONString(content,
                SerializerFeature.WriteMapNullValue, SerializerFeature.BrowserSecure,
                SerializerFeature.WriteNonStringKeyAsString));
        } catch (Throwable problem) {
            return new JsonLine().put("refused", problem.getClass().getSimpleName());
        }
    }

    private static Object decoded(String file, String text) {
        switch (file) {
            case "consumerOffset.json":
                return RemotingSerializable.fromJson(text, ConsumerOffsetManager.class)
                    .getOffsetTable();
            case "delayOffset.json":
                return RemotingSerializable.fromJson(text, DelayOffsetSerializeWrapper.class)
                    .getOffsetTable();
            case "subscriptionGroup.json":
                return RemotingSerializable.fromJson(text, SubscriptionGroupManager.class)
                    .getSubscriptionGroupTable();
            case "topics.json":
                return RemotingSerializable.fromJson(text, TopicConfigSerializeWrapper.class)
                    .getTopicConfigTable();
            case "consumerFilter.json":
                ConsumerFilterManager filters = new ConsumerFilterManager();
                filters.decode(text);
                return JSON.parse(filters.encode());
            default:
                return JSON.parseObject(text);
        }
    }
}
