"""Statistics at the end of a log that begins with a checkpoint: what the checkpoint leaves open is not shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dispatch_core.audit.deliveries.checkpoint_state import CheckpointState

#: What a consumer's permits and unacknowledged messages at the checkpoint decide.
_COUNTERS: Final = ("availablePermits", "unackedMessages", "blockedConsumerOnUnackedMsgs")
#: What depends on everything that ever happened to a consumer.
_OF_ITS_LIFE: Final = (
    "avgMessagesPerEntry",
    "drainingHashesClearedTotal",
    "readPositionWhenJoining",
    "lastSentPositionWhenJoining",
)
_DRAINING: Final = ("drainingHashes", "drainingHashesCount", "drainingHashesUnackedMessages")
#: What depends on all that was read and sent before.
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
    """``shown`` (``stats.subscription_stats``) without what rests on more than the checkpoint says.

    ``messages``: by consumer how many messages the entries hold that the checkpoint names as pending on it.
    """
    if checkpoint_state.of_a_new_dispatcher:
        return dict(shown)
    at_work = {consumer.number: consumer for consumer in checkpoint_state.checkpoint.consumers or ()}
    pending = checkpoint_state.checkpoint.pending
    # Pending entries are all there are where their messages are as many as were counted.
    told = {
        number
        for number, one in at_work.items()
        if one.unacked is not None and one.unacked == messages.get(number, 0)
    }
    counted = {number for number in told if at_work[number].permits is not None and number in pending}
    counted |= {
        number for number in told if at_work[number].permits is not None and at_work[number].unacked == 0
    }
    if shown["type"] in ("Failover", "Exclusive"):  # where nobody counts what is not acknowledged
        counted = {number for number, one in at_work.items() if one.permits is not None}
    hidden: list[str] = [*_OF_THE_PAST]
    if counted != set(at_work):
        hidden += ["unackedMessages", "blockedSubscriptionOnUnackedMsgs"]
    if told != set(at_work):
        hidden += _DRAINING
    result = {name: value for name, value in shown.items() if name not in hidden}
    result["consumers"] = [
        _without(one, [*_OF_ITS_LIFE, *(() if one["consumer"] in counted else _COUNTERS)], hidden)
        if one["consumer"] in at_work
        else _without(one, [], [name for name in hidden if name in _DRAINING])
        for one in shown["consumers"]
    ]
    return result


def _without(consumer: Mapping[str, Any], own: list[str], hidden: list[str]) -> dict[str, Any]:
    return {name: value for name, value in consumer.items() if name not in own and name not in hidden}
