package org.pyrocketstore.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;

/**
 * Does what each line of standard input says and answers it with one line, so that one process
 * serves many steps, and can be killed between or within them. A line is a JSON object:
 *
 * <pre>
 * {"do": "open", "path": DIR, "conf": FILE}      {"open": true}, or false when load() said no
 * {"do": "put", "spec": {...}}                   the result, as PutCommand prints it
 * {"do": "fill", "count": N, "topics": T, "queues": Q, "body_size": BYTES}       {"fill": N}
 * {"do": "wait"}                                 {"wait": true} when everything is dispatched
 * {"do": "flush"}                                {"flush": OFFSET}
 * {"do": "close"}                                {"close": true}
 * {"do": "dump", "path": DIR, "conf": FILE, "queries": FILE, "out": FILE}     {"exit": CODE}
 * </pre>
 *
 * A store that is dumped is recovered in place: it must be a copy. An exception is answered with
 * {"error": TEXT}. The end of input ends the process as SIGKILL would.
 */
final class ServeCommand {
    private DefaultMessageStore store;

    private ServeCommand() {
    }

    static int run() throws Exception {
        ServeCommand server = new ServeCommand();
        BufferedReader lines = new BufferedReader(
            new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        String line;
        while ((line = lines.readLine()) != null) {
            JsonLine answer;
            try {
                answer = server.answer(JSON.parseObject(line));
            } catch (Throwable problem) {
                problem.printStackTrace();
                answer = new JsonLine().put("error", problem.toString());
            }
            System.out.println(answer);
            System.out.flush();
        }
        return Driver.EXIT_HALTED;
    }

    private JsonLine answer(JSONObject request) throws Exception {
        switch (request.getString("do")) {
            case "open":
                store = Stores.open(request.getString("path"), options(request, "conf"));
                return new JsonLine().put("open", store != null);
            case "put":
                JSONObject spec = request.getJSONObject("spec");
                return PutCommand.answer(store, PutCommand.put(store, spec), false);
            case "fill":
                return new JsonLine().put("fill", fill(request));
            case "wait":
                Stores.awaitDispatch(store);
                return new JsonLine().put("wait", true);
            case "flush":
                return new JsonLine().put("flush", store.flush());
            case "close":
                store.shutdown();
                store = null;
                return new JsonLine().put("close", true);
            case "dump":
                Options options = options(request, "conf", "queries", "out");
                return new JsonLine().put("exit",
                    (long) DumpCommand.run(request.getString("path"), options));
            default:
                throw new IllegalArgumentException("no such command: " + request);
        }
    }

    /** Message i of a large store: queue by queue in turn, its number first in its body. */
    private long fill(JSONObject request) throws Exception {
        int topics = request.getIntValue("topics");
        int queues = request.getIntValue("queues");
        byte[] body = new byte[request.getIntValue("body_size")];
        for (int j = 0; j < body.length; j++) {
            body[j] = (byte) (31 * j + 7);
        }
        InetSocketAddress host = new InetSocketAddress(InetAddress.getByName("127.0.0.1"), 10911);
        long count = request.getLongValue("count");
        for (int i = 0; i < count; i++) {
            ByteBuffer.wrap(body).putLong(i);
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic("big-" + i % topics);
            message.setQueueId(i / topics % queues);
            message.setBody(body);
            message.setBornHost(host);
            message.setStoreHost(host);
            message.setTags("T" + i % 5);
            message.setKeys("k" + i);
            message.setPropertiesString(
                MessageDecoder.messageProperties2String(message.getProperties()));
            PutMessageResult result = store.putMessage(message);
            while (result.getPutMessageStatus() == PutMessageStatus.OS_PAGECACHE_BUSY) {
                Thread.sleep(10);
                result = store.putMessage(message);
            }
            if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
                throw new IllegalStateException("message " + i + ": " + result);
            }
        }
        return count;
    }

    private static Options options(JSONObject request, String... names) {
        List<String> words = new ArrayList<>();
        for (String name : names) {
            if (request.containsKey(name)) {
                String option = name.equals("conf") ? "config" : name;
                words.add(option + "=" + request.getString(name));
            }
        }
        return Options.parse(words);
    }
}
