"""Hide statistics that a checkpoint leaves open, at the end of a log that begins with one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dispatch_core.audit.deliveries.checkpoint_state import CheckpointState

#: Counters of a consumer. They depend on its permits and unacknowledged messages at the checkpoint.
COUNTERS: Final = ("availablePermits", "unackedMessages", "blockedConsumerOnUnackedMsgs")
#: Depends on everything that happened to a consumer since it joined.
_SINCE_IT_JOINED: Final = (
    "avgMessagesPerEntry",
    "drainingHashesClearedTotal",
    "readPositionWhenJoining",
    "lastSentPositionWhenJoining",
)
_DRAINING: Final = ("drainingHashes", "drainingHashesCount", "drainingHashesUnackedMessages")
#: Depends on all that was read and sent before.
_OF_THE_PAST: Final = (
    "msgInReplay",
    "consumersAfterMarkDeletePosition",
    "drainingHashesClearedTotal",
    "lastSentPosition",
    "individuallySentPositions",
)


def determined(
    shown: Mapping[str, Any], checkpoint_state: CheckpointState, messages: Mapping[int, int]
) -> dict[str, Any]:
    """Return ``shown`` (``statistics.subscription_stats``) without what needs more than the checkpoint says.

    ``messages``: by consumer how many messages the entries hold that the checkpoint names as pending on it.
    """
    if checkpoint_state.of_a_new_dispatcher:
        return dict(shown)
    connected = {consumer.number: consumer for consumer in checkpoint_state.checkpoint.consumers or ()}
    pending = checkpoint_state.checkpoint.pending
    # Pending entries are all there are where their messages are as many as were counted.
    complete = {
        number
        for number, consumer in connected.items()
        if consumer.unacked is not None and consumer.unacked == messages.get(number, 0)
    }
    counted = {
        number
        for number in complete
        if connected[number].permits is not None and (number in pending or connected[number].unacked == 0)
    }
    if shown["type"] in ("Failover", "Exclusive"):  # where nobody counts what is not acknowledged
        counted = {number for number, consumer in connected.items() if consumer.permits is not None}
    hidden: list[str] = [*_OF_THE_PAST]
    if counted != set(connected):
        hidden += ["unackedMessages", "blockedSubscriptionOnUnackedMsgs"]
    if complete != set(connected):
        hidden += _DRAINING
    result = {name: value for name, value in shown.items() if name not in hidden}
    result["consumers"] = [
        _without(
            consumer, [*_SINCE_IT_JOINED, *(() if consumer["consumer"] in counted else COUNTERS)], hidden
        )
        if consumer["consumer"] in connected
        else _without(consumer, [], [name for name in hidden if name in _DRAINING])
        for consumer in shown["consumers"]
    ]
    return result


def _without(consumer: Mapping[str, Any], own: list[str], hidden: list[str]) -> dict[str, Any]:
    return {name: value for name, value in consumer.items() if name not in own and name not in hidden}
