"""Which broker the clients of a log speak for: how fast it was, on the whole and at times.

No log of level E says when a read was issued or came back. But a client that acknowledges an entry was sent it before, and
one that acknowledges it again was sent it again. So of several brokers, from fast to slow in this or that, the one is taken
under whose simulation most acknowledgements come from clients that hold the entry by then; and where one does not, it is
tried whether the broker was slower or faster for some ms when the entry went elsewhere, and whether it was slow in
everything when it had just started. The rules decide in all of them who is sent what: an acknowledgement chooses among
delays, never a consumer.

The search is bounded by work, counted from the load and not from a clock: the same log always gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from dispatch_core.broker.profiles import Profile
from dispatch_core.simulation.consumer_lifecycle import Delays, Pace
from dispatch_core.what_if.clients import Sendings, StartUp
from dispatch_core.what_if.recorded import RecordedLoad, stored_after

Ints = npt.NDArray[np.int64]
Paces = tuple[Pace, ...]

#: Medians of recorded traces.
USUAL: Final = Delays(
    hop_us=30, read_us=80, replay_us=70, write_us=150, read_entry_us=18, replay_entry_us=18, write_entry_us=15
)
#: Before 4.1 (PIP-430) the broker's cache does not keep what may be replayed: the storage is asked, entry by entry.
USUAL_BEFORE_4_1: Final = replace(USUAL, read_us=110, replay_us=200, replay_entry_us=130)
#: Brokers that were faster or slower in something: their executor, their storage, their connections.
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
#: … and whose entries could be read so long after they were published.
STORED_AFTER: Final = (2_000, 3_000, 5_000, 6_000, 8_000, 12_000)
#: What may have been the matter for a while: so many times as long for a hop, a read, a replay read, writing.
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
#: … from so long before an entry went elsewhere to so long after.
AROUND_US: Final = ((1_000, 300), (5_000, 1_000))
#: How a broker may start: everything takes so many times as long from the first consumer on, half of that so much later, and
#: so on. Its classes are loaded and its code is compiled then, while backlog and clients arrive at once.
START_UPS: Final = tuple(
    StartUp(factor, half_us) for factor in (8, 32, 128) for half_us in (100_000, 400_000, 1_600_000)
)
#: A start-up lasts long and has something to do with many acknowledgements: it has to explain so many of them more.
START_UP_EXPLAINS: Final = 0.01
#: Work of all simulations of a search together, see ``work_of``: some seconds. The first simulation is always made.
MOST_WORK: Final = 2_500_000
#: Simulations with moments.
_MOST_RUNS: Final = 100
#: Work of a simulation as such, and of somebody who joins or leaves; that of an entry or an acknowledgement is 1.
_EACH_RUN: Final = 2_000
_EACH_CHANGE: Final = 100
_APART_US: Final = 500
_LATEST: Final = 1 << 62


class Simulate(Protocol):
    """Simulates the recorded rules."""

    def __call__(self, delays: Delays, stored_us: Ints, paces: Paces) -> Sendings:
        """What such a broker sends."""


@dataclass(frozen=True, slots=True)
class _Found:
    sendings: Sendings
    borne_out: int
    unproven_us: Ints  # when an entry went elsewhere than an ack of it says, or that ack


class _Search:
    """Simulations of one load, as long as their work is affordable."""

    def __init__(self, load: RecordedLoad, simulate: Simulate) -> None:
        self.load = load
        self._simulate = simulate
        self._each = work_of(load)
        self._left = MOST_WORK

    def affords(self, simulations: int = 1) -> bool:
        """Whether so many more can be made."""
        return self._left >= simulations * self._each

    def tried(self, delays: Delays, stored_us: Ints, paces: Paces = ()) -> _Found:
        """What such a broker sends, and how much that explains."""
        self._left -= self._each
        sendings = self._simulate(delays, stored_us, paces)
        good, acks = answered(self.load, sendings), self.load.acks
        first = np.full(len(self.load.stored_us), _LATEST)
        np.minimum.at(first, sendings.entry, sendings.at_us)
        unproven = np.unique(np.minimum(first[acks.entry[~good]], acks.at_us[~good]))
        return _Found(sendings, int(good.sum()), unproven)


def usual(profile: Profile) -> Delays:
    """The medians of recorded traces."""
    return USUAL if profile.version >= (4, 1, 0) else USUAL_BEFORE_4_1


def work_of(load: RecordedLoad) -> int:
    """What a simulation of the load costs: about that of so many entries."""
    changes = len(load.joins) + len(load.leaves)
    return _EACH_RUN + len(load.stored_us) + len(load.acks.entry) + _EACH_CHANGE * changes


def most_likely(load: RecordedLoad, profile: Profile, simulate: Simulate) -> Sendings:
    """Who was sent what and when under ``profile``, the recorded rules, by the broker that is most likely.

    Of brokers that are equally likely the most usual is taken: a moment is less than a start-up that lasts.
    """
    search = _Search(load, simulate)
    best = search.tried(usual(profile), load.stored_us)
    for delays in OTHERS:
        if len(best.unproven_us) and search.affords():
            best = _better(best, search.tried(delays, best.sendings.stored_us))
    for after_us in STORED_AFTER:
        if len(best.unproven_us) and search.affords():
            stored = stored_after(load.published_us, load.acks, after_us)
            best = _better(best, search.tried(best.sendings.delays, stored))
    in_moments = _with_moments(search, best)
    if not len(in_moments.unproven_us):
        return in_moments.sendings
    started = _with_start_up(search, best)
    if started is best:
        return in_moments.sendings
    return _better(in_moments, _with_moments(search, started)).sendings


def _better(one: _Found, other: _Found) -> _Found:
    return other if other.borne_out > one.borne_out else one


def _with_start_up(search: _Search, best: _Found) -> _Found:
    """… slow in everything at first, where that explains much more."""
    needed = best.borne_out + START_UP_EXPLAINS * len(search.load.acks.entry)
    first_us = min((join.at_us for join in search.load.joins), default=0)
    found, like = best, best.sendings
    for start_up in START_UPS:
        if search.affords():
            other = search.tried(like.delays, like.stored_us, starting(like.delays, start_up, first_us))
            if other.borne_out >= needed and other.borne_out > found.borne_out:
                found = replace(other, sendings=replace(other.sendings, start_up=start_up))
    return found


def starting(delays: Delays, start_up: StartUp, from_us: int) -> Paces:
    """How a broker with these delays starts."""
    steps = start_up.factor.bit_length() - 1
    slow = [
        Pace(from_us + at * start_up.half_us, _scaled(delays, (start_up.factor / 2**at,) * 4))
        for at in range(steps)
    ]
    return (*slow, Pace(from_us + steps * start_up.half_us, delays))


def _with_moments(search: _Search, best: _Found) -> _Found:
    """… with moments in which the broker was slower or faster, as long as more is borne out by such."""
    left, plain = _MOST_RUNS, best.sendings
    each = len(AROUND_US) * len(MOMENTS)
    tried_to = 0
    while left >= each and search.affords(each):
        open_ = best.unproven_us[best.unproven_us >= tried_to]
        if not len(open_):
            break
        like, found = best.sendings, best
        for paces in _moments(like, plain, int(open_[0])):
            found = _better(found, search.tried(like.delays, like.stored_us, paces))
        left -= each
        if found is best:
            tried_to = int(open_[0]) + _APART_US
        best = replace(found, sendings=replace(found.sendings, start_up=plain.start_up))
    return best


def _moments(like: Sendings, plain: Sendings, at_us: int) -> Iterator[Paces]:
    """The paces with one moment more, of a broker that was otherwise as in ``plain``."""
    for before, after in AROUND_US:
        for factors in MOMENTS:
            delays = _scaled(_delays_at(plain, at_us - before), factors)
            yield _laid_over(like, at_us - before, at_us + after, delays)


def _delays_at(sendings: Sendings, at_us: int) -> Delays:
    until = [pace for pace in sendings.paces if pace.from_us <= at_us]
    return until[-1].delays if until else sendings.delays


def _laid_over(like: Sendings, from_us: int, to_us: int, delays: Delays) -> Paces:
    """The paces with a moment in them; what lies within it of others is over."""
    before = [pace for pace in like.paces if pace.from_us < from_us]
    behind = [pace for pace in like.paces if pace.from_us > to_us]
    return (*before, Pace(from_us, delays), Pace(to_us, _delays_at(like, to_us)), *behind)


def acks_borne_out(load: RecordedLoad, sendings: Sendings) -> int:
    """How many acknowledgements come from a connection that was sent the entry before."""
    return int(answered(load, sendings).sum())


def answered(load: RecordedLoad, sendings: Sendings) -> npt.NDArray[np.bool_]:
    """Of each ack, whether its connection was sent the entry before, and again for each further ack of it."""
    acks = load.acks
    times = np.concatenate([sendings.at_us, acks.at_us])
    number = np.concatenate([sendings.consumer, acks.consumer])
    entry = np.concatenate([sendings.entry, acks.entry])
    is_ack = np.arange(len(times)) >= len(sendings.at_us)
    order = np.lexsort((is_ack, times, entry, number))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(entry[order]) != 0) | (np.diff(number[order]) != 0)
    ahead = np.cumsum(np.where(is_ack[order], -1, 1))
    before = np.append(0, ahead)[:-1][new]  # of each pair of connection and entry
    good = np.empty(len(order), bool)
    good[order] = ahead - before[np.cumsum(new) - 1] >= 0
    return good[len(sendings.at_us) :]


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
