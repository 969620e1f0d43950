"""Tell whether a smaller log still has a finding, and is still a log that a broker can write.

A log *has* the finding if its audit has one of the same kind, reason and cause, about the same key and the same first
consumer, with an entry in common, not less certain, and with the same known issues in its explanation.

It can be written by a broker if it has nothing that the whole log does not have: no other kind of finding, no decision that
differs from the rules, or that only a race excuses, and no delivery to a consumer without permits, except those of the
whole log. So a line that makes a
later one legal (the permits of a delivery, the redelivery request of a second one) cannot be left out unless the finding
does not need the later one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dispatch_core.audit.catalogue import BALANCE, INFO, KINDS, SEVERITIES
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.broker.hashing import entry_key, h31
from dispatch_core.errors import DispatchAuditError
from dispatch_core.minimize.reduced_log import Ints
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.whole_log import WholeAudit, audit_whole

_COLUMNS: Final = (
    *("kind", "severity", "key", "key_b64", "hash", "positions", "consumers"),
    *("seqs", "t_us", "cause", "reason", "uncertain", "explanation"),
)
#: A key of which the log has only the hash.
_HASHED: Final = re.compile(r"h31:(\d{1,10})", re.ASCII)
_ISSUE: Final = re.compile(r"#(\d{3,6})")


class NoSuchFindingError(DispatchAuditError):
    """The log has no finding as asked for, or it is one about the log as a whole."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding of the audit. ``key``: as the tables hold it; ``key_b64``: it is the base64 of its bytes."""

    kind: str
    severity: str
    reason: str | None
    cause: str | None
    uncertain: bool
    key: str | None
    key_b64: bool
    hash: int | None
    positions: tuple[str, ...]
    consumers: tuple[int, ...]
    t_us: int | None
    explanation: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Finding:
        """Make it of a row of ``anomalies``."""
        names = ("kind", "severity", "reason", "cause", "uncertain", "key", "key_b64", "hash", "t_us")
        return cls(
            **{name: row[name] for name in names},
            positions=tuple(row["positions"]),
            consumers=tuple(row["consumers"]),
            explanation=row["explanation"],
        )

    @property
    def subject(self) -> str:
        """The key, entry or consumer it is about, in words."""
        if self.key is not None:
            return f"key base64:{self.key}" if self.key_b64 else f"key {self.key}"
        if self.positions:
            return f"entry {self.positions[0]}"
        return f"connection {self.consumers[0]}" if self.consumers else "the subscription"

    @property
    def key_h31(self) -> int | None:
        """The murmur hash of its key, which another key may have that stands for it; ``None`` = it has no key."""
        if self.key is None:
            return None
        hashed = None if self.key_b64 else _HASHED.fullmatch(self.key)
        if hashed is not None:
            return int(hashed[1])
        return h31(entry_key(self.key, self.key_b64, None) or b"")

    @property
    def issues(self) -> frozenset[int]:
        """The known issues that its explanation names."""
        return frozenset(int(number) for number in _ISSUE.findall(self.explanation))

    def is_same(self, other: Finding) -> bool:
        """True if ``other`` is this finding in a smaller log."""
        return (
            (self.kind, self.reason, self.cause) == (other.kind, other.reason, other.cause)
            and (self.uncertain or not other.uncertain)
            and (self.hash == other.hash if self.hash is not None else self.key_h31 == other.key_h31)
            and self.consumers[:1] == other.consumers[:1]
            and self.issues <= other.issues
            and (not self.positions or not {*self.positions}.isdisjoint(other.positions))
        )


def findings_of(audit: WholeAudit) -> list[Finding]:
    """Return the findings of an audit, the gravest first; of equal ones the certain, then the first in time."""
    found = [Finding.of(row) for row in audit.anomalies.select(_COLUMNS).to_pylist()]
    return sorted(found, key=order_of)


def order_of(finding: Finding) -> tuple[int, bool, int]:
    """Return a key that sorts findings, the gravest first."""
    return SEVERITIES.index(finding.severity), finding.uncertain, finding.t_us or 0


