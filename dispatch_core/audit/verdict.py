"""From findings to verdicts: did the promise hold?

* ``FAIL``: more findings of a kind than the policy bears, each proven by the log.
* ``UNKNOWN``: no such finding, but lines of the log are missing, or findings are uncertain, so that the promise cannot be
  said to have held.
* ``PASS``: neither. Tolerated findings are counted beside it.

Only what ``audit_log`` finds is judged here: per-key order, duplicate delivery and the quality of the log. Balance,
completeness and conformance have tables of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from dispatch_core.audit.catalogue import (
    CAUSES,
    DUPLICATE_DELIVERY,
    INPUT_QUALITY,
    KIND_ORDER,
    KINDS,
    ORDER_NOT_PROMISED,
    PER_KEY_ORDER,
    SEVERITIES,
)

PASS: Final = "PASS"  # noqa: S105 - a verdict, not a password
FAIL: Final = "FAIL"
UNKNOWN: Final = "UNKNOWN"

#: The promises that findings of the audit decide.
AUDITED_PROMISES: Final = (PER_KEY_ORDER, DUPLICATE_DELIVERY, INPUT_QUALITY)
#: Kinds that leave other promises undecided: what the missing lines or unknown keys hold may break them.
_TOUCHES: Final = {
    PER_KEY_ORDER: ("log_gap", "unknown_position"),
    DUPLICATE_DELIVERY: ("log_gap",),
    INPUT_QUALITY: ("log_gap",),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """What is borne. ``tolerated``: findings per kind, ``None`` = any number, absent = the catalogue's default.

    ``tolerated_causes``: causes that make a finding of a kind tolerable whatever the number (``rewind`` for
    ``double_outstanding`` would bear Failover hand-overs). ``uncertain_tolerated``: uncertain findings per promise that do
    not yet make it ``UNKNOWN``.
    """

    tolerated: Mapping[str, int | None] = field(default_factory=dict)
    tolerated_causes: Mapping[str, frozenset[str]] = field(
        default_factory=lambda: {"redelivered": frozenset(CAUSES)}
    )
    uncertain_tolerated: int = 0
    top: int = 5

    def limit(self, kind: str) -> int | None:
        """How many findings of ``kind`` are borne; ``None`` = any number."""
        return self.tolerated.get(kind, KINDS[kind].default_tolerated)

    def tolerates(self, kind: str, cause: str | None, reason: str | None) -> bool:
        """Whether a single finding is borne, whatever the number of its like."""
        if reason == ORDER_NOT_PROMISED or self.limit(kind) is None:
            return True
        return cause is not None and cause in self.tolerated_causes.get(kind, frozenset())


DEFAULT_POLICY: Final = Policy()


@dataclass(frozen=True, slots=True)
class PromiseVerdict:
    """The verdict on one promise. ``findings`` break it or leave it open, ``tolerated`` do not."""

    promise: str
    verdict: str
    findings: int
    tolerated: int
    reason: str
    top_findings: tuple[str, ...]


def verdicts(
    anomalies: pa.Table | Iterable[Mapping[str, Any]],
    *,
    policy: Policy = DEFAULT_POLICY,
    subscription_type: str = "Key_Shared",
) -> list[PromiseVerdict]:
    """Judge the promises in ``AUDITED_PROMISES`` by the anomalies of one dispatcher."""
    if isinstance(anomalies, pa.Table):
        names = ["kind", "severity", "key", "cause", "reason", "uncertain", "explanation"]
        anomalies = anomalies.select(names).to_pylist()
    rows = list(anomalies)
    return [_judge(promise, rows, policy, subscription_type) for promise in AUDITED_PROMISES]


def overall(promises: Iterable[PromiseVerdict]) -> str:
    """FAIL if a promise failed, else UNKNOWN if one is unknown, else PASS."""
    given = {promise.verdict for promise in promises}
    return FAIL if FAIL in given else UNKNOWN if UNKNOWN in given else PASS


def _judge(
    promise: str, rows: list[Mapping[str, Any]], policy: Policy, subscription_type: str
) -> PromiseVerdict:
    certain: Counter[str] = Counter()
    uncertain: Counter[str] = Counter()
    tolerated: Counter[str] = Counter()
    touching: Counter[str] = Counter()
    telling: list[Mapping[str, Any]] = []
    for row in rows:
        kind = row["kind"]
        if kind in _TOUCHES[promise]:
            touching[kind] += 1
            telling.append(row)
        if kind not in KINDS or KINDS[kind].promise != promise or kind in _TOUCHES[promise]:
            continue
        if policy.tolerates(kind, row["cause"], row["reason"]):
            tolerated[kind] += 1
            continue
        (uncertain if row["uncertain"] else certain)[kind] += 1
        telling.append(row)
    broken = {kind: count for kind, count in certain.items() if count > (policy.limit(kind) or 0)}
    for kind in certain.keys() - broken.keys():
        tolerated[kind] += certain.pop(kind)
        telling = [row for row in telling if row["kind"] != kind or row["uncertain"]]
    if broken:
        verdict, reason = FAIL, _counted(broken)
    elif touching or sum(uncertain.values()) > policy.uncertain_tolerated:
        verdict, reason = UNKNOWN, _open_question(touching, uncertain)
    else:
        verdict, reason = PASS, _all_well(promise, tolerated, subscription_type)
    telling = _most_telling_first(telling)
    return PromiseVerdict(
        promise=promise,
        verdict=verdict,
        findings=sum(certain.values()) + sum(uncertain.values()) + sum(touching.values()),
        tolerated=sum(tolerated.values()),
        reason=reason,
        top_findings=tuple(row["explanation"] for row in telling[: policy.top]),
    )


def _most_telling_first(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Certain before uncertain, then one finding of every (kind, key) before the second of any, then the worst."""
    seen: Counter[tuple[str, str | None]] = Counter()
    ranked = []
    for row in rows:
        turn = seen[row["kind"], row["key"]]
        seen[row["kind"], row["key"]] += 1
        rank = (bool(row["uncertain"]), turn, SEVERITIES.index(row["severity"]), KIND_ORDER[row["kind"]])
        ranked.append((rank, row))
    ranked.sort(key=lambda item: item[0])
    return [row for _, row in ranked]


def _open_question(touching: Mapping[str, int], uncertain: Mapping[str, int]) -> str:
    parts = []
    if touching.get("log_gap"):
        parts.append(f"lines of the log are missing ({_counted({'log_gap': touching['log_gap']})})")
    if touching.get("unknown_position"):
        parts.append(
            f"the message log lacks entries ({_counted({'unknown_position': touching['unknown_position']})})"
        )
    if uncertain:
        parts.append(f"findings that this log cannot prove: {_counted(uncertain)}")
    return "; ".join(parts)


def _all_well(promise: str, tolerated: Mapping[str, int], subscription_type: str) -> str:
    if promise == PER_KEY_ORDER and subscription_type == "Shared":
        return "a Shared subscription promises no order: not judged"
    return f"tolerated: {_counted(tolerated)}" if tolerated else "no finding"


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(
        f"{count} {kind}" for kind, count in sorted(counts.items(), key=lambda item: KIND_ORDER[item[0]])
    )
