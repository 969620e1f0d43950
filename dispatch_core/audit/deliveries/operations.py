"""Turn event rows into operations: a code, a connection, and a run of positions each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import Ints, Mask, encoded, has, ints, marked, valid
from dispatch_core.broker.cursor import EVERY_INDEX, indexes_left, indexes_left_by_cumulative
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording.checkpoint import joins

ADDED: Final = 0
REMOVED: Final = 1
SENT: Final = 2
ACK: Final = 3
ACK_CUMULATIVE: Final = 4
REDELIVER: Final = 5
REDELIVER_ALL: Final = 6
REWIND: Final = 7  # Failover and Exclusive: a rewind line, or a notice of who is active
RELOAD: Final = 8
FLOW: Final = 9  # only where asked for; no rule of the audit looks at it
#: Moves of the cursor. ``value`` is the ordinal of the last entry up to the new mark-delete position, -1 = none.
PASSED: Final = 10  # forward, nobody is disconnected: skip, clear backlog, expiry
RESET: Final = 11  # to any position, everybody is disconnected: seek, reset
MOVED: Final = 12  # ``by`` is unknown: either of the two
#: A move to where the log does not say: it may explain what comes again, and changes nothing else.
MOVED_SOMEWHERE: Final = 13
MOVES: Final = (PASSED, RESET, MOVED)
_MOVES_BY: Final = {
    "skip": PASSED,
    "clear_backlog": PASSED,
    "expiry": PASSED,
    "seek": RESET,
    "reset_cursor": RESET,
    "unknown": MOVED,
}
#: What moves the cursor, by the operation that reaches it (``cursor_op``). That of a mark-delete is the skip or the clear of
#: the line before, else a cumulative acknowledgement or an expiry.
_MOVED_BY_OP: Final = {
    "skip": "skip",
    "clear_backlog": "clear_backlog",
    "reset": "reset_cursor",
    "mark_delete": "expiry",
}
#: Lines of a trace that show where the cursor is moved to.
_SHOW_MOVES: Final = ("cursor_op", "consumer_added")

_CODES: Final = {
    "consumer_added": ADDED,
    "consumer_removed": REMOVED,
    "sent": SENT,
    "ack": ACK,
    "redeliver": REDELIVER,
    "rewind": REWIND,
    "active_notified": REWIND,
}


@dataclass(frozen=True, slots=True)
class Consumer:
    """One connection of a consumer: its number in the log, its name, and its consent to delivery out of order."""

    number: int
    name: str | None
    allow_out_of_order: bool


@dataclass(frozen=True, slots=True)
class Operations:
    """Operations of one feed, one element each. Operation ``i`` concerns the entries ``ordinals[start[i]:start[i + 1]]``."""

    code: npt.NDArray[np.int8]
    consumer: npt.NDArray[np.int32]  # index into ``consumers``, -1 where the operation has none
    seq: Ints
    t_us: Ints
    value: Ints  # permits of a FLOW, else 0
    start: Ints
    ordinals: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Lines:
    """Event rows that become operations, in order. Arrays have one element per operation.

    ``number``: of the connection, -1 where the line names none. ``value``: permits of a ``FLOW``, else 0. ``lengths``:
    positions of each operation; ``ledger`` and ``entry`` hold the positions of all, one run after the other.
    ``ack_sets``: per operation, ``None`` where no line has any.
    """

    code: npt.NDArray[np.int8]
    number: Ints
    seq: Ints
    t_us: Ints
    value: Ints
    lengths: Ints
    ledger: Ints
    entry: Ints
    ack_sets: pa.ChunkedArray | None
    nobody: Mask  # operations that concern no connection
    moved_to: Mapping[int, tuple[int, int]]  # by operation: the new mark-delete position of a move
    by: Mapping[int, str]  # by operation: what moved the cursor

    @classmethod
    def of(
        cls,
        events: pa.Table,
        *,
        flows: bool,
        cursor_ops: CursorOperations | None = None,
        non_persistent: bool = False,
    ) -> Lines:
        """Select the rows of ``events`` that become operations; ``flows``: also ``flow`` lines.

        ``cursor_ops``: takes the moves of the cursor from a trace's ``cursor_op`` lines. ``non_persistent``: of a
        non-persistent topic, see ``_settled_by_sending``.
        """
        kinds, words = encoded(events["kind"])
        code_of = _CODES | {"flow": FLOW} if flows else _CODES
        code = np.array([code_of.get(word, -1) for word in words.to_pylist()] or [-1], dtype=np.int8)[kinds]
        wanted = code >= 0
        rewinds = np.array([word == "rewind" for word in words.to_pylist()] or [False])[kinds]
        lists = events["positions"]
        without = ~valid(lists)
        lengths, flat = _runs(lists, (code == SENT) | (code == ACK) | (code == REDELIVER))
        acks = code == ACK
        if acks.any():
            code[acks & marked(events["ack_type"], "Cumulative")] = ACK_CUMULATIVE
        code[(code == REDELIVER) & without] = REDELIVER_ALL
        moves = _moves(events, kinds, words.to_pylist())
        if cursor_ops is not None:
            moves |= cursor_ops.moves(events, kinds, words.to_pylist(), wanted)
        for row, (move, _to, _by) in moves.items():
            code[row], wanted[row] = move, True
        number, seq, t_us = ints(events["consumer"], -1), ints(events["seq"]), ints(events["t_us"])
        # a rewind concerns no connection; every other operation has one, if only the unnamed one
        nobody = rewinds & ~valid(events["consumer"])
        nobody[list(moves)] = True
        value = np.where(code == FLOW, ints(events["permits"]), 0) if flows else np.zeros_like(seq)
        sets = events["ack_sets"]
        rows = slice(None) if wanted.all() else np.flatnonzero(wanted)
        if sets.null_count == len(sets):
            sets = None
        elif not isinstance(rows, slice):
            sets = sets.take(pa.array(rows))
        of_row = dict.fromkeys(moves, 0)
        if moves:
            places = np.cumsum(wanted) - 1
            of_row = {row: int(places[row]) for row in moves}
        lines = cls(
            code[rows],
            number[rows],
            seq[rows],
            t_us[rows],
            value[rows],
            lengths[rows],
            ints(pc.struct_field(flat, "ledger_id")),
            ints(pc.struct_field(flat, "entry_id")),
            sets,
            nobody[rows],
            {of_row[row]: to for row, (_move, to, _by) in moves.items() if to is not None},
            {of_row[row]: by for row, (_move, _to, by) in moves.items()},
        )
        return lines._settled_by_sending() if non_persistent else lines

    def _settled_by_sending(self) -> Lines:
        """Return the lines of a non-persistent topic: to the broker an entry is done with once it is sent.

        Each delivery is followed by an acknowledgement of its own, and nothing else settles, asks for or moves anything:
        acknowledgements, redelivery requests and moves of the cursor have no effect on such a topic
        (NonPersistentSubscription). So a further delivery of an entry is found as one behind its acknowledgement.
        """
        sends = self.code == SENT
        kept = np.flatnonzero(np.isin(self.code, (ADDED, REMOVED, SENT, FLOW)))
        times = np.where(sends[kept], 2, 1)
        row = np.repeat(kept, times)
        again = np.zeros(len(row), np.bool_)
        again[(np.cumsum(times) - 1)[sends[kept]]] = True
        starts = np.concatenate([[0], np.cumsum(self.lengths)])
        lengths = self.lengths[row]
        within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        positions = np.repeat(starts[row], lengths) + within
        return Lines(
            np.where(again, np.int8(ACK), self.code[row]).astype(np.int8),
            self.number[row],
            self.seq[row],
            self.t_us[row],
            self.value[row],
            lengths,
            self.ledger[positions],
            self.entry[positions],
            None,
            self.nobody[row],
            {},
            {},
        )

    @classmethod
    def reload(cls) -> Lines:
        """Return what stands between the lines of two incarnations."""
        nothing = np.zeros(1, dtype=np.int64)
        none = np.empty(0, dtype=np.int64)
        code, nobody = np.array([RELOAD], dtype=np.int8), np.ones(1, dtype=np.bool_)
        return cls(code, nothing - 1, nothing, nothing, nothing, nothing, none, none, None, nobody, {}, {})

    @classmethod
    def joined(cls, runs: list[Lines]) -> Lines:
        """Join several runs of lines."""
        sets = None
        typed = [run.ack_sets.type for run in runs if run.ack_sets is not None]
        if typed:
            parts = (run.ack_sets or pa.chunked_array([pa.nulls(len(run.code), typed[0])]) for run in runs)
            sets = pa.chunked_array([chunk for part in parts for chunk in part.chunks], typed[0])

        def whole(name: str) -> npt.NDArray[Any]:
            return np.concatenate([getattr(run, name) for run in runs])

        firsts = np.cumsum([0, *(len(run.code) for run in runs)]).tolist()

        return cls(
            code=whole("code"),
            number=whole("number"),
            seq=whole("seq"),
            t_us=whole("t_us"),
            value=whole("value"),
            lengths=whole("lengths"),
            ledger=whole("ledger"),
            entry=whole("entry"),
            ack_sets=sets,
            nobody=whole("nobody"),
            moved_to={
                first + op: to
                for first, run in zip(firsts, runs, strict=False)
                for op, to in run.moved_to.items()
            },
            by={
                first + op: by for first, run in zip(firsts, runs, strict=False) for op, by in run.by.items()
            },
        )


def _moves(
    events: pa.Table, kinds: npt.NDArray[Any], words: list[str]
) -> dict[int, tuple[int, tuple[int, int] | None, str]]:
    """Return code, new mark-delete position and ``by`` of each row that moves the cursor."""
    if "cursor_moved" not in words or not has(events, "by"):
        return {}
    rows = np.flatnonzero(kinds == words.index("cursor_moved"))
    moves: dict[int, tuple[int, tuple[int, int] | None, str]] = {}
    for row, line in zip(
        rows.tolist(), events.select(["by", "moved_to"]).take(pa.array(rows)).to_pylist(), strict=True
    ):
        to = line["moved_to"]
        by = line["by"] or "unknown"
        position = None if to is None else (to["ledger_id"], to["entry_id"])
        moves[row] = (MOVED_SOMEWHERE if position is None else _MOVES_BY.get(by, MOVED)), position, by
    return moves


class CursorOperations:
    """The operations on the cursor that a trace shows (``cursor_op``), as moves, batch by batch.

    That of a cumulative acknowledgement is left out: its own line says more. A reset has taken effect when the next consumer
    joins, whose line shows where it ended: one that goes behind the end of the topic ends there. What a read brings between
    the two lines is of before the reset. So the reset stands on the last line before the consumer that is no operation. If
    no line shows where it ended, it stays where it is, a move to where the lines do not say.

    ``shown_until``: the ``seq`` of the last line of the log that shows where a reset ended (``resets_shown_until``), so that
    a batch knows whether a later one has such a line.

    Example: an administrator skips 14 entries. The trace has a line ``skip``, and behind it one ``mark_delete`` with the new
    position. A consumer that joins behind a reset to 3:7 shows that mark-delete is 3:6.
    """

    def __init__(self, shown_until: int) -> None:
        self._shown_until = shown_until
        self._resets = False  # no consumer has joined since the last reset
        self._begun: str | None = None  # the skip or clear of which the mark-delete is to come
        self._by_acks: set[tuple[int, int]] = set()  # positions that cumulative acks of the last batch name

    def moves(
        self, events: pa.Table, kinds: npt.NDArray[Any], words: list[str], taken: Mask
    ) -> dict[int, tuple[int, tuple[int, int] | None, str]]:
        """Return what ``_moves`` returns, of the next batch; ``taken``: rows of other operations.

        Raises ``NotStreamableError`` for a reset of an earlier batch whose end no line shows, or for which no line is free.
        """
        if not events.num_rows:
            return {}
        before, self._by_acks = self._by_acks, _acknowledged_cumulatively(events)
        shows = any(word in words for word in _SHOW_MOVES)
        if not (shows or self._resets) or not (has(events, "op") and has(events, "mark_delete")):
            return {}
        by_acks = before | self._by_acks
        rows = np.flatnonzero(np.isin(kinds, [at for at, word in enumerate(words) if word in _SHOW_MOVES]))
        lines = events.select(["kind", "op", "target", "mark_delete"]).take(pa.array(rows)).to_pylist()
        moves: dict[int, tuple[int, tuple[int, int] | None, str]] = {}
        reset = 0 if self._resets else None
        for row, line in zip(rows.tolist(), lines, strict=True):
            shown = None if line["kind"] == "cursor_op" else line["mark_delete"]
            if reset is not None and shown is not None:
                moves.pop(reset, None)
                moves[_last_free(taken, reset, row)] = RESET, _pair(shown), _MOVED_BY_OP["reset"]
            elif self._resets:
                raise NotStreamableError(
                    "the cursor was reset in an earlier batch, and no line shows to where"
                )
            reset, self._resets = None, False
            if line["kind"] != "cursor_op":
                continue
            op, target, begun = line["op"], line["target"], self._begun
            self._begun = None
            if op in ("skip", "clear_backlog"):
                self._begun = _MOVED_BY_OP[op]
            elif op == "reset" or target is None:
                moves[row] = MOVED_SOMEWHERE, None, _MOVED_BY_OP[op]
                reset = row if op == "reset" else None
            elif begun is not None or _pair(target) not in by_acks:
                moves[row] = PASSED, _pair(target), begun or _MOVED_BY_OP[op]
        self._resets = reset is not None and self._shown_until > events["seq"][-1].as_py()
        if self._resets and reset is not None:
            moves.pop(reset, None)
        return moves


def _last_free(taken: Mask, first: int, end: int) -> int:
    """Return the last row of ``first`` to ``end`` (excluded) that is no operation."""
    free = np.flatnonzero(~taken[first:end])
    if not len(free):
        raise NotStreamableError(
            "the cursor was reset in an earlier batch, and all lines behind are operations"
        )
    return first + int(free[-1])


def resets_shown_until(events: pa.Table) -> int:
    """Return the ``seq`` of the last line of a trace that shows where a reset of the cursor ended; -1 = there is none."""
    shows = marked(events["kind"], "consumer_added")
    return int(ints(events["seq"])[shows].max(initial=-1))


def _acknowledged_cumulatively(events: pa.Table) -> set[tuple[int, int]]:
    """Return the positions that cumulative acknowledgements name."""
    acks = np.flatnonzero(marked(events["ack_type"], "Cumulative"))
    named = events["positions"].take(pa.array(acks)).to_pylist()
    return {_pair(position) for positions in named for position in positions or ()}


def _pair(position: Mapping[str, int]) -> tuple[int, int]:
    return position["ledger_id"], position["entry_id"]


def _runs(lists: pa.ChunkedArray, naming: Mask) -> tuple[Ints, pa.ChunkedArray]:
    """Return the number of positions per row and all positions, of the rows ``naming`` only."""
    lengths = ints(pc.list_value_length(lists))
    flat = pc.list_flatten(lists)
    others = ~naming & (lengths > 0)
    if others.any():
        flat = flat.filter(pa.array(np.repeat(naming, lengths)))
        lengths = np.where(naming, lengths, 0)
    return lengths, flat


class Connections:
    """The connections of one incarnation, numbered from the end of ``consumers`` on; they may be known beforehand."""

    def __init__(self, consumers: list[Consumer]) -> None:
        self._consumers = consumers
        self._index: dict[int, int] = {}
        self._agreed: dict[int, tuple[str | None, bool]] = {}

    def meet(self, events: pa.Table) -> None:
        """Note the names of connections from ``consumer_added`` lines and checkpoints, and their consent to any order.

        Of two lines for one connection the first counts.

        Raises ``NotStreamableError`` for a connection that had a part in earlier lines, nameless.
        """
        for row in joins(events, ("consumer", "name", "key_shared_allow_out_of_order")):
            number = row["consumer"]
            if number is None or number in self._agreed:
                continue
            if number in self._index:
                raise NotStreamableError(
                    f"connection {number} had a part in lines before the one that adds it"
                )
            self._agreed[number] = (row["name"], bool(row["key_shared_allow_out_of_order"]))

    def index_of(self, number: int) -> int:
        """Return the index in ``consumers`` of a numbered connection."""
        return self._index[number]

    def number_all(self) -> None:
        """Number all connections noted so far, also those that have done nothing yet."""
        self._number(sorted(self._agreed))

    def of(self, lines: Lines) -> npt.NDArray[np.int32]:
        """Return the connection index of each operation, -1 = none, as for flows of an unknown connection."""
        numbers = lines.number
        codes, words = encoded(pa.chunked_array([pa.array(numbers)]))
        present = words.to_pylist()
        concerned = ~lines.nobody & (lines.code != FLOW)
        if not concerned.all():
            counts = np.bincount(codes[concerned], minlength=len(present))
            self._number(sorted(present[code] for code in np.flatnonzero(counts).tolist()))
        else:
            self._number(sorted(present))
        index_of = np.array([self._index.get(number, -1) for number in present] or [-1], dtype=np.int32)
        index = index_of[codes]
        return np.where(lines.nobody, -1, index).astype(np.int32) if lines.nobody.any() else index

    def _number(self, numbers: list[int]) -> None:
        for number in numbers:
            if number not in self._index:
                name, free = self._agreed.get(number, (None, False))
                self._index[number] = len(self._consumers)
                self._consumers.append(Consumer(number, name, free))


def whole_acks(
    lines: Lines, ordinals: npt.NDArray[np.int32], left: dict[int, int]
) -> tuple[Mask, npt.NDArray[np.int32]]:
    """Mask the positions that count, and return them: an ack of a part of a batch counts with the last of its messages.

    Example: an entry holds two messages. The ack with the set ``[2]`` (binary 10, message 1 is left) does not count; a later
    ack with ``[1]`` leaves none (2 AND 1 = 0), so it acknowledges the entry. A cumulative ack of a part of an entry
    acknowledges the entries before it: its position becomes that of the entry before.

    A word of ``ack_sets`` has one bit per message of the batch, 1 = not acked yet; the sets of individual acks are ANDed
    in ``left``, by ordinal, those of cumulative acks replace what goes less far (ManagedCursorImpl's batch deleted
    indexes). Acks without a set acknowledge the whole entry.
    """
    keep = np.ones(len(ordinals), dtype=np.bool_)
    if lines.ack_sets is None:
        return keep, ordinals
    partial = np.flatnonzero(np.isin(lines.code, (ACK, ACK_CUMULATIVE)) & valid(lines.ack_sets))
    if not len(partial):
        return keep, ordinals
    ordinals = ordinals.copy()
    starts = np.concatenate([[0], np.cumsum(lines.lengths)])
    rows: list[Any] = lines.ack_sets.take(pa.array(partial)).to_pylist()
    for row, sets in zip(partial.tolist(), rows, strict=True):
        for index in range(int(lines.lengths[row])):
            words = sets[index] if index < len(sets) else None
            if not words:
                continue
            at = int(starts[row]) + index
            ordinal = int(ordinals[at])
            if ordinal < 0:  # it was dropped
                continue
            cumulative = lines.code[row] == ACK_CUMULATIVE
            rule = indexes_left_by_cumulative if cumulative else indexes_left
            left[ordinal] = rule(left.get(ordinal, EVERY_INDEX), words)
            if not left[ordinal]:
                continue
            if cumulative and ordinal > 0:
                ordinals[at] = ordinal - 1
            else:
                keep[at] = False
    return keep, ordinals
