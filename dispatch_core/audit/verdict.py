"""Judge the promises of a subscription by its findings.

* ``FAIL``: more findings of a kind than the policy tolerates, each proven by the log.
* ``UNKNOWN``: no such finding, but lines of the log are missing or findings are uncertain, so that the promise may have been
  broken; or the log has no event at all, so that there was nothing to judge.
* ``PASS``: neither. Tolerated findings are counted beside it.

Example: a log with one proven ``split_key`` gives FAIL for order by key. With a gap in the log instead of the finding, the
verdict is UNKNOWN.

A log without any event is UNKNOWN: perhaps nobody used the subscription, perhaps nobody recorded it. A log *with* events in
which nothing was sent, or an interval without traffic after intervals with events, is PASS: the recorder was at work, and
nothing breaks a promise. So a quiet day raises no alert.

``AUDITED_PROMISES`` are judged by findings alone; balance, completeness and conformance also need the counts of the replay
(``Seen``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.assumptions import Assumptions
from dispatch_core.audit.catalogue import (
    BALANCE,
    BY_LINES,
    CAUSES,
    COMPLETENESS,
    CONFORMANCE,
    DOCUMENTED,
    DUPLICATE_DELIVERY,
    INPUT_QUALITY,
    KIND_ORDER,
    KINDS,
    PER_KEY_ORDER,
    PROMISES,
    SEVERITIES,
)
from dispatch_core.audit.root_causes import NO_NAMES, by_root_cause
from dispatch_core.audit.sentences.lists import counts_by_name
from dispatch_core.audit.sentences.names import ConsumerNames
from dispatch_core.tables import SHARED_WITHOUT_TRACE

PASS: Final = "PASS"  # noqa: S105 - a verdict, not a password
FAIL: Final = "FAIL"
UNKNOWN: Final = "UNKNOWN"

#: The promises that are decided without replaying rules.
AUDITED_PROMISES: Final = (PER_KEY_ORDER, DUPLICATE_DELIVERY, INPUT_QUALITY)
#: Kinds of findings that leave other promises undecided: missing lines or unknown keys may hide what breaks them.
_TOUCHES: Final = {
    PER_KEY_ORDER: ("log_gap", "unknown_position", "unknown_key", "overlapping_incarnations"),
    DUPLICATE_DELIVERY: ("log_gap", "overlapping_incarnations"),
    COMPLETENESS: ("log_gap", "unknown_position", "overlapping_incarnations"),
    INPUT_QUALITY: ("log_gap",),
}
#: Promises that are UNKNOWN if the log has no event (balance has limits of its own, and rows can be understood).
_NEED_EVENTS: Final = (PER_KEY_ORDER, DUPLICATE_DELIVERY, COMPLETENESS, CONFORMANCE)
NOTHING_RECORDED: Final = (
    "the log has a header and no event: there was nothing to judge; see that the recorder ran while the subscription was in "
    "use, and that its event files are among those given"
)
ROWS_LOST: Final = "unreadable rows may hide entries that were never sent, or events: {value}"
_TOUCHES_BECAUSE: Final = {
    "log_gap": "lines of the log are missing",
    "unknown_position": "the message log lacks entries",
    "unknown_key": "keys of the message log cannot be read",
    "overlapping_incarnations": "two loads of the topic were active at once",
}


@dataclass(frozen=True, slots=True)
class Policy:
    """Tolerated findings.

    Attributes:
        tolerated: number of findings per kind; ``None`` = any number, absent = the catalogue's default.
        tolerated_causes: causes with which any number of findings of a kind is tolerated. Example: ``rewind`` for
            ``double_outstanding`` tolerates what Failover repeats when the active consumer changes.
        tolerated_reasons: reasons with which any number of findings is tolerated: what the subscription type documents, or
            what the consumer consented to.
        uncertain_tolerated: number of uncertain findings per promise that do not yet make it ``UNKNOWN``.
        uncertain_percent: largest part of uncertain decisions that does not yet make conformance ``UNKNOWN``, percent of
            the decisions that were compared with the rules.
        min_decisions: with fewer of them, their uncertain share is not judged: one decision would be a large part.
        top: number of findings that a verdict lists.
    """

    tolerated: Mapping[str, int | None] = field(default_factory=dict)
    tolerated_causes: Mapping[str, frozenset[str]] = field(
        default_factory=lambda: {"redelivered": frozenset(CAUSES)}
    )
    tolerated_reasons: frozenset[str] = frozenset(DOCUMENTED)
    uncertain_tolerated: int = 0
    uncertain_percent: float = 5.0
    min_decisions: int = 100
    top: int = 5

    def limit(self, kind: str) -> int | None:
        """Return the number of findings of ``kind`` that are tolerated; ``None`` = any number."""
        return self.tolerated.get(kind, KINDS[kind].default_tolerated)

    def tolerates(self, kind: str, cause: str | None, reason: str | None) -> bool:
        """Check whether a finding with this cause or reason is tolerated in any number."""
        if reason in self.tolerated_reasons or self.limit(kind) is None:
            return True
        return cause is not None and cause in self.tolerated_causes.get(kind, frozenset())


DEFAULT_POLICY: Final = Policy()


@dataclass(frozen=True, slots=True)
class Seen:
    """Counts of a replay beside its findings.

    Attributes:
        decisions: number of decisions that were compared with the rules.
        divergent: of these, the number that differ.
        uncertain: of these, the number that depend on what the log does not show.
        doubted: the number of decisions that differ and prove nothing, because of what may explain them (``doubted_by``).
        not_judged: the reason why no decision was compared; ``None`` = some were.
        sent: number of deliveries.
        undelivered: number of entries that were stored and not sent, without a finding about them.
        balance: the reason why balance is not judged; ``None`` = it is.
    """

    decisions: int
    divergent: int
    uncertain: int
    doubted: int
    not_judged: str | None
    sent: int
    undelivered: int
    balance: str | None
    doubted_by: tuple[str, ...] = ()

    @classmethod
    def over(cls, loads: Sequence[Seen]) -> Seen:
        """Return the counts of one dispatcher over the loads of its topic, oldest first.

        What an earlier load left unsent, the last one may have sent. Balance is judged if it is for any load.
        """
        reasons = dict.fromkeys(seen.not_judged for seen in loads if seen.not_judged is not None)
        unbalanced = [seen.balance for seen in loads]
        return cls(
            decisions=sum(seen.decisions for seen in loads),
            divergent=sum(seen.divergent for seen in loads),
            uncertain=sum(seen.uncertain for seen in loads),
            doubted=sum(seen.doubted for seen in loads),
            not_judged="; ".join(reasons) or None,
            sent=sum(seen.sent for seen in loads),
            undelivered=loads[-1].undelivered,
            balance=None if None in unbalanced else unbalanced[-1],
            doubted_by=tuple(dict.fromkeys(because for seen in loads for because in seen.doubted_by)),
        )


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Rows of the log's files that could not be read: their number, and place and reason of the first."""

    rows: int = 0
    first: str = ""


