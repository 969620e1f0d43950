"""Run of a Key_Shared dispatcher with a selector or an ordering rule that no release has (``broker.plugged``).

A selector is asked at joins and leaves only, so all else stays in the compiled loop. An ordering rule is asked about every
entry, so read attempts, read results and answers are handled in Python.

Dispatch rates are measured in the simulation itself: the messages that a consumer was sent between the last two membership
changes, per second of that time. Changes less than ``LEAST_US`` apart count as one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.plugged import PluggedDispatcher
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.errors import DispatchAuditError, UnsupportedRuleError
from dispatch_core.simulation import key_shared_loop as loop
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.churn import Change
from dispatch_core.simulation.dispatcher_run import Connecting, Given
from dispatch_core.simulation.publishing import Published
from dispatch_core.simulation.sink import Sink
from dispatch_core.what_if.plugins import Plugged, PluginError, ordering_of, selector_of
from dispatch_core.what_if.proposals.stepped_run import SteppedRun

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

#: The least time over which a rate is measured.
LEAST_US: Final = 1_000
#: Ranges and membership changes up to which a selector's ranges are told.
_MOST_RANGES: Final = 8
_MOST_CHANGES: Final = 20


class PluggedRun(SteppedRun):
    """The run of a ``PluggedDispatcher``. Raises ``PluginError``, and ``UnsupportedRuleError`` for rules it cannot have."""

    core: PluggedDispatcher

    def __init__(self, given: Given, sink: Sink, plugged: Plugged) -> None:
        check(given.profile, plugged)
        self._plugged = plugged
        self._measured_us = 0
        self._sent_before: dict[int, int] = {}
        self._ranges: list[str] = []
        self._began_us = 0
        super().__init__(given, sink)
        if plugged.ordering:
            self.step_through(w_.ATTEMPT, w_.READ, w_.REPLAY, w_.ANSWER, w_.ACT)

    def _new_core(self, first: Published) -> KeySharedDispatcher:
        plugged = self._plugged
        return PluggedDispatcher(
            self.profile,
            self._hashes(first),
            first.num_messages,
            self._connections,
            selector=selector_of(plugged.selector) if plugged.selector else None,
            ordering=ordering_of(plugged.ordering) if plugged.ordering else None,
        )

    def run(self) -> int:
        """See ``DispatcherRun``. Raises ``PluginError`` for a plug-in that fails."""
        try:
            return super().run()
        except DispatchAuditError:
            raise
        except Exception as error:
            raise _failed(self._plugged, error) from error

    def notes(self) -> list[str]:
        """Say what the rules did, as sentences."""
        found = []
        if self._plugged.selector and len(self._ranges) <= _MOST_CHANGES:
            found += self._ranges
        if self._plugged.ordering:
            found.append(
                f"{self._plugged.ordering} kept at most {self.core.most_tracked} positions or marks at a time"
            )
        return found

    # --- membership ------------------------------------------------------------------------------------------

    def _join(self, change: Change) -> None:
        self._measure()
        super()._join(change)
        self._note_ranges(self._connected, "joined")

    def _leave(self, change: Change) -> None:
        self._measure()
        number = self._numbers.get(change.who)
        super()._leave(change)
        if number is not None:
            self._note_ranges(number, "left")

    def _connect(self, change: Change, slot: int, number: int, connecting: Connecting) -> None:
        # With other owners a consumer gets another load than in the log: it grants permits for what it answers.
        if self._plugged.selector:
            first, end = connecting.flows
            connecting = replace(connecting, flows=(first, min(first + 1, end)))
        super()._connect(change, slot, number, connecting)

    def _measure(self) -> None:
        """Measure the dispatch rates up to now."""
        took_us = self._now - self._measured_us
        if took_us < LEAST_US:
            return
        sent = {number: int(self._world.received[self.core.slot(number)]) for number in self.core.connected()}
        self.core.rates = {
            number: (count - self._sent_before.get(number, 0)) * 1_000_000 / took_us
            for number, count in sent.items()
        }
        self._sent_before, self._measured_us = sent, self._now

    def _note_ranges(self, number: int, what: str) -> None:
        ranges = self.core.ranges().ranges
        self._began_us = self._began_us or self._now
        if not self._plugged.selector or len(ranges) > _MOST_RANGES:
            return
        owned = ", ".join(f"{self.core.name_of(owner)} {start}-{end}" for start, end, owner in ranges)
        name = self.core.name_of(number)
        at = duration(self._now - self._began_us)
        self._ranges.append(f"{name} {what} after {at}: {owned or 'nobody is left'}")

    # --- the ordering rule -----------------------------------------------------------------------------------

    @property
    def withholds(self) -> bool:
        """See ``SteppedRun``."""
        return self.core.ordering is not None

    def withheld(self, entries: Ints) -> Flags:
        """See ``SteppedRun``."""
        return self.core.withheld(entries)

    def keep_back(self, entries: Ints) -> None:
        """See ``SteppedRun``."""
        self.core.keep_back(entries)

    def after_answer(self, number: int) -> None:
        """See ``SteppedRun``: what the rule holds back may be free by now."""
        if self.core.held_back:
            self.core.held_back = False
            loop.start_unblock_timer(self.core.state, self._world)

    def _read_done(self, number: int, *, is_replay: bool) -> None:
        st, world = self.core.state, self._world
        if is_replay:
            width = len(world.replays) // w_.REPLAYS_KEPT
            begin = number % w_.REPLAYS_KEPT * width
            size = int(world.replay_size[number % w_.REPLAYS_KEPT])
            entries = world.replays[begin : begin + size] - int(world.w[w_.BASE])
        else:
            first = int(st.s[st_.READ_POSITION])
            entries = np.arange(first, min(first + int(world.w[w_.READ_LIMIT]) + 1, len(st.holder)))
        pending_before = st.holder[entries] != st_.NOBODY
        super()._read_done(number, is_replay=is_replay)
        for entry in entries[~pending_before & (st.holder[entries] != st_.NOBODY)].tolist():
            self.core.note_delivery(entry)


def plugged_run(given: Given, sink: Sink, plugged: Plugged) -> PluggedRun:
    """Make the run under plug-ins. Raises ``PluginError`` for one that fails when it is made."""
    try:
        return PluggedRun(given, sink, plugged)
    except DispatchAuditError:
        raise
    except Exception as error:
        raise _failed(plugged, error) from error


def _failed(plugged: Plugged, error: Exception) -> PluginError:
    names = " or ".join(filter(None, (plugged.selector, plugged.ordering)))
    return PluginError(f"{names} failed: {type(error).__name__}: {error}; mend the package that offers it")


def check(profile: Profile, plugged: Plugged) -> None:
    """Raise ``UnsupportedRuleError`` for rules that cannot have a plug-in."""
    if profile.dispatcher is not Dispatcher.KEY_SHARED or profile.key_shared_mode != "AUTO_SPLIT":
        raise UnsupportedRuleError(
            f"{profile.name}: {' and '.join(filter(None, (plugged.selector, plugged.ordering)))} can be put into the "
            "Key_Shared dispatcher of 4.x with AUTO_SPLIT only; give a release that has it, such as 4.2.4"
        )
    if plugged.ordering and profile.allow_out_of_order:
        raise UnsupportedRuleError(
            f"{profile.name}: the consumers had allowed delivery out of order: no rule keeps it"
        )
