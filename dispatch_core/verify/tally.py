"""Count decisions by class as exact, uncertain or divergent, and keep the findings.

The number of decisions per class follows from the raw lines alone (formula: ``docs/verify.md``), whatever the core answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from dispatch_core.verify.inputs import Line

CLASSES: Final = (
    "dispatch",
    "hash",
    "replay_set",
    "round",
    "read",
    "permits",
    "draining",
    "active",
    "subscribe",
    "state",
    "position",
)
#: Classes that compare what a line shows beside the decisions; the core goes on as before if these differ.
SHOWN_CLASSES: Final = ("state", "position")
#: What is counted of each class.
COUNTS: Final = ("decisions", "exact", "uncertain", "divergent")
MAX_EXAMPLES: Final = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """One decision in which recorded and expected answer differ."""

    seq: int
    t_us: int
    decision_class: str
    status: str  # divergent, uncertain
    expected: str
    recorded: str
    racing_seq: int | None = None
    reason: str | None = None


#: Recorded fields of which each is a decision, by kind of line.
Fields = Mapping[str, tuple[str, ...]]


class _Count(NamedTuple):
    """One count of the formula: a decision for each line, or for each that has a field, or for each item of the field."""

    decision_class: str
    field: str | None = None
    per_item: bool = False

    def in_line(self, recorded: dict[str, Any]) -> int:
        """Return the number of decisions of a line."""
        if self.field is None:
            return 1
        value = recorded[self.field]
        return 0 if value is None else len(value) if self.per_item else 1


#: Kind of line → the decisions that it stands for beside ``state`` and ``position``.
_FIRST: Final[dict[str, tuple[_Count, ...]]] = {
    "round_begin": (_Count("dispatch", "positions", per_item=True),),
    "read_done": (_Count("hash", "hashes", per_item=True),),
    "round_end": (_Count("replay_set"), _Count("round")),
    "sent": (_Count("permits", "permits_before"),),
    **dict.fromkeys(("read_issued", "replay_read_issued"), (_Count("read"),)),
    **dict.fromkeys(("draining_add", "draining_release", "draining_blocked"), (_Count("draining"),)),
    "draining_clear": (_Count("state"),),
    **dict.fromkeys(("active_picked", "active_notified"), (_Count("active"),)),
    **dict.fromkeys(("selector_added", "selector_refused"), (_Count("subscribe"),)),
}


def _counts_by_kind(state: Fields, positions: Fields) -> dict[str, tuple[_Count, ...]]:
    """Return the published formula (docs/verify.md): kind of line → its counts."""
    return {
        kind: (
            *_FIRST.get(kind, ()),
            *(_Count("state", field) for field in state.get(kind, ())),
            *(_Count("position", field) for field in positions.get(kind, ())),
        )
        for kind in {**_FIRST, **state, **positions}
    }


def cut_off(begun: Line) -> Finding:
    """Make the finding for a log that ends inside the round that began at ``begun``."""
    reason = "the log ends inside this round"
    return Finding(
        begun.seq, begun.t_us, "dispatch", "uncertain", "the rest of the round", "nothing", begun.seq, reason
    )


@dataclass(slots=True)
class Tally:
    """Counts per class and the findings behind them.

    ``state_fields``, ``position_fields``: recorded fields of which each is a decision of the class, by kind of line.
    """

    state_fields: Fields = field(default_factory=dict)
    position_fields: Fields = field(default_factory=dict)
    rounds: int = 0
    findings: list[Finding] = field(default_factory=list)
    not_judged: dict[str, dict[str, int]] = field(default_factory=dict)  # reason → class → decisions
    _logged: dict[str, dict[str, int]] = field(
        default_factory=lambda: {c: dict.fromkeys(COUNTS, 0) for c in CLASSES}
    )
    # Differing decisions of the core for which the log has no line: class → status → decisions.
    _unlogged: dict[str, dict[str, int]] = field(default_factory=dict)
    _counts: dict[str, tuple[_Count, ...]] = field(default_factory=dict)  # of the formula, by kind of line
    _formula: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0))  # what it gives

    def __post_init__(self) -> None:
        self._counts = _counts_by_kind(self.state_fields, self.position_fields)

    def decisions_of(self, line: Line) -> list[tuple[str, int]]:
        """Return classes and numbers of the decisions that one raw line stands for, by the published formula."""
        counts = self._counts.get(line.kind, ())
        return [(count.decision_class, count.in_line(line.recorded)) for count in counts]

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """The decisions by class: all of them, and those that are exact, uncertain, divergent.

        Differing decisions for which the log has no line are counted up to the number of decisions of their class; all are
        among the findings. If that leaves no divergent decision, one is counted nevertheless: it has to be seen.
        """
        shown = {name: dict(counts) for name, counts in self._logged.items()}
        for name, by_status in self._unlogged.items():
            for status, decisions in by_status.items():
                shown[name][status] = min(shown[name][status] + decisions, shown[name]["decisions"])
        unlogged = [name for name, by_status in self._unlogged.items() if by_status["divergent"]]
        if unlogged and not any(counts["divergent"] for counts in shown.values()):
            shown[unlogged[0]]["divergent"] = 1
        return shown

    def exact(self, decision_class: str, decisions: int = 1) -> None:
        """Count ``decisions`` decisions on which broker and core agree."""
        counts = self._logged[decision_class]
        counts["decisions"] += decisions
        counts["exact"] += decisions

    def differ(self, finding: Finding, decisions: int = 1) -> None:
        """Count ``decisions`` decisions that differ; 0 = a decision of the core for which the log has no line."""
        if decisions:
            counts = self._logged[finding.decision_class]
            counts["decisions"] += decisions
            counts[finding.status] += decisions
        else:
            unlogged = self._unlogged.setdefault(finding.decision_class, {"uncertain": 0, "divergent": 0})
            unlogged[finding.status] += 1
        self.findings.append(finding)

    def leave_unjudged(self, decision_class: str, decisions: int, reason: str) -> None:
        """Count decisions that nothing in the log determines, with the reason; they are neither exact nor differing."""
        if decisions:
            self._logged[decision_class]["decisions"] += decisions
            by_class = self.not_judged.setdefault(reason, {})
            by_class[decision_class] = by_class.get(decision_class, 0) + decisions

    def settle(self, decision_class: str, decisions: int, differing: int, status: str = "divergent") -> None:
        """Count decisions whose findings were noted one by one: ``differing`` of them differ, the rest is exact."""
        counts = self._logged[decision_class]
        counts["decisions"] += decisions
        counts["exact"] += decisions - differing
        counts[status] += differing

    def note(self, finding: Finding) -> None:
        """Keep a finding whose decisions are counted later by ``settle``."""
        self.findings.append(finding)

    def take_findings(self) -> list[Finding]:
        """Return the findings so far, and forget them."""
        findings, self.findings = self.findings, []
        return findings

    def expect(self, line: Line) -> None:
        """Add the decisions that a raw line stands for to those expected."""
        for count in self._counts.get(line.kind, ()):
            self._formula[count.decision_class] += count.in_line(line.recorded)

    def leave_out(self, counts: dict[str, int]) -> None:
        """Subtract expected decisions: they will be counted when more of the log is known."""
        for decision_class, decisions in counts.items():
            self._formula[decision_class] -= decisions

    def close(self, stopped: str | None = None) -> None:
        """Count decisions that were not compared (a round for which the core had no read result, say) as divergent.

        ``stopped``: the reason why the comparison was stopped; then they are not judged.
        """
        for name, counts in self._logged.items():
            unmet = self._formula[name] - counts["decisions"]
            if unmet > 0 and stopped is not None:
                self.leave_unjudged(name, unmet, stopped)
            elif unmet > 0:
                counts["decisions"] += unmet
                counts["divergent"] += unmet

    def total(self, what: str) -> int:
        """Sum ``decisions``, ``exact``, ``uncertain`` or ``divergent`` over all classes."""
        return sum(counts[what] for counts in self.counts.values())

    def compared(self) -> int:
        """Count the decisions that were compared: all but those that nothing in the log determines."""
        return self.total("decisions") - sum(sum(counts.values()) for counts in self.not_judged.values())

    @property
    def first_divergence(self) -> Finding | None:
        """The first divergent decision."""
        return next((f for f in self.findings if f.status == "divergent"), None)

    def as_json(self) -> dict[str, Any]:
        """Return the part of ``verify --json`` that comes from the comparison."""
        first = self.first_divergence
        unjudged = {"decisions_not_judged": self.not_judged} if self.not_judged else {}
        return {
            "rounds": self.rounds,
            "decisions": self.total("decisions"),
            "exact": self.total("exact"),
            "uncertain": self.total("uncertain"),
            "divergent": self.total("divergent"),
            "classes": self.counts,
            **unjudged,
            "first_divergence": first
            and {
                "seq": first.seq,
                "class": first.decision_class,
                "expected": first.expected,
                "recorded": first.recorded,
            },
            "uncertain_examples": [
                {"seq": f.seq, "class": f.decision_class, "racing_seq": f.racing_seq, "reason": f.reason}
                for f in self.findings
                if f.status == "uncertain"
            ][:MAX_EXAMPLES],
        }
