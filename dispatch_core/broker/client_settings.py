"""Settings of Pulsar's clients, which are no settings of the broker: whose they are, and where a log shows what they do.

Source: ClientConfigurationData, ConsumerConfigurationData and ProducerConfigurationData of the Java client, and the names of
its builders where they differ. Other clients spell them with underscores (``receiver_queue_size``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

CONSUMER: Final = "consumer"
PRODUCER: Final = "producer"
CLIENT: Final = "client"

#: What a log has of the settings of each.
SHOWN_AS: Final[Mapping[str, str]] = {
    CONSUMER: "the log has what it does: joins, permits (flow), acknowledgements and redelivery requests",
    PRODUCER: "the log has what it does: the entries, their sizes and numbers of messages",
    CLIENT: "no decision of the broker depends on it",
}

_CONSUMER: Final = (
    *(
        "ackReceiptEnabled",
        "ackTimeout",
        "ackTimeoutMillis",
        "ackTimeoutRedeliveryBackoff",
        "ackTimeoutTickTime",
    ),
    *("acknowledgementsGroupTimeMicros", "acknowledgmentGroupTime", "autoAckOldestChunkedMessageOnQueueFull"),
    *("autoScaledReceiverQueueSizeEnabled", "autoUpdatePartitions", "autoUpdatePartitionsIntervalSeconds"),
    *("batchIndexAckEnabled", "batchReceivePolicy", "consumerName", "deadLetterPolicy"),
    *("enableBatchIndexAcknowledgment", "enableRetry", "expireTimeOfIncompleteChunkedMessageMillis"),
    *("isAckReceiptEnabled", "keySharedPolicy", "maxAcknowledgmentGroupSize", "maxPendingChunkedMessage"),
    *(
        "maxTotalReceiverQueueSizeAcrossPartitions",
        "negativeAckRedeliveryBackoff",
        "negativeAckRedeliveryDelay",
    ),
    *("negativeAckRedeliveryDelayMicros", "patternAutoDiscoveryPeriod", "poolMessages", "priorityLevel"),
    *("readCompacted", "receiverQueueSize", "regexSubscriptionMode", "replicateSubscriptionState"),
    *(
        "resetIncludeHead",
        "retryEnable",
        "startMessageIdInclusive",
        "startPaused",
        "subscriptionInitialPosition",
    ),
    *(
        "subscriptionMode",
        "subscriptionName",
        "subscriptionProperties",
        "subscriptionType",
        "tickDurationMillis",
    ),
    *("topicNames", "topicsPattern"),
)
_PRODUCER: Final = (
    *("accessMode", "batcherBuilder", "batchingEnabled", "batchingMaxBytes", "batchingMaxMessages"),
    *(
        "batchingMaxPublishDelay",
        "batchingMaxPublishDelayMicros",
        "batchingPartitionSwitchFrequencyByPublishDelay",
    ),
    *("blockIfQueueFull", "chunkMaxMessageSize", "chunkingEnabled", "compressionType", "enableBatching"),
    *("enableChunking", "hashingScheme", "initialSequenceId", "lazyStartPartitionedProducers"),
    *("maxPendingMessages", "maxPendingMessagesAcrossPartitions", "messageRouter", "messageRoutingMode"),
    *("producerName", "sendTimeout", "sendTimeoutMs"),
)
_CLIENT: Final = (
    *(
        "authParams",
        "authPluginClassName",
        "concurrentLookupRequest",
        "connectionTimeoutMs",
        "connectionsPerBroker",
    ),
    *(
        "enableTransaction",
        "initialBackoffIntervalNanos",
        "listenerName",
        "lookupTimeoutMs",
    ),
    *("maxBackoffIntervalNanos", "maxLookupRequest", "maxNumberOfRejectedRequestPerConnection"),
    *("memoryLimitBytes", "numIoThreads", "numListenerThreads", "operationTimeoutMs", "proxyServiceUrl"),
    *("requestTimeoutMs", "serviceUrl", "statsIntervalSeconds", "useTcpNoDelay"),
)
#: Whose setting each name is.
OWNERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(_CONSUMER, CONSUMER),
    **dict.fromkeys(_PRODUCER, PRODUCER),
    **dict.fromkeys(_CLIENT, CLIENT),
}
_BY_LETTERS: Final = {name.lower(): name for name in OWNERS}


def client_setting(name: str) -> str | None:
    """Return the Java client's name of a client setting, however it is spelt; ``None`` for any other name.

    >>> client_setting("receiver_queue_size"), client_setting("dispatcherMaxReadBatchSize")
    ('receiverQueueSize', None)
    """
    return _BY_LETTERS.get(name.strip().replace("_", "").lower())
