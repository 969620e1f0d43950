"""Run of a simulated dispatcher under PIP-474: hot hashes go through an overflow beside the replay queue."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import commands, gates, permits, replay_set
from dispatch_core.broker import state as st_
from dispatch_core.simulation import key_shared_loop as loop
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.churn import Change
from dispatch_core.simulation.dispatcher_run import Given
from dispatch_core.simulation.publishing import Published
from dispatch_core.simulation.sink import Sink
from dispatch_core.what_if.proposals.hot_key_overflow import (
    DEFAULT_RULE,
    HotKeyRule,
    Overflow,
    Placed,
    hot_hashes,
    is_pressed,
)
from dispatch_core.what_if.proposals.stepped_run import SteppedRun
from dispatch_core.what_if.recorded import RecordedLoad

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_NEVER: Final = -1


class HotKeyOverflowRun(SteppedRun):
    """Every read attempt is stepped through; read results are while a hash is hot."""

    def __init__(self, given: Given, sink: Sink, rule: HotKeyRule = DEFAULT_RULE) -> None:
        super().__init__(given, sink)
        self._overflow = Overflow(rule)
        self._hot = np.zeros(0, bool)  # by hash id
        #: Entries sent from it → hash id and place; acknowledged ones stay for a while.
        self._from_overflow: dict[int, tuple[int, Placed]] = {}
        self._start_us = given.changes[0].at_us if given.changes else 0
        self._first_hot_us = _NEVER
        self._most_hot = 0
        self.step_through(w_.ATTEMPT)

    def figures(self, acknowledged: Ints, load: RecordedLoad) -> dict[str, float]:
        """Say what was diverted, and since when."""
        since = (self._first_hot_us - self._start_us) / 1_000_000 if self._first_hot_us != _NEVER else None
        figures: dict[str, float] = {
            "diverted entries": self._overflow.diverted,
            "hot hashes at a time": self._most_hot,
        }
        return figures if since is None else {**figures, "seconds until the first was hot": round(since, 1)}

    # --- hooks -----------------------------------------------------------------------------------------------

    def before_attempt(self) -> None:
        """Look for hot hashes, divert what waits of them in the replay queue, send from the overflow, release."""
        st, overflow = self.core.state, self._overflow
        size, limit = int(st.s[st_.N_REPLAY]), int(permits.look_ahead_limit(st))
        if not overflow.hot and not is_pressed(size, limit, overflow.rule):
            return
        if is_pressed(size, limit, overflow.rule):
            counts = {at: int(st.replay_count[at]) for at in np.flatnonzero(st.replay_count).tolist()}
            overflow.mark(hot_hashes(counts, size=size, limit=limit, rule=overflow.rule))
            self._note_hot()
        if size:
            waiting = self.in_replay()
            self._divert(waiting[self._hot[st.hash_id[waiting]]][: int(st.s[st_.MAX_READ_BATCH_SIZE])])
        self._send()
        counts = {at: int(st.replay_count[at]) for at in overflow.hot}
        if overflow.release(counts, now_us=self._now):
            self._note_hot()

    @property
    def withholds(self) -> bool:
        """True while a hash is hot."""
        return bool(self._overflow.hot)

    def withheld(self, entries: Ints) -> Flags:
        """Mark entries of hot hashes: they take the way through the overflow."""
        return self._hot[self.core.state.hash_id[entries]]

    def keep_back(self, entries: Ints) -> None:
        """Divert entries of a read result; those of the replay queue are diverted from there, and others behind them."""
        st = self.core.state
        new = entries[st.in_replay[entries] == 0]
        behind = st.replay_count[st.hash_id[new]] > 0
        for entry in new[behind].tolist():
            replay_set.add_to_replay(st, entry, int(st.hash_id[entry]))
        self._divert(new[~behind])

    def first_needed(self) -> int:
        """Keep what waits in the overflow in the window of the log."""
        first = self._overflow.first()
        return w_.NEVER if first is None else first

    # --- the overflow ----------------------------------------------------------------------------------------

    def _note_hot(self) -> None:
        hot = self._overflow.hot
        if hot and self._first_hot_us == _NEVER:
            self._first_hot_us = self._now
        self._most_hot = max(self._most_hot, len(hot))
        self._hot = np.zeros(len(self.core.state.hash_owner), bool)
        self._hot[hot] = True
        self.step_through(*((w_.ATTEMPT, w_.READ, w_.REPLAY) if hot else (w_.ATTEMPT,)))

    def _divert(self, entries: Ints) -> None:
        """Write entries to the overflow, and acknowledge them at the cursor. Clients have no part in it."""
        st, base = self.core.state, int(self._world.w[w_.BASE])
        for entry in entries.tolist():
            replay_set.remove_from_replay(st, entry)
            commands.acknowledge(st, entry)
            self._overflow.divert(int(st.hash_id[entry]), entry + base, now_us=self._now)

    def _send(self) -> None:
        """Send from the overflow what the owners of hot hashes can take now."""
        st, base = self.core.state, int(self._world.w[w_.BASE])
        for hash_id in self._overflow.hot:
            self.make_room_for_a_round()
            world = self._world
            slot = int(st.hash_owner[hash_id])
            if slot == st_.NOBODY or not permits.is_available(st, slot):
                continue
            if gates.drains_elsewhere(st, slot, hash_id):
                continue
            room = min(int(permits.usable_permits(st, slot)), len(world.outcome))
            taken = self._overflow.take(hash_id, room)
            if not taken:
                continue
            entries = np.array([number for _, number in taken], np.int64) - base
            world.outcome[: len(entries)] = slot
            loop.send(st, world, self._lines, False, entries)
            self._from_overflow.update({placed[1]: (hash_id, placed) for placed in taken})
            w_.attempt_at(world, self._now + int(world.w[w_.WRITE_US]))

    def _extend(self, published: Published) -> int:
        dropped = super()._extend(published)
        self._note_hot()
        return dropped

    # --- entries that come back --------------------------------------------------------------------------------

    def _taken_back(self, numbers: list[int]) -> None:
        """Put entries that were sent from the overflow back into it, instead of into the replay set."""
        st, base = self.core.state, int(self._world.w[w_.BASE])
        for number in numbers:
            replay_set.remove_from_replay(st, number - base)
            self._overflow.put_back(*self._from_overflow.pop(number))
        if numbers:
            self._note_hot()

    def _pending_from_overflow(self, slot: int) -> list[int]:
        """Return the entries sent from the overflow that a consumer holds, and forget those that nobody holds."""
        st, base = self.core.state, int(self._world.w[w_.BASE])
        self._from_overflow = {
            number: sent
            for number, sent in self._from_overflow.items()
            if number >= base and int(st.holder[number - base]) != st_.NOBODY
        }
        return [number for number in self._from_overflow if int(st.holder[number - base]) == slot]

    def _leave(self, change: Change) -> None:
        number = self._numbers.get(change.who)
        pending = [] if number is None else self._pending_from_overflow(self.core.slot(number))
        super()._leave(change)
        self._taken_back(pending)

    def _redeliver(self, slot: int, entries: list[int], *, everything: bool) -> None:
        base = int(self._world.w[w_.BASE])
        asked = {entry + base for entry in entries}
        pending = [number for number in self._pending_from_overflow(slot) if number in asked]
        super()._redeliver(slot, entries, everything=everything)
        self._taken_back(pending)
