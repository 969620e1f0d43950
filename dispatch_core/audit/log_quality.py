"""What the log says about itself: lost lines, a clock that went back, consumers and positions that cannot be.

All checks are column operations over one incarnation's events; none needs to know what dispatch did.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.history import ACK, ACK_CUMULATIVE, REDELIVER, SENT, History
from dispatch_core.recording.log import DispatcherLog

#: Kinds that name a connection which must be in the dispatcher's list at that point. ``active_notified`` is none of
#: them: a consumer is told who is active while it is being added, before its ``consumer_added`` line.
_NEEDS_CONNECTION: Final = ("flow", "sent", "ack", "redeliver", "consumer_removing", "consumer_removed")
_NAMES: Final = {SENT: "sent", ACK: "ack", ACK_CUMULATIVE: "ack", REDELIVER: "redeliver"}


@dataclass(frozen=True, slots=True)
class LogFinding:
    """A finding about the log, before it is put into words.

    ``reason`` is ``gap_line``, ``seq_hole``, ``duplicate_seq``, ``starts_late`` (log_gap), ``never_added``,
    ``already_removed`` (unknown_consumer), ``not_stored`` (unknown_position) or ``backwards`` (clock_step).
    """

    kind: str
    reason: str
    seqs: tuple[int, ...]
    t_us: int
    explanation: str
    consumer: int | None = None
    positions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Gaps:
    """Where lines are missing: behind each of ``seqs`` (ascending; 0 = before the first line)."""

    seqs: npt.NDArray[np.int64]

    def between(self, first_seq: int, last_seq: int) -> bool:
        """Whether lines are missing anywhere in ``[first_seq, last_seq)``."""
        at = int(np.searchsorted(self.seqs, first_seq))
        return at < len(self.seqs) and int(self.seqs[at]) < last_seq

    def before(self, seq: int) -> bool:
        """Whether lines are missing anywhere before ``seq``."""
        return len(self.seqs) > 0 and int(self.seqs[0]) < seq

    def __bool__(self) -> bool:
        return len(self.seqs) > 0


def without_repeated_rows(events: pa.Table) -> tuple[pa.Table, list[tuple[int, int]]]:
    """Drop rows that repeat the row before them, seq and content alike (a segment landed twice).

    Returns the table and ``(seq, t_us)`` of every row that shares its seq with the one before, repeated or not.
    """
    seq = _ints(events["seq"])
    shared = np.flatnonzero(np.diff(seq) == 0) + 1
    if not len(shared):
        return events, []
    content = [name for name in events.column_names if name not in ("source_file", "source_line")]
    pairs = events.select(content)
    same = [
        int(row) for row in shared if pairs.slice(row, 1).to_pylist() == pairs.slice(row - 1, 1).to_pylist()
    ]
    noted = events.select(["seq", "t_us"]).take(pa.array(shared)).to_pylist()
    keep = np.ones(events.num_rows, dtype=np.bool_)
    keep[same] = False
    return events.filter(pa.array(keep)), [(row["seq"], row["t_us"] or 0) for row in noted]


def gaps(events: pa.Table, repeated: list[tuple[int, int]]) -> tuple[Gaps, list[LogFinding]]:
    """Holes in ``seq`` and ``gap`` lines. A gap line that fills a hole is one finding, not two."""
    seq, t_us = _ints(events["seq"]), _ints(events["t_us"])
    found: list[LogFinding] = []
    places: list[int] = []
    is_gap = np.asarray(pc.equal(events["kind"], "gap"))
    for row in np.flatnonzero(is_gap).tolist():
        line = events.slice(row, 1).to_pylist()[0]
        first, last, lines = line["gap_from_seq"], line["gap_to_seq"], line["gap_lines"]
        span = f"seq {first} to {last}" if first is not None and last is not None else f"at seq {line['seq']}"
        how_many = f"{lines} lines" if lines is not None else "an unknown number of lines"
        text = f"the log itself says that {how_many} are missing, {span}: what happened there is unknown"
        found.append(LogFinding("log_gap", "gap_line", (line["seq"],), line["t_us"] or 0, text))
        places.append(min(line["seq"], first if first is not None else line["seq"]))
    step = np.diff(seq)
    for row in np.flatnonzero(step > 1).tolist():
        if is_gap[row] or is_gap[row + 1]:
            continue
        before, after = int(seq[row]), int(seq[row + 1])
        text = f"{after - before - 1} lines are missing between seq {before} and seq {after}, and no gap line says why"
        found.append(LogFinding("log_gap", "seq_hole", (before, after), int(t_us[row + 1]), text))
        places.append(before)
    if len(seq) and int(seq[0]) > 1 and not is_gap[0] and events["kind"][0].as_py() != "checkpoint":
        text = f"the log begins at seq {int(seq[0])} without a checkpoint: what happened before is unknown"
        found.append(LogFinding("log_gap", "starts_late", (int(seq[0]),), int(t_us[0]), text))
        places.append(0)
    for number, when in repeated:
        text = f"seq {number} stands on more than one line: segments overlap, or two recorders wrote one log"
        found.append(LogFinding("log_gap", "duplicate_seq", (number,), when, text))
        places.append(number - 1)
    return Gaps(np.array(sorted(places), dtype=np.int64)), found


def clock_steps(events: pa.Table, tolerance_us: int = 0) -> list[LogFinding]:
    """Times that lie more than ``tolerance_us`` before the time of the line in front of them."""
    timed = events.select(["seq", "t_us"]).filter(pc.is_valid(events["t_us"]))
    seq, t_us = _ints(timed["seq"]), _ints(timed["t_us"])
    found = []
    for row in np.flatnonzero(np.diff(t_us) < -tolerance_us).tolist():
        back_ms = (int(t_us[row]) - int(t_us[row + 1])) / 1000
        text = (
            f"the clock went back by {back_ms:.3f} ms between seq {int(seq[row])} and seq {int(seq[row + 1])}: "
            "times and waits around it cannot be trusted, the order of events can"
        )
        found.append(
            LogFinding(
                "clock_step", "backwards", (int(seq[row]), int(seq[row + 1])), int(t_us[row + 1]), text
            )
        )
    return found


def unknown_consumers(events: pa.Table, log: DispatcherLog) -> list[LogFinding]:
    """Events of connections that were never added, or that were removed before; one finding per event."""
    kinds = events["kind"]
    wanted = pc.or_(
        pc.is_in(kinds, value_set=pa.array(list(_NEEDS_CONNECTION))), pc.equal(kinds, "consumer_added")
    )
    rows = events.select(["seq", "t_us", "kind", "consumer"]).filter(wanted)
    if not rows.num_rows:
        return []
    seq, t_us, consumer = _ints(rows["seq"]), _ints(rows["t_us"]), _ints(rows["consumer"], -1)
    kind = rows["kind"].combine_chunks()
    added = np.asarray(pc.equal(kind, "consumer_added"))
    removed = np.asarray(pc.equal(kind, "consumer_removed"))
    numbers, code = np.unique(consumer, return_inverse=True)
    never = np.iinfo(np.int64).max
    # rows are in order of seq, so row numbers say what came first
    at = np.arange(rows.num_rows)
    first_added = np.full(len(numbers), never)
    np.minimum.at(first_added, code[added], at[added])
    first_removed = np.full(len(numbers), never)
    np.minimum.at(first_removed, code[removed], at[removed])
    connected_at_start = np.isin(numbers, np.array(_checkpointed(events), dtype=np.int64))
    first_added[connected_at_start] = -1
    unknown = ~added & (at < first_added[code])
    gone = ~added & ~unknown & (at > first_removed[code])
    found = []
    for row in np.flatnonzero(unknown | gone).tolist():
        number, what = int(consumer[row]), kind[row].as_py()
        reason = "never_added" if unknown[row] else "already_removed"
        why = "no consumer_added line stands before it" if unknown[row] else "it had been removed before"
        text = f"the line {what} at seq {int(seq[row])} names connection {number} of {log.subscription}, but {why}"
        found.append(
            LogFinding("unknown_consumer", reason, (int(seq[row]),), int(t_us[row]), text, consumer=number)
        )
    return found


def unknown_positions(history: History) -> list[LogFinding]:
    """Sent, acked or asked-for positions that the message log does not hold; one finding per event."""
    found = []
    for op in np.unique(history.unknown_op).tolist():
        ordinals = history.unknown_ordinal[history.unknown_op == op].tolist()
        positions = tuple(history.position(ordinal) for ordinal in ordinals)
        seq, t_us = int(history.op_seq[op]), int(history.op_t_us[op])
        consumer = history.consumers[int(history.op_consumer[op])].number
        what = _NAMES[int(history.op_code[op])]
        text = (
            f"the line {what} at seq {seq} names {', '.join(positions[:5])}"
            f"{f' and {len(positions) - 5} more' if len(positions) > 5 else ''}, "
            f"which the message log does not hold: {'its key is' if len(positions) == 1 else 'their keys are'} unknown"
        )
        found.append(LogFinding("unknown_position", "not_stored", (seq,), t_us, text, consumer, positions))
    return found


def _checkpointed(events: pa.Table) -> list[int]:
    """Connections that a checkpoint line names as connected."""
    rows = events.select(["kind", "checkpoint_json"]).filter(pc.equal(events["kind"], "checkpoint"))
    numbers: list[int] = []
    for text in rows["checkpoint_json"].to_pylist():
        content: Any = json.loads(text) if text else {}
        for consumer in content.get("consumers", []) if isinstance(content, dict) else []:
            number = consumer.get("consumer") if isinstance(consumer, dict) else consumer
            if isinstance(number, int):
                numbers.append(number)
    return numbers


def _ints(values: pa.ChunkedArray | pa.Array, absent: int = 0) -> npt.NDArray[np.int64]:
    return np.asarray(pc.fill_null(values, absent), dtype=np.int64)
