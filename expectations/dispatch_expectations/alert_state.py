"""Decide if a finding is new, changed or clear, compared with the notifications sent before. Pure.

A finding has an identity (cluster, topic, subscription, kind, key or consumer). It is *new* when it has no open
notification,
*changed* when the open one has another severity or another first evidence, and *clear* when an interval that was judged
without doubt no longer has it. Intervals may be judged in any order and more than once, so every notification is kept
with its interval:

- a finding that was already reported for the interval, or for the one before it, is not reported again;
- one that goes on from before the interval, such as an entry that has waited for hours, is not changed by having another
  first evidence now: it is what the open notification says, unless its severity or its certainty differs;
- a finding is cleared by its own interval, judged again, or by a later one, but never by an earlier one;
- an interval that could not be judged clears nothing.

Example: evidence ``a`` in the intervals 1, 2 and 3 is one notification (new, of interval 1); evidence ``b`` in interval 4
is a second one (changed), its absence in interval 5 a third (clear). If interval 3 is then judged again and is clean, no
notification follows.
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
#: In the order in which an alert lists them.
STATES: Final = (NEW, CHANGED, CLEAR)


@dataclass(frozen=True, slots=True)
class Notification:
    """One notification about an identity. ``number`` counts an identity's notifications from 1."""

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
    """All notifications about one identity through one channel."""

    notifications: tuple[Notification, ...] = ()

    @property
    def number(self) -> int:
        """The number of the next notification."""
        return 1 + max((notification.number for notification in self.notifications), default=0)

    @property
    def last_open(self) -> Notification | None:
        """The last notification of the newest interval, if it does not say that the finding is clear."""
        last = self._last()
        return last[-1] if last and last[-1].state != CLEAR else None

    def news(
        self, interval_start: datetime, severity: str, evidence: str, *, goes_on: bool = False
    ) -> str | None:
        """``NEW`` or ``CHANGED`` for an interval that has the finding, or None if it was reported already.

        ``goes_on``: the finding began before the interval.
        """
        last = self._last()
        before = [entry for entry in last if entry.interval_start <= interval_start]
        # A backfill may go from the newest interval to the oldest: then a later interval has the finding.
        known = before[-1] if before else (last[0] if last else None)
        if known is None or known.state == CLEAR:
            return NEW
        if (known.severity, known.evidence) == (severity, evidence):
            return None
        same = (known.severity, certainty_of(known.evidence)) == (severity, certainty_of(evidence))
        return None if goes_on and same else CHANGED

    def cleared_by(self, interval_start: datetime) -> bool:
        """True if an interval that was judged without doubt and lacks the finding clears it."""
        last = self.last_open
        return last is not None and last.interval_start <= interval_start

    def _last(self) -> list[Notification]:
        """The last notification of each interval, oldest interval first."""
        in_order = sorted(self.notifications, key=lambda notification: notification.number)
        by_interval = {notification.interval_start: notification for notification in in_order}
        return [by_interval[start] for start in sorted(by_interval)]


def histories(notifications: Iterable[Notification]) -> dict[str, History]:
    """Group notifications by identity."""
    by_identity: dict[str, list[Notification]] = {}
    for notification in notifications:
        by_identity.setdefault(notification.identity, []).append(notification)
    return {identity: History(tuple(rows)) for identity, rows in by_identity.items()}


def lasting_evidence(uncertain: bool, *parts: str) -> str:
    """Make the evidence of a finding that may go on for several intervals: its certainty can be read in it.

    >>> certainty_of(lasting_evidence(True, "5:17"))
    'uncertain'
    """
    return f"{'uncertain' if uncertain else 'certain'}:{digest(*parts)}"


def certainty_of(evidence: str) -> str:
    """Return the certainty in a ``lasting_evidence``; "" for any other evidence."""
    certainty, colon, _digest = evidence.partition(":")
    return certainty if colon else ""


def digest(*parts: str) -> str:
    """Compute a digest of some texts; different lists of texts have different digests."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def idempotency_key(
    identity: str, interval_start: datetime, state: str, number: int, evidence: Sequence[str]
) -> str:
    """Make a key that is the same when the same news is sent again, and another one for any later news."""
    return digest(identity, interval_start.isoformat(), state, str(number), *evidence)
