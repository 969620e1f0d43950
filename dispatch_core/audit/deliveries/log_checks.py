"""Check the log itself: a clock that went back, unknown consumers and positions, repeated lines, overlapping incarnations.

All checks are column operations over one incarnation's events and do not depend on what dispatch did. A log may come in
batches: what a check needs of the lines before is an argument.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import encoded
from dispatch_core.arrays.columns import ints as _ints
from dispatch_core.arrays.line_kinds import rows_of_kind
from dispatch_core.audit.deliveries.earlier_loads import EarlierLoads
from dispatch_core.audit.deliveries.log_finding import LogFinding
from dispatch_core.audit.deliveries.missing_lines import LastLine
from dispatch_core.audit.deliveries.operations import ACK, ACK_CUMULATIVE, REDELIVER, SENT
from dispatch_core.audit.deliveries.window import SINGLE_ACTIVE, LogWindow
from dispatch_core.audit.sentences.lists import plural, positions_listed
from dispatch_core.audit.sentences.names import shown
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording.checkpoint import checkpoints, named_by
from dispatch_core.recording.load_order import Load, named_extent
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.recording.repeats import Repeat
from dispatch_core.times import clock

#: Kinds that name a connection which must be in the dispatcher's list at that point. ``active_notified`` is none of
#: them: a consumer is notified of the active one while it is being added, before its ``consumer_added`` line.
_NEEDS_CONNECTION: Final = ("flow", "sent", "ack", "redeliver", "consumer_removing", "consumer_removed")
#: In place of the active consumer: there is none, or no line has shown one yet.
_NOBODY: Final = -1
_NOT_SHOWN: Final = -2
#: Commands of a client.
_COMMANDS: Final = ("ack", "flow", "redeliver")
#: Kinds that may follow ``consumer_removed``: a broker that disconnects consumers (unload, reset of the cursor, deletion)
#: takes them from the dispatcher in one thread, while the connection's own thread goes on with what has arrived. If that is
#: the client's close, the dispatcher is asked a second time to remove the consumer.
_HANDLED_LATE: Final = (*_COMMANDS, "consumer_removing", "consumer_removed")
#: They may come so long after it, microseconds. In recordings of a busy machine the last command came after 48 ms.
HANDLED_LATE_US: Final = 1_000_000
_NAMES: Final = {SENT: "sent", ACK: "ack", ACK_CUMULATIVE: "ack", REDELIVER: "redeliver"}


def repeated_lines(log: DispatcherLog) -> list[LogFinding]:
    """Name the segments that repeat others, and entries whose lines differ in their size: one finding per pair of files.

    Equal message lines are named only where a whole file repeats another one of its folder: a topic's messages may stand
    beside each of its subscriptions, and two recorders may have written the same entries.
    """
    found: list[LogFinding] = []
    begin = tuple(_ints(log.events["seq"])[:1].tolist()) or (0,)
    for repeat in log.repeats:
        t_us = repeat.t_us if repeat.t_us is not None else log.start_t_us or 0
        one_folder = repeat.file.rpartition("/")[0] == repeat.of_file.rpartition("/")[0]
        places = tuple(dict.fromkeys(repeat.places))
        about_events = repeat.content == "events"
        seqs = tuple(seq for (seq,) in places) if about_events else begin
        positions = () if about_events else tuple(f"{ledger}:{entry}" for ledger, entry in places)
        if about_events or (repeat.whole and one_folder and repeat.file != repeat.of_file):
            found.append(
                LogFinding("repeated_lines", "segment", seqs, t_us, _segment(repeat), None, positions)
            )
        if repeat.resized:
            found.append(
                LogFinding("repeated_lines", "size_differs", begin, t_us, _resized(repeat), None, positions)
            )
    return found


def _segment(repeat: Repeat) -> str:
    what = (
        f"segment {shown(repeat.file)} repeats"
        if repeat.whole
        else f"{_lines(repeat.first_line, repeat.last_line)} of segment {shown(repeat.file)} repeat"
    )
    of = shown(repeat.of_file) if repeat.of_file != repeat.file else "the same file"
    return f"{what} {_lines(*repeat.of_lines)} of segment {of}: each of the {repeat.lines} lines counts once"


def _resized(repeat: Repeat) -> str:
    first = ":".join(map(str, repeat.places[0]))
    many = plural(repeat.resized, "entry stands", "entries stand")
    return (
        f"{repeat.resized} {many} in {shown(repeat.file)} and in {shown(repeat.of_file)} with another size_bytes, from "
        f"{first} on: the line of {shown(repeat.of_file)} counts"
    )


def _lines(first: int, last: int) -> str:
    return f"line {first}" if first == last else f"lines {first} to {last}"


def clock_steps(seq: npt.NDArray[np.int64], t_us: npt.NDArray[np.int64]) -> list[LogFinding]:
    """Find lines whose time lies before that of the line in front of them; ``seq`` and ``t_us``: ``timed`` lines."""
    found = []
    for row in np.flatnonzero(t_us[1:] < t_us[:-1]).tolist():
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


def stepped_back_us(t_us: npt.NDArray[np.int64]) -> int:
    """Return by how much the clock goes back in these times, all steps together, microseconds."""
    steps = t_us[1:] - t_us[:-1]
    return int(-steps[steps < 0].sum())


def timed(events: pa.Table, before: LastLine | None) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return ``seq`` and time of the lines that have a time, with the last such line before them."""
    times = events["t_us"]
    seq, t_us = _ints(events["seq"]), _ints(times)
    if times.null_count:
        known = np.asarray(pc.is_valid(times))
        seq, t_us = seq[known], t_us[known]
    if before is not None and before.timed is not None:
        seq, t_us = np.append(before.timed[0], seq), np.append(before.timed[1], t_us)
    return seq, t_us


