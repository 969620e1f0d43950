"""Estimate the broker's delays (hop, read, write) from the acknowledgements in a log.

A log of level E does not show when a read was issued or came back. But a client that acknowledges an entry was sent it
before. For example, if consumer 2 acknowledges 5:7 and the simulation with the usual delays sends 5:7 to consumer 1, the
delays were different. So the recorded rules are simulated with several sets of delays, and the set is taken under which most
acknowledgements come from clients that hold the entry. If some still do not, the search tries moments of a few milliseconds
in which the broker was slower or faster, and a slow start. The rules decide in every simulation who is sent what; the
acknowledgements only choose among delays.

The search is bounded by work, counted from the load and not by a clock, so the same log always gives the same result.

Why the search stays: of recordings of rolling restarts, 4.2.4 classic with a ring sends 100.0 % instead of 91.9 % of the
positions first where they went, 4.0.0 with ranges 100.0 % instead of 94.3 %. Before storage times were read from first
deliveries, 100 instead of 107 of 113 recordings reached their bar without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from dispatch_core.broker.profiles import Profile
from dispatch_core.simulation.dispatcher_run import Delays, Pace
from dispatch_core.what_if.client_changes import SHARED
from dispatch_core.what_if.clients import Deliveries, StartUp
from dispatch_core.what_if.recorded import RecordedLoad, stored_after

Ints = npt.NDArray[np.int64]
Paces = tuple[Pace, ...]

#: Medians of recorded traces.
USUAL: Final = Delays(
    hop_us=30, read_us=80, replay_us=40, write_us=150, read_entry_us=18, replay_entry_us=4, write_entry_us=15
)
#: Before 4.1 (PIP-430) the broker's cache does not keep what may be replayed: the storage is asked, entry by entry.
USUAL_BEFORE_4_1: Final = replace(USUAL, read_us=110, replay_us=350, replay_entry_us=100)
#: Delays of brokers whose executor, storage or connections were faster or slower.
OTHERS: Final = (
    Delays(hop_us=50, read_us=400, replay_us=400, write_us=400),
    Delays(hop_us=20, read_us=50, replay_us=50, write_us=100),
    Delays(hop_us=300, read_us=150, replay_us=150, write_us=300),
    Delays(hop_us=1000, read_us=150, replay_us=150, write_us=300),
    Delays(hop_us=50, read_us=150, replay_us=3500, write_us=300),
    Delays(hop_us=50, read_us=1500, replay_us=1500, write_us=400),
    Delays(hop_us=50, read_us=3500, replay_us=3500, write_us=600),
    Delays(hop_us=20, read_us=150, replay_us=150, write_us=1500),
)
#: Microseconds from publishing an entry until it can be read, tried in this order.
STORED_AFTER: Final = (2_000, 3_000, 5_000, 6_000, 8_000, 12_000)
#: Factors for hop, read, replay read and write in a moment in which the broker was slower or faster.
MOMENTS: Final = (
    (1.0, 1.0, 4.0, 1.0),
    (1.0, 1.0, 12.0, 1.0),
    (1.0, 4.0, 1.0, 1.0),
    (1.0, 16.0, 1.0, 1.0),
    (1.0, 4.0, 4.0, 4.0),
    (1.0, 0.4, 0.4, 0.4),
    (1.0, 1.0, 1.0, 4.0),
    (1.0, 1.0, 1.0, 0.2),
    (10.0, 1.0, 1.0, 1.0),
    (50.0, 1.0, 1.0, 1.0),
)
#: Begin and end of a moment: microseconds before and after the delivery that an acknowledgement contradicts.
AROUND_US: Final = ((1_000, 300), (5_000, 1_000))
#: Slow starts: everything takes ``factor`` times as long from the first consumer on, half of that ``half_us`` later, and
#: so on. A broker loads classes and compiles code then, while backlog and clients arrive at once.
START_UPS: Final = tuple(
    StartUp(factor, half_us) for factor in (8, 32, 128) for half_us in (100_000, 400_000, 1_600_000)
)
#: Part of all acknowledgements that a slow start has to explain in addition: it lasts long and affects many of them.
START_UP_EXPLAINS: Final = 0.01
#: Work of all simulations of a search together, see ``work_of``: a few seconds. The first simulation is always made.
MOST_WORK: Final = 2_500_000
#: Simulations with moments.
_MOST_RUNS: Final = 100
#: Work of each simulation, and of each join or leave in it. An entry or an acknowledgement costs 1.
_EACH_RUN: Final = 2_000
_EACH_CHANGE: Final = 100
#: How many times as long an entry of Shared takes, whose rounds are decided in Python.
_OF_SHARED: Final = 30
_APART_US: Final = 500
_LATEST: Final = 1 << 62


class Simulate(Protocol):
    """A simulation of the recorded rules."""

    def __call__(self, delays: Delays, stored_us: Ints, paces: Paces) -> Deliveries:
        """The deliveries of a broker with these delays."""


@dataclass(frozen=True, slots=True)
class _Found:
    deliveries: Deliveries
    borne_out: int
    unproven_us: Ints  # times of deliveries that an acknowledgement contradicts, or of that acknowledgement


class _Search:
    """The simulations of one load, up to ``MOST_WORK``."""

    def __init__(self, load: RecordedLoad, simulate: Simulate) -> None:
        self.load = load
        self._simulate = simulate
        self._each = work_of(load)
        self._left = MOST_WORK

    def affords(self, simulations: int = 1) -> bool:
        """True if so many more simulations can be made."""
        return self._left >= simulations * self._each

    def tried(self, delays: Delays, stored_us: Ints, paces: Paces = ()) -> _Found:
        """Simulate a broker with these delays, and count the acknowledgements that it explains."""
        self._left -= self._each
        deliveries = self._simulate(delays, stored_us, paces)
        good, acks = answered(self.load, deliveries), self.load.acks
        first = np.full(len(self.load.stored_us), _LATEST)
        np.minimum.at(first, deliveries.entry, deliveries.at_us)
        unproven = np.unique(np.minimum(first[acks.entry[~good]], acks.at_us[~good]))
        return _Found(deliveries, int(good.sum()), unproven)


def usual(profile: Profile) -> Delays:
    """The medians of recorded traces."""
    return USUAL if profile.version >= (4, 1, 0) else USUAL_BEFORE_4_1


def of_release(delays: Delays, recorded: Profile, profile: Profile) -> Delays:
    """The delays of a broker that runs ``profile`` on the machine on which ``recorded`` had ``delays``.

    A broker before 4.1 reads from the storage what a later one has in its cache. How slow the storage is, only the earlier
    release shows: to the delays of a later one the usual time of the storage is added, those of an earlier one are scaled.
    """
    here, there = usual(recorded), usual(profile)
    if here == there:
        return delays
    names = ("read_us", "replay_us", "replay_entry_us")
    asks_storage = profile.version < recorded.version

    def changed(name: str) -> int:
        us, usual_us, usual_there_us = (int(getattr(some, name)) for some in (delays, here, there))
        return us + usual_there_us - usual_us if asks_storage else us * usual_there_us // usual_us

    return replace(delays, **{name: max(changed(name), 0) for name in names})


def work_of(load: RecordedLoad) -> int:
    """The work of one simulation of the load, in entries."""
    changes = len(load.joins) + len(load.leaves)
    entries = len(load.stored_us) + len(load.acks.entry)
    return (
        _EACH_RUN + entries * (_OF_SHARED if load.subscription_type == SHARED else 1) + _EACH_CHANGE * changes
    )


def most_likely(load: RecordedLoad, profile: Profile, simulate: Simulate) -> Deliveries:
    """Find the delays under which most acknowledgements are explained, and return the deliveries with them.

    Of equally good delays the most usual are taken, and moments are preferred to a slow start.

    Args:
        load: the recorded load.
        profile: the recorded rules.
        simulate: simulates ``load`` under ``profile`` with given delays.
    """
    search = _Search(load, simulate)
    best = _most_likely(search, profile, load.stored_us)
    if len(best.unproven_us) and search.affords():
        # what held deliveries back may have been a rule and not the storage
        constant = stored_after(load.published_us, load.acks)
        best = _better(best, _most_likely(search, profile, constant))
    return best.deliveries


def _most_likely(search: _Search, profile: Profile, stored_us: Ints) -> _Found:
    """Search from given storage times on."""
    load = search.load
    best = search.tried(usual(profile), stored_us)
    for delays in OTHERS:
        if len(best.unproven_us) and search.affords():
            best = _better(best, search.tried(delays, best.deliveries.stored_us))
    for after_us in STORED_AFTER:
        if len(best.unproven_us) and search.affords():
            stored = stored_after(load.published_us, load.acks, after_us)
            best = _better(best, search.tried(best.deliveries.delays, stored))
    in_moments = _with_moments(search, best)
    if not len(in_moments.unproven_us):
        return in_moments
    started = _with_start_up(search, best)
    if started is best:
        return in_moments
    return _better(in_moments, _with_moments(search, started))


def _better(found: _Found, other: _Found) -> _Found:
    return other if other.borne_out > found.borne_out else found


def _with_start_up(search: _Search, best: _Found) -> _Found:
    """Add a slow start to ``best`` if that explains ``START_UP_EXPLAINS`` more of the acknowledgements."""
    needed = best.borne_out + START_UP_EXPLAINS * len(search.load.acks.entry)
    first_us = min((join.at_us for join in search.load.joins), default=0)
    found, like = best, best.deliveries
    for start_up in START_UPS:
        if search.affords():
            other = search.tried(like.delays, like.stored_us, starting(like.delays, start_up, first_us))
            if other.borne_out >= needed and other.borne_out > found.borne_out:
                found = replace(other, deliveries=replace(other.deliveries, start_up=start_up))
    return found


def starting(delays: Delays, start_up: StartUp, from_us: int) -> Paces:
    """The paces of a broker with these delays that starts slowly at ``from_us``."""
    steps = start_up.factor.bit_length() - 1
    slow = [
        Pace(from_us + at * start_up.half_us, _scaled(delays, (start_up.factor / 2**at,) * 4))
        for at in range(steps)
    ]
    return (*slow, Pace(from_us + steps * start_up.half_us, delays))


def _with_moments(search: _Search, best: _Found) -> _Found:
    """Add moments in which the broker was slower or faster to ``best``, as long as more acknowledgements are explained."""
    left, plain = _MOST_RUNS, best.deliveries
    each = len(AROUND_US) * len(MOMENTS)
    tried_to = 0
    while left >= each and search.affords(each):
        open_ = best.unproven_us[best.unproven_us >= tried_to]
        if not len(open_):
            break
        like, found = best.deliveries, best
        for paces in _moments(like, plain, int(open_[0])):
            found = _better(found, search.tried(like.delays, like.stored_us, paces))
        left -= each
        if found is best:
            tried_to = int(open_[0]) + _APART_US
        best = replace(found, deliveries=replace(found.deliveries, start_up=plain.start_up))
    return best


def _moments(like: Deliveries, plain: Deliveries, at_us: int) -> Iterator[Paces]:
    """The paces of ``like`` with one more moment around ``at_us``; ``plain`` gives the delays outside moments."""
    for before, after in AROUND_US:
        for factors in MOMENTS:
            delays = _scaled(_delays_at(plain, at_us - before), factors)
            yield _laid_over(like, at_us - before, at_us + after, delays)


def _delays_at(deliveries: Deliveries, at_us: int) -> Delays:
    until = [pace for pace in deliveries.paces if pace.from_us <= at_us]
    return until[-1].delays if until else deliveries.delays


def _laid_over(like: Deliveries, from_us: int, to_us: int, delays: Delays) -> Paces:
    """The paces with a moment added; paces that begin within it are dropped."""
    before = [pace for pace in like.paces if pace.from_us < from_us]
    behind = [pace for pace in like.paces if pace.from_us > to_us]
    return (*before, Pace(from_us, delays), Pace(to_us, _delays_at(like, to_us)), *behind)


def acks_borne_out(load: RecordedLoad, deliveries: Deliveries) -> int:
    """Count the acknowledgements that come from a connection that was sent the entry before."""
    return int(answered(load, deliveries).sum())


def answered(load: RecordedLoad, deliveries: Deliveries) -> npt.NDArray[np.bool_]:
    """Mark the acks whose connection was sent the entry before, and once more for each further ack of it."""
    acks = load.acks
    times = np.concatenate([deliveries.at_us, acks.at_us])
    number = np.concatenate([deliveries.consumer, acks.consumer])
    entry = np.concatenate([deliveries.entry, acks.entry])
    is_ack = np.arange(len(times)) >= len(deliveries.at_us)
    order = np.lexsort((is_ack, times, entry, number))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(entry[order]) != 0) | (np.diff(number[order]) != 0)
    ahead = np.cumsum(np.where(is_ack[order], -1, 1))
    before = np.append(0, ahead)[:-1][new]  # of each pair of connection and entry
    good = np.empty(len(order), bool)
    good[order] = ahead - before[np.cumsum(new) - 1] >= 0
    return good[len(deliveries.at_us) :]


def _scaled(delays: Delays, factors: tuple[float, float, float, float]) -> Delays:
    hop, read, replay, write = factors
    return replace(
        delays,
        hop_us=int(delays.hop_us * hop),
        read_us=int(delays.read_us * read),
        read_entry_us=int(delays.read_entry_us * read),
        replay_us=int(delays.replay_us * replay),
        replay_entry_us=int(delays.replay_entry_us * replay),
        write_us=int(delays.write_us * write),
        write_entry_us=int(delays.write_entry_us * write),
    )
