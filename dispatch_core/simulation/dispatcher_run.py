"""Common base of the simulated dispatchers: time, batches of messages, lines of the log.

Control plane around a compiled loop: the loop runs until the control plane is needed, and returns why it stopped.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import state as st_
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.settings import TIMERS
from dispatch_core.errors import DispatchAuditError
from dispatch_core.simulation import kinds
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.answers import flows_due
from dispatch_core.simulation.churn import Change
from dispatch_core.simulation.publishing import MessageBatches, Published
from dispatch_core.simulation.sink import Sink
from dispatch_core.simulation.tables import Client

#: Lines that are passed to the sink at once.
LINES: Final = 1 << 18
#: Entries that a leaving consumer acknowledges in one step.
FINISHED_AT_ONCE: Final = 64
#: Read attempts after which the run ends, though entries are left, when no event is under way.
_QUIET_ATTEMPTS: Final = 5
_HEAP: Final = 1 << 14

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Delays:
    """Delays of the parts of the simulated broker, microseconds; the defaults are medians of recorded traces.

    ``read_us``: a normal read in the storage, ``replay_us``: a replay read. ``write_us``: writing a delivery to the
    connection. Each of these is longer by its ``…_entry_us`` for every entry. ``hop_us``: passing a task to the
    dispatcher's executor. ``network_us``: between broker and client, one way.
    """

    read_us: int = 400
    replay_us: int = 400
    write_us: int = 400
    hop_us: int = 50
    network_us: int = 150
    read_entry_us: int = 0
    replay_entry_us: int = 0
    write_entry_us: int = 0


def _take_time(w: Ints, delays: Delays) -> None:
    """Set the delays that hold from now on."""
    w[w_.READ_US], w[w_.WRITE_US], w[w_.HOP_US] = delays.read_us, delays.write_us, delays.hop_us
    w[w_.REPLAY_US], w[w_.NETWORK_US] = delays.replay_us, delays.network_us
    w[w_.READ_ENTRY_US], w[w_.REPLAY_ENTRY_US] = delays.read_entry_us, delays.replay_entry_us
    w[w_.WRITE_ENTRY_US] = delays.write_entry_us


@dataclass(frozen=True, slots=True)
class Pace:
    """A change of the broker's delays at a time."""

    from_us: int
    delays: Delays


@dataclass(frozen=True, slots=True)
class UnackedLimit:
    """A limit of unacknowledged messages per consumer that a policy sets at a time; ``None`` = the broker's setting."""

    from_us: int
    messages: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Unevenness:
    """Differences of single reads and writes, and of single hops, from the usual: a power of two of samples each.

    ``of_reads``, ``of_hops``: factors in 1/``world.EVEN``. ``stalls_us``: how much longer a read or a write takes besides.
    """

    of_reads: Ints
    of_hops: Ints
    stalls_us: Ints


#: A broker whose reads, writes and hops always take their usual time.
EVEN: Final = Unevenness(np.full(1, w_.EVEN), np.full(1, w_.EVEN), np.zeros(1, np.int64))
#: Upper limit of a timer, ms.
_LONGEST_TIMER: Final = 3_600_000


def timer_us(timers: Mapping[str, object], setting: str) -> int:
    """Return one of ``TIMERS`` in microseconds; the default for a value that is no number of milliseconds."""
    text = str(timers.get(setting, TIMERS[setting])).strip()
    known = text.isascii() and text.isdecimal() and len(text) < 10
    return min(int(text) if known else TIMERS[setting], _LONGEST_TIMER) * 1000


@dataclass(frozen=True, slots=True)
class Acts:
    """The acts of recorded clients and their times; see ``world.World`` for the arrays."""

    start: Ints
    us: Ints
    sent_us: Ints
    who: Ints
    number: Ints
    kind: Ints
    entry: Ints
    acked_us: Ints
    flow_us: Ints
    flow_permits: Ints
    like_start: Ints
    like_us: Ints
    like_answer_us: Ints
    like_busy: npt.NDArray[np.uint8]
    turn_act: Ints
    turn_until_us: Ints
    turn_ends_us: Ints
    requested: Mapping[int, Sequence[int]] = field(
        default_factory=dict
    )  # by row: entry numbers; absent = all
    words: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # by row