def overlapping(log: DispatcherLog, events: pa.Table, earlier: EarlierLoads) -> list[LogFinding]:
    """Find earlier loads of the topic whose log goes on after the first line of this one: two brokers served it at once.

    ``log`` names this load, ``events`` are its lines. The clocks of two brokers may differ, so their overlap is uncertain,
    and there is none if this load names only positions behind those of the other (``load_order``).
    """
    if not len(earlier) or events["t_us"].null_count == events.num_rows:
        return []
    began_us = int(pc.min(events["t_us"]).as_py())
    found = []
    for before, until_us in earlier.reaching(began_us):
        uncertain = before.broker != log.broker
        if uncertain and Load(log.broker, *named_extent(events)).is_behind(
            Load(before.broker, *named_extent(before.events))
        ):
            continue
        text = (
            f"{_load(log)} has events from {clock(began_us)} on while {_load(before)} has events until {clock(until_us)}: "
            f"two loads of {shown(log.topic)} were active at once, and what was sent by one the other did not know"
        )
        if uncertain:
            text += "; but the clocks of their brokers may differ by as much"
        reason = "clocks_differ" if uncertain else "active_at_once"
        first = int(_ints(events["seq"])[0])
        found.append(
            LogFinding("overlapping_incarnations", reason, (first,), began_us, text, uncertain=uncertain)
        )
    return found


def _load(log: DispatcherLog) -> str:
    broker = "an unnamed broker" if log.broker is None else f"broker {shown(log.broker)}"
    return f"{broker} (incarnation {log.incarnation})"


def unknown_consumers(events: pa.Table, log: DispatcherLog) -> list[LogFinding]:
    """Find events of connections that were never added, or were removed before; one finding per event."""
    return Connected(log.subscription, subscription_type(log)).unknown(events)


