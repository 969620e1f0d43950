"""Find the places of a log where lines are missing: holes in ``seq``, ``gap`` lines, a late beginning.

A log may come in batches: the line before a batch is an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import ints as _ints
from dispatch_core.arrays.line_kinds import of_kinds
from dispatch_core.audit.deliveries.log_finding import LogFinding


@dataclass(frozen=True, slots=True)
class Gaps:
    """Places where lines are missing: behind each of ``seqs`` (ascending; 0 = before the first line)."""

    seqs: npt.NDArray[np.int64]

    def between(self, first_seq: int, last_seq: int) -> bool:
        """Check for missing lines in ``[first_seq, last_seq)``."""
        at = int(np.searchsorted(self.seqs, first_seq))
        return at < len(self.seqs) and int(self.seqs[at]) < last_seq

    def before(self, seq: int) -> bool:
        """Check for missing lines before ``seq``."""
        return len(self.seqs) > 0 and int(self.seqs[0]) < seq

    def joined(self, later: Gaps) -> Gaps:
        """Return these gaps and ``later`` ones, all of which follow."""
        return Gaps(np.concatenate([self.seqs, later.seqs])) if later else self

    def since(self, seq: int | None) -> Gaps:
        """Return the gaps that matter when no evidence before ``seq`` is left: the first, and those from ``seq`` on."""
        later = self.seqs[1:] if seq is None else self.seqs[1:][self.seqs[1:] >= seq]
        return Gaps(np.concatenate([self.seqs[:1], later]))

    def __bool__(self) -> bool:
        return len(self.seqs) > 0


def without_repeated_rows(events: pa.Table) -> tuple[pa.Table, list[tuple[int, int]], int]:
    """Drop rows that repeat the row before them, seq and content alike.

    Returns the table, ``(seq, t_us)`` of every row that shares its seq with the one before and differs, and the number of
    rows that were dropped. Logs made by ``dispatcher_logs`` have no row to drop.
    """
    seq = _ints(events["seq"])
    shared = np.flatnonzero(np.diff(seq) == 0) + 1
    if not len(shared):
        return events, [], 0
    content = [name for name in events.column_names if name not in ("source_file", "source_line")]
    pairs = events.select(content)
    same = [
        int(row) for row in shared if pairs.slice(row, 1).to_pylist() == pairs.slice(row - 1, 1).to_pylist()
    ]
    differs = shared[~np.isin(shared, same)]
    noted = events.select(["seq", "t_us"]).take(pa.array(differs)).to_pylist()
    keep = np.ones(events.num_rows, dtype=np.bool_)
    keep[same] = False
    return events.filter(pa.array(keep)), [(row["seq"], row["t_us"] or 0) for row in noted], len(same)


@dataclass(frozen=True, slots=True)
class LastLine:
    """The line before a batch, as far as the checks need it."""

    seq: int
    is_gap: bool
    timed: tuple[int, int] | None  # seq and time of the last line that has a time

    @classmethod
    def of(cls, events: pa.Table, before: LastLine | None = None) -> LastLine | None:
        """Return the last line of ``events``; ``before``: the line in front of them."""
        if not events.num_rows:
            return before
        timed = None if before is None else before.timed
        rows = events.select(["seq", "t_us"])
        if not rows["t_us"][-1].is_valid:
            rows = rows.filter(pc.is_valid(rows["t_us"]))
        if rows.num_rows:
            timed = (rows["seq"][-1].as_py(), rows["t_us"][-1].as_py())
        return cls(events["seq"][-1].as_py(), events["kind"][-1].as_py() == "gap", timed)


def gaps(
    events: pa.Table, repeated: list[tuple[int, int]], before: LastLine | None = None
) -> tuple[Gaps, list[LogFinding]]:
    """Find holes in ``seq`` and ``gap`` lines. A gap line that fills a hole is one finding, not two."""
    seq, t_us = _ints(events["seq"]), _ints(events["t_us"])
    found: list[LogFinding] = []
    places: list[int] = []
    is_gap = of_kinds(events, "gap")
    for row in np.flatnonzero(is_gap).tolist():
        line = events.slice(row, 1).to_pylist()[0]
        first, last, lines = line["gap_from_seq"], line["gap_to_seq"], line["gap_lines"]
        span = f"seq {first} to {last}" if first is not None and last is not None else f"at seq {line['seq']}"
        how_many = f"{lines} lines" if lines is not None else "an unknown number of lines"
        text = f"the log itself says that {how_many} are missing, {span}: what happened there is unknown"
        found.append(LogFinding("log_gap", "gap_line", (line["seq"],), line["t_us"] or 0, text))
        places.append(min(line["seq"], first if first is not None else line["seq"]))
    if before is None:
        previous, after_gap = seq[:-1], is_gap[:-1]
    else:
        previous, after_gap = np.append(before.seq, seq[:-1]), np.append(before.is_gap, is_gap[:-1])
    first_row = len(seq) - len(previous) if len(seq) else 0
    for hole in np.flatnonzero(seq[first_row:] - previous[: len(seq)] > 1).tolist():
        row = hole + first_row
        if after_gap[hole] or is_gap[row]:
            continue
        low, high = int(previous[hole]), int(seq[row])
        text = (
            f"{high - low - 1} lines are missing between seq {low} and seq {high}, and no gap line says why"
        )
        found.append(LogFinding("log_gap", "seq_hole", (low, high), int(t_us[row]), text))
        places.append(low)
    starts_late = before is None and len(seq) > 0 and int(seq[0]) > 1 and not is_gap[0]
    if starts_late and events["kind"][0].as_py() != "checkpoint":
        text = f"the log begins at seq {int(seq[0])} without a checkpoint: what happened before is unknown"
        found.append(LogFinding("log_gap", "starts_late", (int(seq[0]),), int(t_us[0]), text))
        places.append(0)
    for number, when in repeated:
        text = f"seq {number} stands on more than one line: segments overlap, or two recorders wrote one log"
        found.append(LogFinding("log_gap", "duplicate_seq", (number,), when, text))
        places.append(number - 1)
    return Gaps(np.array(sorted(places), dtype=np.int64)), found


def of_earlier_loads(events: pa.Table) -> tuple[Gaps, LogFinding]:
    """Return the gap in front of a load whose state at the beginning is in lost lines of the loads before it."""
    seq, t_us = _ints(events["seq"][:1]).item(), events["t_us"][0].as_py() or 0
    text = (
        "lines of an earlier load of the topic are missing, and this one begins without a checkpoint: what had been sent "
        "and acknowledged before it is unknown"
    )
    return Gaps(np.zeros(1, dtype=np.int64)), LogFinding("log_gap", "earlier_load", (seq,), t_us, text)