_NOTHING: Final = np.zeros(0, np.int64)
#: The acts of synthetic clients: none.
NO_ACTS: Final = Acts(
    start=_NOTHING,
    us=_NOTHING,
    sent_us=_NOTHING,
    who=_NOTHING,
    number=_NOTHING,
    kind=_NOTHING,
    entry=_NOTHING,
    acked_us=_NOTHING,
    flow_us=_NOTHING,
    flow_permits=_NOTHING,
    like_start=_NOTHING,
    like_us=_NOTHING,
    like_answer_us=_NOTHING,
    like_busy=np.zeros(0, np.uint8),
    turn_act=_NOTHING,
    turn_until_us=_NOTHING,
    turn_ends_us=_NOTHING,
)


@dataclass(frozen=True, slots=True)
class Connecting:
    """A client that connects, as its ``consumer_added`` line describes it, and its behaviour from then on.

    ``flow_us``: when its first permits arrive; None = its flows are rows ``flows`` of ``Acts``. ``requests``: rows of
    ``Acts`` that are redelivery requests, by their times.
    """

    client: Client
    queue: int
    flow_us: int | None = None
    slowness: int = 1
    who: int = 0
    like: int = 0
    until_us: int = w_.NEVER
    flows: tuple[int, int] = (0, 0)
    turns: tuple[int, int] = (0, 0)
    ahead: int = 0
    foreseen: int = w_.NEVER
    requests: Sequence[tuple[int, int]] = ()


class Clients(Protocol):
    """The clients of one dispatcher."""

    @property
    def latency_us(self) -> Ints:
        """Latencies of synthetic clients, a power of two of samples."""

    @property
    def refuses(self) -> npt.NDArray[np.uint8]:
        """As many samples: 1 = the client requests a redelivery of the entry."""

    @property
    def acts(self) -> Acts | None:
        """The acts of recorded clients; None = the clients are synthetic."""

    def connecting(self, change: Change, now_us: int) -> Connecting:
        """Describe a client that connects."""

    def left(self, change: Change) -> None:
        """Note that a client has left, or was refused."""

    def refused(self, change: Change, error: DispatchAuditError) -> None:
        """Note that the broker refused a client; raises where that must not happen."""


@dataclass(frozen=True, slots=True)
class Given:
    """The input of a dispatcher's run.

    ``timers``: settings by their ``broker.conf`` names, of which ``TIMERS`` are used. ``changes``: by time. ``until_us``:
    the end of its log; ``NEVER`` = when all is acknowledged. ``delays``: those of the simulated broker at first; ``paces``:
    their changes, by time; ``uneven``: how much single ones differ from them. ``unacked_limits``: those of policies, by
    time. ``salt``: a number that makes its synthetic clients differ from those of another dispatcher.
    """

    profile: Profile
    topic: str
    partition_index: int
    changes: Sequence[Change]
    publishing: MessageBatches
    clients: Clients
    trace: bool = False
    exclusive: bool = False
    salt: int = 0
    until_us: int = w_.NEVER
    delays: Delays = Delays()
    timers: Mapping[str, object] = field(default_factory=dict)
    paces: Sequence[Pace] = ()
    uneven: Unevenness = EVEN
    unacked_limits: Sequence[UnackedLimit] = ()