class Connected:
    """The connections that were added and removed so far, over the batches of one log."""

    def __init__(self, subscription: str, subscription_type: str) -> None:
        self._subscription = subscription
        self._single_active = subscription_type in SINGLE_ACTIVE
        self._added: set[int] = set()
        self._removed_us: dict[int, int] = {}  # the time at which each was removed
        self._active = _NOT_SHOWN  # the active consumer that the last line about it shows
        self._reported: set[int] = set()

    def meet(self, events: pa.Table) -> None:
        """Note the connections that the log's checkpoints name: they were there before its first line.

        Raises ``NotStreamableError`` if one of them was reported as never added.
        """
        named = set(_checkpointed(events))
        late = named & self._reported
        if late:
            raise NotStreamableError(
                f"a checkpoint names connection {min(late)}, which lines before it name too"
            )
        self._added |= named

    @property
    def never_added(self) -> frozenset[int]:
        """Numbers of the connections that lines name although no line before adds them."""
        return frozenset(self._reported)

    def unknown(self, events: pa.Table) -> list[LogFinding]:
        """Find events of the next lines whose connection was never added, or was removed before; one finding per event.

        Commands and a second removal shortly after their consumer was removed are legal (``HANDLED_LATE_US``). So are
        entries that are sent to a removed consumer of a Failover subscription as long as it is shown to be active: a reset
        of the cursor disconnects the active consumer and chooses no other (see ``cursor_moves.chooses_active_consumer``).
        """
        self.meet(events)
        active = self._active_at(events) if self._single_active else None
        codes, words = encoded(events["kind"])
        words = words.to_pylist()
        wanted = np.array([w in _NEEDS_CONNECTION or w == "consumer_added" for w in words] or [False])[codes]
        if not wanted.any():
            return []
        added = np.array([w == "consumer_added" for w in words])[codes]
        removed = np.array([w == "consumer_removed" for w in words])[codes]
        consumer = _ints(events["consumer"], -1)
        code, named = encoded(pa.chunked_array([pa.array(consumer)]))
        numbers = named.to_pylist()
        # rows are in order of seq, so row numbers say what came first
        never = np.iinfo(np.int64).max
        first_added = np.full(len(numbers), never)
        first_removed = np.full(len(numbers), never)
        t_us = _ints(events["t_us"])
        for rows, firsts, before in (
            (added, first_added, self._added),
            (removed, first_removed, self._removed_us),
        ):
            at = np.flatnonzero(rows)
            np.minimum.at(firsts, code[at], at)
            firsts[[index for index, number in enumerate(numbers) if number in before]] = -1
        self._added.update(numbers[index] for index in set(code[added].tolist()))
        for row in np.flatnonzero(removed).tolist():
            self._removed_us.setdefault(numbers[code[row]], int(t_us[row]))
        # most batches name only connections that were there before and stay
        suspect = (first_added >= 0) | (first_removed < never)
        if not suspect.any():
            return []
        at = np.flatnonzero(wanted & ~added & suspect[code])
        unknown = at < first_added[code[at]]
        gone = ~unknown & (at > first_removed[code[at]])
        if gone.any():
            handled_late = np.array([w in _HANDLED_LATE for w in words])[codes[at]]
            removed_us = np.array([self._removed_us.get(number, 0) for number in numbers])[code[at]]
            gone &= ~(handled_late & (t_us[at] - removed_us <= HANDLED_LATE_US))
        if gone.any() and active is not None:
            is_sent = np.array([w == "sent" for w in words])[codes[at]]
            gone &= ~(is_sent & ((active[at] == consumer[at]) | (active[at] == _NOT_SHOWN)))
        seq = _ints(events["seq"])
        found = []
        for row, never_added in zip(
            at[unknown | gone].tolist(), unknown[unknown | gone].tolist(), strict=True
        ):
            number, what = int(consumer[row]), words[codes[row]]
            reason = "never_added" if never_added else "already_removed"
            why = "no consumer_added line stands before it" if never_added else "it had been removed before"
            of = shown(self._subscription)
            text = f"the line {what} at seq {int(seq[row])} names connection {number} of {of}, but {why}"
            found.append(
                LogFinding(
                    "unknown_consumer", reason, (int(seq[row]),), int(t_us[row]), text, consumer=number
                )
            )
            if never_added:
                self._reported.add(number)
        return found

    def _active_at(self, events: pa.Table) -> npt.NDArray[np.int64]:
        """Return the active consumer at each of the next lines, as the lines so far show it."""
        if not events.num_rows:
            return np.zeros(0, np.int64)
        picked, notified = (rows_of_kind(events, kind) for kind in ("active_picked", "active_notified"))
        shown = np.full(events.num_rows + 1, -1)
        shown[picked + 1], shown[notified + 1] = picked, notified
        row = np.maximum.accumulate(shown)[1:]
        by_row = np.where(
            np.isin(np.arange(events.num_rows), picked),
            _ints(events["consumer"], _NOBODY),
            _ints(events["active"], _NOBODY),
        )
        active = np.where(row < 0, self._active, by_row[row])
        self._active = int(active[-1])
        return active


