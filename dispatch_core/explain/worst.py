"""Choose what to explain first in a log: its gravest finding, or else its longest wait.

Findings come in the order of their severity; certain ones before uncertain ones of the same severity, and the first in time
before later ones. A finding of severity ``info`` is allowed, and is explained only by its wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dispatch_core.audit.catalogue import INFO, SEVERITIES
from dispatch_core.audit.sentences.durations import duration
from dispatch_core.explain.explanation import Audited
from dispatch_core.explain.waits import BRIEF_US, hold_lasted_us
from dispatch_core.recording.known_until import last_line_us
from dispatch_core.recording.log import DispatcherLog

_COLUMNS: Final = (
    *("kind", "severity", "key", "key_b64", "positions", "consumers"),
    *("t_us", "uncertain", "explanation"),
)


@dataclass(frozen=True, slots=True)
class Worst:
    """The subject to explain first in a log: an argument of ``subject_of``.

    ``order``: the lower, the worse. ``kind``: of the finding; ``None`` = it is a wait. ``text``: a sentence about it.
    """

    order: tuple[int, int, int]
    subject: dict[str, str]
    kind: str | None
    text: str


def worst_of(log: DispatcherLog, audit: Audited) -> Worst | None:
    """Return the worst subject of an audited log; ``None`` = there is no finding that names one, and no wait."""
    found = [*_of_findings(audit), *_of_waits(log, audit)]
    return min(found, key=lambda worst: worst.order, default=None)


def _of_findings(audit: Audited) -> list[Worst]:
    rows = audit.anomalies.select(_COLUMNS).to_pylist()
    return [
        Worst(
            (SEVERITIES.index(row["severity"]), int(row["uncertain"]), row["t_us"] or 0),
            subject,
            row["kind"],
            f"{row['kind']}: {row['explanation']}",
        )
        for row in rows
        if row["severity"] != INFO and (subject := _subject_of(row))
    ]


def _subject_of(row: dict[str, Any]) -> dict[str, str]:
    if row["key"] is not None:
        return {"key": f"base64:{row['key']}" if row["key_b64"] else row["key"]}
    if row["positions"]:
        return {"position": row["positions"][0]}
    return {"consumer": str(row["consumers"][0])} if row["consumers"] else {}


def _of_waits(log: DispatcherLog, audit: Audited) -> list[Worst]:
    """Return the longest wait, behind all findings."""
    last_us = last_line_us([log]) or 0
    waits = [wait for wait in audit.sampled_waits if wait.first_position is not None]
    longest = max(waits, key=lambda wait: hold_lasted_us(wait, last_us), default=None)
    if longest is None or longest.first_position is None:
        return []
    lasted = hold_lasted_us(longest, last_us)
    if lasted <= BRIEF_US:
        return []
    reason = "no rule held it back" if longest.reason is None else longest.reason
    text = f"{longest.first_position} waited {duration(lasted)}: {reason}"
    return [Worst((len(SEVERITIES), 0, -lasted), {"position": longest.first_position}, None, text)]