def choose(findings: Sequence[Finding], kind: str | None, about: Mapping[str, str | None]) -> Finding | None:
    """Return the first finding of a kind (``None`` = of any that is a fault) about a key, an entry or a consumer.

    ``about``: ``key`` (as ``Finding.key``), ``position`` and ``consumer`` (its number), each ``None`` = any. Raises
    ``NoSuchFindingError`` for a kind that is about the log as a whole: no part of a log has the same balance.
    """
    if kind is not None and kind not in KINDS:
        raise NoSuchFindingError(f"{kind}: there is no such kind of finding; there are: {', '.join(KINDS)}")
    if kind is not None and KINDS[kind].promise == BALANCE:
        raise NoSuchFindingError(f"{kind} is about the log as a whole: no smaller log has the same finding")
    for finding in findings:
        if KINDS[finding.kind].promise == BALANCE or (kind is None and finding.severity == INFO):
            continue
        if (
            kind in (None, finding.kind)
            and about.get("key") in (None, finding.key)
            and about.get("position") in (None, *finding.positions)
            and about.get("consumer") in (None, *map(str, finding.consumers))
        ):
            return finding
    return None


class Wanted:
    """The finding that a smaller log must still have."""

    def __init__(
        self,
        finding: Finding,
        log: DispatcherLog,
        *,
        closed: bool,
        limits: Limits = DEFAULT_LIMITS,
        audit: WholeAudit | None = None,
    ) -> None:
        """Take note of the whole log. ``closed``, ``limits``: of its audit; ``audit``: itself, ``None`` = it is made."""
        self.finding = finding
        self._closed = closed
        self._limits = limits
        audit = self.audit(log) if audit is None else audit
        rows = np.arange(log.events.num_rows)
        self._kinds = _kinds(audit)
        self._not_by_rule = _not_by_rule(audit, rows)
        self._without_permits = _without_permits(log, rows)

    def audit(self, log: DispatcherLog) -> WholeAudit:
        """Audit a log as the whole one is."""
        return audit_whole(log, closed=self._closed, limits=self._limits)

    def found_in(self, log: DispatcherLog, rows: Ints) -> Finding | None:
        """Return the finding in a smaller log; ``None`` if it is not there, or no broker can write the log."""
        audit = self.audit(log)
        found = next((other for other in findings_of(audit) if self.finding.is_same(other)), None)
        if (
            found is None
            or not _kinds(audit) <= self._kinds
            or not _not_by_rule(audit, rows) <= self._not_by_rule
            or not _without_permits(log, rows) <= self._without_permits
        ):
            return None
        return found


def _kinds(audit: WholeAudit) -> set[str]:
    return {
        row["kind"]
        for row in audit.anomalies.select(["kind", "severity"]).to_pylist()
        if row["severity"] != INFO and KINDS[row["kind"]].promise != BALANCE
    }


def _not_by_rule(audit: WholeAudit, rows: Ints) -> set[tuple[int, str]]:
    """Return the decisions that are not those of the rules, or only if a race excuses them: row in the whole log, class."""
    found = audit.divergences.select(["seq", "decision_class"]).to_pylist()
    return {(int(rows[row["seq"] - 1]), row["decision_class"]) for row in found}


def _without_permits(log: DispatcherLog, rows: Ints) -> set[int]:
    """Return the rows in the whole log of the deliveries to consumers that had no permits left."""
    columns = ("kind", "consumer", "permits", "batch_sizes")
    left: Counter[int | None] = Counter()
    found = set()
    for number, (kind, consumer, permits, sizes) in enumerate(
        zip(*(log.events[name].to_pylist() for name in columns), strict=True)
    ):
        if kind == "flow":
            left[consumer] += permits
        elif kind == "sent":
            if left[consumer] <= 0:
                found.add(int(rows[number]))
            left[consumer] -= sum(sizes)
    return found