def unknown_positions(window: LogWindow, *, messages_cut: bool = False) -> list[LogFinding]:
    """Find positions in ``sent``, ``ack`` and ``redeliver`` lines that are not in the message log; one finding per line.

    ``messages_cut``: messages with later publish times were not read. A producer's clock that is ahead gives such a time to
    an entry that was sent before, so the findings are uncertain. So are those of entries that the checkpoint of the log's
    beginning names as acknowledged: the message log may begin later, and the cursor may have been moved back behind them.
    """
    found: list[LogFinding] = []
    empty = not window.stored.any()
    for op in np.unique(window.unknown_op).tolist():
        ordinals = window.unknown_ordinal[window.unknown_op == op].tolist()
        positions = tuple(window.position(ordinal) for ordinal in ordinals)
        seq, t_us = int(window.op_seq[op]), int(window.op_t_us[op])
        consumer = window.consumers[int(window.op_consumer[op])].number
        what = _NAMES[int(window.op_code[op])]
        where = "the message log does not hold"
        if messages_cut:
            where = "the message log does not hold up to the interval's end and shortly behind it"
        text = (
            f"the line {what} at seq {seq} names {positions_listed(positions)}, which {where}: "
            f"{plural(len(positions), 'its key is', 'their keys are')} unknown"
        )
        before = all(window.was_acknowledged(ordinal) for ordinal in ordinals)
        if messages_cut and not before:
            text += (
                f". {plural(len(positions), 'Its row is', 'Their rows are')} missing, or "
                f"{plural(len(positions), 'has a later publish time', 'have later publish times')} by a producer's clock "
                "that is ahead"
            )
        if before:
            text += ". The checkpoint with which the log begins calls it acknowledged: the message log may begin behind it"
        if empty and not found:
            text += ". It holds no entry of this topic: cluster and topic have to be the same in the headers of both logs"
        reason = "before_checkpoint" if before else "maybe_clock_ahead" if messages_cut else "not_stored"
        uncertain = messages_cut or before
        found.append(
            LogFinding(
                "unknown_position", reason, (seq,), t_us, text, consumer, positions, uncertain=uncertain
            )
        )
    return found


def unknown_keys(window: LogWindow) -> list[LogFinding]:
    """Find deliveries of entries whose key could not be read; one finding per line. A Shared subscription needs no key."""
    found: list[LogFinding] = []
    if window.subscription_type == "Shared":
        return found
    for op in np.unique(window.unread_op).tolist():
        positions = tuple(
            window.position(at) for at in window.unread_ordinal[window.unread_op == op].tolist()
        )
        seq, t_us = int(window.op_seq[op]), int(window.op_t_us[op])
        consumer = window.consumers[int(window.op_consumer[op])].number
        text = (
            f"the line sent at seq {seq} names {positions_listed(positions)}, whose "
            f"{plural(len(positions), 'key', 'keys')} the message log gives in a form that cannot be read: order by key is "
            f"not judged for {plural(len(positions), 'it', 'them')}"
        )
        found.append(
            LogFinding("unknown_key", "not_readable", (seq,), t_us, text, consumer, positions, uncertain=True)
        )
    return found


def unknown_batch_sizes(window: LogWindow) -> list[LogFinding]:
    """Find deliveries of entries whose number of messages could not be read; one finding per line."""
    found: list[LogFinding] = []
    for op in np.unique(window.unsized_op).tolist():
        ordinals = window.unsized_ordinal[window.unsized_op == op].tolist()
        positions = tuple(window.position(at) for at in ordinals)
        seq, t_us = int(window.op_seq[op]), int(window.op_t_us[op])
        consumer = window.consumers[int(window.op_consumer[op])].number
        text = (
            f"the line sent at seq {seq} names {positions_listed(positions)}, whose num_messages the message log gives in a "
            "form that cannot be read: each counts as one message, so permits of the consumer may be wrong"
        )
        found.append(
            LogFinding(
                "unknown_batch_size", "not_readable", (seq,), t_us, text, consumer, positions, uncertain=True
            )
        )
    return found


def _checkpointed(events: pa.Table) -> list[int]:
    """Numbers of the connections that a checkpoint line names as connected."""
    return [consumer.number for consumer in named_by(checkpoints(events))]
