"""Compare the positions of the cursor that lines show: read position and mark-delete (class ``position``).

Each position of ``inputs.POSITION_FIELDS`` is a decision. It stands for the entries in front of it. Acknowledgements take
effect as ``mark_delete_lines`` says; where a line shows another position, one that an overlapping acknowledgement, read,
move or reset of the cursor explains is uncertain, and names its line.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from dispatch_core.broker.cursor import asks_for_one, first_left, meets_end, read_to_end
from dispatch_core.broker.state import MARK_DELETE, READ_POSITION
from dispatch_core.verify.inputs import POSITION_FIELDS, Line
from dispatch_core.verify.tally import Fields
from dispatch_core.verify.trace.cursor_operations import CursorDriver
from dispatch_core.verify.trace.driver import acknowledged_by
from dispatch_core.verify.trace.earlier_positions import HELD_UP_US, Begun, EarlierPositions
from dispatch_core.verify.trace.mark_delete_lines import (
    LINES_AHEAD,
    WITHIN,
    AcksOnTheirWay,
    Ahead,
    Applied,
    Arrival,
    MovedLine,
    NextCommand,
)
from dispatch_core.verify.trace.open_effects import OpenEffects

#: Kinds that a connection's thread writes: what it did before is over.
OF_A_CONNECTION: Final = frozenset({"flow", "flow_counted", "ack", "redeliver"})
#: A normal read moves the read position when its entries are there. The dispatcher takes them, which ``read_done`` says, so
#: much later, microseconds. In the recordings, of the lines with a read position at most so long before, 58 of 61 show it
#: moved; of those longer before, 24 of 3,100.
READ_MOVES_BEFORE_US: Final = 200
#: A ``cursor_state`` line stands so much at most behind the moment at which the broker read the positions, microseconds: it
#: is an answer of the web service. The longest in the recordings is 75 ms.
ANSWERED_WITHIN_US: Final = 250_000


@dataclass(frozen=True, slots=True)
class _Reset:
    """A reset of the cursor: the seq of its line, the positions before it, and the read position that it sets."""

    seq: int
    read_position: int
    mark_delete: int
    sets: int

    def lowered(self, drop: int) -> _Reset:
        """Return it after ordinals were lowered."""
        return _Reset(self.seq, self.read_position - drop, self.mark_delete - drop, self.sets - drop)


@dataclass(slots=True)
class _Acknowledged:
    """Entries that are acknowledged at the cursor, or will be by late commands, which are looked for once."""

    driver: PositionsDriver
    late: set[int] | None = None

    def __contains__(self, entry: object) -> bool:
        deleted = self.driver._cursor.deleted
        if isinstance(entry, int) and 0 <= entry < len(deleted) and deleted.item(entry):
            return True
        if self.late is None:
            self.late = self.driver._acknowledged_late()
        return entry in self.late


class PositionsDriver(CursorDriver):
    """Base of drivers: the positions that lines show."""

    position_fields: ClassVar[Fields] = POSITION_FIELDS

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._effects_open = OpenEffects()
        self._on_their_way = AcksOnTheirWay()
        # A reset takes effect some time after its line, and is over when consumers come back.
        self._reset_under_way: _Reset | None = None
        # The last line ``mark_delete`` since the cursor was reset: its seq, and where it shows mark-delete.
        self._moved_to: tuple[int, int] = (0, -1)
        # Time and mark-delete of the latest such lines.
        self._lines_moved: deque[tuple[int, int]] = deque(maxlen=1_000)
        self._earlier = EarlierPositions()
        self._operation_at = 0  # seq of the last operation on the cursor, but for moves
        self._move_at = 0  # seq of the last move of the cursor
        self._agreed_at = 0  # seq of the last line that shows mark-delete where the core has it
        self._last_commands: dict[int, int] = {}  # see ``_last_command_before``, by index of the removal
        self._reached: list[int] = []  # see ``_behind``: of the normal read that the present line ends
        self._end_of_empty = 0  # where the read that the present line ends has come to if it returns nothing
        self._asked_for_one = False  # the read that the present line ends: it is the cursor's first
        self._last_positions = (0, -1)  # of the core, behind the last line: read position, mark-delete
        self._closed_at: int | None = None  # line from which on the dispatcher is closed
        self._end_of_result = -1  # position behind the last entry of the last normal read; -1 = it has none

    def _effects_are_over(self, line: Line) -> None:
        """Take a line of a connection's thread: what it did before is over."""
        if line.consumer is not None:
            self._effects_open.close(line.consumer, line.seq)
            self._acks_are_over(line.consumer)

    def _before_read_done(self, line: Line) -> None:
        """See ``Driver``."""
        if line.inputs["type"] == "Normal":
            self._reached = self._behind(line)
            self._end_of_empty = int(first_left(self._cursor, self._positions_now()[0]))
            self._asked_for_one = len(line.inputs["positions"]) == 1 and asks_for_one(self._cursor)
            self._end_of_result = max(
                (entry + 1 for entry in line.inputs["positions"] if entry >= 0), default=-1
            )

    def _before_all_disconnecting(self, line: Line) -> None:
        """See ``Driver``."""
        self._closed_at = line.seq

    def _after(self, line: Line) -> None:
        """See ``Driver``: a later line may show the positions that this one has changed."""
        now, reached = self._positions_now(), self._reached
        if now != self._last_positions or (reached and now[0] < reached[-1]):
            read_position, mark_delete = self._last_positions
            self._earlier.left(line.seq, line.t_us, {read_position, *reached}, mark_delete)
            self._last_positions = now
        if reached:
            self._reached = []

    def _moved_between_lines(self) -> None:
        """See ``CursorDriver``."""
        self._last_positions = self._positions_now()

    # --- what a driver knows -------------------------------------------------------------------------------------

    def _all_applied(self) -> tuple[int, int]:
        """Return read position and mark-delete if all acks that have begun to have their effect have reached the cursor."""
        return self._positions_now()

    def _acknowledged_late(self) -> set[int]:
        """Return the entries of such acks that the core's cursor does not have yet."""
        return set()

    def _held_back(self, _seq: int) -> list[int]:
        """Return entries that the core has acknowledged although at line ``_seq`` the broker has not, for other reasons."""
        return []

    def _waiting_acks(self) -> list[Arrival]:
        """Return acks that have arrived, and whose effect is to come."""
        return []

    def _sampled_since(self, line: Line) -> int:
        """Return the line after which the positions of a line were sampled."""
        return line.seq - 1

    def _move_racing(self) -> int | None:
        """Return the line of a move of the cursor that is under way."""
        return None

    @abstractmethod
    def _read_is_pending(self) -> bool:
        """Check whether a normal read is in flight."""

    @abstractmethod
    def _read_size(self, read_done: Line | None = None) -> int:
        """Return the number of entries that the normal read asked for that a line ends; ``None`` = the oldest in flight."""

    # --- comparison ----------------------------------------------------------------------------------------------

    def _change_cursor_ordinals(self, drop: int) -> None:
        """See ``CursorDriver``: acknowledged entries, and the positions before a reset."""
        super()._change_cursor_ordinals(drop)
        self._effects_open.drop(drop)
        self._on_their_way.drop(drop)
        self._earlier.drop(drop)
        self._moved_to = self._moved_to[0], self._moved_to[1] - drop
        self._end_of_result -= drop
        self._lines_moved = deque(((t_us, at - drop) for t_us, at in self._lines_moved), maxlen=1_000)
        if self._reset_under_way is not None:
            self._reset_under_way = self._reset_under_way.lowered(drop)

    def _acks_are_over(self, connection: int) -> None:
        """Take a line that shows the acks of a connection to be over."""
        if self._on_their_way.any_of(connection):
            self._on_their_way.over(connection, self._applied())

    def _compare_positions(self, line: Line) -> int | None:
        """Compare the cursor's positions of a line.

        Returns the read position of the line if a read in flight may have moved it there.
        """
        read, deleted = line.recorded.get("read_position"), line.recorded.get("mark_delete")
        ended_reset: _Reset | None = None
        if line.kind == "consumer_added":
            ended_reset, self._reset_under_way = self._reset_under_way, None
        if read is None and deleted is None:
            return None
        expected_read, expected_deleted = self._plain_positions(line.seq)
        at_read = None if read is None else self._read_from(read)
        at_deleted = None if deleted is None else self._entries.last_up_to(*deleted)
        if at_deleted is not None:
            self._settle_mark_delete(line, expected_deleted, at_deleted)
            if at_deleted == expected_deleted:
                self._agreed_at = line.seq
        if at_read is None:
            return None
        in_flight, reached = self._read_in_flight(line, within_us=READ_MOVES_BEFORE_US)
        if in_flight is not None:
            expected_read = max(expected_read, reached[-1])
        if at_read != expected_read and in_flight is None:
            in_flight, reached = self._read_in_flight(line)
        if ended_reset is not None and at_read == ended_reset.sets < expected_read:
            # A read that was in flight ended before the reset took effect.
            self._settle_position("read_position", expected_read, at_read, ended_reset.seq)
            self._cursor.s[READ_POSITION] = at_read
            return None
        racing = None if at_read == expected_read else self._read_position_racing(line, at_read, at_deleted)
        if (
            racing is None
            and in_flight is not None
            and self._plain_positions(line.seq)[0] <= at_read <= reached[-1]
        ):
            racing = in_flight.seq
        if racing is None and at_read > expected_read:
            racing = self._moved_by_unfinished_read(line, at_read)
        self._settle_position("read_position", expected_read, at_read, racing)
        return at_read if in_flight is not None and at_read <= reached[-1] else None

    def _compare_read_done(self, line: Line, *, rewound: bool) -> None:
        """Compare the read position of a read result; ``rewound``: it is dropped, and the core has rewound already."""
        shown = line.recorded["read_position"]
        if rewound and shown is not None and (self._reached or not line.inputs["positions"]):
            expected, at = self._position_behind_read(line), self._read_from(shown)
            racing = None if at == expected else self._read_end_racing(line, at)
            self._settle_position("read_position", expected, at, racing)
            return
        if self._asked_for_one and shown is not None:
            self._settle_first_read(line.seq, self._read_from(shown))
        self._compare_positions(line)

    def _where_read_ended(self) -> int:
        """Return where the normal read that the present line ends has come to."""
        return self._reached[-1] if self._reached else self._end_of_empty

    def _position_behind_read(self, line: Line) -> int:
        """Return the read position behind the normal read that ``line`` ends, before a rewind.

        A read leaves the read position where acknowledgements have pushed it beyond the read's end
        (ManagedCursorImpl.setReadPosition).
        """
        return max(self._where_read_ended(), self._plain_positions(line.seq)[1] + 1)

    def _read_end_racing(self, line: Line, recorded: int) -> int | None:
        """Return the line that explains another read position behind the read that the present line ends."""
        other_read = self._moved_by_another_read(recorded)
        if other_read is None and recorded > self._where_read_ended():
            return self._mark_delete_racing(line, recorded - 1)
        return other_read

    def _settle_first_read(self, seq: int, shown: int) -> None:
        """Take the read position that a first read shows, if the broker knew the size of entries: see ``asks_for_one``."""
        expected, _ = self._positions_now()
        if expected < shown == first_left(self._cursor, expected):
            reason = (
                seq,
                "the broker may know how large entries are: then its first read asks for more than one",
            )
            own, other = self._entries.position(expected - 1), self._entries.position(shown - 1)
            self._differ("read", f"a read up to {own}", f"up to {other}", decisions=0, racing=reason)
            read_to_end(self._cursor)

    def _read_from(self, position: tuple[int, int]) -> int:
        """Return the first entry behind a read position. A cursor that nothing was read from begins at ``L:-1``."""
        ledger_id, entry_id = position
        return self._entries.last_up_to(ledger_id, -1 if entry_id == -1 else entry_id - 1) + 1

    def _settle_mark_delete(self, line: Line, expected: int, recorded: int) -> int | None:
        """Compare mark-delete; returns the line that explains another one than the plain order gives."""
        racing = None if recorded == expected else self._mark_delete_racing(line, recorded)
        self._settle_position("mark_delete", expected, recorded, racing)
        return racing

    def _settle_position(self, name: str, expected: int, recorded: int, racing: int | None) -> None:
        if expected == recorded:
            self.tally.exact("position")
            return
        reason = None if racing is None else (racing, f"what is at seq {racing} overlaps the value")
        own, other = (
            f"behind {self._entries.position(at - 1)}"
            if name == "read_position"
            else self._entries.position(at)
            for at in (expected, recorded)
        )
        self._differ("position", f"{name} {own}", other, racing=reason)

    def _mark_delete_racing(self, line: Line, recorded: int) -> int | None:
        """Return the line of a command without which mark-delete is where a line shows it; ``None`` if none explains it."""
        return self._mark_delete_without(line, recorded)

    def _mark_delete_without(self, line: Line, recorded: int) -> int | None:
        """See ``_mark_delete_racing``."""
        since, all_applied = self._sampled_since(line), self._all_applied()[1]
        if line.kind == "mark_delete" and not self._may_have_moved_to(recorded, since):
            return self._written_late(line, recorded)
        missing = self._effects_open.first_entries_missing(since)
        if recorded < all_applied and recorded + 1 in missing:
            return missing[recorded + 1]
        if recorded == all_applied:
            return self._on_their_way.seq_of(self._on_their_way.mark_delete(Applied(all_applied)) + 1)
        if self._move_racing() is not None and recorded == self._positions_now()[1]:
            return self._move_racing()
        reset = self._reset_under_way
        if reset is not None and recorded == reset.mark_delete:
            return reset.seq
        if self._before_open_move(line, recorded):
            return self._move_at
        begun = self._begun(line)
        return None if begun is None else self._earlier.mark_delete(recorded, begun)

    def _before_open_move(self, line: Line, recorded: int) -> bool:
        """Check whether mark-delete was here before the last move of the cursor, and no line shows yet that it has moved.

        The core has taken the move with a decision that is the same with it and without it. A line ``mark_delete`` says
        where it has come.
        """
        if line.kind == "mark_delete" or max(self._moved_to[0], self._agreed_at) > self._move_at:
            return False
        begun = Begun(self._move_at - 1, line.t_us - HELD_UP_US)
        return self._earlier.mark_delete(recorded, begun) is not None

    def _written_late(self, line: Line, recorded: int) -> int | None:
        """Return the ack that moved mark-delete on before the thread of an earlier one wrote its own line, this one."""
        further = next((t_us for t_us, mark_delete in self._lines_moved if mark_delete > recorded), line.t_us)
        following = self._effects_open.ack_of(recorded + 1)
        if following is None or line.t_us - further > HELD_UP_US:
            return None
        acks = self._effects_open.unfinished_acks(recorded)
        return following if any(seq < following for seq in acks) else None

    def _may_have_moved_to(self, recorded: int, since: int) -> bool:
        """Check whether a line ``mark_delete`` may show a position: mark-delete has moved since the last such line.

        Of two acknowledgements that overlap the first line may show both moves, and the second one no other position. A move
        of the cursor to where it stands has a line, too.
        """
        seq, mark_delete = self._moved_to
        if recorded == mark_delete:
            return self._move_at > seq or self._effects_open.any_before(seq, since)
        return recorded > mark_delete

    def _read_position_racing(self, line: Line, recorded: int, mark_delete: int | None) -> int | None:
        """Return the same for the read position. It is behind mark-delete at least, and a rewind sets it there."""
        reset = self._reset_under_way
        # A read that was in flight may end before the reset takes effect, or after it.
        if reset is not None and recorded in (reset.read_position, reset.mark_delete + 1, reset.sets):
            return reset.seq
        # The close of a topic breaks a read of several parts off: it ends with what it has.
        if self._closed_at is not None and recorded == self._end_of_result:
            return self._closed_at
        begun = self._begun(line)
        changed = None if begun is None else self._earlier.read_position(recorded, begun)
        if changed is not None:
            return changed
        # A move sets mark-delete before the read position.
        if self._move_racing() is not None and recorded == self._positions_now()[0]:
            return self._move_racing()
        pushed = (
            self._all_applied()[0] == self._all_applied()[1] + 1
        )  # by acknowledgements of all that was read
        if recorded - 1 == mark_delete or (mark_delete is None and pushed):
            return self._mark_delete_racing(line, recorded - 1)
        if mark_delete is not None and recorded - 1 < mark_delete and pushed:
            return self._mark_delete_without(
                line, recorded - 1
            )  # mark-delete is read behind the read position
        return None

    def _begun(self, line: Line) -> Begun | None:
        """Return the moment since which a thread that may be held up has read the positions of its line."""
        if line.kind == "cursor_state":
            return Begun(self._operation_at, line.t_us - ANSWERED_WITHIN_US)
        if line.inputs.get("op") == "mark_delete" and line.inputs["target"] == line.recorded["mark_delete"]:
            return Begun(
                self._operation_at, line.t_us - HELD_UP_US
            )  # it is stored again, by a timer's thread
        target = self._last_up_to(line.inputs["target"]) if line.kind == "cursor_op" else None
        if target is None:
            return None
        seen_at = self._move_seen_at(line, target)
        if seen_at is not None:
            return Begun(seen_at - 1)
        by_ack = self._due_by_ack(target)
        return None if by_ack is None else Begun(by_ack.seq)

    def _behind(self, read_done: Line) -> list[int]:
        """Return the positions behind the entries of a normal read, ascending; the last is where the whole read ends.

        Where acknowledged entries follow an entry, the position behind it may be in front of the next one that was read.
        """
        entries = sorted(entry for entry in read_done.inputs["positions"] if entry >= 0)
        ends = sorted({*(entry + 1 for entry in entries), *entries[1:]})
        if ends and meets_end(self._cursor, len(read_done.inputs["positions"]), self._read_size(read_done)):
            ends.append(int(first_left(self._cursor, ends[-1])))
        return ends

    def _read_in_flight(self, line: Line, within_us: int | None = None) -> tuple[Line | None, list[int]]:
        """Return the end of the normal read in flight, and the positions behind its entries, ascending.

        The read may have moved the read position to each of them already, and to any position between: a read of several
        parts (of two ledgers, or around entries that are skipped) moves it after each part, also of one that has nothing but
        acknowledged entries (OpReadEntry.updateReadPosition).

        ``None``: there is none, or its entries may not be stored yet. ``within_us``: its end comes within this time.
        """
        if line.kind == "read_issued" or not self._read_is_pending():
            return None, []
        done = self._end_of_read(None if within_us is None else line.t_us + within_us)
        entries = [] if done is None else [entry for entry in done.inputs["positions"] if entry >= 0]
        if done is None or not entries or not self._late_entries.may_be_stored(entries[0], line.t_us):
            return None, []
        return done, self._behind(done)

    def _moved_by_unfinished_read(self, line: Line, at_read: int) -> int | None:
        """Return the last line of the log, if the normal read in flight does not end by then and may have come so far.

        It may have read as many entries as it asked for that were stored by now.
        """
        horizon = self._lines.horizon(self._at)
        if not self._read_is_pending() or horizon < len(self._lines):
            return None
        for later in self._later_lines():
            is_normal = later.kind == "read_done" and later.inputs["type"] == "Normal"
            if is_normal or (later.kind == "read_cancelled" and later.inputs["cancelled"]):
                return None
        begin, deleted = self._plain_positions(line.seq)[0], self._cursor.deleted
        entries = int(np.count_nonzero(deleted[begin:at_read] == 0))
        may = 0 < entries <= self._read_size() and self._late_entries.may_be_stored(at_read - 1, line.t_us)
        return self._lines[horizon - 1].seq if may else None

    def _note_reset(self, entry: int) -> None:
        """Take a reset of the cursor to an entry."""
        self._reset_under_way = _Reset(self._line.seq, *self._positions_now(), sets=entry)
        self._moved_to = (self._line.seq, -1)
        self._lines_moved.clear()
        self._on_their_way.forget()

    def _end_of_read(self, until_us: int | None = None) -> Line | None:
        """Return the ``read_done`` of the normal read in flight; ``None`` if it is cancelled, or too far ahead."""
        for line in self._later_lines():
            if until_us is not None and line.t_us > until_us:
                return None
            if line.kind == "read_done" and line.inputs["type"] == "Normal":
                return line
            if line.kind == "read_cancelled" and line.inputs["cancelled"]:
                return None
        return None

    def _removal_ahead(self, consumer: int) -> Line | None:
        """Return the line of a removal that comes soon, if its connection has no command before it."""
        for at, line in self._lines_to_come("consumer_removing", HELD_UP_US):
            if line.consumer == consumer:
                return line if self._at >= self._last_command_before(at, consumer) else None
        return None

    def _last_command_before(self, removal_at: int, consumer: int) -> int:
        """Return the index of the last line of a consumer's commands before its removal to come; -1 = all have been fed."""
        known = self._last_commands.get(removal_at)
        if known is None:
            lines = self._lines.between(self._at + 1, removal_at)
            commands = [
                at for at, line in lines if line.consumer == consumer and line.kind in OF_A_CONNECTION
            ]
            known = self._last_commands[removal_at] = max(commands, default=-1)
        return known

    def _positions_now(self) -> tuple[int, int]:
        """Return read position and mark-delete of the core."""
        scalars = self._cursor.s
        return scalars.item(READ_POSITION), scalars.item(MARK_DELETE)

    def _forget_old_acks(self) -> None:
        """Take acknowledgements from long before to have reached the cursor."""
        if self._on_their_way.any_from_before(self._line.t_us):
            self._on_their_way.as_of(self._applied(), self._line.t_us)

    def _plain_positions(self, seq: int) -> tuple[int, int]:
        """Return read position and mark-delete in the plain order, see ``mark_delete_lines``."""
        self._forget_old_acks()
        read_position, mark_delete = self._all_applied()
        mark_delete = self._on_their_way.mark_delete(Applied(mark_delete))
        return read_position, min(mark_delete, min(self._held_back(seq), default=mark_delete + 1) - 1)

    def _on_cursor_op(self, line: Line) -> None:
        if line.inputs["op"] == "mark_delete":
            self._move_at = line.seq
        else:
            self._operation_at = line.seq
        if self._deleted_at is None:
            self._compare_positions(line)
            super()._on_cursor_op(line)
        else:  # of a subscription that was made again
            super()._on_cursor_op(line)
            self._compare_positions(line)

    def _compare_mark_delete(self, line: Line) -> None:
        """See ``CursorDriver``: both positions are compared, as of every line."""
        if line.kind == "cursor_state":
            self._compare_positions(line)

    def _compare_moved(self, line: Line) -> None:
        """Compare the position of a line ``mark_delete``."""
        on_their_way = self._on_their_way.acks()
        self._on_their_way.moved(self._applied(), line.t_us, self._mark_delete_ahead)
        position = line.recorded["mark_delete"]
        if position is None:
            return
        _, expected = self._plain_positions(line.seq)
        at = self._entries.last_up_to(*position)
        racing = self._settle_mark_delete(line, expected, at)
        if racing is not None and at < expected:
            self._on_their_way.take_back(on_their_way, at)
        self._moved_to = line.seq, expected if racing is None else at
        self._lines_moved.append((line.t_us, self._moved_to[1]))
        self._effects_open.passed(self._moved_to[1], line.seq)

    def _applied(self) -> Applied:
        """Return mark-delete with all acks whose removal is logged, and what is acknowledged above it."""
        return Applied(self._all_applied()[1], _Acknowledged(self))

    def _mark_delete_ahead(self) -> list[Ahead]:
        """Return the lines ahead that say which acks have moved mark-delete."""
        found: list[Ahead] = [*self._waiting_acks()]
        lines = 0
        stop = min(self._at + 1 + WITHIN, self._lines.horizon(self._at))
        for _at, line in self._lines.between(self._at + 1, stop):
            if line.kind == "mark_delete":
                found.append(MovedLine(line.t_us))
                lines += 1
                if lines == LINES_AHEAD:
                    break
            elif line.consumer is not None and line.kind in OF_A_CONNECTION:
                found.append(NextCommand(line.consumer))
                if line.kind == "ack" and line.inputs["ack_type"] == "Individual":
                    whole = [entry for entry, words in acknowledged_by(line) if not words]
                    found += [Arrival(line.consumer, line.seq, entry, line.t_us) for entry in whole]
        return found

    def _compare_rewound(self, line: Line) -> None:
        """Compare the positions of a rewind, which the core makes at a later line."""
        read, deleted = line.recorded["read_position"], line.recorded["mark_delete"]
        _, expected = self._plain_positions(line.seq)
        if deleted is not None:
            self._settle_mark_delete(line, expected, self._entries.last_up_to(*deleted))
        if read is not None:
            at = self._read_from(read)
            racing = None
            if at != expected + 1:
                racing = self._moved_by_read(at)
                racing = self._mark_delete_racing(line, at - 1) if racing is None else racing
            self._settle_position("read_position", expected + 1, at, racing)

    def _moved_by_another_read(self, _position: int) -> int | None:
        """Return the line of a read or rewind that overlaps the end of a read, and left the read position there."""
        return None

    def _moved_by_read(self, _position: int) -> int | None:
        """Return the line of a read in flight that may have moved the read position there since a rewind; ``None`` = none.

        A read moves it when it completes, which is before its line ``read_done`` (OpReadEntry.updateReadPosition).
        """
        return None
