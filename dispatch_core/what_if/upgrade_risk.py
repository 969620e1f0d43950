"""Compare release A with release B over many subscriptions: what gets better, what gets worse, the worst first.

Each dispatcher is predicted under B, and under A if A is not the recorded release (``compare.rows_of``). What both have is
reduced to a ``Risk`` with one of the ``OUTCOMES``:

* Order violations are compared by the verdicts on both sides, as the policy tolerates them.
* Entries left unsent, stuck keys and waits are compared with all simulations under A and with the recording: B is worse only
  if each of its simulations is worse than all of these. So what the end of a log cuts off, or an unlucky delay, is no risk.
* Nothing is ``SAME`` that has order violations, stuck keys or entries that nobody was sent: it is ``NOT_BETTER``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dispatch_core.audit.promises.promise import FAIL, UNKNOWN
from dispatch_core.audit.sentences.lists import counted
from dispatch_core.audit.sentences.names import printable
from dispatch_core.broker.versions import parse_version
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.what_if.compare import OrderLimits, Outcome, Row, rows_of
from dispatch_core.what_if.measure import Measures
from dispatch_core.what_if.rules import RuleSet, Settings
from dispatch_core.what_if.tell import sentence

INTRODUCES: Final = "introduces order violations"
STRANDS: Final = "leaves more unsent"
NOT_JUDGED: Final = "not judged"
SLOWER: Final = "longer waits"
NOT_BETTER: Final = "not better"
SAME: Final = "same"
PREVENTS: Final = "prevents order violations"
#: From the greatest risk to the least.
OUTCOMES: Final = (INTRODUCES, STRANDS, NOT_JUDGED, SLOWER, NOT_BETTER, SAME, PREVENTS)
#: Outcomes in which release B is worse than release A.
WORSE: Final = (INTRODUCES, STRANDS, SLOWER)
#: Waits of two recordings under the same rules differ by so much: docs/what-if.md#how-certain-it-is.
_WAIT_SHARE: Final = 1.25
_WAIT_MS: Final = 20.0
_RECORDED_RELEASE: Final = "as recorded"


@dataclass(frozen=True, slots=True)
class Upgrade:
    """The two sides: release A (``None`` = what was recorded), and release B with settings beside the recorded ones."""

    release: str
    settings: Settings
    against: str | None = None

    @property
    def names(self) -> tuple[str, str]:
        """The names of both sides for people."""
        settings = [f"{name}={str(value).lower()}" for name, value in self.settings.items()]
        return self.against or _RECORDED_RELEASE, " ".join([self.release, *settings])

    @property
    def rules(self) -> tuple[RuleSet, ...]:
        """The rules to predict: B, and A before it if it is not what was recorded, which need not be predicted."""
        before, after = self.names
        last = RuleSet(after, self.release, self.settings)
        return (last,) if self.against is None else (RuleSet(before, self.against, {}), last)

    def as_json(self) -> dict[str, Any]:
        """As an object."""
        return {
            "release": self.release,
            "settings": dict(self.settings),
            "against": self.against,
            "called": list(self.names),
        }


def upgrade(release: str, settings: Settings, against: str | None = None) -> Upgrade:
    """Check both releases before a log is read. Raises ``DispatchAuditError`` for a text that is no release."""
    for text in (release, against):
        if text is not None:
            parse_version(text)
    asked = Upgrade(release, settings, against)
    before, after = asked.names
    if before == after:
        raise DispatchAuditError(
            f"both sides are {after}; nothing was simulated. Give two releases, or settings of the second"
        )
    return asked


@dataclass(frozen=True, slots=True)
class Risk:
    """The change that release B makes for one dispatcher.

    Attributes:
        before, after: the rows under A and B; ``before`` is ``None`` where A is what was recorded.
        outcome: one of ``OUTCOMES``.
        not_judged: what could not be judged, and why; empty = everything was, as far as recordings confirm it.
    """

    before: Row | None
    after: Row
    outcome: str
    not_judged: tuple[str, ...]

    @property
    def measures_before(self) -> Measures | None:
        """The measures under A: recorded, or predicted."""
        return self.after.recorded if self.before is None else self.before.simulated

    @property
    def violates(self) -> float | None:
        """The probability of more order violations than are tolerated under B; ``None`` = nothing is predicted."""
        confidence = self.after.confidence
        if confidence is None:
            return None
        return confidence.probability if confidence.violates else round(1 - confidence.probability, 2)

    @property
    def rank(self) -> tuple[Any, ...]:
        """Sort key: the worst outcome first, then the surest and the largest, then by name."""
        after, before = self.after.simulated, self.measures_before
        return (
            OUTCOMES.index(self.outcome),
            -(self.violates or 0.0),
            -(0 if after is None else after.order_violations),
            -(0 if after is None or before is None else after.never_sent - before.never_sent),
            -_longer(before, after),
            self.after.topic,
            self.after.subscription,
            self.after.cluster,
            self.after.incarnation or 0,
        )

    def as_json(self) -> dict[str, Any]:
        """A line of ``upgrade-risk --json``; pairs are A, B."""
        row, before, after = self.after, self.measures_before, self.after.simulated

        def pair(name: str) -> list[Any] | None:
            if before is None or after is None:
                return None
            return [_value(before, name), _value(after, name)]

        moved = row.same_first_consumer
        return {
            "recording": row.recording,
            "cluster": row.cluster,
            "topic": row.topic,
            "subscription": row.subscription,
            "subscription_type": row.subscription_type,
            "incarnation": row.incarnation,
            "outcome": self.outcome,
            "violates": self.violates,
            "probability": None if row.confidence is None else row.confidence.probability,
            "probability_before": None
            if self.before is None or self.before.confidence is None
            else self.before.confidence.probability,
            **{name: pair(name) for name in PAIRS},
            "moved": None if moved is None else round(1 - moved, 4),
            "sentence": None if row.confidence is None else printable(sentence(row)),
            "not_judged": [printable(text) for text in self.not_judged],
        }


#: Figures of both sides.
PAIRS: Final = (
    *("order_violations", "keys_out_of_order", "stuck_keys", "never_sent"),
    *("wait_ms_p50", "wait_ms_p99", "max_share_ratio", "moving_keys"),
)


def _value(measured: Measures, name: str) -> Any:
    derived = {
        "wait_ms_p50": measured.wait_ms.p50,
        "wait_ms_p99": measured.wait_ms.p99,
        "moving_keys": measured.affinity.keys,
    }
    return derived[name] if name in derived else getattr(measured, name)


def risks_of(
    log: DispatcherLog,
    asked: Upgrade,
    *,
    seeds: Sequence[int],
    tolerated: OrderLimits,
    from_us: int | None = None,
) -> Risk:
    """Predict one log under both sides. ``from_us``: see ``compare.case_of``."""
    return risk(
        [replace(row, tolerated=tolerated) for row in rows_of(log, asked.rules, seeds=seeds, from_us=from_us)]
    )


def risk(rows: Sequence[Row]) -> Risk:
    """Compare the predictions of one log: of B, and of A before it if A is not the recorded release."""
    before, after = (None, rows[0]) if len(rows) == 1 else (rows[0], rows[1])
    found = Risk(before, after, SAME, _not_judged(before, after))
    return replace(found, outcome=_outcome(found))


def worst_first(risks: Iterable[Risk]) -> list[Risk]:
    """Sort by risk."""
    return sorted(risks, key=lambda found: found.rank)


def counts(outcomes: Iterable[str]) -> dict[str, int]:
    """Count the outcomes; each is there, the worst first."""
    found = Counter(outcomes)
    return {name: found[name] for name in OUTCOMES}


def summary(found: dict[str, int], asked: Upgrade) -> str:
    """Write the counts as a sentence."""
    before, after = asked.names
    parts = [f"{count:,} {name}" for name, count in found.items() if count]
    total = counted(sum(found.values()), "subscription", "subscriptions")
    return f"{after} against {before}: {total}: {', '.join(parts) or 'none'}"


def _outcome(found: Risk) -> str:
    after, before = found.after, found.measures_before
    measured = after.simulated
    if measured is None or before is None or after.verdict == UNKNOWN:
        return NOT_JUDGED
    broken = not after.tolerated.allow(before) if found.before is None else found.before.verdict == FAIL
    if after.verdict == FAIL and not broken:
        return INTRODUCES
    baseline = _baseline(found)
    if any(_is_more(after.outcomes, baseline, name) for name in ("never_sent", "stuck_keys")):
        return STRANDS
    if broken and after.verdict != FAIL:
        return PREVENTS
    if broken or measured.never_sent or measured.stuck_keys:
        return NOT_BETTER
    return SLOWER if _is_slower(after.outcomes, baseline) else SAME


def _baseline(found: Risk) -> list[Measures]:
    """List measures of side A: the recording with the simulations under its rules, or the simulations under A."""
    if found.before is not None:
        return [simulated.measures for simulated in found.before.outcomes]
    recorded = found.after.recorded
    control = [simulated.measures for simulated in found.after.control]
    return control if recorded is None else [recorded, *control]


def _is_more(outcomes: Sequence[Outcome], baseline: Sequence[Measures], name: str) -> bool:
    least = min(getattr(simulated.measures, name) for simulated in outcomes)
    return bool(baseline) and least > max(getattr(measured, name) for measured in baseline)


def _is_slower(outcomes: Sequence[Outcome], baseline: Sequence[Measures]) -> bool:
    least = min(simulated.measures.wait_ms.p99 or 0.0 for simulated in outcomes)
    longest = max((measured.wait_ms.p99 or 0.0 for measured in baseline), default=0.0)
    return bool(baseline) and least > longest * _WAIT_SHARE + _WAIT_MS


def _longer(before: Measures | None, after: Measures | None) -> float:
    if before is None or after is None:
        return 0.0
    return (after.wait_ms.p99 or 0.0) - (before.wait_ms.p99 or 0.0)


def _not_judged(before: Row | None, after: Row) -> tuple[str, ...]:
    """List what could not be judged and why: no prediction, no control, no recordings to measure it by."""
    found = []
    for row in (after,) if before is None else (before, after):
        if row.problem is not None:
            found.append(row.problem)
            continue
        if row.simulated is None or not row.simulated.entries:
            found.append("nothing was delivered in the time that is measured")
        if row.judged is None:
            found.append(
                "the recorded rules could not be simulated, so nothing shows how good the simulation is"
            )
        if row.not_measured is not None:
            found.append(f"how often such a prediction comes true ({row.not_measured})")
        if row.recorded is not None and row.recorded.order_uncertain:
            doubtful = counted(row.recorded.order_uncertain, "finding", "findings")
            found.append(f"{doubtful} against the order that the recording cannot prove")
        found += [text for text in row.warnings if text != row.not_measured]
    return tuple(dict.fromkeys(found))
