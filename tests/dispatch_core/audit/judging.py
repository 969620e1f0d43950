"""Counts and policy rules for tests of verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from dispatch_core.audit.policy.reader import shipped_rules
from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.promises.counts import Counts
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.replay.whole_log import WholeAudit, add_to


def counts_of(rows: Iterable[Mapping[str, Any]], **fields: Any) -> Counts:
    """Counts of findings; by default the rules were not replayed."""
    counts = Counts(**({"subscription_type": "Key_Shared", "in_log": True, "rules": False} | fields))
    for row in rows:
        counts.add(row["kind"], row["cause"], row["reason"], row["uncertain"])
    return counts


def replayed(**changed: Any) -> dict[str, Any]:
    """Fields of ``Counts`` for a replay of 100 deliveries that finds nothing; ``changed``: columns of its tables."""
    state = {
        "subscription_type": "Key_Shared",
        "not_judged_reason": None,
        "rounds": 20,
        "decisions": 100,
        "uncertain": 0,
        "divergent": 0,
        "last_seq": 9,
        "last_t_us": 9,
    }
    waits = {"never_delivered": 0, "wait_ms_p99": 5.0, "wait_ms_max": 9.0, "blocked_message_ms": 0.0}
    consumer = {"consumer_name": "w1", "messages": 100, "keys": 10, "message_share": 1.0, "hash_share": 1.0}
    parts = [
        {name: changed.pop(name, value) for name, value in part.items()} for part in (state, waits, consumer)
    ]
    fields: dict[str, Any] = {"rules": True, "sent_in_log": 100, "delivered": 100}
    return (
        fields
        | {name: [part] for name, part in zip(("states", "waits", "balance"), parts, strict=True)}
        | changed
    )


def counts_of_audit(log: DispatcherLog, audit: WholeAudit) -> Counts:
    """Counts of the audit of a log."""
    counts = Counts(subscription_type(log), in_log=log.events.num_rows > 0)
    add_to(counts, log, audit)
    return counts


def rule(**sections: Mapping[str, float | None]) -> Rule:
    """The shipped rule with other limits, by promise."""
    shipped = shipped_rules().rules[-1]
    limits = {name: {**values, **sections.get(name, {})} for name, values in shipped.limits.items()}
    return replace(shipped, limits=limits)
