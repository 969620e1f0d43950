"""Look-ups in one dispatcher's log: the lines that name given entries, the line at a given time, positions and keys.

Keys are returned ready for display (``sentences.names.shown``), since they come from outside.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.sentences.names import shown
from dispatch_core.recording.log import DispatcherLog

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Touching:
    """A line that names some of the given entries: their ``rows``, in the line's order."""

    seq: int
    t_us: int
    kind: str
    consumer: int | None
    rows: list[int]


def touching(
    log: DispatcherLog,
    kinds: Collection[str],
    ledger: Ints,
    entry: Ints,
    rows: Ints,
    *,
    near: tuple[int, int, int] | None = None,
) -> Iterator[Touching]:
    """Find the lines of these ``kinds`` that name one of the positions (``ledger``, ``entry``).

    ``rows``: the caller's row number of each position. ``near``: (seq, before, after): return at most ``before`` lines up to
    the line ``seq`` and ``after`` lines after it.
    """
    if not len(rows):
        return
    events = log.events.filter(pc.is_in(log.events["kind"], value_set=pa.array(list(kinds), pa.string())))
    events = events.filter(pc.is_valid(events["positions"]))
    lists = events["positions"].combine_chunks()
    flat = lists.flatten()
    at = np.repeat(np.arange(events.num_rows), np.asarray(pc.list_value_length(lists)))
    ledgers, entries = (np.asarray(flat.field(name)) for name in ("ledger_id", "entry_id"))
    row_of = dict(zip(zip(ledger.tolist(), entry.tolist(), strict=True), rows.tolist(), strict=True))
    hit = np.isin(ledgers, ledger) & np.isin(entries, entry)
    touched = np.unique(at[hit])
    if near is not None:
        seq, before, after = near
        middle = int(np.searchsorted(np.asarray(events["seq"])[touched], seq, side="right"))
        touched = touched[max(middle - before, 0) : middle + after]
    starts, ends = np.searchsorted(at, touched), np.searchsorted(at, touched, side="right")
    heads = events.select(["seq", "t_us", "kind", "consumer"]).take(pa.array(touched)).to_pylist()
    for head, start, end in zip(heads, starts.tolist(), ends.tolist(), strict=True):
        pairs = zip(ledgers[start:end].tolist(), entries[start:end].tolist(), strict=True)
        found = [row_of[pair] for pair in pairs if pair in row_of]
        if found:
            yield Touching(head["seq"], head["t_us"] or 0, head["kind"], head["consumer"], found)


class SeqAt:
    """Find the ``seq`` of the last line that is not later than a given time."""

    def __init__(self, log: DispatcherLog) -> None:
        self._seqs = np.asarray(log.events["seq"], dtype=np.int64)
        times = np.asarray(pc.fill_null(log.events["t_us"], 0), dtype=np.int64)
        self._times = np.maximum.accumulate(times) if len(times) else times

    def __call__(self, t_us: int) -> int:
        """The seq, 0 before the first line."""
        at = int(np.searchsorted(self._times, t_us, side="right")) - 1
        return int(self._seqs[at]) if at >= 0 else 0


def row_at(log: DispatcherLog, seq: int) -> dict[str, Any] | None:
    """The line ``seq``; the first one if the log has it twice."""
    rows = log.events.filter(pc.equal(log.events["seq"], seq)).slice(0, 1).to_pylist()
    return rows[0] if rows else None


def message_row(log: DispatcherLog, ledger: int, entry: int) -> int | None:
    """The row of the message log that holds a position."""
    same = pc.and_(pc.equal(log.messages["ledger_id"], ledger), pc.equal(log.messages["entry_id"], entry))
    hits = np.flatnonzero(np.asarray(same))
    return int(hits[0]) if len(hits) else None


def position_of(log: DispatcherLog, row: int) -> str:
    """``"L:E"`` of a row of the message log."""
    return f"{log.messages['ledger_id'][row].as_py()}:{log.messages['entry_id'][row].as_py()}"


def key_of(log: DispatcherLog, row: int) -> str:
    """The key of a row of the message log, ready for display."""
    for name in ("ordering_key_b64", "key"):
        value = log.messages[name][row].as_py()
        if value is not None:
            return shown(value)
    h31 = log.messages["key_h31"][row].as_py()
    return "none" if h31 is None else f"hashed to {h31}"
