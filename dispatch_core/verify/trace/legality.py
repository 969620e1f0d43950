"""Find lines that no broker can have written, before the core sees them; each is named by file and line.

Theory of operation
-------------------
Some conditions are properties of the log, not of a rule: a connection is added once and sends commands only while it is
connected; an entry that is sent, acknowledged or requested was stored; time and ``seq`` do not go back; a round that begins
also ends. They are checked by column operations over the batches of a log. A line that would corrupt the core
(an event of an unknown connection, a second add) is *refused*: the core never sees it and its state stays as it was. The
other findings are noted and the line is taken, because it still says something.

Lines that are illegal by a rule make the core raise the same error class itself, before it changes anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import encode, ints, valid
from dispatch_core.arrays.line_kinds import of_kinds, rows_of_kind
from dispatch_core.audit.deliveries import log_checks, missing_lines
from dispatch_core.audit.deliveries.missing_lines import LastLine
from dispatch_core.audit.sentences.lists import positions_listed
from dispatch_core.errors import IllegalTransitionError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.verify.inputs import Entries

_NAMES_ENTRIES: Final = ("sent", "ack", "redeliver")


@dataclass(frozen=True, slots=True)
class Illegal:
    """One finding: the row of ``log.events``, what is wrong with it, and whether the core must not see it."""

    row: int
    seq: int
    error: IllegalTransitionError
    refused: bool


def where_of(events: pa.Table, row: int) -> str:
    """Return file, line and seq of an event; the seq alone if the events do not name their file."""
    columns = [name for name in ("source_file", "source_line", "seq") if name in events.column_names]
    line = events.select(columns).slice(row, 1).to_pylist()[0]
    if line.get("source_file") is None:
        return f"seq {line['seq']}"
    number = "" if line.get("source_line") is None else f":{line['source_line']}"
    return f"{line['source_file']}{number} (seq {line['seq']})"


class IllegalLines:
    """Find the lines of one log that cannot have happened, batch by batch.

    State between two batches: the number of rows taken; the last line; the connections that were added and removed; those
    that were added to the dispatcher and to its selector; the last round begun, and whether it ended.
    """

    def __init__(self, log: DispatcherLog, entries: Entries) -> None:
        """``log``: its header. ``entries``: the stored entries; all that a batch names are among them by then."""
        self._entries = entries
        self._rows = 0
        self._last: LastLine | None = None
        self._connected = log_checks.Connected(log.subscription, subscription_type(log))
        self._added: dict[str, set[int | None]] = {"consumer_added": set(), "selector_added": set()}
        self._round: Illegal | None = None  # the last round begun, if it has not ended
        self._rounds_end = False  # the log has a round that ends

    def take(self, events: pa.Table) -> list[Illegal]:
        """Return the findings about the next lines, in the order of the rows."""
        if not events.num_rows:
            return []
        batch = _Batch(encode(events, "kind"), self._rows)
        found = [
            *self._unknown_consumers(batch),
            *self._added_twice(batch),
            *_never_stored(batch, self._entries),
            *self._clock_steps(batch),
            *self._holes(batch),
        ]
        self._note_rounds(batch)
        self._last = LastLine.of(events, self._last)
        self._rows += events.num_rows
        return sorted(found, key=_order)

    def finish(self) -> list[Illegal]:
        """Return the finding that the log ends inside a round, if it does and its other rounds end."""
        return [self._round] if self._round is not None and self._rounds_end else []

    def _unknown_consumers(self, batch: _Batch) -> list[Illegal]:
        """Find events of a connection that was never added, or that was removed before."""
        found = []
        for finding in self._connected.unknown(batch.events):
            why = "was never added" if finding.reason == "never_added" else "had been removed before"
            found.append(
                batch.finding(
                    batch.row_of(finding.seqs[0]),
                    f"consumer {finding.consumer} {why}; the line was set aside, the state is as before: "
                    "look for lines lost before it",
                    "events come from connected consumers",
                    refused=True,
                )
            )
        return found

    def _added_twice(self, batch: _Batch) -> list[Illegal]:
        """Find connections that are added a second time, to the dispatcher or to its selector."""
        found = []
        for kind, seen in self._added.items():
            added = rows_of_kind(batch.events, kind)
            consumers = batch.events["consumer"].take(pa.array(added)).to_pylist()
            for row, consumer in zip(added.tolist(), consumers, strict=True):
                if consumer in seen:
                    message = (
                        f"consumer {consumer} was added before; the line was set aside, the state is as before: "
                        "look for a segment that landed twice, or two recorders writing one log"
                    )
                    found.append(batch.finding(row, message, "one add per connection", refused=True))
                seen.add(consumer)
        return found

    def _clock_steps(self, batch: _Batch) -> list[Illegal]:
        """Find lines whose time is before that of the line in front."""
        return [
            batch.finding(
                batch.row_of(finding.seqs[1]),
                f"{finding.explanation}; the line was taken",
                "t_us never goes back",
            )
            for finding in log_checks.clock_steps(*log_checks.timed(batch.events, self._last))
        ]

    def _holes(self, batch: _Batch) -> list[Illegal]:
        """Find missing lines, and lines that share their ``seq``."""
        before = [] if self._last is None else [self._last.seq]
        shared = np.flatnonzero(np.diff(np.concatenate([before, batch.seqs])) == 0) + 1 - len(before)
        repeated = [(int(batch.seqs[row]), 0) for row in shared.tolist()]
        _, found = missing_lines.gaps(batch.events, repeated, self._last)
        return [
            batch.finding(
                batch.row_of(finding.seqs[-1]),
                f"{finding.explanation}; reading goes on behind it",
                "seq has no holes",
            )
            for finding in found
        ]

    def _note_rounds(self, batch: _Batch) -> None:
        begun, ended = (rows_of_kind(batch.events, kind) for kind in ("round_begin", "round_end"))
        self._rounds_end = self._rounds_end or bool(len(ended))
        if len(begun) and (not len(ended) or begun[-1] > ended[-1]):
            message = (
                "the log ends inside this round; everything before it was taken: fetch the rest of the file"
            )
            self._round = batch.finding(int(begun[-1]), message, "a round that begins also ends")
        elif len(ended):
            self._round = None


@dataclass(frozen=True, slots=True)
class _Batch:
    """The lines of a batch. ``first``: row of the first one in the log."""

    events: pa.Table
    first: int

    @property
    def seqs(self) -> npt.NDArray[np.int64]:
        """``seq`` of each line."""
        return ints(self.events["seq"])

    def row_of(self, seq: int) -> int:
        """Return the row of the first line from ``seq`` on."""
        seqs = self.seqs
        return min(int(np.searchsorted(seqs, seq)), len(seqs) - 1)

    def finding(self, row: int, message: str, rule: str, *, refused: bool = False) -> Illegal:
        """Make a finding about a row of the batch."""
        kind = self.events["kind"][row].as_py()
        error = IllegalTransitionError(message, where=where_of(self.events, row), event=kind, rule=rule)
        return Illegal(self.first + row, int(self.seqs[row]), error, refused)


def _order(finding: Illegal) -> tuple[int, bool]:
    return finding.row, not finding.refused


def _never_stored(batch: _Batch, entries: Entries) -> list[Illegal]:
    """Find sent, acknowledged or requested positions that the message log does not hold."""
    events = batch.events
    wanted = np.flatnonzero(of_kinds(events, *_NAMES_ENTRIES) & valid(events["positions"]))
    if not len(wanted):
        return []
    lists = events["positions"].take(pa.array(wanted))
    lengths = ints(pc.list_value_length(lists))
    flat = pc.list_flatten(lists)
    ledger, entry = (ints(pc.struct_field(flat, name)) for name in ("ledger_id", "entry_id"))
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
        found.append(batch.finding(row, message, "only stored entries are sent, acknowledged, asked for"))
    return found


def _stored(
    ledger: npt.NDArray[np.int64], entry: npt.NDArray[np.int64], entries: Entries
) -> npt.NDArray[np.bool_]:
    known = np.zeros(len(ledger), dtype=np.bool_)
    for number in np.unique(ledger).tolist():
        here = ledger == number
        known[here] = np.isin(entry[here], entries.entry_ids[entries.ledger_ids == number])
    return known
