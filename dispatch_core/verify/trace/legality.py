"""Find lines that no broker can have written, before the core sees them; each is named by file and line.

Theory of operation
-------------------
Some conditions are properties of the log, not of a rule: a connection is added once and sends commands only while it is
connected; an entry that is sent, acknowledged or requested was stored; time and ``seq`` do not go back; a round that begins
also ends. They are checked by column operations over one log. A line that would corrupt the core
(an event of an unknown connection, a second add) is *refused*: the core never sees it and its state stays as it was. The
other findings are noted and the line is taken, because it still says something.

Lines that are illegal by a rule make the core raise the same error class itself, before it changes anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.deliveries import log_checks
from dispatch_core.audit.sentences.lists import positions_listed
from dispatch_core.errors import IllegalTransitionError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.inputs import Entries

_NAMES_ENTRIES: Final = ("sent", "ack", "redeliver")


@dataclass(frozen=True, slots=True)
class Illegal:
    """One finding: the row of ``log.events``, what is wrong with it, and whether the core must not see it."""

    row: int
    seq: int
    error: IllegalTransitionError
    refused: bool


def illegal_lines(log: DispatcherLog, entries: Entries) -> list[Illegal]:
    """Return the lines that cannot have happened, in the order of the rows."""
    found = [
        *_unknown_consumers(log),
        *_added_twice(log),
        *_never_stored(log, entries),
        *_clock_steps(log),
        *_holes(log),
        *_cut_off(log),
    ]
    return sorted(found, key=lambda finding: (finding.row, not finding.refused))


def where_of(log: DispatcherLog, row: int) -> str:
    """Return file, line and seq of an event; the seq alone if the log does not name its file."""
    line = log.events.select(["source_file", "source_line", "seq"]).slice(row, 1).to_pylist()[0]
    if line["source_file"] is None:
        return f"seq {line['seq']}"
    number = "" if line["source_line"] is None else f":{line['source_line']}"
    return f"{line['source_file']}{number} (seq {line['seq']})"


def _finding(log: DispatcherLog, row: int, message: str, rule: str, *, refused: bool = False) -> Illegal:
    kind = log.events["kind"][row].as_py()
    error = IllegalTransitionError(message, where=where_of(log, row), event=kind, rule=rule)
    return Illegal(row, int(log.events["seq"][row].as_py()), error, refused)


def _unknown_consumers(log: DispatcherLog) -> list[Illegal]:
    """Find events of a connection that was never added, or that was removed before."""
    rows = _row_of(log)
    found = []
    for finding in log_checks.unknown_consumers(log.events, log):
        why = "was never added" if finding.reason == "never_added" else "had been removed before"
        found.append(
            _finding(
                log,
                rows(finding.seqs[0]),
                f"consumer {finding.consumer} {why}; the line was set aside, the state is as before: "
                "look for lines lost before it",
                "events come from connected consumers",
                refused=True,
            )
        )
    return found


def _added_twice(log: DispatcherLog) -> list[Illegal]:
    """Find connections that are added a second time, to the dispatcher or to its selector."""
    found = []
    for kind in ("consumer_added", "selector_added"):
        added = np.flatnonzero(np.asarray(pc.equal(log.events["kind"], kind)))
        consumers = log.events["consumer"].take(pa.array(added)).to_pylist()
        seen: set[int] = set()
        for row, consumer in zip(added.tolist(), consumers, strict=True):
            if consumer in seen:
                message = (
                    f"consumer {consumer} was added before; the line was set aside, the state is as before: "
                    "look for a segment that landed twice, or two recorders writing one log"
                )
                found.append(_finding(log, row, message, "one add per connection", refused=True))
            seen.add(consumer)
    return found


def _never_stored(log: DispatcherLog, entries: Entries) -> list[Illegal]:
    """Find sent, acknowledged or requested positions that the message log does not hold."""
    wanted = np.flatnonzero(
        np.asarray(pc.is_in(log.events["kind"], value_set=pa.array(_NAMES_ENTRIES)))
        & np.asarray(pc.is_valid(log.events["positions"]))
    )
    if not len(wanted):
        return []
    lists = log.events["positions"].take(pa.array(wanted)).combine_chunks()
    lengths = np.asarray(pc.list_value_length(lists))
    flat = lists.flatten()
    ledger = np.asarray(flat.field("ledger_id"), dtype=np.int64)
    entry = np.asarray(flat.field("entry_id"), dtype=np.int64)
    missing = ~_stored(ledger, entry, entries)
    if not missing.any():
        return []
    owner = np.repeat(wanted, lengths)
    found = []
    for row in np.unique(owner[missing]).tolist():
        at = np.flatnonzero(missing & (owner == row))
        named = positions_listed([f"{ledger[i]}:{entry[i]}" for i in at.tolist()])
        message = (
            f"{named}: no such entry in the message log; the line was taken without: look for lost messages"
        )
        found.append(_finding(log, row, message, "only stored entries are sent, acknowledged, asked for"))
    return found


def _stored(
    ledger: npt.NDArray[np.int64], entry: npt.NDArray[np.int64], entries: Entries
) -> npt.NDArray[np.bool_]:
    known = np.zeros(len(ledger), dtype=np.bool_)
    for number in np.unique(ledger).tolist():
        here = ledger == number
        known[here] = np.isin(entry[here], entries.entry_ids[entries.ledger_ids == number])
    return known


def _clock_steps(log: DispatcherLog) -> list[Illegal]:
    """Find lines whose time is before that of the line in front."""
    rows = _row_of(log)
    return [
        _finding(
            log, rows(finding.seqs[1]), f"{finding.explanation}; the line was taken", "t_us never goes back"
        )
        for finding in log_checks.clock_steps(log.events)
    ]


def _holes(log: DispatcherLog) -> list[Illegal]:
    """Find missing lines, and lines that share their ``seq``."""
    rows = _row_of(log)
    shared = np.flatnonzero(np.diff(_seqs(log)) == 0) + 1
    repeated = [(int(_seqs(log)[row]), 0) for row in shared.tolist()]
    _, found = log_checks.gaps(log.events, repeated)
    return [
        _finding(
            log,
            rows(finding.seqs[-1]),
            f"{finding.explanation}; reading goes on behind it",
            "seq has no holes",
        )
        for finding in found
    ]


def _cut_off(log: DispatcherLog) -> list[Illegal]:
    """Find the end of a log inside a round, if its other rounds end."""
    kinds = log.events["kind"]
    begun = np.flatnonzero(np.asarray(pc.equal(kinds, "round_begin")))
    ended = np.flatnonzero(np.asarray(pc.equal(kinds, "round_end")))
    if not len(begun) or not len(ended) or begun[-1] < ended[-1]:
        return []
    message = "the log ends inside this round; everything before it was taken: fetch the rest of the file"
    return [_finding(log, int(begun[-1]), message, "a round that begins also ends")]


def _seqs(log: DispatcherLog) -> npt.NDArray[np.int64]:
    return np.asarray(log.events["seq"], dtype=np.int64)


def _row_of(log: DispatcherLog) -> Callable[[int], int]:
    seqs = _seqs(log)
    return lambda seq: min(int(np.searchsorted(seqs, seq)), max(len(seqs) - 1, 0))
