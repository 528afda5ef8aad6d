package org.pyrocketstore.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.ConsumerFilterData;
import org.apache.rocketmq.broker.filter.ConsumerFilterManager;
import org.apache.rocketmq.broker.filter.ExpressionMessageFilter;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.common.filter.ExpressionType;
import org.apache.rocketmq.common.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;

/**
 * Answers each line {"expression": TEXT, "messages": [{NAME: VALUE, ...}, ...]} of a file with one:
 *
 * <pre>
 * {"refused": REASON}                    the filter jar does not compile the text
 * {"answers": A, "matched": M}           with an entry for each message, separated by commas
 * </pre>
 *
 * and each line {"error_rate": N, "expected": N, "names": [TEXT, ...]} with the Bloom filter's
 *
 * <pre>
 * {"hash_count": K, "bit_count": M, "positions": "1 2 3,4 5 6"}
 * </pre>
 *
 * and each line {"registered": [[TOPIC, GROUP, FILTER], ...]} with {"text": TEXT}, that of
 * config/consumerFilter.json after these calls.
 *
 * An answer is true, false, null or the class of an exception; an entry of M is true where the
 * filter of a broker delivers the message.
 */
final class FilterCommand {
    private static final String TOPIC = "topic";
    private static final String GROUP = "group";

    private FilterCommand() {
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
        if (request.containsKey("names")) {
            return bloom(request);
        }
        if (request.containsKey("registered")) {
            ConsumerFilterManager manager = new ConsumerFilterManager();
            JSONArray calls = request.getJSONArray("registered");
            for (int i = 0; i < calls.size(); i++) {
                JSONArray call = calls.getJSONArray(i);
                manager.register(call.getString(0), call.getString(1), call.getString(2),
                    ExpressionType.SQL92, 1 + i);
            }
            return new JsonLine().put("text", manager.encode(true));
        }
        return answer(request.getString("expression"),
            messages(request.getJSONArray("messages")));
    }

    private static JsonLine bloom(JSONObject request) {
        BloomFilter filter = BloomFilter.createByFn(
            request.getIntValue("error_rate"), request.getIntValue("expected"));
        List<String> names = new ArrayList<>();
        for (Object name : request.getJSONArray("names")) {
            List<String> positions = new ArrayList<>();
            for (int position : filter.calcBitPositions((String) name)) {
                positions.add(String.valueOf(position));
            }
            names.add(String.join(" ", positions));
        }
        return new JsonLine().put("hash_count", filter.getK()).put("bit_count", filter.getM())
            .put("positions", String.join(",", names));
    }

    private static List<Map<String, String>> messages(JSONArray rows) {
        List<Map<String, String>> messages = new ArrayList<>();
        for (int row = 0; row < rows.size(); row++) {
            Map<String, String> properties = new HashMap<>();
            rows.getJSONObject(row).forEach((name, value) -> properties.put(name, (String) value));
            messages.add(properties);
        }
        return messages;
    }

    private static JsonLine answer(String text, List<Map<String, String>> messages) {
        Expression compiled;
        try {
            compiled = FilterFactory.INSTANCE.get(ExpressionType.SQL92).compile(text);
        } catch (Throwable problem) {
            Throwable cause = problem.getCause() == null ? problem : problem.getCause();
            return new JsonLine().put("refused", String.valueOf(cause));
        }
        ExpressionMessageFilter broker = brokerFilter(text);
        List<String> answers = new ArrayList<>();
        List<String> matched = new ArrayList<>();
        for (Map<String, String> properties : messages) {
            String answer;
            try {
                answer = String.valueOf(compiled.evaluate(new MessageEvaluationContext(properties)));
            } catch (Throwable problem) {
                answer = problem.getClass().getName();
            }
            answers.add(answer);
            matched.add(String.valueOf(broker.isMatchedByCommitLog(null, properties)));
        }
        return new JsonLine().put("answers", String.join(",", answers))
            .put("matched", String.join(",", matched));
    }

    private static ExpressionMessageFilter brokerFilter(String text) {
        ConsumerFilterData data =
            ConsumerFilterManager.build(TOPIC, GROUP, text, ExpressionType.SQL92, 1);
        SubscriptionData subscription = new SubscriptionData(TOPIC, text);
        subscription.setExpressionType(ExpressionType.SQL92);
        return new ExpressionMessageFilter(subscription, data, new ConsumerFilterManager());
    }
}
