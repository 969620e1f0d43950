"""Find entries that were skipped: never sent although later ones were.

Failover and Exclusive send everything in the order of positions, so a skipped entry was left out. Example: 3:1 and 3:3 were
sent, 3:2 was not. Where no rule is replayed (Shared, or a release whose rules are not known) a limit may have held the
entry: then the finding is uncertain. So it is for entries before the first one that was sent, if only a clock says that they
were for the subscription, and for entries that the cursor passed between two loads of the topic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.columns import Mask
from dispatch_core.arrays.positions import locate
from dispatch_core.audit.behaviour_in_force import NOTHING_IN_FORCE, BehaviourInForce
from dispatch_core.audit.deliveries.layout import ENTRY, OPERATION
from dispatch_core.audit.deliveries.operations import ADDED
from dispatch_core.audit.deliveries.scan import Scan
from dispatch_core.audit.deliveries.subscription_start import (
    SLACK_US,
    begins_at_checkpoint,
    begins_us,
    clock_is_ahead,
    first_of,
    for_subscription,
    latest_join_us,
    perhaps_for_subscription,
    settled_by_checkpoint,
)
from dispatch_core.audit.deliveries.transactions import Committed
from dispatch_core.audit.deliveries.window import LogWindow
from dispatch_core.audit.waits.compaction import not_by_compaction
from dispatch_core.audit.waits.left_out import COMPACTED_READ, left_out_by
from dispatch_core.audit.waits.passed_entries import (
    NEVER_US,
    Overtaken,
    first_sent_behind,
    passed_unsent,
)
from dispatch_core.audit.waits.tracker import (
    CLOCKS_DIFFER,
    CURSOR_PASSED,
    LIMIT_LATE,
    MOST_POSITIONS,
    Key,
    SampledWait,
)

#: Entries before the first one that was sent of which each is remembered; there may be millions.
_MOST_EARLY: Final = 1_000

#: A key (``None`` = without one), and the reason why its entries may have been left out legally.
_Group = tuple[Key | None, str | None]
_NO_TIMES: Final = np.empty(0, np.int64)
#: Compaction reads the topic twice and writes a ledger: an entry that was stored so shortly before is not in it yet.
_COMPACTION_US: Final = 5_000


@dataclass(frozen=True, slots=True)
class _Entry:
    position: str
    stored_us: int  # or, of a delayed entry, since when it is owed
    messages: int
    behind: bool  # nothing later of its key was sent
    transaction: int  # -1 = none
    passed_us: int  # a later entry was sent then
    replaced: bool  # a later entry of its key had been stored by then, and was sent
    lost: bool  # no compacted read left it out
    published_us: int


class SkippedEntries:
    """Collect the skipped entries of a log: call ``look`` after each batch, then ``waits``.

    ``certain``: only a fault leaves an entry out. ``by_rules``: a replay of the rules explains the waits of unacknowledged
    entries, so only entries that were acknowledged without having been sent are collected. ``explained``: set it while the
    rules tell of every entry that was skipped, as the comparison of a trace does until it ends; ``waits`` returns nothing
    then. ``compacted``: set it where the compacted topic was read. ``overtaken``: set it where entries that a move of the
    cursor passed are to be collected if they had been overtaken by then (``passed_unsent``). ``later_load``: set it where
    another load of the topic came before and no checkpoint says where the cursor stood when this one began.
    """

    def __init__(self, *, certain: bool, by_rules: bool = False) -> None:
        self.explained = False
        self.compacted = False
        self.overtaken = Overtaken.NEVER
        self.later_load = False
        self._load_joined_us = NEVER_US
        self.loads_ended_us = 0  # last line of the loads before
        self._lowest_of_load: tuple[int, int] | None = None  # position that was sent
        self._highest_before: tuple[int, int] | None = None  # position that earlier loads sent
        self._certain = certain
        self.by_rules = by_rules
        self._first: int | None = None  # ordinal of the first entry that was for the subscription
        self._highest = -1
        self._begins_us: int | None = None  # the subscription
        self._settled: dict[
            _Group, list[_Entry]
        ] = {}  # acknowledged with others, so that they leave the window
        self._open: dict[_Group, list[_Entry]] = {}
        # By ledger and entry: perhaps for the subscription; with True if the producer's clock is known to be ahead.
        self._early: dict[tuple[int, int], tuple[Key | None, _Entry, bool]] = {}
        self._joined_us = NEVER_US
        self._least_lag_us = NEVER_US  # of deliveries
        self._committed = Committed()
        self._known: set[str] = set()
        self._acknowledged: dict[str, int] = {}  # ordinals of what is settled, while they are in the window

    def look(self, window: LogWindow, scan: Scan, dropped: int) -> None:
        """Take the state after a batch. ``dropped``: number of entries that have left the window since the last call."""
        times = scan.times_sent
        sent = np.flatnonzero(times)
        if self.later_load:
            self._note_load(window, scan)
        self._highest = max(self._highest - dropped, int(sent[-1]) if len(sent) else -1)
        if self._first is None:
            first = first_of(window, scan)
            if first is None:
                return
            self._first = first
            self._begins_us = begins_us(window, scan, int(sent[0]))
            past = np.flatnonzero(~for_subscription(window, scan, int(sent[0])))
            self._known.update(window.position(ordinal) for ordinal in past[past >= first].tolist())
            self._note_early(window, scan, int(sent[0]))
        else:
            self._first = max(self._first - dropped, 0)
        if window.any_transactions:
            self._committed.note(window.transaction[sent])
        self._forget_sent(times, dropped)
        self._note_passed(window, sent)
        self._check_early(window, scan)
        self._open = {}
        low = self._first
        acknowledged = scan.acknowledged_by >= 0
        never = (times[low:] == 0) & window.stored[low:]
        if self.by_rules or self.explained:  # the others stay in the window
            never &= acknowledged[low:]
        if not never.any():
            return
        never &= ~passed_unsent(window, scan, self.overtaken)[low:]
        behind = np.arange(low, len(times)) >= self._highest
        published, known = window.publish_time_ms
        passed = settled_by_checkpoint(window, scan)
        between = self._between_loads(window)
        if not window.first_op_of_state:
            never &= ~passed[low:]  # acknowledged before the log begins
        if (self.by_rules or window.checkpoint_state is not None) and not begins_at_checkpoint(window):
            # What is older may have been sent before the log begins.
            never &= known[low:] & (1000 * published[low:] >= (self._begins_us or NEVER_US))
        if not self.by_rules:
            never &= ~behind
        passed_us = first_sent_behind(window, scan) if never.any() else _NO_TIMES
        lost = self._not_by_compaction(window, scan)
        for ordinal in (low + np.flatnonzero(never)).tolist():
            position = window.position(ordinal)
            if position in self._known:
                continue
            key, entry = _described(window, ordinal, sent, int(passed_us[ordinal]), lost=bool(lost[ordinal]))
            group = key, CURSOR_PASSED if passed[ordinal] or between[ordinal] else None
            if acknowledged[ordinal]:
                self._known.add(position)
                self._acknowledged[position] = ordinal
                self._settled.setdefault(group, []).append(entry)
            else:
                self._open.setdefault(group, []).append(entry)

    def _note_load(self, window: LogWindow, scan: Scan) -> None:
        """Note when the first consumer joined in this load, and the positions between which the cursor may have begun."""
        begin = window.first_op_of_last_log
        joined = begin + np.flatnonzero(window.op_code[begin:] == ADDED)
        if len(joined):
            self._load_joined_us = min(self._load_joined_us, int(window.op_t_us[joined[0]]))
        of_load = scan.deliveries[:, OPERATION] >= begin
        entries = scan.deliveries[:, ENTRY]
        if of_load.any():
            lowest = _place_of(window, int(entries[of_load].min()))
            self._lowest_of_load = min(lowest, self._lowest_of_load or lowest)
        if not of_load.all():
            highest = _place_of(window, int(entries[~of_load].max()))
            self._highest_before = max(highest, self._highest_before or highest)

    def _between_loads(self, window: LogWindow) -> Mask:
        """Mask the entries that the cursor may have passed between two loads: nothing before them was sent in this one.

        They were stored between the last line of the load before and the time at which the first consumer joined.
        """
        if not self.later_load or self._lowest_of_load is None:
            return np.zeros(len(window), np.bool_)
        published, known = window.publish_time_ms
        early = 1000 * published <= self._load_joined_us + SLACK_US
        early &= 1000 * published >= self.loads_ended_us - SLACK_US
        early |= ~known
        before_load = _before(window, self._lowest_of_load)
        if self._highest_before is not None:
            before_load &= ~_before(window, self._highest_before)
        return early & before_load

    def _not_by_compaction(self, window: LogWindow, scan: Scan) -> Mask:
        """Mask the entries that no compacted read left out; those that are settled already are described anew."""
        if not self.compacted:
            return np.zeros(len(window), np.bool_)
        lost = not_by_compaction(window, scan)
        sent = np.flatnonzero(scan.times_sent)
        passed_us = first_sent_behind(window, scan) if self._acknowledged else _NO_TIMES
        for entries in self._settled.values():
            for at, entry in enumerate(entries):
                ordinal = self._acknowledged.get(entry.position)
                if ordinal is not None:
                    passed = int(passed_us[ordinal])
                    entries[at] = _described(window, ordinal, sent, passed, lost=bool(lost[ordinal]))[1]
        return lost

    def _note_early(self, window: LogWindow, scan: Scan, before: int) -> None:
        """Remember entries before the first one that was sent, of which only clocks say whose they were."""
        perhaps = perhaps_for_subscription(window, scan, before) & ~for_subscription(window, scan, before)
        ordinals = np.flatnonzero(perhaps)[-_MOST_EARLY:]
        if len(ordinals):
            self._joined_us = int(window.op_t_us[np.flatnonzero(window.op_code == ADDED)[0]])
        sent = np.flatnonzero(scan.times_sent)
        ahead = clock_is_ahead(window, scan, before)
        for ordinal in ordinals.tolist():
            key, entry = _described(window, ordinal, sent)
            place = int(window.ledger[ordinal]), int(window.entry[ordinal])
            self._early[place] = key, entry, bool(ahead[ordinal])

    def _check_early(self, window: LogWindow, scan: Scan) -> None:
        """Forget early entries that were sent after all, or that the clocks put before the join by now."""
        if not self._early:
            return
        lag_us = scan.least_lag_us
        self._least_lag_us = min(self._least_lag_us, NEVER_US if lag_us is None else lag_us)
        ordinals = locate(window.ledger, window.entry, *np.array([*self._early], np.int64).T)
        was_sent = (ordinals >= 0) & (scan.times_sent[ordinals] > 0)
        self._early = {
            place: (key, entry, ahead)
            for (place, (key, entry, ahead)), sent in zip(self._early.items(), was_sent.tolist(), strict=True)
            if not sent
            and (ahead or (latest_join_us(entry.stored_us, self._least_lag_us) or 0) >= self._joined_us)
        }

    def _forget_sent(self, times: npt.NDArray[np.int32], dropped: int) -> None:
        """Forget entries that were sent after their acknowledgement: they were not skipped."""
        within = {position: at - dropped for position, at in self._acknowledged.items() if at >= dropped}
        self._acknowledged = within
        sent = {position for position, ordinal in within.items() if times[ordinal]}
        if sent:
            for entries in self._settled.values():
                entries[:] = [entry for entry in entries if entry.position not in sent]
            self._settled = {key: entries for key, entries in self._settled.items() if entries}

    def _note_passed(self, window: LogWindow, sent: npt.NDArray[np.intp]) -> None:
        """Note which of the entries that were acknowledged unsent have been overtaken by a later one of their key."""
        if not any(entry.behind for entries in self._settled.values() for entry in entries):
            return
        keys = window.entry_key[sent]
        highest: dict[Key, tuple[int, int]] = {}
        for code in np.unique(keys[keys >= 0]).tolist():
            last = int(sent[np.flatnonzero(keys == code)[-1]])
            key = window.keys.text(code), bool(window.keys.base64[code])
            highest[key] = int(window.ledger[last]), int(window.entry[last])
        for (of_key, _doubt), entries in self._settled.items():
            if of_key is None or of_key not in highest:
                continue
            entries[:] = [
                replace(entry, behind=False)
                if entry.behind and _place(entry.position) < highest[of_key]
                else entry
                for entry in entries
            ]

    def waits(
        self,
        first_seq: int,
        first_us: int,
        as_of_us: int,
        in_force: BehaviourInForce = NOTHING_IN_FORCE,
    ) -> list[SampledWait]:
        """Return one wait for each key of the skipped entries, and for each behaviour that may have left them out.

        ``first_seq`` and ``first_us``: first line of the log and its time; ``as_of_us``: time of the verdict; ``in_force``:
        behaviours of the log.
        """
        if self.explained:
            return []
        groups: dict[_Group, list[_Entry]] = {}
        for found in (self._settled, self._open):
            for group, entries in found.items():
                groups.setdefault(group, []).extend(entries)
        for key, entry, _ahead in self._early.values():
            groups.setdefault((key, CLOCKS_DIFFER), []).append(entry)
        waits = []
        earliest = in_force.at_the_earliest()
        for (of_key, doubt), entries in groups.items():
            parts: dict[tuple[str | None, str | None], list[_Entry]] = {}
            for entry in self._owed(entries, as_of_us):
                passed_us = min(entry.passed_us, as_of_us)
                what = left_out_by(in_force, entry.stored_us, passed_us)
                early = None if what is not None else left_out_by(earliest, entry.stored_us, passed_us)
                if early is not None:
                    parts.setdefault((doubt or LIMIT_LATE, None), []).append(entry)
                elif what == COMPACTED_READ and entry.lost:
                    parts.setdefault((doubt, None), []).append(entry)
                elif what == COMPACTED_READ and not entry.replaced:
                    parts.setdefault((doubt or COMPACTED_READ, None), []).append(entry)
                else:
                    parts.setdefault((doubt, what), []).append(entry)
            for (of_part, what), members in parts.items():
                wait = self._wait(of_key, of_part, members, first_seq, first_us, as_of_us)
                waits.append(wait if what is None else replace(wait, left_out_by=what, uncertain=False))
        return waits

    def _owed(self, entries: list[_Entry], as_of_us: int) -> list[_Entry]:
        """Return the entries but those that are delayed still, or whose transaction was not committed."""
        transactions = np.array([entry.transaction for entry in entries], np.int64)
        aborted = self._committed.open_or_aborted(transactions).tolist()
        return [
            entry
            for entry, left_out in zip(entries, aborted, strict=True)
            if not left_out and entry.stored_us <= max(as_of_us, entry.published_us)
        ]

    def _wait(
        self,
        key: Key | None,
        doubt: str | None,
        entries: list[_Entry],
        first_seq: int,
        first_us: int,
        as_of_us: int,
    ) -> SampledWait:
        since_us = max(min(entry.stored_us for entry in entries), first_us)
        messages = sum(entry.messages for entry in entries)
        waited_us = max(as_of_us - since_us, 0)
        shown = entries[:MOST_POSITIONS]
        return SampledWait(
            hash=None,
            reason=None,
            shares=((None, waited_us),),
            waiting=None,
            holder=None,
            holder_positions=(),
            holder_pending=0,
            from_seq=first_seq,
            from_t_us=since_us,
            until_seq=None,
            until_t_us=None,
            first_position=entries[0].position,
            positions=tuple(entry.position for entry in shown),
            keys=(key,) * len(shown),
            entries=len(entries),
            messages=messages,
            message_us=messages * waited_us,
            needless_us=0,
            attempts=0,
            uncertain=doubt is not None or not self._certain,
            doubt=doubt,
            never_sent=len(entries),
            never_passed=sum(entry.behind for entry in entries),
            never_of_keys=((key, len(entries)),),
            never_keys=1,
        )


def _place_of(window: LogWindow, ordinal: int) -> tuple[int, int]:
    return int(window.ledger[ordinal]), int(window.entry[ordinal])


def _before(window: LogWindow, place: tuple[int, int]) -> Mask:
    ledger, entry = place
    before: Mask = (window.ledger < ledger) | ((window.ledger == ledger) & (window.entry < entry))
    return before


def _place(position: str) -> tuple[int, int]:
    ledger, _, entry = position.rpartition(":")
    return int(ledger), int(entry)


def _described(
    window: LogWindow,
    ordinal: int,
    sent: npt.NDArray[np.intp],
    passed_us: int = NEVER_US,
    *,
    lost: bool = False,
) -> tuple[Key | None, _Entry]:
    """Return the key of an entry, and the entry.

    ``sent``: ordinals of the entries that were sent, ascending; ``passed_us``: when the first entry behind it was sent;
    ``lost``: no compacted read left it out.
    """
    published, known = window.publish_time_ms
    key = int(window.entry_key[ordinal])
    later = sent[np.searchsorted(sent, ordinal) :]
    published_us = 1000 * int(published[ordinal]) if known[ordinal] else 0
    entry = _Entry(
        window.position(ordinal),
        max(published_us, int(window.due_us[ordinal])),
        max(int(window.num_messages[ordinal]), 1),
        key < 0 or not bool((window.entry_key[later] == key).any()),
        int(window.transaction[ordinal]),
        passed_us,
        bool((1000 * published[later][window.entry_key[later] == key] <= passed_us - _COMPACTION_US).any())
        if key >= 0
        else False,
        lost,
        published_us,
    )
    return (None if key < 0 else (window.keys.text(key), bool(window.keys.base64[key]))), entry