NOTHING_QUARANTINED: Final = Quarantined()


@dataclass(frozen=True, slots=True)
class PromiseVerdict:
    """The verdict on one promise. ``findings`` break it or leave it open, ``tolerated`` ones do not.

    ``top_findings``: a sentence for each of the worst root causes (``root_causes``), which are ``top_count`` findings.

    ``assumes``: behaviours that the policy rules out, and that would explain what breaks the promise.
    """

    promise: str
    verdict: str
    findings: int
    tolerated: int
    reason: str
    top_findings: tuple[str, ...]
    top_count: int = 0
    assumes: tuple[str, ...] = ()


_COLUMNS: Final = (
    *("incarnation", "kind", "severity", "key", "positions", "consumers", "t_us"),
    *("cause", "reason", "uncertain", "explanation"),
)
#: From so many findings on, the tolerated ones are counted without making objects of them.
_MANY: Final = 10_000


def verdicts(
    anomalies: pa.Table | Iterable[Mapping[str, Any]],
    *,
    policy: Policy = DEFAULT_POLICY,
    subscription_type: str = "Key_Shared",
    seen: Seen | None = None,
    recorded: bool = True,
    quarantined: Quarantined = NOTHING_QUARANTINED,
    assumptions: Assumptions | None = None,
    names: ConsumerNames = NO_NAMES,
) -> list[PromiseVerdict]:
    """Judge the promises by the anomalies of one dispatcher: all of them, or those in ``AUDITED_PROMISES`` if the rules were
    not replayed (``seen`` is ``None``).

    ``recorded``: its log has events at all. ``quarantined``: rows of its files that were lost. They break input quality, and
    they may hide entries that were never sent. ``assumptions``: what is ruled out for this log; by default what is ruled
    out for a log that does not say what it records. ``names``: of consumers, for sentences.
    """
    passed: Counter[str] = Counter()
    if isinstance(anomalies, pa.Table):
        anomalies = anomalies.select(_COLUMNS)
        if anomalies.num_rows > _MANY:
            passed, anomalies = _tolerated_at_once(anomalies, policy)
        anomalies = anomalies.to_pylist()
    rows = list(anomalies)
    promises = AUDITED_PROMISES if seen is None else PROMISES
    known = Assumptions(subscription_type) if assumptions is None else assumptions
    return [
        _judge(
            promise,
            rows,
            passed,
            policy,
            subscription_type,
            seen,
            quarantined,
            known,
            names,
            recorded=recorded,
        )
        for promise in promises
    ]


