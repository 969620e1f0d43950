"""The catalogue of anomalies: every kind of finding by name, what it means, how bad it is, what is tolerated.

Names and definitions are the project's contract with its users; ``docs/anomalies.md`` explains each at length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

CRITICAL: Final = "critical"
MAJOR: Final = "major"
MINOR: Final = "minor"
INFO: Final = "info"
#: From worst to mildest.
SEVERITIES: Final = (CRITICAL, MAJOR, MINOR, INFO)

PER_KEY_ORDER: Final = "per_key_order"
DUPLICATE_DELIVERY: Final = "duplicate_delivery"
BALANCE: Final = "balance"
COMPLETENESS: Final = "completeness"
INPUT_QUALITY: Final = "input_quality"
CONFORMANCE: Final = "conformance"
#: In the order in which they are reported.
PROMISES: Final = (PER_KEY_ORDER, DUPLICATE_DELIVERY, COMPLETENESS, CONFORMANCE, BALANCE, INPUT_QUALITY)

#: Why an entry was sent more than once.
CAUSES: Final = ("disconnect", "nack", "rewind", "all_left", "topic_reload", "cursor_moved")
#: ``reason`` of an order finding at a connection that had allowed delivery out of order.
ORDER_NOT_PROMISED: Final = "out_of_order_allowed"
#: ``reason`` of a finding that a change of the active consumer explains, as Pulsar documents it for Failover: severity
#: ``info``, tolerated and counted. And of one that such a change may explain: uncertain.
HANDOVER: Final = "handover"
MAYBE_HANDOVER: Final = "maybe_handover"
#: Reasons of findings that the subscription type or the consumer's own consent explains.
DOCUMENTED: Final = (ORDER_NOT_PROMISED, HANDOVER)
#: Kinds behind whose first line a comparison with the rules proves nothing: something is missing, or cannot be.
DOUBTS: Final = ("log_gap", "unknown_consumer", "unknown_position")
#: What may explain that decisions differ from the rules, where that is no finding.
BY_LINES: Final = "lines that are missing or cannot be"
BY_MOVE: Final = "a move of the cursor that the log may have no line of"
BY_BEHAVIOUR: Final = "behaviour that the log cannot show"
#: The reason of work that no gate held while the dispatcher sent nothing at all.
NO_READ: Final = "no_read"
#: Why work waits.
STALL_REASONS: Final = (
    "draining_hash",
    "recently_joined",
    "last_sent_position",
    "no_permits",
    "unacked_limit_consumer",
    "unacked_limit_subscription",
    "look_ahead_limit",
    "replay_order",
    "uncovered_range",
    "failover_delay",
    "no_consumer",
    NO_READ,
)
#: Limits in force (``limit`` lines) that hold work back. What waits for one is not stuck.
LIMIT_REASONS: Final = (
    "dispatch_rate",
    "unacked_namespace",
    "unacked_topic",
    "entry_filter",
    "transactions",
    "delayed_delivery",
)


@dataclass(frozen=True, slots=True)
class AnomalyKind:
    """One kind of finding.

    ``default_tolerated``: how many findings a promise bears before it is broken; ``None`` = any number, they are
    counted only. Findings whose cause the policy tolerates do not count against it.
    """

    name: str
    severity: str
    promise: str
    definition: str
    default_tolerated: int | None


_KINDS: Final = (
    AnomalyKind(
        "out_of_order",
        CRITICAL,
        PER_KEY_ORDER,
        "an entry went to a connection that had already got a later entry of its key, without a redelivery request or a "
        "change of the active consumer between the two; or it was sent for the first time after a later entry of its key",
        0,
    ),
    AnomalyKind(
        "overtaken_redelivery",
        INFO,
        PER_KEY_ORDER,
        "a later entry of the key came first, but the connection had requested this one's redelivery: allowed, counted",
        None,
    ),
    AnomalyKind(
        "split_key",
        CRITICAL,
        PER_KEY_ORDER,
        "an entry went to one connection while an earlier or equal entry of its key was outstanding at another",
        0,
    ),
    AnomalyKind(
        "mixed_key_entry",
        MAJOR,
        PER_KEY_ORDER,
        "batches whose messages have several keys were sent under a rule that keeps order by key: by the first key alone",
        0,
    ),
    AnomalyKind(
        "double_outstanding",
        MAJOR,
        DUPLICATE_DELIVERY,
        "the very same entry was outstanding at two connections",
        0,
    ),
    AnomalyKind(
        "duplicate_after_ack",
        MAJOR,
        DUPLICATE_DELIVERY,
        "an entry was sent after its acknowledgement had been applied",
        0,
    ),
    AnomalyKind(
        "redelivered",
        INFO,
        DUPLICATE_DELIVERY,
        "any other repeated delivery; allowed and counted when a cause explains it",
        0,
    ),
    AnomalyKind(
        "never_delivered",
        MAJOR,
        COMPLETENESS,
        "readable, held by no limit, and not sent by the interval's end",
        0,
    ),
    AnomalyKind(
        "skipped",
        INFO,
        COMPLETENESS,
        "stored entries that were never sent, because the cursor was moved past them or a behaviour in force left them out; "
        "counted by what it was",
        None,
    ),
    AnomalyKind(
        "dropped",
        INFO,
        COMPLETENESS,
        "entries of a non-persistent topic that were sent to nobody when they were published; counted by the reason",
        None,
    ),
    AnomalyKind(
        "ack_hole",
        MINOR,
        COMPLETENESS,
        "acknowledged positions above an unacknowledged one for longer than policy",
        0,
    ),
    AnomalyKind(
        "stuck_key",
        MAJOR,
        COMPLETENESS,
        "messages of a key wait longer than policy; the reason names the rule and its holder",
        0,
    ),
    AnomalyKind(
        "stuck_consumer",
        MAJOR,
        COMPLETENESS,
        "a consumer with work to get gets none for longer than policy",
        0,
    ),
    AnomalyKind(
        "stuck_subscription",
        CRITICAL,
        COMPLETENESS,
        "nothing is sent though there is work, for longer than policy",
        0,
    ),
    AnomalyKind(
        "permit_leak",
        MAJOR,
        COMPLETENESS,
        "the broker counts other permits for a consumer than what its client granted less what deliveries took, for good",
        0,
    ),
    AnomalyKind(
        "permit_drift",
        MINOR,
        COMPLETENESS,
        "the dispatcher's total permits and the sum of its consumers' permits part for good",
        None,
    ),
    AnomalyKind(
        "imbalance",
        MINOR,
        BALANCE,
        "a consumer got more of the messages than policy allows for its share of the hash space",
        0,
    ),
    AnomalyKind(
        "failover_imbalance",
        MINOR,
        BALANCE,
        "the active topics of a subscription are spread unevenly over its consumers (PIP-392)",
        0,
    ),
    AnomalyKind(
        "hot_key",
        INFO,
        BALANCE,
        "one key carries more of the load than policy allows",
        None,
    ),
    AnomalyKind(
        "hot_consumer",
        MINOR,
        BALANCE,
        "one consumer carries more of the load than policy allows",
        None,
    ),
    AnomalyKind(
        "unnecessary_blocking",
        MINOR,
        BALANCE,
        "messages held back though no entry of their hash was outstanding elsewhere",
        None,
    ),
    AnomalyKind(
        "divergence",
        MAJOR,
        CONFORMANCE,
        "the recorded decision and the rule differ",
        0,
    ),
    AnomalyKind(
        "log_gap",
        MAJOR,
        INPUT_QUALITY,
        "lines of the log are missing: a gap line says so, or the sequence numbers have a hole",
        None,
    ),
    AnomalyKind(
        "repeated_lines",
        INFO,
        INPUT_QUALITY,
        "lines that the log has already, in another file or in the same one; each counts once",
        None,
    ),
    AnomalyKind(
        "clock_step",
        MINOR,
        INPUT_QUALITY,
        "the time of an event lies before the time of the event in front of it",
        None,
    ),
    AnomalyKind(
        "unknown_consumer",
        MAJOR,
        INPUT_QUALITY,
        "an event names a consumer that is not connected at that point of the log",
        0,
    ),
    AnomalyKind(
        "unknown_position",
        MAJOR,
        INPUT_QUALITY,
        "an event names a position that the message log does not hold",
        0,
    ),
    AnomalyKind(
        "unknown_key",
        MINOR,
        INPUT_QUALITY,
        "an entry was sent whose key the message log gives in a form that cannot be read: its order is not judged",
        None,
    ),
    AnomalyKind(
        "unknown_batch_size",
        MINOR,
        INPUT_QUALITY,
        "an entry was sent whose number of messages the message log gives in a form that cannot be read: it counts as one",
        None,
    ),
    AnomalyKind(
        "overlapping_incarnations",
        MAJOR,
        INPUT_QUALITY,
        "two loads of one topic were active at the same time",
        0,
    ),
)

KINDS: Final[dict[str, AnomalyKind]] = {kind.name: kind for kind in _KINDS}

#: The order in which findings of one event are listed.
KIND_ORDER: Final[dict[str, int]] = {kind.name: index for index, kind in enumerate(_KINDS)}


def worst(severities: list[str]) -> str | None:
    """Return the worst of some severities; ``None`` if there are none."""
    return min(severities, key=SEVERITIES.index, default=None)
