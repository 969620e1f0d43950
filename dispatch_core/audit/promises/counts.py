"""The counts that the checks of the promises look at: one row per dispatcher, made of its findings and result tables.

Every number is a count, or a ratio of two; it is not compared with a limit here. The command line fills the counts from the
tables of one log, the pipeline from those of an interval.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from dispatch_core.audit.catalogue import HANDOVER, ORDER_NOT_PROMISED
from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.promises.balance import GATES
from dispatch_core.audit.promises.duplicate_delivery import CAUSES
from dispatch_core.audit.promises.every import LOG_KINDS, PROMISE_OF_KIND, TOLERATED_KINDS
from dispatch_core.audit.unsent_entries import explained

#: Subscription types whose consumers get no promise of order and whose rule is not replayed without a trace.
UNORDERED: Final = ("Shared",)
#: Columns of findings that a change of the active consumer explains, by promise.
HANDED_OVER: Final = {promise: f"{promise}_{HANDOVER}" for promise in ("per_key_order", "duplicate_delivery")}
#: Waiting times that the policy may limit.
WAITS: Final = ("wait_ms_p99", "wait_ms_max", "blocked_message_ms")
#: Columns of the replay's tables that ``Counts`` reads.
STATE_COLUMNS: Final = (
    *("subscription_type", "not_judged_reason", "rounds", "decisions", "uncertain", "divergent"),
    *("last_seq", "last_t_us"),
)
BALANCE_COLUMNS: Final = ("consumer_name", "messages", "keys", "message_share", "hash_share")
_CERTAINTY: Final = ("certain", "uncertain")
_UNCERTAIN_COUNTED: Final = ("per_key_order", "duplicate_delivery", "completeness")


def columns_of(kind: str, cause: str | None, reason: str | None, uncertain: bool) -> tuple[str, ...]:
    """Return the columns in which a finding counts.

    >>> columns_of("split_key", None, None, False), columns_of("split_key", None, None, True)
    (('split_key',), ('per_key_order_uncertain',))
    >>> columns_of("redelivered", "nack", None, False), columns_of("log_gap", None, None, False)
    (('redelivered_nack',), ('log_gap', 'log_gap_certain'))
    """
    promise = PROMISE_OF_KIND.get(kind)
    if promise is None and kind not in LOG_KINDS:
        return ("unknown_kinds",)
    if reason == ORDER_NOT_PROMISED and promise == "per_key_order":
        return (ORDER_NOT_PROMISED,)
    if reason == HANDOVER and promise in HANDED_OVER:
        return (HANDED_OVER[promise],)
    if kind == "redelivered" and cause in CAUSES:
        return (f"redelivered_{cause}",)
    if uncertain and promise is not None and kind not in TOLERATED_KINDS:
        return (f"{promise}_uncertain",)
    if kind in LOG_KINDS:
        return (kind, f"{kind}_{'uncertain' if uncertain else 'certain'}")
    return ("redelivered_unexplained" if kind == "redelivered" else kind,)


@dataclass
class Counts:
    """Counts of one dispatcher while they are collected.

    Attributes:
        subscription_type: of the dispatcher; "" = as ``states`` say.
        incarnation: the newest one.
        in_log: the log has an event.
        rules: the rules were replayed, so that the tables of the replay are there.
        sent_in_log, delivered: deliveries that the log has, and of these the ones that were audited.
        kinds: findings by column (``columns_of``).
        states, waits, balance: rows of the replay's tables, one per incarnation (and consumer).
        explained: entries that were not sent by the newest incarnation, and that a finding is about.
        doubted: decisions that differ from the rules and prove nothing, because of what may explain them (``doubted_by``).
        quarantined: rows of its files that could not be read; ``first_quarantined``: place and reason of the first.
    """

    subscription_type: str = ""
    incarnation: int = 0
    in_log: bool = False
    rules: bool = True
    sent_in_log: int = 0
    delivered: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    states: list[Mapping[str, Any]] = field(default_factory=list)
    waits: list[Mapping[str, Any]] = field(default_factory=list)
    balance: list[Mapping[str, Any]] = field(default_factory=list)
    explained: int = 0
    doubted: int = 0
    doubted_by: dict[str, None] = field(default_factory=dict)
    quarantined: int = 0
    first_quarantined: str = ""

    def add(self, kind: str, cause: str | None, reason: str | None, uncertain: bool, count: int = 1) -> None:
        """Add findings of one kind."""
        for column in columns_of(kind, cause, reason, uncertain):
            self.kinds[column] += count

    def add_load(
        self,
        incarnation: int,
        *,
        deliveries: pa.Table,
        anomalies: pa.Table,
        state: pa.Table,
        waits: pa.Table,
        balance: pa.Table,
        doubted: int = 0,
        doubted_by: Iterable[str] = (),
    ) -> None:
        """Add the result tables of a load of the topic, which is behind those that were added before.

        ``doubted``, ``doubted_by``: as the attributes, of this load.
        """
        self.incarnation = incarnation
        self.sent_in_log += deliveries.num_rows
        self.delivered += deliveries.num_rows
        names = ["kind", "cause", "reason", "uncertain"]
        groups = anomalies.select(names).group_by(names, use_threads=False).aggregate([([], "count_all")])
        for group in groups.to_pylist():
            self.add(group["kind"], group["cause"], group["reason"], group["uncertain"], group["count_all"])
        self.states += state.select(list(STATE_COLUMNS)).to_pylist()
        self.waits += waits.select(["never_delivered", *WAITS]).to_pylist()
        self.balance += balance.select(list(BALANCE_COLUMNS)).to_pylist()
        self.explained = explained(anomalies, incarnation)
        self.doubted += doubted
        self.doubted_by |= dict.fromkeys(doubted_by)

    def row(
        self,
        rule: Rule,
        *,
        rolling: Sequence[Mapping[str, Any]] = (),
        unaccounted: int | None = 0,
        nobody: bool = False,
    ) -> dict[str, Any]:
        """Return the values of all columns; ``rule``: has the least numbers from which balance is judged.

        Args:
            rule: of the policy, for the dispatcher.
            rolling: rows over a longer time that are judged in place of ``balance``, if there are any.
            unaccounted: rows of the input that no count explains; ``None`` = there are no counts.
            nobody: the row is of what belongs to no dispatcher.
        """
        known = {state["subscription_type"] for state in self.states if state["subscription_type"]}
        types = [self.subscription_type] if self.subscription_type else sorted(known)
        unordered = bool(types) and all(kind in UNORDERED for kind in types)
        decisions = sum(state["decisions"] for state in self.states)
        reasons = sorted({state["not_judged_reason"] for state in self.states if state["not_judged_reason"]})
        # Of Shared only a trace has decisions; else nothing is wrong if none was compared.
        unjudged = [] if unordered and not decisions else reasons
        uncertain = sum(state["uncertain"] for state in self.states)
        divergent = sum(state["divergent"] for state in self.states)
        doubted = min(self.doubted, divergent)
        row: dict[str, Any] = {
            "incarnation": self.incarnation,
            "subscription_type": ", ".join(types),
            "unordered": unordered,
            "replay_missing": int(self.in_log and self.rules and not self.states),
            "never_recorded": int(self._never_recorded()),
            "nothing_recorded": 0,
            "sent_in_log": self.sent_in_log,
            "sent_unaudited": abs(self.sent_in_log - self.delivered),
            "because": f": {'; '.join(reasons)}" if reasons else "",
            "decisions": decisions,
            "uncertain_decisions": uncertain,
            "divergent": divergent - doubted,
            "doubted": doubted,
            "doubted_by": " or ".join(self.doubted_by),
            "uncertain_percent": 100.0 * uncertain / decisions if decisions else 0.0,
            "not_judged": len(unjudged),
            # Only a trace has the rounds of the deliveries.
            "reads_unseen": bool(decisions and self.sent_in_log)
            and not any(state["rounds"] for state in self.states),
            "not_judged_reason": "; ".join(unjudged),
            "undecided_sends": 0 if decisions or unjudged or unordered else self.sent_in_log,
            "undelivered": self._undelivered(nobody),
            "quarantined": self.quarantined,
            "first_quarantined": self.first_quarantined,
            "rows_unaccounted": unaccounted,
            "balance_missing": int(self.delivered > 0 and not self.balance),
        }
        kinds = (*PROMISE_OF_KIND, *LOG_KINDS, ORDER_NOT_PROMISED, "unknown_kinds", *HANDED_OVER.values())
        row |= {kind: self.kinds[kind] for kind in kinds}
        row |= {f"{kind}_{how}": self.kinds[f"{kind}_{how}"] for kind in LOG_KINDS for how in _CERTAINTY}
        row |= {f"redelivered_{cause}": self.kinds[f"redelivered_{cause}"] for cause in CAUSES}
        row |= {f"{name}_uncertain": self.kinds[f"{name}_uncertain"] for name in _UNCERTAIN_COUNTED}
        row |= {name: _most(wait[name] for wait in self.waits) for name in WAITS}
        row |= _balance(rolling or self.balance)
        gates = [(column, rule.tolerated(threshold)) for column, threshold in GATES]
        row["balance_not_judged"] = any(
            row[column] is None or row[column] < (least or 0) for column, least in gates
        )
        return row

    def _never_recorded(self) -> bool:
        """Check that there is no event at all, before the interval neither."""
        if self.in_log:
            return False
        if not self.rules:
            return True
        # A log that could not be put together has no line in its state.
        return bool(self.states) and all(
            not state["last_seq"] and state["last_t_us"] is None for state in self.states
        )

    def _undelivered(self, nobody: bool) -> float | None:
        """Count entries that were stored and not sent, and that no finding is about; ``None`` = not known."""
        if self.waits:
            return max(0, sum(wait["never_delivered"] for wait in self.waits) - self.explained)
        return 0 if nobody or not (self.sent_in_log or self.delivered) else None


def _most(values: Iterable[float | None]) -> float | None:
    """Return the greatest known value, which is that of the worst incarnation."""
    return max((value for value in values if value is not None), default=None)


def _balance(consumers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compute the counts for the balance gates, and the consumer with the greatest load for its share of the hash space."""
    ratios = [
        (consumer["message_share"] / consumer["hash_share"], consumer["consumer_name"])
        for consumer in consumers
        if consumer["hash_share"]
    ]
    ratio, busiest = max(ratios, default=(None, ""))
    return {
        "messages": sum(consumer["messages"] for consumer in consumers),
        # The keys of a window with too few messages are not counted.
        "keys_per_consumer": None
        if any(consumer["keys"] is None for consumer in consumers)
        else sum(consumer["keys"] for consumer in consumers) / max(len(consumers), 1),
        "max_share_ratio": ratio,
        "busiest_consumer": busiest,
    }