def overall(promises: Iterable[PromiseVerdict]) -> str:
    """Return FAIL if a promise failed, else UNKNOWN if one is unknown, else PASS."""
    given = {promise.verdict for promise in promises}
    return FAIL if FAIL in given else UNKNOWN if UNKNOWN in given else PASS


def _tolerated_at_once(anomalies: pa.Table, policy: Policy) -> tuple[Counter[str], pa.Table]:
    """Count the tolerated findings by kind, and return the other rows: a row takes many times its memory as an object."""
    columns = ["kind", "cause", "reason"]
    doubts = {kind for kinds in _TOUCHES.values() for kind in kinds}
    passed: Counter[str] = Counter()
    for group in anomalies.group_by(columns, use_threads=False).aggregate([([], "count_all")]).to_pylist():
        kind, cause, reason = (group[name] for name in columns)
        if kind not in KINDS or kind in doubts or not policy.tolerates(kind, cause, reason):
            continue
        passed[kind] += group["count_all"]
        same = pc.equal(anomalies["kind"], kind)
        for name in ("cause", "reason"):
            column = anomalies[name]
            same = pc.and_(
                same,
                column.is_null()
                if group[name] is None
                else pc.fill_null(pc.equal(column, group[name]), False),
            )
        anomalies = anomalies.filter(pc.invert(same))
    return passed, anomalies


