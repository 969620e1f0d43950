"""A finding about the log itself: lines that are missing, a clock that went back, unknown consumers and positions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogFinding:
    """A finding about the log, not yet a row of anomalies.

    ``reason`` is, by kind: ``gap_line``, ``seq_hole``, ``duplicate_seq``, ``starts_late``, ``earlier_load`` (log_gap);
    ``segment``, ``size_differs`` (repeated_lines); ``never_added``, ``already_removed`` (unknown_consumer); ``not_stored``,
    ``maybe_clock_ahead``, ``before_checkpoint`` (unknown_position; all but the first are uncertain); ``not_readable``
    (unknown_key, unknown_batch_size); ``backwards`` (clock_step); ``active_at_once``, ``clocks_differ``
    (overlapping_incarnations; the latter is uncertain).
    """

    kind: str
    reason: str
    seqs: tuple[int, ...]
    t_us: int
    explanation: str
    consumer: int | None = None
    positions: tuple[str, ...] = ()
    uncertain: bool = False
