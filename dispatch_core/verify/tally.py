"""Count decisions by class as exact, uncertain or divergent, and keep the findings.

The number of decisions per class follows from the raw lines alone (formula: ``docs/verify.md``), whatever the core answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

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
)
MAX_EXAMPLES: Final = 20


#: Kinds of lines that stand for decisions, see ``decisions_of``.
_COUNTED: Final = frozenset(
    {
        *("round_begin", "round_end", "read_done", "read_issued", "replay_read_issued", "sent"),
        *("draining_add", "draining_release", "draining_blocked", "active_picked", "active_notified"),
        *("selector_added", "selector_refused"),
    }
)


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


def decisions_of(line: Line) -> tuple[str, int] | None:
    """Return class and number of the decisions that one raw line stands for, by the published formula (docs/verify.md).

    A ``round_end`` stands for one of ``round`` beside the one of ``replay_set`` that is returned here.
    """
    if line.kind not in _COUNTED:
        return None
    recorded = line.recorded
    match line.kind:
        case "round_begin":
            return "dispatch", len(recorded["positions"] or ())
        case "read_done":
            return "hash", len(recorded["hashes"] or ())
        case "round_end":
            return "replay_set", 1
        case "read_issued" | "replay_read_issued":
            return "read", 1
        case "sent":
            return "permits", int(recorded["permits_before"] is not None)
        case "draining_add" | "draining_release" | "draining_blocked":
            return "draining", 1
        case "active_picked" | "active_notified":
            return "active", 1
        case "selector_added" | "selector_refused":
            return "subscribe", 1
    return None


def cut_off(begun: Line) -> Finding:
    """Make the finding for a log that ends inside the round that began at ``begun``."""
    reason = "the log ends inside this round"
    return Finding(
        begun.seq, begun.t_us, "dispatch", "uncertain", "the rest of the round", "nothing", begun.seq, reason
    )


@dataclass(slots=True)
class Tally:
    """Counts per class and the findings behind them."""

    rounds: int = 0
    counts: dict[str, dict[str, int]] = field(
        default_factory=lambda: {
            c: {"decisions": 0, "exact": 0, "uncertain": 0, "divergent": 0} for c in CLASSES
        }
    )
    findings: list[Finding] = field(default_factory=list)
    not_judged: dict[str, dict[str, int]] = field(default_factory=dict)  # reason → class → decisions
    _formula: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CLASSES, 0))

    def exact(self, decision_class: str, decisions: int = 1) -> None:
        """Count ``decisions`` decisions on which broker and core agree."""
        self.counts[decision_class]["decisions"] += decisions
        self.counts[decision_class]["exact"] += decisions

    def differ(self, finding: Finding, decisions: int = 1) -> None:
        """Count ``decisions`` decisions that differ; 0 = a decision of the core for which the log has no line."""
        counts = self.counts[finding.decision_class]
        counts["decisions"] += decisions
        counts[finding.status] += max(decisions, 1)
        self.findings.append(finding)

    def leave_unjudged(self, decision_class: str, decisions: int, reason: str) -> None:
        """Count decisions that nothing in the log determines, with the reason; they are neither exact nor differing."""
        if decisions:
            self.counts[decision_class]["decisions"] += decisions
            by_class = self.not_judged.setdefault(reason, {})
            by_class[decision_class] = by_class.get(decision_class, 0) + decisions

    def settle(self, decision_class: str, decisions: int, differing: int, status: str = "divergent") -> None:
        """Count decisions whose findings were noted one by one: ``differing`` of them differ, the rest is exact."""
        counts = self.counts[decision_class]
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
        """Add the decisions that a raw line stands for to the formula's number."""
        if line.kind not in _COUNTED:
            return
        stands_for = decisions_of(line)
        if stands_for is not None:
            self._formula[stands_for[0]] += stands_for[1]
            self._formula["round"] += line.kind == "round_end"

    def leave_out(self, counts: dict[str, int]) -> None:
        """Subtract expected decisions: they will be counted when more of the log is known."""
        for decision_class, decisions in counts.items():
            self._formula[decision_class] -= decisions

    def close(self) -> None:
        """Count decisions that were not compared (a round for which the core had no read result, say) as divergent."""
        for name, counts in self.counts.items():
            unmet = self._formula[name] - counts["decisions"]
            if unmet > 0:
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