def _judge(
    promise: str,
    rows: list[Mapping[str, Any]],
    passed: Mapping[str, int],
    policy: Policy,
    subscription_type: str,
    seen: Seen | None,
    quarantined: Quarantined,
    assumptions: Assumptions,
    names: ConsumerNames,
    *,
    recorded: bool,
) -> PromiseVerdict:
    certain: Counter[str] = Counter()
    uncertain: Counter[str] = Counter()
    tolerated = Counter({kind: count for kind, count in passed.items() if KINDS[kind].promise == promise})
    touching: Counter[str] = Counter()
    telling: list[Mapping[str, Any]] = []
    for row in rows:
        kind = row["kind"]
        if kind in _TOUCHES.get(promise, ()):
            touching[kind] += 1
            telling.append(row)
        if kind not in KINDS or KINDS[kind].promise != promise or kind in _TOUCHES.get(promise, ()):
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
    assumes: list[str] = []
    unseen = None if seen is None else _unseen(promise, seen, policy, subscription_type)
    if promise == INPUT_QUALITY and quarantined.rows:
        unreadable = f"unreadable rows, quarantined: {quarantined.rows:,}; first: {quarantined.first}"
        verdict, reason = FAIL, "; ".join([unreadable, *([_counted(broken)] if broken else [])])
    elif broken:
        assumes = assumptions.rests_on(row for row in telling if row["kind"] in broken)
        verdict, reason = FAIL, _counted(broken)
    elif promise == CONFORMANCE and seen is not None and seen.divergent and not tolerated:
        assumes = assumptions.rests_on([{"kind": "divergence", "reason": None, "uncertain": False}])
        verdict, reason = (
            FAIL,
            f"{seen.divergent} decisions differ from the rules, as follows from other findings",
        )
    elif touching or sum(uncertain.values()) > policy.uncertain_tolerated:
        verdict, reason = UNKNOWN, _open_question(touching, uncertain)
    elif not recorded and promise in _NEED_EVENTS:
        verdict, reason = UNKNOWN, NOTHING_RECORDED
    elif unseen is not None:
        verdict, reason = UNKNOWN, unseen
    elif promise == COMPLETENESS and quarantined.rows:
        verdict, reason = UNKNOWN, ROWS_LOST.format(value=f"{quarantined.rows:,}")
    else:
        verdict, reason = PASS, _all_well(promise, tolerated, subscription_type, seen)
    if assumes:
        reason += f"; assumed absent: {', '.join(assumes)}"
    causes = by_root_cause(_most_telling_first(telling))[: policy.top]
    return PromiseVerdict(
        promise=promise,
        verdict=verdict,
        findings=sum(certain.values()) + sum(uncertain.values()) + sum(touching.values()),
        tolerated=sum(tolerated.values()),
        reason=reason,
        top_findings=tuple(cause.sentence(names) for cause in causes),
        top_count=sum(cause.count for cause in causes),
        assumes=tuple(assumes),
    )


def _most_telling_first(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort findings: certain ones first, then one of each (kind, key) before the second of any, then the worst."""
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
    parts = [
        f"{why} ({_counted({kind: touching[kind]})})"
        for kind, why in _TOUCHES_BECAUSE.items()
        if touching.get(kind)
    ]
    if uncertain:
        parts.append(f"findings that this log cannot prove: {_counted(uncertain)}")
    return "; ".join(parts)


def _unseen(promise: str, seen: Seen, policy: Policy, subscription_type: str) -> str | None:
    """Return the reason why a promise without findings is UNKNOWN; ``None`` = it was kept."""
    judged = seen.not_judged is None or subscription_type == "Shared"
    if promise == COMPLETENESS:
        if seen.undelivered:
            return f"stored entries that were not sent, and no finding says why: {seen.undelivered}"
        return None if judged else f"what held work back is not known: {seen.not_judged}"
    if promise != CONFORMANCE or (subscription_type == "Shared" and not seen.decisions):
        return None
    if seen.not_judged is not None:
        return f"nothing was compared with the rules: {seen.not_judged}"
    if seen.doubted:
        because = " or ".join(seen.doubted_by or (BY_LINES,))
        return f"{seen.doubted} decisions differ from the rules, which {because} may explain"
    percent = 100 * seen.uncertain / seen.decisions if seen.decisions else 0.0
    if percent > policy.uncertain_percent and seen.decisions >= policy.min_decisions:
        return f"{percent:.1f} % of {seen.decisions} decisions hang on an order that the log does not show"
    if seen.sent and not seen.decisions:
        return f"none of {seen.sent} deliveries could be compared with the rules"
    return None


def _all_well(promise: str, tolerated: Mapping[str, int], subscription_type: str, seen: Seen | None) -> str:
    parts = [f"tolerated: {_counted(tolerated)}"] if tolerated else []
    if subscription_type == "Shared" and promise == PER_KEY_ORDER:
        return "a Shared subscription promises no order: not judged"
    if subscription_type == "Shared" and promise == CONFORMANCE and not (seen and seen.decisions):
        return SHARED_WITHOUT_TRACE
    if promise == BALANCE and seen is not None and seen.balance is not None:
        parts.append(f"not judged: {seen.balance}")
    if promise == CONFORMANCE and seen is not None:
        parts.append(f"{seen.decisions} decisions compared, {seen.uncertain} uncertain")
    return "; ".join(parts) or "no finding"


def _counted(counts: Mapping[str, int]) -> str:
    return counts_by_name(dict(sorted(counts.items(), key=lambda item: KIND_ORDER[item[0]])))
