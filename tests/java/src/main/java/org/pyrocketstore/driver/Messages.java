package org.pyrocketstore.driver;

import java.net.SocketAddress;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageExtBrokerInner;

/** Messages of the workloads, as a broker hands them to its store. */
final class Messages {
    private Messages() {
    }

    /** A message to which properties may be added before `encoded` or `put`. */
    static MessageExtBrokerInner single(
            String topic, int queueId, byte[] body, SocketAddress host) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBody(body);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(host);
        message.setStoreHost(host);
        return message;
    }

    static MessageExtBrokerInner encoded(MessageExtBrokerInner message) {
        message.setPropertiesString(
            MessageDecoder.messageProperties2String(message.getProperties()));
        return message;
    }

    static void put(DefaultMessageStore store, MessageExtBrokerInner message) {
        if (!store.putMessage(encoded(message)).isOk()) {
            throw new IllegalStateException(
                "a put to queue " + message.getQueueId() + " of " + message.getTopic() + " failed");
        }
    }
}
