"""Answers: what holds messages of a subscription back, who, since when, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dispatch_core.diagnose.facts import Consumer
from dispatch_core.diagnose.known_issues import issues_as_json
from dispatch_core.times import from_micros

#: Answers that are no rule of the broker's: messages flow, or all were sent, or there are none.
CATCHING_UP: Final = "catching_up"
UNACKNOWLEDGED: Final = "unacknowledged"
NOTHING_WAITS: Final = "nothing_waits"
UNKNOWN: Final = "unknown"
#: These ask for nothing to be done by the broker's operator.
QUIET: Final = (CATCHING_UP, NOTHING_WAITS)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A field of the statistics and its value; ``moments``: at how many of the moments it had this value."""

    field: str
    value: Any
    moments: int = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """One rule that holds messages of a subscription back.

    Attributes:
        rule: a reason of the audit (``no_permits``, ``draining_hash`` …), or one of the names above.
        certain: nothing else explains these statistics; otherwise ``decided_by`` says what would settle it.
        waiting: entries that wait by it, at least; ``None`` = not known.
        holders: the consumers that hold them, the most first; at most ``MOST_HOLDERS``.
        held_for: names of the consumers that would get them.
        said: a sentence for somebody who knows Pulsar.
        since_us: it has been so at least from then on, microseconds since the epoch; ``None`` = not known.
        since_what: what shows that.
        issues: ids of known issues that look like this, in releases that may be this one.
        commands: what to run next.
        rank: answers of one subscription are listed by it, highest first.
    """

    topic: str | None
    subscription: str
    rule: str
    certain: bool
    said: str
    waiting: int | None = None
    holders: tuple[Consumer, ...] = ()
    held_for: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    decided_by: str | None = None
    since_us: int | None = None
    since_what: str | None = None
    symptoms: tuple[str, ...] = ()
    issues: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    rank: float = 0.0

    @property
    def certainty(self) -> str:
        """``certain`` or ``possible``."""
        return "certain" if self.certain else "possible"


#: Holders that an answer names.
MOST_HOLDERS: Final = 5


def in_order(answers: Sequence[Answer]) -> list[Answer]:
    """Order answers, worst first: by what they hold up, certain ones before possible ones, then by what waits."""
    return sorted(
        answers,
        key=lambda answer: (
            -answer.rank,
            -(answer.waiting or 0),
            answer.topic or "",
            answer.subscription,
            answer.rule,
        ),
    )


def as_json(answer: Answer) -> dict[str, Any]:
    """Return the object of ``diagnose --json``; its fields are documented in docs/diagnose.md."""
    return {
        "kind": "statistics",
        "topic": answer.topic,
        "subscription": answer.subscription,
        "rule": answer.rule,
        "certainty": answer.certainty,
        "waiting": answer.waiting,
        "holders": [
            {
                "name": consumer.name,
                "address": consumer.address,
                "availablePermits": consumer.permits,
                "unackedMessages": consumer.unacked,
            }
            for consumer in answer.holders
        ],
        "held_for": list(answer.held_for),
        "explanation": answer.said,
        "evidence": [
            {"field": item.field, "value": item.value, "moments": item.moments} for item in answer.evidence
        ],
        "decided_by": answer.decided_by,
        "since": None if answer.since_us is None else from_micros(answer.since_us).isoformat(),
        "since_t_us": answer.since_us,
        "since_what": answer.since_what,
        "known_issues": issues_as_json(answer.issues),
        "next": list(answer.commands),
    }


def evidence_of(values: Mapping[str, Any], moments: int = 1) -> tuple[Evidence, ...]:
    """Make evidence of fields and values; values that are ``None`` are left out."""
    return tuple(Evidence(name, value, moments) for name, value in values.items() if value is not None)
