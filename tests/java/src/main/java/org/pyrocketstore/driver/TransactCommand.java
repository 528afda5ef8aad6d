package org.pyrocketstore.driver;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Base64;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A transactional producer of a running broker.
 *
 * It sends what the lines of from=FILE say, as "produce" does, and ends each local transaction as
 * "local" says: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW. Then it answers the checks of the broker
 * with answer= until it has answered checks= of them, or timeout= seconds are over.
 */
final class TransactCommand {
    private static final int SEND_TIMEOUT_MS = 20_000;
    private static final int LOOK_MS = 50;

    private TransactCommand() {
    }

    static int run(String nameServer, Options options) throws Exception {
        LocalTransactionState answer = state(options.text("answer", "UNKNOW"));
        Listener listener = new Listener(answer);
        TransactionMQProducer producer = new TransactionMQProducer(options.required("group"));
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(SEND_TIMEOUT_MS);
        producer.setTransactionListener(listener);
        producer.start();
        for (String line : Files.readAllLines(Paths.get(options.required("from")))) {
            JSONObject request = JSON.parseObject(line);
            Message message = ClientCommand.message(request);
            TransactionSendResult result = producer.sendMessageInTransaction(
                message, state(request.getString("local")));
            ClientCommand.say(ClientCommand.sent(result)
                .put("transaction_id", result.getTransactionId()));
        }
        long end = System.currentTimeMillis() + 1000L * options.number("timeout", 0);
        while (listener.checks() < options.number("checks", 0)
            && System.currentTimeMillis() < end) {
            Thread.sleep(LOOK_MS);
        }
        Thread.sleep(10 * LOOK_MS); // answers are sent after the listener has returned
        producer.shutdown();
        return 0;
    }

    private static LocalTransactionState state(String name) {
        return LocalTransactionState.valueOf(name);
    }

    private static final class Listener implements TransactionListener {
        private final LocalTransactionState answer;
        private int checks;

        Listener(LocalTransactionState answer) {
            this.answer = answer;
        }

        synchronized int checks() {
            return checks;
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            return (LocalTransactionState) argument;
        }

        @Override
        public synchronized LocalTransactionState checkLocalTransaction(MessageExt message) {
            checks++;
            ClientCommand.say(new JsonLine()
                .put("checked", Base64.getEncoder().encodeToString(message.getBody()))
                .put("transaction_id", message.getTransactionId())
                .put("properties", message.getProperties()));
            return answer;
        }
    }
}