class DispatcherRun(ABC):
    """The run of a dispatcher from its first consumer to its last acknowledgement.

    A subclass makes its core, then calls ``_begin``.
    """

    def __init__(self, given: Given, sink: Sink) -> None:
        self.profile: Profile = given.profile
        self._given = given
        self._clients = given.clients
        self._acts = given.clients.acts or NO_ACTS
        self._sink = sink
        self._connections = sum(change.joins for change in given.changes)
        self._publishing = given.publishing
        self._numbers: dict[int, int] = {}  # who → number of its connection
        self._connected = 0  # connections so far
        due: list[Pace | UnackedLimit] = [*given.paces, *given.unacked_limits]
        self._due = deque(sorted(due, key=lambda change: change.from_us))
        self._lines = w_.new_lines(0, 0)

    def _begin(self, first: Published) -> None:
        """Make the world, with the first batch of messages."""
        self._world = self._new_world()
        self._fit_to_window(first.publish_us, first)
        self._sink.published(first, self._hashes(first))

    def _new_world(self) -> w_.World:
        given, profile, n = self._given, self.profile, max(self._connections, 1)
        batch = profile.number("dispatcherMaxReadBatchSize")
        acts = self._acts
        w = np.zeros(w_.N_SCALARS, np.int64)
        w[w_.ATTEMPT_AT] = w[w_.READ_READY_AT] = w_.NEVER
        w[w_.LAST_SENT] = -1
        w[w_.SALT] = given.salt
        w[w_.TRACE] = given.trace
        w[w_.RECORDED] = given.clients.acts is not None
        w[w_.EMPTY_WHEN_WAITED] = "waiting_read_gets_entries" not in profile.changes
        _take_time(w, given.delays)
        w[w_.UNBLOCK_US] = timer_us(given.timers, "keySharedUnblockingIntervalMs")
        w[w_.BACK_OFF_FIRST_US] = timer_us(given.timers, "dispatcherRetryBackoffInitialTimeInMs")
        w[w_.BACK_OFF_MOST_US] = timer_us(given.timers, "dispatcherRetryBackoffMaxTimeInMs")
        return w_.World(
            w=w,
            heap_at=np.zeros(_HEAP + batch, np.int64),
            heap_what=np.zeros(_HEAP + batch, np.int64),
            publish_us=np.zeros(0, np.int64),
            hash_value=np.zeros(0, np.int64),
            number=np.zeros(n, np.int64),
            queue=np.zeros(n, np.int64),
            taken=np.zeros(n, np.int64),
            ahead=np.zeros(n, np.int64),
            foreseen=np.zeros(n, np.int64),
            received=np.zeros(n, np.int64),
            granted=np.zeros(n, np.int64),
            slowness=np.ones(n, np.int64),
            who=np.zeros(n, np.int64),
            like=np.zeros(n, np.int64),
            until_us=np.full(n, w_.NEVER, np.int64),
            flow_next=np.zeros(n, np.int64),
            flow_end=np.zeros(n, np.int64),
            turn_next=np.zeros(n, np.int64),
            turn_end=np.zeros(n, np.int64),
            first_sent=np.full(n, -1, np.int64),
            last_sent=np.full(n, -1, np.int64),
            latency_us=given.clients.latency_us,
            refuses=given.clients.refuses,
            uneven=given.uneven.of_reads,
            uneven_hops=given.uneven.of_hops,
            stalls_us=given.uneven.stalls_us,
            act_start=acts.start,
            act_us=acts.us,
            act_sent_us=acts.sent_us,
            act_who=acts.who,
            act_number=acts.number,
            act_kind=acts.kind,
            act_entry=acts.entry,
            act_due=np.zeros(len(acts.us), np.uint8),
            acked_us=acts.acked_us,
            sent_us=np.zeros(len(acts.acked_us), np.int64),
            sent_next=np.full(len(acts.acked_us), -1, np.int64),
            sent_before=np.full(len(acts.acked_us), -1, np.int64),
            sent_slot=np.full(len(acts.acked_us), -1, np.int64),
            turned_to=np.zeros(len(acts.acked_us), np.int64),
            turn_act=acts.turn_act,
            turn_until_us=acts.turn_until_us,
            turn_ends_us=acts.turn_ends_us,
            flow_us=acts.flow_us,
            flow_permits=acts.flow_permits,
            like_start=acts.like_start,
            like_us=acts.like_us,
            like_answer_us=acts.like_answer_us,
            like_busy=acts.like_busy,
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

    def _fit_to_window(self, publish_us: npt.NDArray[np.int64], published: Published) -> None:
        """Make the arrays that follow the present window of the log, and the room for lines that a step may need."""
        w, batch, entries = self._world.w, len(self._world.entries), len(publish_us)
        refusals = entries if self._given.trace else 0
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

    # --- differences between kinds of dispatchers ------------------------------------------------------------

    @property
    @abstractmethod
    def state(self) -> st_.State:
        """The state of the core."""

    @abstractmethod
    def _loop(self, until: int) -> int:
        """Run the compiled loop until ``until``, or until the control plane is needed; returns why it stopped."""

    @abstractmethod
    def _step_in(self, reason: int) -> None:
        """Handle a stop of the loop that is particular to this kind of dispatcher."""

    @abstractmethod
    def _join(self, change: Change) -> None:
        """Connect a client."""

    @abstractmethod
    def _leave(self, change: Change) -> None:
        """Disconnect a client."""

    @abstractmethod
    def _extend(self, published: Published) -> int:
        """Move the window: forget entries that cannot matter any more, append the next ones; returns how many it forgot."""

    @abstractmethod
    def _hashes(self, published: Published) -> npt.NDArray[np.int64]:
        """Return the sticky key hashes of entries."""

    @abstractmethod
    def _hash_values(self, published: Published) -> npt.NDArray[np.int64]:
        """Return the hash behind every hash id of the state, whose latest entries are ``published``."""

    # --- the run ---------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run to the end; returns how many entries were never acknowledged (0, unless the release loses some)."""
        for change in self._given.changes:
            self._at_pace_until(change.at_us)
            self._go_on(self._not_before(change.at_us))
            if change.joins:
                self._join(change)
            else:
                self._leave(change)
        self._at_pace_until(self._given.until_us)
        for _ in range(_QUIET_ATTEMPTS):
            self._go_on(self._given.until_us)
            if self._all_acknowledged() or self._now >= self._given.until_us:
                break
            w_.attempt_at(self._world, self._now + int(self._world.w[w_.BACK_OFF_MOST_US]))
        self._line(kinds.END)
        self._flush_lines()
        stored = self.state.deleted[: int(self._world.w[w_.STORED])]
        return int(len(stored) - stored.sum())

    def _at_pace_until(self, at_us: int) -> None:
        """Run up to a time, applying the changes of delays and limits before it."""
        while self._due and self._due[0].from_us < at_us:
            change = self._due.popleft()
            self._go_on(max(change.from_us, self._now))
            if isinstance(change, Pace):
                _take_time(self._world.w, change.delays)
            else:
                self._limit_unacked(change.messages)

    @abstractmethod
    def _limit_unacked(self, messages: int | None) -> None:
        """Set the limit of unacknowledged messages per consumer that a policy sets; ``None`` = the broker's setting."""

    def _not_before(self, at_us: int) -> int:
        """Return the earliest time at which a membership change that is due can take place."""
        return at_us

    def _all_acknowledged(self) -> bool:
        return int(self.state.s[st_.MARK_DELETE]) + 1 == len(self.state.deleted)

    def _go_on(self, until: int) -> None:
        """Run all events before ``until``."""
        while True:
            reason = self._loop(until)
            if reason in (w_.CHANGE_DUE, w_.NOTHING_LEFT):
                return
            if reason == w_.WINDOW_USED_UP:
                self._next_batch()
            elif reason == w_.LINES_FULL:
                self._flush_lines()
            elif reason == w_.HEAP_FULL:
                self._grow_heap()
            else:
                self._step_in(reason)

    def _next_batch(self) -> None:
        """Publish the next batch of messages."""
        self._flush_lines()
        published = self._publishing.take()
        drop = self._extend(published)
        w = self._world.w
        w[w_.BASE] += drop
        w[w_.STORED] -= drop
        publish_us = np.concatenate([self._world.publish_us[drop:], published.publish_us])
        self._fit_to_window(publish_us, published)
        self._sink.published(published, self._hashes(published))

    def _number(self, change: Change) -> int:
        """Return the log's number of a new connection."""
        self._connected = change.number or self._connected + 1
        return self._connected

    def _connect(self, change: Change, slot: int, number: int, connecting: Connecting) -> None:
        """Enter a new connection into its slot; the client's first permits arrive a little later."""
        world = self._world
        self._numbers[change.who] = number
        world.number[slot] = number
        world.slowness[slot], world.queue[slot] = connecting.slowness, connecting.queue
        world.who[slot], world.until_us[slot] = connecting.who, connecting.until_us
        world.like[slot] = connecting.like
        world.flow_next[slot], world.flow_end[slot] = connecting.flows
        world.turn_next[slot], world.turn_end[slot] = connecting.turns
        world.ahead[slot], world.foreseen[slot] = connecting.ahead, connecting.foreseen
        if connecting.flow_us is not None:
            world.granted[slot] = connecting.queue
            w_.push(world, connecting.flow_us, w_.event(w_.FLOW, slot, connecting.queue))
            return
        flows_due(world, slot)
        for at_us, row in connecting.requests:
            self._make_room_in_heap()
            w_.push(self._world, at_us, w_.event(w_.ACT, slot, row))

    def _make_room_in_heap(self) -> None:
        if int(self._world.w[w_.HEAP]) + 8 > len(self._world.heap_at):
            self._grow_heap()

    def _grow_heap(self) -> None:
        size = 2 * len(self._world.heap_at)
        self._world = self._world._replace(
            heap_at=w_.grown(self._world.heap_at, size),
            heap_what=w_.grown(self._world.heap_what, size),
        )

    # --- lines -----------------------------------------------------------------------------------------------

    @property
    def _now(self) -> int:
        return int(self._world.w[w_.NOW])

    def _flush_lines(self) -> None:
        """Pass the lines so far to the sink."""
        self._sink.lines(self._lines)
        self._lines.n[:] = 0

    def _line(self, kind: int, consumer: int = 0, a: int = 0, b: int = 0, c: int = 0) -> bool:
        """Write a line; returns False, with nothing written, for a line of a trace where none is wanted."""
        if kind >= kinds.FIRST_OF_TRACE and not self._given.trace:
            return False
        self._make_room()
        w_.line4(self._lines, kind, self._now, consumer, a, b, c, 0)
        return True

    def _make_room(self, items: int = 0) -> None:
        """Make room for the lines of one step, and so many list items."""
        room = int(self._world.w[w_.ROOM]) + items
        if int(self._lines.n.max()) + room > len(self._lines.kind):
            self._flush_lines()

    def _requested(self, row: int) -> Sequence[int] | None:
        """Return the entry numbers that a recorded request names; None = all that its consumer holds."""
        return self._acts.requested.get(row)

    def _words(self, row: int) -> tuple[int, ...] | None:
        """Return the 64-bit words of a recorded ack of single messages of a batch."""
        return self._acts.words.get(row)

    def _redeliver_line(self, number: int, entries: Sequence[int] | None) -> None:
        """Write the line of a redelivery request; None = of everything."""
        self._make_room(len(entries or ()))
        self._line(kinds.REDELIVER, number, kinds.ALL if entries is None else 0)
        for entry in entries or ():
            w_.item(self._lines, entry)

    def _ack_line(self, number: int, entry: int, words: Sequence[int], *, up_to: bool = False) -> None:
        """Write the line of an ack of single messages of a batch, or of a cumulative one."""
        self._line(kinds.ACK, number, kinds.ack_details(self._sink.noted(words), up_to=up_to))
        w_.item(self._lines, entry)

    def _added_line(self, number: int, client: Client) -> None:
        """Write the line of a consumer that is added."""
        self._sink.client(number, client)
        self._line(kinds.CONSUMER_ADDED, number, *self._cursor())

    def _cursor(self) -> tuple[int, int]:
        """Return read position and mark-delete position."""
        s, base = self.state.s, int(self._world.w[w_.BASE])
        return int(s[st_.READ_POSITION]) + base, int(s[st_.MARK_DELETE]) + base
