"""What the lives of all simulated dispatchers have in common: time that goes on, stretches of the log, lines handed over.

Control plane around a compiled loop: the loop runs until it needs a decision that is made here, and says why it stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core import state as st_
from dispatch_core.profiles import Profile
from dispatch_core.simulation import answers, kinds
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.churn import JOIN_GAP_US, LEAST_PAUSE_US, Change, changes
from dispatch_core.simulation.publishing import KeySpace, Published, Publishing
from dispatch_core.simulation.scenario import Scenario
from dispatch_core.simulation.sink import Sink
from dispatch_core.simulation.tables import Client

#: Lines that are handed over at once.
LINES: Final = 1 << 18
#: Entries that a leaving consumer is done with in one step.
FINISHED_AT_ONCE: Final = 64
#: How long the parts of the simulated broker take.
READ_US: Final = 400
WRITE_US: Final = 400
HOP_US: Final = 50
_NETWORK_US: Final = 150
_UNBLOCK_US: Final = 10_000  # keySharedUnblockingIntervalMs
_BACK_OFF_US: Final = (1_000, 10_000)  # dispatcherRetryBackoffInitialTimeInMs, …MaxTimeInMs
_FIRST_FLOW_US: Final = 500  # from the subscription to the client's first permits
#: Slow consumers take so many times as long, spread over this range.
_SLOW: Final = (10, 50)
#: Read attempts after which a dispatcher that has entries left, and nothing under way, is given up.
_QUIET_ATTEMPTS: Final = 5
_HEAP: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Common:
    """What all dispatchers of a simulation share: drawn once."""

    keys: KeySpace
    latency_us: npt.NDArray[np.int64]
    refuses: npt.NDArray[np.uint8]


def common(scenario: Scenario) -> Common:
    """Draw it."""
    random = np.random.default_rng([scenario.seed, 0])
    return Common(
        KeySpace(scenario.keys, scenario.key_skew),
        answers.latencies(random, scenario.ack_us),
        answers.refusals(random, scenario.nack_share),
    )


class Life(ABC):
    """One dispatcher from its first consumer to its last acknowledgement; ``run`` lives it.

    A subclass makes its core, then calls ``_begin``.
    """

    def __init__(self, scenario: Scenario, dispatcher: int, shared: Common, sink: Sink) -> None:
        """Raises ``ProfileError`` for rules that no release has."""
        self.profile: Profile = scenario.profile_of(dispatcher)
        self._scenario = scenario
        self._dispatcher = dispatcher
        self._shared = shared
        self._sink = sink
        start_us = scenario.start_us + scenario.consumers * JOIN_GAP_US + LEAST_PAUSE_US
        self._changes = changes(scenario, dispatcher, start_us)
        self._connections = sum(change.joins for change in self._changes)
        self._publishing = Publishing(scenario, dispatcher, shared.keys, start_us)
        self._numbers: dict[int, int] = {}  # who → number of its connection
        self._connected = 0  # connections so far
        self._lines = w_.new_lines(0, 0)

    def _begin(self, first: Published) -> None:
        """The world begins with the first stretch of the log."""
        self._world = self._new_world()
        self._fit_to_stretch(first.publish_us, first)
        self._sink.published(first, self._hashes(first))

    def _new_world(self) -> w_.World:
        scenario, profile, n = self._scenario, self.profile, self._connections
        batch = profile.number("dispatcherMaxReadBatchSize")
        w = np.zeros(w_.N_SCALARS, np.int64)
        w[w_.ATTEMPT_AT] = w[w_.READ_READY_AT] = w_.NEVER
        w[w_.LAST_SENT] = -1
        w[w_.SALT] = self._dispatcher
        w[w_.TRACE] = scenario.trace
        w[w_.EMPTY_WHEN_WAITED] = "waiting_read_gets_entries" not in profile.changes
        w[w_.READ_US], w[w_.WRITE_US], w[w_.HOP_US] = READ_US, WRITE_US, HOP_US
        w[w_.UNBLOCK_US], w[w_.NETWORK_US] = _UNBLOCK_US, _NETWORK_US
        w[w_.BACK_OFF_FIRST_US], w[w_.BACK_OFF_MOST_US] = _BACK_OFF_US
        return w_.World(
            w=w,
            heap_at=np.zeros(_HEAP + batch, np.int64),
            heap_what=np.zeros(_HEAP + batch, np.int64),
            publish_us=np.zeros(0, np.int64),
            hash_value=np.zeros(0, np.int64),
            number=np.zeros(n, np.int64),
            queue=np.full(n, scenario.queue, np.int64),
            processed=np.zeros(n, np.int64),
            slowness=np.ones(n, np.int64),
            latency_us=self._shared.latency_us,
            refuses=self._shared.refuses,
            plan=np.zeros(0, np.int64),
            attempts=np.zeros(0, np.int64),
            outcome=np.zeros(batch, np.int64),
            entries=np.zeros(batch, np.int64),
            replays=np.zeros(w_.REPLAYS_KEPT * batch, np.int64),
            replay_size=np.zeros(w_.REPLAYS_KEPT, np.int64),
            sent_acked=np.zeros(1 << 12, np.int64),
            permits_before=np.zeros(n, np.int64),
            first_of=np.full(n, -1, np.int64),
            last_of=np.zeros(n, np.int64),
            next_of=np.zeros(batch, np.int64),
        )

    def _fit_to_stretch(self, publish_us: npt.NDArray[np.int64], published: Published) -> None:
        """The arrays that follow the present stretch of the log, and the room for lines that a step may need."""
        w, batch, entries = self._world.w, len(self._world.entries), len(publish_us)
        refusals = entries if self._scenario.trace else 0
        w[w_.MORE] = self._publishing.left > 0
        w[w_.ROOM] = room = 4 * batch + 2 * self._connections + 2 * refusals + 64
        self._world = self._world._replace(
            publish_us=publish_us,
            hash_value=self._hash_values(published),
            plan=np.zeros(entries + 3, np.int64),
            attempts=np.zeros(2 * refusals + 3, np.int64),
        )
        if room + LINES > len(self._lines.kind):
            self._lines = w_.new_lines(LINES + 2 * room, 2 * LINES + 2 * room)

    # --- what kinds of dispatchers differ in -----------------------------------------------------------------

    @property
    @abstractmethod
    def state(self) -> st_.State:
        """The state of the core."""

    @abstractmethod
    def _loop(self, until: int) -> int:
        """Let happen what happens before ``until`` without the control plane; returns why it stopped."""

    @abstractmethod
    def _step_in(self, reason: int) -> None:
        """What the loop stopped for and only this kind of dispatcher has."""

    @abstractmethod
    def _join(self, change: Change) -> None:
        """A client subscribes."""

    @abstractmethod
    def _leave(self, change: Change) -> None:
        """A client disconnects."""

    @abstractmethod
    def _extend(self, published: Published) -> int:
        """The core forgets entries that cannot matter any more and takes the next ones in; returns how many it forgot."""

    @abstractmethod
    def _hashes(self, published: Published) -> npt.NDArray[np.int64]:
        """Sticky key hashes of entries."""

    @abstractmethod
    def _hash_values(self, published: Published) -> npt.NDArray[np.int64]:
        """The hash behind every hash id of the state, whose latest entries are ``published``."""

    # --- the whole life --------------------------------------------------------------------------------------

    def run(self) -> int:
        """Live it; returns how many entries were never acknowledged (0, unless the release loses sight of some)."""
        for change in self._changes:
            self._go_on(self._not_before(change.at_us))
            if change.joins:
                self._join(change)
            else:
                self._leave(change)
        for _ in range(_QUIET_ATTEMPTS):
            self._go_on(w_.NEVER)
            if self._all_acknowledged():
                break
            w_.attempt_at(self._world, int(self._world.w[w_.NOW]) + _BACK_OFF_US[1])
        self._line(kinds.END)
        self._hand_over()
        stored = self.state.deleted[: int(self._world.w[w_.STORED])]
        return int(len(stored) - stored.sum())

    def _not_before(self, at_us: int) -> int:
        """When a membership change that is due can take place."""
        return at_us

    def _all_acknowledged(self) -> bool:
        return int(self.state.s[st_.MARK_DELETE]) + 1 == len(self.state.deleted)

    def _go_on(self, until: int) -> None:
        """Let happen what happens before ``until``."""
        while True:
            reason = self._loop(until)
            if reason in (w_.CHANGE_DUE, w_.NOTHING_LEFT):
                return
            if reason == w_.STRETCH_USED_UP:
                self._next_stretch()
            elif reason == w_.LINES_FULL:
                self._hand_over()
            elif reason == w_.HEAP_FULL:
                size = 2 * len(self._world.heap_at)
                self._world = self._world._replace(
                    heap_at=w_.grown(self._world.heap_at, size),
                    heap_what=w_.grown(self._world.heap_what, size),
                )
            else:
                self._step_in(reason)

    def _next_stretch(self) -> None:
        """The next entries are published."""
        self._hand_over()
        published = self._publishing.take()
        drop = self._extend(published)
        w = self._world.w
        w[w_.BASE] += drop
        w[w_.STORED] -= drop
        publish_us = np.concatenate([self._world.publish_us[drop:], published.publish_us])
        self._fit_to_stretch(publish_us, published)
        self._sink.published(published, self._hashes(published))

    def _connect(self, change: Change, slot: int, number: int) -> None:
        """A new connection has its slot; the client's first permits arrive a little later."""
        self._numbers[change.who] = number
        self._world.number[slot] = number
        self._world.slowness[slot] = self._slowness(change.who)
        flow = w_.event(w_.FLOW, slot, self._scenario.queue)
        w_.push(self._world, self._now + _FIRST_FLOW_US, flow)

    def _slowness(self, who: int) -> int:
        slow = self._scenario.slow_consumers
        if who >= slow:
            return 1
        least, most = _SLOW
        return least + (most - least) * who // max(slow - 1, 1)

    # --- lines -----------------------------------------------------------------------------------------------

    @property
    def _now(self) -> int:
        return int(self._world.w[w_.NOW])

    def _hand_over(self) -> None:
        """The lines so far go to the sink."""
        self._sink.lines(self._lines)
        self._lines.n[:] = 0

    def _line(self, kind: int, consumer: int = 0, a: int = 0, b: int = 0, c: int = 0) -> bool:
        """Write a line; returns whether it did: those of a trace only into one."""
        if kind >= kinds.FIRST_OF_TRACE and not self._scenario.trace:
            return False
        self._make_room()
        w_.line4(self._lines, kind, self._now, consumer, a, b, c, 0)
        return True

    def _make_room(self) -> None:
        """Room for the lines of one step."""
        room = int(self._world.w[w_.ROOM])
        if int(self._lines.n.max()) + room > len(self._lines.kind):
            self._hand_over()

    def _added(self, number: int, client: Client) -> None:
        """The line of a consumer that is added."""
        self._sink.client(number, client)
        self._line(kinds.CONSUMER_ADDED, number, *self._cursor())

    def _cursor(self) -> tuple[int, int]:
        """Read position and mark-delete position."""
        s, base = self.state.s, int(self._world.w[w_.BASE])
        return int(s[st_.READ_POSITION]) + base, int(s[st_.MARK_DELETE]) + base
