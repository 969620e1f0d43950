"""Any history of a Failover dispatcher: the active consumer is connected, one read is pending, one order until a rewind."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dispatch_core.broker.profiles import resolve
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.single_active_rules import ActiveChange
from dispatch_core.broker.state import MARK_DELETE, READ_POSITION

ENTRIES = 60


def new_core() -> SingleActiveDispatcher:
    profile = resolve("4.2.4", {}, subscription_type="Failover", partition_index=0)
    return SingleActiveDispatcher(profile, "t", 0, exclusive=False, num_messages=np.ones(ENTRIES, np.int64))


def scalars(core: SingleActiveDispatcher) -> tuple[int, int]:
    return int(core.state.s[MARK_DELETE]), int(core.state.s[READ_POSITION])


class AnyHistory(RuleBasedStateMachine):
    """Joins, leaves, flow, acks, redelivery, reads that wait or run, delays: the invariants hold throughout."""

    def __init__(self) -> None:
        super().__init__()
        self.core = new_core()
        self.next = 1
        self.sent: dict[
            int, list[int]
        ] = {}  # by connection, since its last active-consumer change, request or rewind

    def change(self, changed: bool, cancelled: bool) -> None:
        if not changed:
            return
        if self.core.pending:
            self.core.cancel_read(cancelled=cancelled)
        step, notified = self.core.begin_active_change()
        assert (step is ActiveChange.WAITS_FOR_READ) == self.core.pending
        if step is ActiveChange.AT_ONCE:
            self.rewound(notified)

    def rewound(self, notified: tuple[tuple[int, int], ...]) -> None:
        assert notified == tuple((consumer, self.core.active) for consumer in self.core.members)
        self.sent.clear()

    @rule(
        name=st.sampled_from(["a", "b", "b", "c1", "c11"]), level=st.integers(0, 1), cancelled=st.booleans()
    )
    def join(self, name: str, level: int, cancelled: bool) -> None:
        pick = self.core.join(self.next, name, level)
        self.next += 1
        self.change(pick.changed, cancelled)

    @precondition(lambda self: self.core.members)
    @rule(data=st.data(), cancelled=st.booleans())
    def leave(self, data: st.DataObject, cancelled: bool) -> None:
        pick = self.core.leave(data.draw(st.sampled_from(self.core.members)))
        if pick is not None:
            self.change(pick.changed, cancelled)
        elif self.core.pending:
            self.core.cancel_read(cancelled=cancelled)

    @precondition(lambda self: self.core.delay_running)
    @rule()
    def delay_over(self) -> None:
        notified = self.core.delay_over()
        if self.core.active is not None:
            self.rewound(notified)
        self.sent.clear()

    @precondition(lambda self: self.core.members)
    @rule(data=st.data(), count=st.integers(1, 20))
    def flow(self, data: st.DataObject, count: int) -> None:
        consumer = data.draw(st.sampled_from(self.core.members))
        self.core.flow(consumer, count)
        if self.core.flow_reads(consumer):
            assert consumer == self.core.active
            self.core.attempt_read(consumer)

    @rule()
    def written(self) -> None:
        self.core.attempt_read(self.core.active)

    @precondition(lambda self: self.core.pending)
    @rule(most=st.integers(0, 20))
    def read_done(self, most: int) -> None:
        read = self.core._reads[0]
        start = read.start if read.start is not None else int(self.core.state.s[READ_POSITION])
        stored = [e for e in range(start, 60) if not self.core.state.deleted[e]]
        result = self.core.read_done(stored[: min(most, read.size)])
        if result.rewound:
            assert read.consumer != self.core.active
            self.sent.clear()
        if result.entries:
            consumer, before = self.core.send(result.entries)
            assert (consumer, before > 0) == (self.core.active, True)
            had = self.sent.setdefault(consumer, [])
            assert not had or had[-1] < result.entries[0]  # one order, until something rewinds
            had.extend(result.entries)

    @precondition(lambda self: self.core.members)
    @rule(data=st.data())
    def redeliver(self, data: st.DataObject) -> None:
        consumer = data.draw(st.sampled_from(self.core.members))
        waiting = self.core.pending
        if self.core.redeliver(consumer, cancelled=waiting):
            assert consumer == self.core.active
            self.sent.clear()
            self.core.attempt_read(consumer)

    @rule(entry=st.integers(0, 59), cumulative=st.booleans())
    def ack(self, entry: int, cumulative: bool) -> None:
        before = int(self.core.state.s[MARK_DELETE])
        (self.core.acknowledge_up_to if cumulative else self.core.acknowledge)(entry)
        assert self.core.state.s[MARK_DELETE] >= before

    @invariant()
    def active_is_connected(self) -> None:
        core = self.core
        assert (core.active in core.members) if core.members else core.active is None

    @invariant()
    def at_most_one_read_is_pending(self) -> None:
        assert len(self.core._reads) == int(self.core.pending)

    @invariant()
    def the_cursor_is_whole(self) -> None:
        mark_delete, read_position = scalars(self.core)
        deleted = self.core.state.deleted
        assert deleted[: mark_delete + 1].all()
        assert mark_delete + 1 == 60 or not deleted[mark_delete + 1]
        assert read_position > mark_delete


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
