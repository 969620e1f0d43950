"""Explanations of samples and of small hand-made logs, shared by the tests of this folder."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dispatch_core.explain.explanation import Explanation, explanation_of, tick_for
from dispatch_core.explain.record import Record
from dispatch_core.explain.subject import subject_of
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.whole_log import WholeAudit, audit_whole
from tests.dispatch_core.audit.small_logs import Event, message, numbered, read, without_trace, write

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"
DRAIN = "designed-drain-one-by-one-ch"
FAILOVER = "designed-failover-modulo-p1"
NEGATIVE = "designed-negative-acks-ch"
CLASSIC = "designed-rolling-restart-classic-ch"
OWN = "designed-rolling-restart-ch"
ALL = (DRAIN, FAILOVER, NEGATIVE, OWN, CLASSIC)


@functools.cache
def known(name: str, *, level: str = "T") -> tuple[Record, WholeAudit]:
    """Read and audit a sample once, with or without its trace."""
    log = read(SAMPLES / name)
    return of(log if level == "T" else without_trace(log))


def of(log: DispatcherLog, earlier: Sequence[DispatcherLog] = ()) -> tuple[Record, WholeAudit]:
    return Record.of(log, earlier), audit_whole(log, earlier=earlier, tick_us=tick_for(log))


def explained(name: str, *, level: str = "T", **whom: str) -> Explanation:
    record, audit = known(name, level=level)
    return explanation_of(record, subject_of(record, **whom), audit)


def small(
    folder: Path, events: list[Event], messages: list[Event], whom: dict[str, str], **header: Any
) -> Explanation:
    record, audit = of(read(write(folder, messages, numbered(events), **header)))
    return explanation_of(record, subject_of(record, **whom), audit)


def flow(consumer: int, permits: int = 1000) -> Event:
    return {"kind": "flow", "consumer": consumer, "permits": permits}


def stored(*keys: str | None) -> list[Event]:
    return [message(entry, key) for entry, key in enumerate(keys)]


def whats(explanation: Explanation) -> list[str]:
    return [moment.what for moment in explanation.moments]


def texts(explanation: Explanation, what: str) -> list[str]:
    return [moment.text for moment in explanation.moments if moment.what == what]
