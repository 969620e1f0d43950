"""One simulated Key_Shared dispatcher from its first consumer to its last acknowledgement.

Control plane around ``key_shared_loop``: membership changes, requests to send again, and the next stretch of the log, all by
the methods of the dispatcher itself. Between two of them the loop runs compiled.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dispatch_core import state as st_
from dispatch_core.errors import SelectorRefusedError
from dispatch_core.key_shared import KeySharedDispatcher
from dispatch_core.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.multiple_consumers import Pairs, Released
from dispatch_core.profiles import Dispatcher, OrderingRule
from dispatch_core.selectors.assignments import Range
from dispatch_core.simulation import answers, kinds
from dispatch_core.simulation import key_shared_loop as loop
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.churn import JOIN_GAP_US, LEAST_PAUSE_US, Change, changes
from dispatch_core.simulation.publishing import KeySpace, Published, Publishing
from dispatch_core.simulation.scenario import Scenario, ScenarioError
from dispatch_core.simulation.sink import Sink
from dispatch_core.simulation.tables import Client

#: Lines that are handed over at once.
LINES: Final = 1 << 18
_READ_US: Final = 400
_WRITE_US: Final = 400
_HOP_US: Final = 50
_NETWORK_US: Final = 150
_UNBLOCK_US: Final = 10_000
_BACK_OFF_US: Final = (1_000, 10_000)
_FIRST_FLOW_US: Final = 500
#: Slow consumers take so many times as long, spread over this range.
_SLOW: Final = (10, 50)
#: Read attempts after which a dispatcher that has entries left, and nothing under way, is given up.
_QUIET_ATTEMPTS: Final = 5
_HASH_SLOTS: Final = 65536


class KeySharedRun:
    """The life of one dispatcher; ``run`` lives it."""

    def __init__(self, scenario: Scenario, dispatcher: int, keys: KeySpace, sink: Sink) -> None:
        """Raises ``ProfileError`` or ``UnsupportedRuleError`` for rules that cannot be simulated."""
        self._scenario = scenario
        self._sink = sink
        self.profile = scenario.profile_of(dispatcher)
        start_us = scenario.start_us + scenario.consumers * JOIN_GAP_US + LEAST_PAUSE_US
        self._changes = changes(scenario, dispatcher, start_us)
        self._publishing = Publishing(scenario, dispatcher, keys, start_us)
        self._sticky = self.profile.hash_space.sticky_array(keys.h31)
        classic = self.profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC
        core = ClassicKeySharedDispatcher if classic else KeySharedDispatcher
        self._connections = sum(change.joins for change in self._changes)
        first = self._publishing.take()
        hashes = self._sticky[first.key]
        self.core: KeySharedDispatcher = core(
            self.profile, hashes, np.ones(len(first), np.int64), self._connections
        )
        self._numbers: dict[int, int] = {}  # who → number of its connection
        self._connected = 0
        self._parts: dict[int, int] = {}  # STICKY: number → part of the hash space
        self._world = self._new_world(first, np.random.default_rng([scenario.seed, dispatcher, 3]))
        room = int(self._world.w[w_.ROOM])
        self._lines = w_.new_lines(LINES + room, 2 * LINES + room)
        sink.published(first, hashes)

    def _new_world(self, first: Published, random: np.random.Generator) -> w_.World:
        scenario, profile, n = self._scenario, self.profile, self._connections
        batch = profile.number("dispatcherMaxReadBatchSize")
        w = np.zeros(w_.N_SCALARS, np.int64)
        w[w_.ATTEMPT_AT] = w[w_.READ_READY_AT] = w_.NEVER
        w[w_.LAST_SENT] = -1
        w[w_.MORE] = self._publishing.left > 0
        w[w_.TRACE] = scenario.trace
        w[w_.CLASSIC] = profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC
        w[w_.RETRY_BACK_OFF] = "retry_backoff" in profile.changes and not w[w_.CLASSIC]
        w[w_.EMPTY_WHEN_WAITED] = "waiting_read_gets_entries" not in profile.changes
        w[w_.LOOK_AHEAD_NEEDS_MORE] = self.core.look_ahead_needs_more()
        w[w_.REMOVALS_SHOWN] = "last_sent_position" not in profile.changes
        w[w_.RELEASES_SHOWN] = profile.ordering is OrderingRule.DRAINING_HASHES
        w[w_.READ_US], w[w_.WRITE_US], w[w_.HOP_US] = _READ_US, _WRITE_US, _HOP_US
        w[w_.UNBLOCK_US], w[w_.NETWORK_US] = _UNBLOCK_US, _NETWORK_US
        w[w_.BACK_OFF_FIRST_US], w[w_.BACK_OFF_MOST_US] = _BACK_OFF_US
        return w_.World(
            w=w,
            heap_at=np.zeros(1 << 16, np.int64),
            heap_what=np.zeros(1 << 16, np.int64),
            number=np.zeros(n, np.int64),
            queue=np.full(n, scenario.queue, np.int64),
            processed=np.zeros(n, np.int64),
            slowness=np.ones(n, np.int64),
            latency_us=answers.latencies(random, scenario.ack_us),
            refuses=answers.refusals(random, scenario.nack_share),
            entries=np.zeros(batch, np.int64),
            replays=np.zeros(w_.REPLAYS_KEPT * batch, np.int64),
            replay_size=np.zeros(w_.REPLAYS_KEPT, np.int64),
            sent_acked=np.zeros(1 << 12, np.int64),
            outcome=np.zeros(batch, np.int64),
            permits_before=np.zeros(n, np.int64),
            first_of=np.full(n, -1, np.int64),
            last_of=np.zeros(n, np.int64),
            next_of=np.zeros(batch, np.int64),
            **self._of_stretch(first, w, batch),
        )

    def _of_stretch(self, published: Published, w: st_.I64, batch: int) -> dict[str, st_.I64]:
        """The arrays that follow the present stretch of the log, and the room its lines need."""
        entries = len(self.core.state.deleted)
        refusals = entries if w[w_.TRACE] else 0
        w[w_.ROOM] = 4 * batch + 2 * self._connections + 2 * refusals + 64
        return {
            "publish_us": published.publish_us,
            "hash_value": self.core.hash_values(),
            "plan": np.zeros(entries + 3, np.int64),
            "attempts": np.zeros(2 * refusals + 3, np.int64),
        }

    # --- the whole life --------------------------------------------------------------------------------------

    def run(self) -> int:
        """Live it; returns how many entries were never acknowledged (0, unless the release loses sight of some)."""
        for change in self._changes:
            self._go_on(change.at_us)
            if change.joins:
                self._join(change)
            else:
                self._leave(change)
        for _ in range(_QUIET_ATTEMPTS):
            self._go_on(w_.NEVER)
            if self._all_acknowledged():
                break
            w = self._world.w
            w_.attempt_at(self._world, int(w[w_.NOW]) + _BACK_OFF_US[1])
        self._line(kinds.END)
        self._hand_over()
        left = self.core.state.deleted[: int(self._world.w[w_.STORED])]
        return int(len(left) - left.sum())

    def _all_acknowledged(self) -> bool:
        return int(self.core.state.s[st_.MARK_DELETE]) + 1 == len(self.core.state.deleted)

    def _go_on(self, until: int) -> None:
        """Let happen what happens before ``until``."""
        while True:
            reason = loop.run(self.core.state, self._world, self._lines, until)
            if reason in (loop.CHANGE_DUE, loop.NOTHING_LEFT):
                return
            if reason == loop.STRETCH_USED_UP:
                self._next_stretch()
            elif reason == loop.LINES_FULL:
                self._hand_over()
            elif reason == loop.HEAP_FULL:
                self._grow_heap()
            else:
                self._send_again()

    def _next_stretch(self) -> None:
        """Entries that cannot matter any more are forgotten, the next ones are published."""
        self._hand_over()
        published = self._publishing.take()
        w = self._world.w
        self._tell_core()
        drop = self.core.droppable()
        hashes = self._sticky[published.key]
        kept = self._world.publish_us[drop:]
        self.core.extend(drop, hashes, np.ones(len(published), np.int64))
        w[w_.BASE] += drop
        w[w_.STORED] -= drop
        w[w_.MORE] = self._publishing.left > 0
        made = self._of_stretch(published, w, len(self._world.entries))
        made["publish_us"] = np.concatenate([kept, published.publish_us])
        self._world = self._world._replace(**made)  # type: ignore[arg-type]
        room = int(w[w_.ROOM])
        if room + LINES > len(self._lines.kind):
            self._lines = w_.new_lines(LINES + 2 * room, 2 * LINES + 2 * room)
        self._sink.published(published, hashes)

    def _tell_core(self) -> None:
        """What the loop has sent, for what the dispatcher keeps outside its state."""
        w, base = self._world.w, int(self._world.w[w_.BASE])
        count = int(w[w_.N_SENT_ACKED])
        self.core.sent_alone(
            int(w[w_.LAST_SENT]) - base, (self._world.sent_acked[:count] - base).tolist() if count else ()
        )
        w[w_.N_SENT_ACKED] = 0

    def _grow_heap(self) -> None:
        size = 2 * len(self._world.heap_at)
        self._world = self._world._replace(
            heap_at=w_.grown(self._world.heap_at, size), heap_what=w_.grown(self._world.heap_what, size)
        )

    def _hand_over(self) -> None:
        """The lines so far go to the sink."""
        self._sink.lines(self._lines)
        self._lines.n[:] = 0

    # --- lines -----------------------------------------------------------------------------------------------

    def _line(self, kind: int, consumer: int = 0, a: int = 0, b: int = 0, c: int = 0) -> None:
        """Write a line; those of a trace only into one."""
        if kind >= kinds.FIRST_OF_TRACE and not self._scenario.trace:
            return
        if int(self._lines.n[0]) + int(self._world.w[w_.ROOM]) > len(self._lines.kind):
            self._hand_over()
        w_.line4(self._lines, kind, int(self._world.w[w_.NOW]), consumer, a, b, c, 0)

    def _cursor(self) -> tuple[int, int]:
        """Read position and mark-delete position."""
        s, base = self.core.state.s, int(self._world.w[w_.BASE])
        return int(s[st_.READ_POSITION]) + base, int(s[st_.MARK_DELETE]) + base

    def _drained(self, draining: Pairs, returned: list[Released]) -> None:
        for consumer, hash_value in draining:
            self._line(kinds.DRAINING_ADD, consumer, hash_value)
        for item in returned:
            self._line(kinds.DRAINING_RELEASE, item.consumer, item.hash, 0, item.ref_count_before)

    # --- membership ------------------------------------------------------------------------------------------

    def _join(self, change: Change) -> None:
        """A client subscribes; its first permits arrive a little later."""
        self._tell_core()
        w, s = self._world.w, self.core.state.s
        number = self._connected = self._connected + 1
        first = int(s[st_.N_CONSUMERS]) == 0
        name, ranges = f"consumer-{change.who}", self._ranges(number)
        self.core.join(number, name)
        if first and not s[st_.REWIND_DUE]:
            self._line(kinds.REWIND, 0, *self._cursor())
        self._sink.client(number, Client(name, change.who, ranges or ()))
        self._line(kinds.CONSUMER_ADDED, number, *self._cursor())
        try:
            moved = self.core.select_in(number, ranges)
        except SelectorRefusedError as error:
            raise ScenarioError(f"consumer {change.who} of {self._scenario.consumers}: {error}") from error
        self._line(kinds.SELECTOR_ADDED, number)
        self._drained(*self.core.register(moved, skip=number))
        slot = self.core.slot(number)
        self._numbers[change.who] = number
        self._world.number[slot] = number
        self._world.slowness[slot] = self._slowness(change.who)
        w[w_.WATCHES_NEWCOMERS] = bool(self.core.newcomers())
        flow = w_.event(w_.FLOW, slot, self._scenario.queue)
        w_.push(self._world, int(w[w_.NOW]) + _FIRST_FLOW_US, flow)

    def _slowness(self, who: int) -> int:
        slow = self._scenario.slow_consumers
        if who >= slow:
            return 1
        least, most = _SLOW
        return least + (most - least) * who // max(slow - 1, 1)

    def _ranges(self, number: int) -> list[Range] | None:
        """The part of the hash space a consumer announces (STICKY): all have equal parts, it takes the first free one."""
        if self._scenario.key_shared_mode != "STICKY":
            return None
        parts = self._scenario.consumers
        at = next(part for part in range(parts) if part not in self._parts.values())
        self._parts[number] = at
        return [(_HASH_SLOTS * at // parts, _HASH_SLOTS * (at + 1) // parts - 1)]

    def _leave(self, change: Change) -> None:
        """A client disconnects. What it holds is sent to others, unless it is done with it before."""
        self._tell_core()
        number = self._numbers.pop(change.who)
        self._parts.pop(number, None)
        if change.finishes:
            self._finish(number)
        self._line(kinds.CONSUMER_REMOVING, number)
        moved = self.core.select_out(number)
        self._line(kinds.SELECTOR_REMOVED, number)
        left = self.core.drop(number, moved)
        for item in left.closed:
            self._line(kinds.DRAINING_RELEASE, number, item.hash, 1, item.ref_count_before)
        self._drained(left.draining, left.returned)
        if left.cleared:
            self._nobody_left()
        early = bool(self._world.w[w_.CLASSIC]) or "last_sent_position" in self.profile.changes
        if early and not left.cleared:
            self._attempt()
        again = self.core.forget(number)
        if early and again and not left.cleared:
            self._attempt()
        self._world.w[w_.WATCHES_NEWCOMERS] = bool(self.core.newcomers())
        self._line(kinds.CONSUMER_REMOVED, number, *self._cursor())
        self.core.state.s[st_.DRAIN_NOTICE] = 0  # the read that follows looks at everything
        w_.attempt_at(self._world, int(self._world.w[w_.NOW]) + _HOP_US)

    def _attempt(self) -> None:
        """A read attempt inside a membership change."""
        if int(self._lines.n[0]) + int(self._world.w[w_.ROOM]) > len(self._lines.kind):
            self._hand_over()
        loop.attempt(self.core.state, self._world, self._lines)

    def _finish(self, number: int) -> None:
        """All that the consumer holds is acknowledged."""
        slot, step = self.core.slot(number), 1000
        held = np.array(self.core.held(number), np.int64)
        for at in range(0, len(held), step):
            self._hand_over()
            loop.acknowledge_all(self.core.state, self._world, self._lines, slot, held[at : at + step])

    def _nobody_left(self) -> None:
        """The last consumer has left: a read that waits for entries is cancelled."""
        w, s = self._world.w, self.core.state.s
        if s[st_.PENDING_READ]:
            waits = int(w[w_.READ_READY_AT]) > int(w[w_.NOW])
            self._line(kinds.READ_CANCELLED, 0, int(waits))
            if waits:
                w[w_.READ_NUMBER] += 1
                self.core.read_cancelled()
        if w[w_.RELEASES_SHOWN]:
            self._line(kinds.DRAINING_CLEAR)

    # --- requests to send again ------------------------------------------------------------------------------

    def _send_again(self) -> None:
        """A consumer asks for an entry again (negative ack)."""
        w = self._world.w
        slot, entry = int(w[w_.NACKED_SLOT]), int(w[w_.NACKED_ENTRY]) - int(w[w_.BASE])
        number = self.core.number_of(slot)
        position = int(w[w_.NACKED_ENTRY])
        held_hash = self.core.hash_value(int(self.core.state.pending_hash[entry]))
        released = self.core.pending_ack_removed(entry)
        if w[w_.REMOVALS_SHOWN]:
            self._line(kinds.PENDING_ACK_REMOVED, number, held_hash)
            self._item(position)
            if w[w_.RELEASES_SHOWN]:
                self._line(kinds.DRAINING_RELEASE, number, released.hash, 0, released.ref_count_before)
        messages = self.core.redeliver(number, [entry])
        self._line(kinds.REDELIVER, number)
        w_.item(self._lines, position)
        parked = int(self.core.state.parked_permits[slot])
        if self.core.redelivered(number, messages):
            loop.permits_applied(self.core.state, self._world, self._lines, slot, parked)
        loop.unblocked(self.core.state, self._world)
        w_.attempt_at(self._world, int(w[w_.NOW]) + _HOP_US)

    def _item(self, position: int) -> None:
        if self._scenario.trace:
            w_.item(self._lines, position)
