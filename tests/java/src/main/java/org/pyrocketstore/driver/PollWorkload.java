package org.pyrocketstore.driver;

import java.io.File;
import java.net.ServerSocket;
import java.util.Arrays;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.namesrv.NamesrvConfig;
import org.apache.rocketmq.namesrv.NamesrvController;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/**
 * Sends count= messages at pace= a second through a broker to a push consumer, whose requests the
 * broker holds until a message arrives. The latency is the time from the call of send to the call
 * of the listener. Name server, broker, producer and consumer are in this process, and use TCP.
 */
final class PollWorkload extends Workload {
    private static final int FAST_LANE = 2;
    private static final int ARRIVAL_TIMEOUT_S = 60;
    private static final int FIRST = -1;

    private final byte[] body;
    private final double nanosApart;
    private final long[] nanos;
    private NamesrvController names;
    private BrokerController broker;
    private DefaultMQProducer producer;
    private DefaultMQPushConsumer consumer;
    private volatile long[] began = new long[0];
    private volatile CountDownLatch left = new CountDownLatch(1);
    private final AtomicInteger received = new AtomicInteger();

    PollWorkload(String path, Options options) {
        super(path, options);
        body = new byte[bodySize];
        new Random(1).nextBytes(body);
        nanosApart = 1e9 / options.number("pace", 1000);
        nanos = new long[count];
    }

    @Override
    void prepare() throws Exception {
        removeTree(new File(path));
        String nameServer = startNames();
        startBroker(nameServer);
        producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(nameServer);
        producer.start();
        consumer = new DefaultMQPushConsumer("bench");
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            messages.forEach(message -> arrived(message, now));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        sendFirst();
        consumer.start();
        awaitFirst();
    }

    private String startNames() throws Exception {
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(freePort());
        NamesrvConfig config = new NamesrvConfig();
        config.setKvConfigPath(path + "/namesrv/kvConfig.json");
        names = new NamesrvController(config, server);
        if (!names.initialize()) {
            throw new IllegalStateException("the name server does not start");
        }
        names.start();
        return "127.0.0.1:" + server.getListenPort();
    }

    private void startBroker(String nameServer) throws Exception {
        BrokerConfig config = new BrokerConfig();
        config.setNamesrvAddr(nameServer);
        config.setBrokerName("driver");
        config.setBrokerIP1("127.0.0.1");
        config.setBrokerIP2("127.0.0.1");
        config.setDefaultTopicQueueNums(QUEUES);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(freePort());
        MessageStoreConfig store = Stores.config(path, options);
        store.setHaListenPort(freePort());
        broker = new BrokerController(config, server, new NettyClientConfig(), store);
        if (!broker.initialize()) {
            throw new IllegalStateException("the broker does not start");
        }
        broker.start();
    }

    /** A port that is free, as is the one of the broker's fast lane beside it. */
    private static int freePort() throws Exception {
        while (true) {
            try (ServerSocket one = new ServerSocket(0);
                ServerSocket other = new ServerSocket(one.getLocalPort() - FAST_LANE)) {
                return one.getLocalPort();
            } catch (java.net.BindException taken) {
                continue;
            }
        }
    }

    /** The first message makes the topic; the broker may not have registered yet. */
    private void sendFirst() throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(ARRIVAL_TIMEOUT_S);
        while (true) {
            try {
                send(FIRST);
                return;
            } catch (MQClientException notYet) {
                if (System.nanoTime() > deadline) {
                    throw notYet;
                }
                Thread.sleep(100);
            }
        }
    }

    /** Until the consumer has every queue: a message that is sent to it arrives. */
    private void awaitFirst() throws InterruptedException {
        if (!left.await(ARRIVAL_TIMEOUT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException("the consumer receives nothing");
        }
        while (consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable()
            .size() < QUEUES) {
            Thread.sleep(10);
        }
    }

    private void arrived(MessageExt message, long now) {
        int at = message.getFlag();
        if (at != FIRST) {
            nanos[at] = now - began[at];
            received.incrementAndGet();
        }
        left.countDown();
    }

    private void send(int at) throws Exception {
        Message message = new Message(TOPIC, body);
        message.setFlag(at);
        SendResult result = producer.send(message);
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }

    @Override
    Result unit() throws Exception {
        began = new long[count];
        left = new CountDownLatch(count);
        received.set(0);
        long cpuStart = cpuNanos();
        long start = System.nanoTime();
        for (int at = 0; at < count; at++) {
            long early;
            while ((early = (long) (start + at * nanosApart) - System.nanoTime()) > 0) {
                LockSupport.parkNanos(early);
            }
            began[at] = System.nanoTime();
            send(at);
        }
        if (!left.await(ARRIVAL_TIMEOUT_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(left.getCount() + " messages did not arrive");
        }
        long end = System.nanoTime();
        Result result = new Result(count, 0, start, end, received.get());
        result.cpuSeconds = (cpuNanos() - cpuStart) / 1e9;
        long[] sorted = nanos.clone();
        Arrays.sort(sorted);
        addPercentiles(result, sorted, 1e3);
        return result;
    }

    @Override
    void close() throws Exception {
        consumer.shutdown();
        producer.shutdown();
        broker.shutdown();
        names.shutdown();
        removeTree(new File(path));
    }
}
