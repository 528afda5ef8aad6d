"""The keys of a broker.conf that belong to 4.9.3's other configuration classes.

These keys cause no warning. The store ignores those that are no field of MessageStoreConfig, which
has brokerIP1, listenPort, and the keys of transactions and of filters. Source: the public setters
of RocketMQ 4.9.3's classes.
"""

from __future__ import annotations

#: BrokerConfig
BROKER_KEYS = frozenset(
    """
    aclEnable adminBrokerThreadPoolNums autoCreateSubscriptionGroup autoCreateTopicEnable
    autoDeleteUnusedStats brokerClusterName brokerFastFailureEnable brokerIP1 brokerIP2
    brokerId brokerName brokerPermission brokerTopicEnable clientManageThreadPoolNums
    clientManagerThreadPoolQueueCapacity clusterTopicEnable commercialBaseCount
    commercialBigCount commercialEnable commercialTimerCount commercialTransCount
    compressedRegister consumerFallbehindThreshold consumerManageThreadPoolNums
    consumerManagerThreadPoolQueueCapacity defaultTopicQueueNums
    disableConsumeIfConsumerReadSlowly enableCalcFilterBitMap enableDetailStat
    enablePropertyFilter endTransactionPoolQueueCapacity endTransactionThreadPoolNums
    expectConsumerNumUseFilter fetchNamesrvAddrByAddressServer filterDataCleanTimeSpan
    filterServerNums filterSupportRetry flushConsumerOffsetHistoryInterval
    flushConsumerOffsetInterval forceRegister heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode isolateLogEnable longPollingEnable
    maxDelayTime maxErrorRateOfBloomFilter messageStorePlugIn msgTraceTopicName namesrvAddr
    notifyConsumerIdsChangedEnable processReplyMessageThreadPoolNums pullMessageThreadPoolNums
    pullThreadPoolQueueCapacity putMessageFutureThreadPoolNums putThreadPoolQueueCapacity
    queryMessageThreadPoolNums queryThreadPoolQueueCapacity regionId
    registerBrokerTimeoutMills registerNameServerPeriod rejectTransactionMessage
    replyThreadPoolQueueCapacity rocketmqHome sendMessageThreadPoolNums
    sendThreadPoolQueueCapacity shortPollingTimeMills slaveReadEnable
    startAcceptSendRequestTimeStamp storeReplyMessageEnable traceOn traceTopicEnable
    transactionCheckInterval transactionCheckMax transactionTimeOut transferMsgByHeap
    waitTimeMillsInHeartbeatQueue waitTimeMillsInPullQueue waitTimeMillsInSendQueue
    waitTimeMillsInTransactionQueue
    """.split()
)

#: NettyServerConfig
NETTY_SERVER_KEYS = frozenset(
    """
    listenPort serverAsyncSemaphoreValue serverCallbackExecutorThreads
    serverChannelMaxIdleTimeSeconds serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads useEpollNativeSelector
    writeBufferHighWaterMark writeBufferLowWaterMark
    """.split()
)

#: NettyClientConfig
NETTY_CLIENT_KEYS = frozenset(
    """
    channelNotActiveInterval clientAsyncSemaphoreValue clientCallbackExecutorThreads
    clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientSocketRcvBufSize clientSocketSndBufSize
    clientWorkerThreads connectTimeoutMillis useTLS writeBufferHighWaterMark
    writeBufferLowWaterMark
    """.split()
)

#: NamesrvConfig
NAMESRV_KEYS = frozenset(
    """
    clusterTest configStorePath kvConfigPath orderMessageEnable productEnvName rocketmqHome
    """.split()
)

#: Keys that BrokerStartup reads itself and turns into system properties.
STARTUP_KEYS = frozenset({"rmqAddressServerDomain", "rmqAddressServerSubGroup"})

#: Every key that is accepted and ignored.
OTHER_KEYS = BROKER_KEYS | NETTY_SERVER_KEYS | NETTY_CLIENT_KEYS | NAMESRV_KEYS | STARTUP_KEYS
