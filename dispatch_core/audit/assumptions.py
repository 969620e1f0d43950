"""Legal behaviour that a log may not show, and the findings that it could explain.

A finding is certain only if nothing legal explains its lines: nothing that the recorder would have written, and nothing that
the policy does not rule out. Example: 3:4 was never sent. An entry filter may have taken it out, and a log of format 1.0 has
no line for that. So the finding is certain only if the policy assumes that there is no entry filter.

The header's ``records`` (format 1.1) lists what the recorder writes: what is listed and has no line did not happen. For the
rest the policy's ``assume_absent`` counts; without ``records`` it is everything by default. Moves of the cursor are never
assumed to be absent: they are recognised by what they leave.

Source: delayed delivery, dispatch rates, entry filters (PIP-105), compacted reads, transactions (PIP-31), replicated
subscriptions (PIP-33), limits of unacknowledged messages by namespace or topic policy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from dispatch_core.arrays.columns import replaced
from dispatch_core.audit.behaviour_in_force import NOTHING_IN_FORCE, BehaviourInForce
from dispatch_core.audit.catalogue import NO_READ
from dispatch_core.audit.sentences.lists import listed
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type

#: Names of ``limit`` lines and of the policy's ``assume_absent``, and how sentences call them.
BEHAVIOURS: Final[Mapping[str, str]] = {
    "delayed_delivery": "delayed delivery",
    "dispatch_rate": "a dispatch rate",
    "entry_filter": "an entry filter",
    "compacted_read": "a compacted read",
    "transactions": "transactions",
    "replicated_subscription": "a replicated subscription",
    "unacked_namespace": "the namespace's limit of unacknowledged messages",
    "unacked_topic": "the topic's limit of unacknowledged messages",
}

#: ``reason`` of a finding that such behaviour may explain.
UNLOGGED: Final = "unlogged_behaviour"
#: Names in ``records`` of kinds and fields that show several of them, or have another name.
_SHOWN_BY: Final[Mapping[str, tuple[str, ...]]] = {
    "limit": tuple(BEHAVIOURS),
    "deliver_at_ms": ("delayed_delivery",),
}
#: Names in ``records`` by which acknowledgements in transactions are known.
TRANSACTIONS_LOGGED: Final = ("limit", "transactions")
#: The field of the message log that shows which messages are of transactions. It shows no acknowledgement of one.
_TRANSACTION: Final = "txn"
#: Kinds of findings that acknowledgements in transactions could explain: they take effect later, or never.
_BY_ACKS: Final = ("duplicate_after_ack", "ack_hole", "divergence")
#: A move of the cursor, as ``records`` names it. No policy rules it out.
CURSOR_MOVED: Final = "cursor_moved"
SUBSCRIPTION_DELETED: Final = "subscription_deleted"
_HOLD: Final = (
    "delayed_delivery",
    "dispatch_rate",
    "entry_filter",
    "transactions",
    "unacked_namespace",
    "unacked_topic",
)
_LEAVE_OUT: Final = ("compacted_read", "replicated_subscription")
#: By kind of finding.
_EXPLAIN: Final[Mapping[str, tuple[str, ...]]] = {
    "out_of_order": ("delayed_delivery", "entry_filter"),
    "duplicate_after_ack": ("transactions",),
    "never_delivered": (*_HOLD, *_LEAVE_OUT),
    "ack_hole": ("entry_filter", "transactions", *_LEAVE_OUT),
    "stuck_key": _HOLD,
    "stuck_consumer": _HOLD,
    "stuck_subscription": _HOLD,
    "divergence": (*_HOLD, *_LEAVE_OUT),
}
#: Stalls for these reasons are what the rule itself does; nothing else is needed to explain them.
_UNEXPLAINED_STALL: Final = (None, "replay_order", NO_READ)
_EVER_US: Final = 1 << 62
#: Kinds of findings that a behaviour in force leaves open; of the others the audit knows what it explains.
_LEFT_OPEN_BY: Final = ("out_of_order", "duplicate_after_ack")
#: The field of the message log that shows which entries a behaviour concerned, where it explains a kind by entries.
_FIELD_OF: Final[Mapping[tuple[str, str], str]] = {("out_of_order", "delayed_delivery"): "deliver_at_ms"}
#: Behaviour of some subscription types only.
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "delayed_delivery": ("Shared", "Key_Shared"),
    "compacted_read": ("Exclusive", "Failover"),
}


def not_of_type(subscription_type: str) -> list[str]:
    """Return the behaviours that subscriptions of a type do not have.

    >>> not_of_type("Failover"), not_of_type("Shared")
    (['delayed_delivery'], ['compacted_read'])
    """
    return [name for name, types in _TYPES.items() if subscription_type not in types]


def may_explain(kind: str, reason: str | None, subscription_type: str) -> tuple[str, ...]:
    """Return the behaviours that could explain a finding.

    >>> may_explain("out_of_order", None, "Failover"), may_explain("split_key", None, "Key_Shared")
    (('entry_filter',), ())

    Entries that nothing read may have been left out, as those that were never delivered:

    >>> may_explain("stuck_subscription", "no_read", "Shared") == may_explain("never_delivered", None, "Shared")
    True
    """
    if kind.startswith("stuck_") and reason not in _UNEXPLAINED_STALL:
        return ()
    names = _EXPLAIN["never_delivered"] if reason == NO_READ else _EXPLAIN.get(kind, ())
    return tuple(name for name in names if subscription_type in _TYPES.get(name, (subscription_type,)))


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Facts and assumptions about one log.

    Attributes:
        subscription_type: of the log.
        records: names of what the recorder writes, and of the behaviours that this shows; ``None`` = the header does not
            say.
        assume_absent: behaviours that the policy rules out; ``None`` = its default.
        in_force: behaviours that ``limit`` lines show.
    """

    subscription_type: str
    records: frozenset[str] | None = None
    assume_absent: Collection[str] | None = None
    in_force: BehaviourInForce = NOTHING_IN_FORCE

    @classmethod
    def of(
        cls,
        log: DispatcherLog,
        assume_absent: Collection[str] | None,
        in_force: BehaviourInForce | None = None,
    ) -> Assumptions:
        """Read what a log's header records.

        ``assume_absent``: what the policy rules out; ``in_force``: what the log's ``limit`` lines show, by default those in
        its events.
        """
        if in_force is None:
            in_force = BehaviourInForce.of([log.events])
        named = log.header.get("records")
        records = None
        if isinstance(named, list):
            names = [name for name in named if isinstance(name, str)]
            records = frozenset(shown for name in names for shown in (name, *_SHOWN_BY.get(name, ())))
        return cls(subscription_type(log), records, assume_absent, in_force)

    @property
    def ruled_out(self) -> frozenset[str]:
        """The behaviours that the policy rules out for this log."""
        if self.assume_absent is not None:
            return frozenset(self.assume_absent)
        return frozenset(BEHAVIOURS) if self.records is None else frozenset()

    def _recorded(self, kind: str) -> frozenset[str]:
        """Return the behaviours that the recorder would have written, as far as they could explain findings of a kind."""
        records = self.records or frozenset()
        return records | {"transactions"} if _TRANSACTION in records and kind not in _BY_ACKS else records

    def doubts(self, kind: str, reason: str | None, t_us: int | None = None) -> list[str]:
        """Return the behaviours that could explain a finding, and that nothing rules out.

        ``t_us``: time of the finding. If the log shows a behaviour in force before, and not which entries or
        acknowledgements it concerned, it could explain the finding, too.
        """
        known = self.ruled_out | self._recorded(kind)
        shown = frozenset[str]()
        if t_us is not None and kind in _LEFT_OPEN_BY:
            shown = frozenset(
                time.what
                for time in self.in_force.times
                if time.from_us <= t_us and _FIELD_OF.get((kind, time.what)) not in (self.records or ())
            )
        return [
            name
            for name in may_explain(kind, reason, self.subscription_type)
            if name not in known or name in shown
        ]

    def rests_on(self, findings: Iterable[Mapping[str, Any]]) -> list[str]:
        """Return the behaviours that would explain a certain finding, and that the policy alone rules out.

        ``findings``: rows of ``tables.ANOMALIES``, or their columns ``kind``, ``reason`` and ``uncertain``.
        """
        needed = {
            name
            for finding in findings
            if not finding["uncertain"]
            for name in may_explain(finding["kind"], finding["reason"], self.subscription_type)
            if name not in self._recorded(finding["kind"])
        }
        assumed = needed & self.ruled_out
        return [name for name in BEHAVIOURS if name in assumed]

    def applied(self, anomalies: pa.Table) -> pa.Table:
        """Make the findings uncertain that such behaviour may explain: rows of ``tables.ANOMALIES``."""
        if not anomalies.num_rows:
            return anomalies
        names = ("kind", "reason", "uncertain")
        groups = anomalies.group_by(names, use_threads=False).aggregate([]).to_pylist()
        if not any(
            self.doubts(row["kind"], row["reason"], _EVER_US) for row in groups if not row["uncertain"]
        ):
            return anomalies
        columns = [anomalies[name].to_pylist() for name in (*names, "t_us")]
        doubts = [
            [] if uncertain else self.doubts(kind, reason, t_us)
            for kind, reason, uncertain, t_us in zip(*columns, strict=True)
        ]
        changed: dict[str, list[Any]] = {
            name: anomalies[name].to_pylist() for name in (*names, "explanation")
        }
        for row, behaviours in enumerate(doubts):
            if behaviours:
                changed["uncertain"][row] = True
                changed["reason"][row] = changed["reason"][row] or UNLOGGED
                changed["explanation"][row] += (
                    f"; but {shown(behaviours)} may explain it, which this log cannot show"
                )
        return replaced(anomalies, changed)


def shown(behaviours: Iterable[str]) -> str:
    """List behaviours in a sentence.

    >>> shown(["delayed_delivery", "transactions"])
    'delayed delivery or transactions'
    """
    return listed([BEHAVIOURS[name] for name in behaviours], most=len(BEHAVIOURS), last="or")
