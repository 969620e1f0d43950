"""One sentence for each reason that holds work back (``STALL_REASONS``, ``LIMIT_REASONS``), for somebody who knows Pulsar.

Each is the second half of a sentence that begins with what waited, for whom and how long: "3:7 waited 2.4 s: …".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dispatch_core.audit.sentences.lists import counted, listed, plural, positions_listed
from dispatch_core.times import clock

#: The rules that keep the order of a key, by the reason they give.
ORDERING_RULES: Final = {
    "draining_hash": "draining hashes (PIP-379)",
    "recently_joined": "the read-position rule (3.x and classic)",
    "last_sent_position": "the last-sent-position rule (PIP-282)",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """The rule that held work back and the consumers concerned, by display name.

    Attributes:
        reason: one of ``STALL_REASONS`` or ``LIMIT_REASONS``; ``None`` where nothing held it.
        waiting: the consumer that the work was for; ``None`` = nobody in particular.
        holder: the consumer that kept it waiting.
        positions: entries that the holder had not acknowledged, all or the first ones; with ``no_permits`` and
            ``unacked_limit_consumer`` those of the waiting consumer.
        count: number of these entries; at the look-ahead limit the number of entries that wait to be sent again.
        hashes: number of hashes of the work.
        phantom: the hash drains although nothing of it is pending; the consumer is blocked although it holds half of the
            limit or less.
        phantom_since_us: time from which on it does, microseconds since the epoch; ``None`` = unknown.
        others: at the look-ahead limit, pairs of a reason and the consumer (if any) that waited for it.
        first_position: an entry that no rule held while others waited behind it (``replay_order``).
        settings: of the log's release, as far as they are known.
        reads: the state of reads while nothing was read (``waits.no_read.described``); ``None`` = not known.
    """

    reason: str | None
    waiting: str | None = None
    holder: str | None = None
    positions: Sequence[str] = ()
    count: int = 0
    hashes: int = 1
    phantom: bool = False
    phantom_since_us: int | None = None
    others: Sequence[tuple[str, str | None]] = ()
    first_position: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    reads: str | None = None

    def setting(self, name: str) -> str:
        """Return ``name = 20``, or the name alone if the value is not known."""
        value = self.settings.get(name)
        return name if value is None else f"{name} = {value}"


def why(cause: Cause) -> str:
    """Return the sentence of a cause.

    >>> why(Cause("no_permits", waiting="w1", positions=["3:7"], count=1))[:43]
    'w1 had no permits left: its client asked fo'
    >>> why(Cause("draining_hash", waiting="w2", holder="w1", positions=["3:7", "3:9"], count=2))[:49]
    'w1 still held 3:7 and 3:9 of the same hash, and d'
    >>> why(Cause(None))
    'no rule that the log shows held it back'
    """
    who = cause.waiting or "its new owner"
    pending = positions_listed(cause.positions, cause.count) if cause.positions else ""
    own = f"; it held {pending} unacknowledged" if pending else ""
    match cause.reason:
        case "draining_hash":
            return _draining(cause, who, pending)
        case "recently_joined":
            return (
                f"{who} had joined recently, and {ORDERING_RULES[cause.reason]} sends it nothing that was read after it "
                f"joined until everything read before is acknowledged{_unacknowledged(cause, pending)}"
            )
        case "last_sent_position":
            return (
                f"{who} had joined recently, and {ORDERING_RULES[cause.reason]} sends it nothing beyond what had been sent "
                f"when it joined until all of that is acknowledged{_unacknowledged(cause, pending)}"
            )
        case "no_permits":
            if cause.waiting is None:
                return "no connected consumer had permits left: their clients asked for no more messages"
            return (
                f"{who} had no permits left: its client asked for no more messages (its receiver queue was full, or the "
                f"application had stopped receiving){own}"
            )
        case "unacked_limit_consumer":
            if cause.phantom:
                return _still_blocked(cause)
            if cause.waiting is None:
                return (
                    "each connected consumer had no permits left, or as many unacknowledged messages as "
                    f"{cause.setting('maxUnackedMessagesPerConsumer')} allows"
                )
            return (
                f"{who} had as many unacknowledged messages as {cause.setting('maxUnackedMessagesPerConsumer')} allows, "
                f"and gets more when it is down to half{own}"
            )
        case "unacked_limit_subscription":
            most = f", most of them at {cause.holder}" if cause.holder else ""
            return (
                "the subscription had as many unacknowledged messages as "
                f"{cause.setting('maxUnackedMessagesPerSubscription')} allows{most}; nothing new is read until it is down "
                "to half"
            )
        case "look_ahead_limit":
            return _look_ahead(cause)
        case "replay_order":
            if cause.first_position:
                return (
                    f"no rule that the log shows held {cause.first_position} back, and no later message of the same hash "
                    "may overtake it"
                )
            return "an earlier message of the same hash waited to be sent, and none may overtake it"
        case "uncovered_range":
            return "no connected consumer owned its hash: nobody's range covers it"
        case "failover_delay":
            active = f"{cause.waiting} had" if cause.waiting else "another consumer had"
            return (
                f"{active} become the active consumer, and a new one gets nothing before "
                f"{cause.setting('activeConsumerFailoverDelayTimeMillis')} has passed"
            )
        case "no_consumer":
            return "no consumer was connected"
        case "no_read":
            return (
                "nothing was read, although a connected consumer had permits and no rule held it back"
                f"{'' if cause.reads is None else f'; {cause.reads}'}"
            )
        case "dispatch_rate":
            return "a dispatch rate was in force, and the messages sent by then used it up"
        case "unacked_namespace" | "unacked_topic":
            policy = cause.reason.removeprefix("unacked_")
            return f"the {policy}'s limit of unacknowledged messages was in force, and more than half of it was used"
        case "entry_filter":
            return "an entry filter was in force, which may put entries off or leave them out"
        case "transactions":
            return "transactions were in use, and an open one may have held it back"
        case "delayed_delivery":
            return "messages were delayed, and the log does not say which"
    return "no rule that the log shows held it back"


def _draining(cause: Cause, who: str, pending: str) -> str:
    holder = cause.holder or "its old owner"
    phantom = (
        f"{holder} held nothing of it any more, and still the broker counted the hash as draining: it counts messages as "
        "pending that are not there (as in #24736, a fault of 4.0.0 to 4.0.6 and 4.1.0: a hash that moves away, back and "
        f"away again is counted twice). {who} gets nothing of it until {holder} owns the hash again, or no "
        "consumer is connected, as when the topic is unloaded"
    )
    if cause.phantom_since_us is not None:
        phantom = f"from {clock(cause.phantom_since_us)} on {phantom}"
    if not pending:
        rule = ORDERING_RULES["draining_hash"]
        return (
            phantom
            if cause.phantom
            else f"the hash still drained for {holder}, so {who} gets nothing of it ({rule})"
        )
    hashes = plural(cause.hashes, "hash", "hashes")
    still = (
        f"{holder} still held {pending} of the same {hashes}, and {ORDERING_RULES['draining_hash']} give {who} nothing of "
        f"it until {holder} has acknowledged that, or leaves"
    )
    return f"{still}. But {phantom}" if cause.phantom else still


def _still_blocked(cause: Cause) -> str:
    return (
        f"{cause.waiting or 'a consumer with permits'} held no more than half of the unacknowledged messages that "
        f"{cause.setting('maxUnackedMessagesPerConsumer')} allows, and still the broker kept it blocked (as in #22657, a "
        "fault of releases before 3.0.10, 3.3.5 and 4.0.3: the limit is tested before an acknowledgement is counted). It "
        "gets nothing until it acknowledges another message or connects again"
    )


def _unacknowledged(cause: Cause, pending: str) -> str:
    if not pending:
        return ""
    at = f" at {cause.holder}" if cause.holder else ""
    if cause.count > 1:
        return f"; {pending} were unacknowledged{f', the oldest of them{at}' if at else ''}"
    return f"; {pending} was unacknowledged{at}"


def _look_ahead(cause: Cause) -> str:
    entries = counted(cause.count, "entry", "entries") if cause.count else "entries"
    for_whom = listed(
        f"for {consumer} ({reason})" if consumer else f"({reason})" for reason, consumer in cause.others
    )
    if cause.others:
        waited = f", waiting {for_whom},"
    else:
        waited = f", most of them for {cause.holder}," if cause.holder else ""
    limits = ", ".join(
        cause.setting(f"keySharedLookAheadMsgInReplayThreshold{name}")
        for name in ("PerConsumer", "PerSubscription")
    )
    return (
        f"nothing new was read: {entries} that had been read and could not be sent{waited} filled the look-ahead limit "
        f"({limits})"
    )
