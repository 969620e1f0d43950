"""Parts of the simulated world: the heap, the plan of joins and leaves, the times of consumers' answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dispatch_core.simulation import answers, churn
from dispatch_core.simulation import world as w_
from dispatch_core.simulation.publishing import KeySpace
from dispatch_core.simulation.scenario import CHURNS
from tests.dispatch_core.simulation.simulated import small


def empty_world(**arrays: Any) -> w_.World:
    nothing = np.zeros(0, np.int64)
    fields = dict.fromkeys(w_.World._fields, nothing)
    fields |= {"w": np.zeros(w_.N_SCALARS, np.int64), "refuses": np.zeros(0, np.uint8), **arrays}
    return w_.World(**fields)  # type: ignore[arg-type]


@given(st.lists(st.one_of(st.none(), st.integers(0, 50)), max_size=60))
@settings(deadline=None)
def test_events_come_out_in_the_order_of_their_times(steps: list[int | None]) -> None:
    """Taking out (``None``) returns the earliest of the numbers put in."""
    world = empty_world(heap_at=np.zeros(64, np.int64), heap_what=np.zeros(64, np.int64))
    inside: list[tuple[int, int]] = []
    for number, step in enumerate(steps):
        if step is not None:
            w_.push(world, step, number)
            inside.append((step, number))
        elif inside:
            what = int(w_.pop(world))
            at = int(world.w[w_.NOW])
            assert at == min(inside)[0]
            inside.remove((at, what))
    assert int(world.w[w_.HEAP]) == len(inside)


@example(w_.TURN, (1 << 23) - 1, (1 << 36) - 1)
@given(st.integers(0, w_.TURN), st.integers(0, (1 << 23) - 1), st.integers(0, (1 << 36) - 1))
def test_an_event_keeps_its_parts(kind: int, slot: int, number: int) -> None:
    """Kind, slot and number share one integer, also where all of them are as large as ``MOST`` allows."""
    what = w_.event(kind, slot, number)
    assert (w_.kind_of(what), w_.slot_of(what), w_.number_of(what)) == (kind, slot, number)


@given(
    st.sampled_from(CHURNS),
    st.integers(1, 6),
    st.integers(0, 40),
    st.integers(0, 6),
    st.integers(0, 5),
)
@settings(deadline=None)
def test_consumers_alternate_and_are_all_there_in_the_end(
    plan: str, consumers: int, wanted: int, crashing: int, seed: int
) -> None:
    """No consumer joins twice or leaves unconnected; there are pauses; the number of consumers stays the same."""
    scenario = small(
        churn=plan,
        consumers=consumers,
        membership_changes=wanted,
        crashing_consumers=min(crashing, consumers),
        seed=seed,
    )
    made = churn.changes(scenario, 0, 10_000_000)
    assert [change.at_us for change in made] == sorted(change.at_us for change in made)
    connected: set[int] = set()
    last: dict[int, int] = {}
    for change in made:
        assert (change.who in connected) is not change.joins
        (connected.add if change.joins else connected.discard)(change.who)
        assert len(connected) <= consumers
        if change.who in last:
            assert change.at_us - last[change.who] >= churn.LEAST_PAUSE_US
        last[change.who] = change.at_us
    assert len(connected) == consumers


def test_answers_depend_on_the_delivery_alone() -> None:
    """A delivery always has the same answer time; slow consumers take a multiple of it; the mean is as set."""
    random = np.random.default_rng(1)
    world = empty_world(
        latency_us=answers.latencies(random, 5_000),
        refuses=answers.refusals(random, 0.1),
        slowness=np.array([1, 20]),
    )
    first = [int(answers.answers_after(world, 0, number, 0)) for number in range(20_000)]
    assert first == [int(answers.answers_after(world, 0, number, 0)) for number in range(20_000)]
    assert np.mean(first) == pytest.approx(5_000, rel=0.05)
    assert np.mean([answers.answers_after(world, 1, n, 0) for n in range(5_000)]) > 15 * 5_000
    again = [bool(answers.requests_redelivery(world, 0, number, 0)) for number in range(20_000)]
    assert np.mean(again) == pytest.approx(0.1, rel=0.2)
    both = [n for n in range(20_000) if again[n] and answers.requests_redelivery(world, 0, n, 1)]
    assert len(both) < 0.2 * sum(again)  # redelivery requests end


def test_permits_come_half_a_queue_at_a_time() -> None:
    """Permits are granted as by ConsumerImpl; a queue of one message grants each."""
    queue = np.array([10, 1])
    world = empty_world(queue=queue, taken=np.zeros(2, np.int64), granted=queue.copy())
    assert [int(answers.permits_due(world, 0, 1)) for _ in range(10)] == [0, 0, 0, 0, 5, 0, 0, 0, 0, 5]
    assert [int(answers.permits_due(world, 1, 1)) for _ in range(3)] == [1, 1, 1]
    assert int(answers.permits_due(world, 0, 7)) == 7  # a batch of seven


def test_keys_have_the_hashes_of_their_names() -> None:
    """Key number 1 is ``key-1``, whose hash is known."""
    keys = KeySpace(3, 1.0)
    assert keys.names.to_pylist() == ["key-0", "key-1", "key-2"]
    assert int(keys.h31[1]) == 414258592
