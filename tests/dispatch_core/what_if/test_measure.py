"""Figures of a load's outcome: checked by hand on small logs, and against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.replay.whole_log import audit_whole
from dispatch_core.what_if.measure import Measures, Spread, Waits, measures, together
from tests.dispatch_core.audit.small_logs import ack, added, message, numbered, read, removed, sent, write

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"

weighed = st.lists(st.tuples(st.integers(0, 10**10), st.integers(1, 5)), min_size=1, max_size=600)


def waits(values: list[tuple[int, int]]) -> Waits:
    us, count = np.array(values, np.int64).reshape(-1, 2).T
    return Waits.of(us, count)


def measured(folder: Path, messages: list[Any], events: list[Any], **header: Any) -> Measures:
    log = read(write(folder / "a" / "b", messages, numbered(events), **header))
    return measures(log, audit_whole(log))


@given(weighed)
def test_percentiles_are_those_of_all_single_waits(values: list[tuple[int, int]]) -> None:
    single = np.repeat([us for us, _ in values], [count for _, count in values])
    spread = waits(values).spread()
    for share, found in ((50, spread.p50), (99, spread.p99), (100, spread.max)):
        assert found == pytest.approx(np.percentile(single, share) / 1000, abs=0.001)


@given(weighed)
def test_buckets_keep_the_number_the_longest_and_each_wait_nearly(values: list[tuple[int, int]]) -> None:
    exact, coarse = waits(values), waits(values).coarse()
    assert coarse.count.sum() == exact.count.sum()
    assert coarse.us[-1] == exact.us[-1]
    each, nearly = (np.repeat(waits.us, waits.count) for waits in (exact, coarse))
    assert (np.abs(each - nearly) <= each / 256 + 1).all()


def test_nothing_has_no_waits() -> None:
    assert Waits().spread() == Spread() == Waits.sum([]).spread()
    nothing = together([])
    assert (nothing.topics, nothing.throughput_per_s, nothing.max_share_ratio) == (0, None, None)


def test_a_recording_with_violations_has_the_counts_of_its_audit() -> None:
    log = read(SAMPLES / "designed-rolling-restart-classic-ch")
    found = measures(log, audit_whole(log))
    assert (found.out_of_order, found.split_key, found.redelivered, found.order_violations) == (
        23,
        40,
        238,
        63,
    )
    assert (found.messages, found.never_sent, found.topics) == (720, 0, 1)
    assert sum(found.messages_of.values()) == 720 + 238
    assert sum(found.fair_of.values()) == pytest.approx(720 + 238)


def test_waits_are_of_messages_and_of_keys_the_longest(tmp_path: Path) -> None:
    """Make a log with entries published at midnight and sent 2, 3 and 4 seconds later; the second has three messages."""
    messages = [message(0, "a"), message(1, "b", num_messages=3), message(2, "a")]
    found = measured(tmp_path, messages, [added(1), sent(1, 0), sent(1, 1), sent(1, 2)])
    assert found.wait_ms == Spread(3000.0, 3960.0, 4000.0)
    assert found.key_wait_ms_max == Spread(3500.0, 3990.0, 4000.0)
    assert (found.entries, found.messages, found.throughput_per_s) == (3, 5, round(5 / 3, 3))
    assert (found.messages_of, found.keys_of) == ({"worker-1": 5}, {"worker-1": 2})


def test_repeated_deliveries_wait_for_nothing_but_count_as_load(tmp_path: Path) -> None:
    events = [added(1), added(2), sent(1, 0), removed(1), sent(2, 0), ack(2, 0)]
    found = measured(tmp_path, [message(0, "a")], events)
    assert (found.messages, found.redelivered, found.wait_ms.max) == (1, 1, 3000.0)
    assert found.messages_of == {"worker-1": 1, "worker-2": 1}


def test_never_sent_counts_from_where_the_subscription_begins(tmp_path: Path) -> None:
    messages = [message(entry, "a") for entry in range(6)]
    folder = write(tmp_path / "a" / "b", messages, numbered([added(1), sent(1, 2), sent(1, 4)]))
    log = read(folder)
    audit = audit_whole(log)
    assert measures(log, audit).never_sent == 2  # 3 and 5
    assert measures(log, audit, begin=(5, 1)).never_sent == 3
    assert measures(log, audit, begin=(4, 9)).never_sent == 4


def test_nothing_sent_is_everything_never_sent(tmp_path: Path) -> None:
    found = measured(tmp_path, [message(0, "a"), message(1, None)], [added(1)])
    assert (found.messages, found.never_sent, found.wait_ms, found.until_us) == (0, 2, Spread(), None)


def test_order_that_was_not_promised_is_not_violated(tmp_path: Path) -> None:
    messages = [message(0, "a"), message(1, "a")]
    backwards = [sent(1, 1), sent(1, 0)]
    assert measured(tmp_path / "1", messages, [added(1), *backwards]).out_of_order == 1
    allowed = measured(tmp_path / "2", messages, [added(1, allow_out_of_order=True), *backwards])
    assert (allowed.out_of_order, allowed.order_uncertain, allowed.keys_out_of_order) == (0, 0, 0)


def test_what_a_gap_leaves_open_is_counted_apart(tmp_path: Path) -> None:
    messages = [message(0, "a"), message(1, "a")]
    events = [added(1), sent(1, 1), sent(1, 0) | {"seq": 9}]
    found = measured(tmp_path, messages, events)
    assert (found.order_violations, found.order_uncertain) == (0, 1)


def test_failover_topics_count_for_who_was_active_longest(tmp_path: Path) -> None:
    log = read(SAMPLES / "designed-failover-modulo-p1")
    found = measures(log, audit_whole(log))
    assert found.active_topics == {"c0": 0, "c1": 0, "c2": 0, "c3": 1}
    assert found.max_share_ratio is None
    assert found.fair_of == {}


def test_many_together_add_up() -> None:
    waiting = Waits.of(np.array([1000, 3000]), np.array([1, 1]))
    ones = [
        Measures(
            topics=1,
            messages=2,
            split_key=1,
            blocked_message_s=0.1,
            messages_of={"x": 2},
            active_topics={"x": int(at < 3), "y": int(at >= 3)},
            from_us=at,
            until_us=1_000_000 + at,
            waits=waiting,
        )
        for at in range(4)
    ]
    all_ = together(ones)
    assert (all_.topics, all_.messages, all_.order_violations, all_.blocked_message_s) == (4, 8, 4, 0.4)
    assert all_.active_topics == {"x": 3, "y": 1}
    assert all_.max_share_ratio == 1.5  # 3 of 4 topics, where 2 would be fair
    assert all_.wait_ms == Spread(2.0, 3.0, 3.0)
    assert all_.throughput_per_s == pytest.approx(8.0, abs=0.001)
