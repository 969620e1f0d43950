"""What is news about a finding: a pure comparison of what an interval says with what was told before.

A finding has an identity (cluster, topic, subscription, kind, key or consumer). It is *new* when nothing of it stands,
*changed* when it stands with another severity or another first evidence, and *clear* when an interval that was judged
without doubt no longer has it. Intervals come in any order and more than once, so everything told is kept with the
interval that it was told of, and is compared as of that interval:

- an interval that says again what was told of it, or of the one before it, is no news;
- an interval is cleared by itself, judged again, or by a later one: never by an earlier one, however late it is judged;
- an interval that could not be judged tells nothing of the finding, so it clears nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

NEW: Final = "new"
CHANGED: Final = "changed"
CLEAR: Final = "clear"
#: In the order in which they are told.
STATES: Final = (NEW, CHANGED, CLEAR)


@dataclass(frozen=True, slots=True)
class Told:
    """One thing that was told about an identity. ``number`` counts them from 1, in the order of telling."""

    identity: str
    kind: str
    subject: str
    interval_start: datetime
    number: int
    state: str
    severity: str
    evidence: str


@dataclass(frozen=True, slots=True)
class History:
    """All that was told about one identity through one channel."""

    told: tuple[Told, ...] = ()

    @property
    def number(self) -> int:
        """The number that the next thing told gets."""
        return 1 + max((one.number for one in self.told), default=0)

    @property
    def standing(self) -> Told | None:
        """What was told last of the newest interval, if it was not that the finding is gone."""
        last = self._last()
        return last[-1] if last and last[-1].state != CLEAR else None

    def news(self, interval_start: datetime, severity: str, evidence: str) -> str | None:
        """``NEW`` or ``CHANGED`` for an interval that has the finding, or None if it was told already."""
        last = self._last()
        before = [one for one in last if one.interval_start <= interval_start]
        # Backfills may come from the newest interval to the oldest: then the finding stands in a later one.
        known = before[-1] if before else (last[0] if last else None)
        if known is None or known.state == CLEAR:
            return NEW
        return None if (known.severity, known.evidence) == (severity, evidence) else CHANGED

    def cleared_by(self, interval_start: datetime) -> bool:
        """Whether an interval that was judged without doubt and lacks the finding is the news that it is gone."""
        standing = self.standing
        return standing is not None and standing.interval_start <= interval_start

    def _last(self) -> list[Told]:
        """The last thing told of each interval, oldest interval first."""
        by_interval = {one.interval_start: one for one in sorted(self.told, key=lambda one: one.number)}
        return [by_interval[start] for start in sorted(by_interval)]


def histories(told: Iterable[Told]) -> dict[str, History]:
    """What was told, by identity."""
    found: dict[str, list[Told]] = {}
    for one in told:
        found.setdefault(one.identity, []).append(one)
    return {identity: History(tuple(rows)) for identity, rows in found.items()}


def digest(*parts: str) -> str:
    """Stable identity of some texts; their lengths go in, so that no two lists share one."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def idempotency_key(
    identity: str, interval_start: datetime, state: str, number: int, evidence: Sequence[str]
) -> str:
    """The same for the same news told again, and another one for the next news, also if that repeats an earlier one."""
    return digest(identity, interval_start.isoformat(), state, str(number), *evidence)
