"""Statistics at a moment are the broker's own: from a trace, and from a log of level E wherever a value is called known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import pyarrow.compute as pc
import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.moment_statistics import as_json, statistics_at
from dispatch_core.replay.traced_state import NoStateError
from tests.dispatch_core.audit.small_logs import (
    ack,
    added,
    flow,
    message,
    numbered,
    read,
    redeliver,
    removed,
    sent,
    write,
)
from tests.dispatch_core.logs_without_trace import DATA, log_of, stripped
from tests.dispatch_core.replay.moments import (
    Written,
    busy_moments,
    differences,
    moments_behind,
    quiet_moments,
    verified,
)
from tests.dispatch_core.replay.traced_stats import raw

DRAIN = "recordings/4.2.4/designed-drain-one-by-one-ch"
ROLLING = "recordings/4.2.4/designed-rolling-restart-ch"
CLASSIC = "recordings/4.2.4/designed-rolling-restart-classic-ch"
PREVIEW = "verify/4.0.0-preview.1/designed-slow-owner-newcomer-ch"
FAILOVER = "recordings/4.2.4/designed-failover-modulo-p1"
#: In DRAIN: the middle of the silence behind seq 115, while c2 waits for six hashes of c1.
SILENT_US = 1_795_249_219_204_021
SHARED = "operations/4.2.4/shared-0014-quiet"
#: Each rule, and the fewest values of level E that a run compares.
RECORDINGS = {
    DRAIN: 40,
    "recordings/4.2.4/designed-negative-acks-ch": 40,
    "verify/4.2.4/designed-sticky-in-order": 40,
    "verify/4.2.4/random-0000-range-quiet": 40,
    "verify/4.0.0/designed-away-and-back-ch": 40,
    CLASSIC: 40,
    "verify/4.2.4/random-0008-classic-ch-quiet": 40,
    PREVIEW: 40,
    "verify/4.0.0-preview.1/designed-max-unacked-half-ch": 25,
    SHARED: 40,
    "operations/4.2.4/shared-0005-racing": 3,
    "operations/4.2.4/shared-0012-classic-quiet": 40,
    FAILOVER: 40,
    "verify/4.2.4/designed-failover-ring-p1": 40,
}

Events = list[dict[str, Any]]


class Small(Protocol):
    """Writes a small log of 4.2.4 and reads it: lines a second apart, the last ``near`` of them a millisecond."""

    def __call__(
        self, events: Events, keys: list[str] | None = None, *, near: int = 0, **header: Any
    ) -> DispatcherLog: ...


@pytest.fixture
def small(tmp_path: Path) -> Small:
    def made(events: Events, keys: list[str] | None = None, *, near: int = 0, **header: Any) -> DispatcherLog:
        lines = numbered(events)
        for at in range(len(lines) - near, len(lines)):
            lines[at]["t_us"] = lines[at - 1]["t_us"] + 1000
        keys = keys or [f"k{number}" for number in range(10)]
        messages = [message(number, key) for number, key in enumerate(keys)]
        return read(write(tmp_path / f"log-{len(list(tmp_path.iterdir()))}", messages, lines, **header))

    return made


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name", [DRAIN, CLASSIC, PREVIEW, SHARED, "operations/4.2.4/shared-0012-classic-quiet"]
)
def test_a_trace_gives_the_values_that_the_broker_wrote_down(name: str) -> None:
    log, lines = log_of(name), raw(DATA / name)
    moments = moments_behind(lines, "read_attempt_end", 5) + moments_behind(lines, "round_end", 3)
    compared = Counter[str]()
    for t_us in sorted({*moments, *quiet_moments(log, 3)}):
        shown, written = statistics_at([log], t_us), Written.at(lines, t_us)
        assert shown.level == "T"
        if written.counters is not None:
            counters = {
                own.known["consumer"]: (own.known["availablePermits"], own.known["unackedMessages"])
                for own in shown.consumers
            }
            assert counters == written.counters, t_us
            compared["counters"] += len(counters)
        if written.in_replay is not None:
            assert shown.values.known["msgInReplay"] == written.in_replay, t_us
            compared["in_replay"] += 1
        if name == DRAIN:
            listed = {(item["consumer"], item["hash"]): item["unackMsgs"] for item in shown.draining}
            assert listed == written.refs, t_us
            assert all(len(item["messageIds"]) == item["unackMsgs"] for item in shown.draining)
            compared["draining"] += len(listed)
    assert compared["counters"] >= 5
    assert compared["in_replay"] >= 2 or name == SHARED
    assert (compared["draining"] >= 6) == (name == DRAIN)


@pytest.mark.parametrize("name", [FAILOVER, "verify/4.2.4/designed-failover-ring-p1"])
def test_a_trace_of_failover_gives_the_permits_that_the_broker_wrote_down(name: str) -> None:
    """Each delivery says how many permits its consumer had just before."""
    log, lines = log_of(name), raw(DATA / name)
    compared = 0
    for before, line in pairwise(lines):
        if line["kind"] != "sent" or before["t_us"] == line["t_us"] or compared >= 8:
            continue
        shown = statistics_at([log], before["t_us"])
        permits = {own.known["consumer"]: own.known["availablePermits"] for own in shown.consumers}
        assert permits[line["consumer"]] == line["permits_before"], line["seq"]
        assert shown.values.known["activeConsumer"] == line["consumer"]
        compared += 1
    assert compared >= 5


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", RECORDINGS)
def test_without_a_trace_a_known_value_is_that_of_the_trace(name: str) -> None:
    """In silences values are known, and right; at busy moments fewer are, and they are right, too."""
    log, lines = log_of(name), raw(DATA / name)
    moments = sorted({*quiet_moments(log, 5), *busy_moments(log, 8)})
    without = stripped(log)
    moments = [t_us for t_us in moments if t_us >= (without.start_t_us or 0)]
    compared, wrong = Counter[str](), []
    for t_us in moments:
        shown = statistics_at([without], t_us)
        assert shown.level == "E"
        wrong += [f"{t_us}: {text}" for text in differences(shown, verified(log, t_us), compared)]
        written = Written.at(lines, t_us).counters or {}
        for own in shown.consumers:
            permits, unacked = written.get(own.known["consumer"], (None, None))
            if permits is not None and "availablePermits" in own.known:
                assert own.known["availablePermits"] == permits, t_us
                compared["raw"] += 1
            if (
                unacked is not None
                and "unackedMessages" in own.known
                and "Failover" not in shown.values.known.values()
            ):
                assert own.known["unackedMessages"] == unacked, t_us
                compared["raw"] += 1
    assert wrong == []
    names = (
        "availablePermits",
        "unackedMessages",
        "avgMessagesPerEntry",
        "keyHashRangeArrays",
        "drainingHashes",
    )
    assert (
        sum(compared[each] + compared[f">= {each}"] for each in names) + compared["raw"] >= RECORDINGS[name]
    )


def test_what_holds_a_draining_hash_is_told_without_a_trace() -> None:
    """In the silence while c2 waits: the same list as from the trace, but for the attempts, which no line shows."""
    log = log_of(DRAIN)
    compared = 0
    for t_us in quiet_moments(log, 5):
        traced, untraced = (statistics_at([each], t_us) for each in (log, stripped(log)))
        assert untraced.draining_doubt is None
        known = [
            {name: item[name] for name in item if name not in ("blockedAttempts", "since_t_us")}
            for item in traced.draining
        ]
        assert [
            {name: item[name] for name in item if name != "since_t_us"} for item in untraced.draining
        ] == known
        for item, true in zip(untraced.draining, traced.draining, strict=True):
            # The trace writes the beginning a moment after the join, which level E has.
            assert 0 <= true["since_t_us"] - item["since_t_us"] < 50_000
            compared += 1
    assert compared >= 6


# --- history ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_bound_of_what_was_read_holds(name: str) -> None:
    """The trace counts the entries of its reads; the bound of level E is never above."""
    log = log_of(name)
    traced, untraced = (statistics_at([each]).reads for each in (log, stripped(log)))
    lines = raw(DATA / name)
    assert traced.read == sum(len(line["positions"]) for line in lines if line["kind"] == "read_done")
    assert (
        traced.delivered
        == untraced.delivered
        == sum(len(line["positions"]) for line in lines if line["kind"] == "sent")
    )
    assert untraced.read is None
    assert traced.delivered <= untraced.at_least <= traced.read


def test_an_entry_delivered_behind_a_later_one_was_read_before(small: Small) -> None:
    """c1 gets 5:1 after 5:2, so 5:1 was read twice; c2 gets 5:3 after c1 got 5:4, which one read may have returned."""
    log = small([added(1), added(2), flow(1), flow(2), sent(1, 0, 2, 4), sent(2, 3), sent(1, 1)])
    reads = statistics_at([log]).reads
    assert (reads.delivered, reads.read, reads.at_least) == (5, None, 6)
    assert reads.amplification_at_least == 1.2


def test_keys_that_changed_consumer(small: Small) -> None:
    """k0 goes to c2 behind its join and back behind its leave; k1 stays; k2 goes with the leave of c1."""
    events = [
        added(1), flow(1), sent(1, 0, 1, 2), added(2), flow(2), sent(2, 3), sent(1, 4), sent(1, 5),
        removed(2), sent(1, 6), added(3), flow(3), removed(1), sent(3, 8),
    ]  # fmt: skip
    keys = ["k0", "k1", "k2", "k0", "k1", "k2", "k0", "k1", "k2"]
    log = small(events, keys)
    changes = statistics_at([log]).changes
    assert changes is not None
    assert (changes.keys, changes.changes) == (2, 3)
    printed = [(change.joined, change.consumer, change.keys) for change in changes.by_change]
    assert printed == [(True, 1, 0), (True, 2, 1), (False, 2, 1), (True, 3, 0), (False, 1, 1)]
    assert [(moved.key, moved.changes, moved.consumers) for moved in changes.worst] == [
        ("k0", 2, (1, 2, 1)),
        ("k2", 1, (1, 3)),
    ]
    later = statistics_at([log], from_us=changes.by_change[2].t_us).changes
    assert later is not None
    assert (later.keys, later.changes, later.worst[0].key) == (2, 2, "k0")


def test_rates_count_every_message_of_every_consumer() -> None:
    log = log_of(ROLLING)
    shown = statistics_at([stripped(log)])
    lines = raw(DATA / ROLLING)
    sums = Counter[int]()
    for line in lines:
        if line["kind"] == "sent":
            sums[line["consumer"]] += sum(line["batch_sizes"])
    assert dict(zip(shown.rates.consumers, shown.rates.messages.sum(axis=1).tolist(), strict=True)) == sums
    # Half of the time, from a moment on.
    middle = lines[len(lines) // 2]["t_us"]
    half = statistics_at([stripped(log)], from_us=middle).rates
    later = sum(
        sum(line["batch_sizes"]) for line in lines if line["kind"] == "sent" and line["t_us"] >= middle
    )
    assert half.messages.sum() == later


def test_the_rate_is_over_the_window(small: Small) -> None:
    log = small([added(1), flow(1), sent(1, 0, 1, 2), sent(1, 3)])  # lines are a second apart
    shown = statistics_at([log], window_us=1_500_000)
    assert shown.consumers[0].known["msgRateOut"] == pytest.approx(4 / 1.5)
    assert statistics_at([log], window_us=500_000).consumers[0].known["msgRateOut"] == pytest.approx(2)
    assert shown.consumers[0].known["msgOutCounter"] == 4


# --- what is not known -----------------------------------------------------------------------------------------------


def test_what_may_not_have_taken_effect_gives_a_bound(small: Small) -> None:
    """1,000 permits were counted long ago, 10 arrived with the last line; 5:2 may be sent but not counted yet."""
    log = small([added(1), flow(1, 1000), sent(1, 0, 1), ack(1, 0), flow(1, 10), sent(1, 2)], near=2)
    (own,) = statistics_at([log]).consumers
    assert own.at_least["availablePermits"] == 1000 + 10 - 3 - 10
    assert own.at_least["unackedMessages"] == 1
    assert "avgMessagesPerEntry" in own.not_known
    assert not {"availablePermits", "unackedMessages"} & own.known.keys()
    (own,) = statistics_at(
        [small([added(1), flow(1, 1000), sent(1, 0, 1), ack(1, 0), flow(1, 10), added(2)])]
    ).consumers[:1]
    assert (own.known["availablePermits"], own.known["unackedMessages"]) == (1008, 1)


def test_a_consumer_that_may_have_been_blocked_has_unknown_permits(small: Small) -> None:
    limit = {"maxUnackedMessagesPerConsumer": 3}
    log = small([added(1), flow(1), sent(1, 0, 1), ack(1, 0), sent(1, 2), added(2)], config=limit)
    own = statistics_at([log]).consumers[0]
    assert own.known["availablePermits"] == 97
    log = small([added(1), flow(1), sent(1, 0, 1, 2), ack(1, 0, 1, 2), flow(1, 5), added(2)], config=limit)
    own = statistics_at([log]).consumers[0]
    assert "blocked" in own.not_known["availablePermits"]
    assert own.known["unackedMessages"] == 0


def test_messages_of_batches_acknowledged_one_by_one_leave_counters_open(small: Small) -> None:
    log = small([added(1), flow(1), sent(1, 0), ack(1, 0, sets=[[2]]), added(2)])
    own = statistics_at([log]).consumers[0]
    assert "one by one" in own.not_known["unackedMessages"]


def test_lost_lines_leave_everything_open_but_what_was_sent() -> None:
    log = stripped(log_of(DRAIN))
    keep = [row for row in range(log.events.num_rows) if row != 3]
    shown = statistics_at([replace(log, events=log.events.take(keep))], SILENT_US)
    assert [own.not_known["availablePermits"] for own in shown.consumers] == [
        "lines of the log are missing"
    ] * 2
    assert shown.draining_doubt == "lines of the log are missing"
    assert all(own.known["msgOutCounter"] > 0 for own in shown.consumers[:1])


def test_without_a_release_lines_are_all_there_is() -> None:
    log = stripped(log_of(DRAIN))
    header = {name: value for name, value in log.header.items() if name != "broker_version"}
    shown = statistics_at([replace(log, header=header)], SILENT_US)
    assert [own.known["consumerName"] for own in shown.consumers] == ["c1", "c2"]
    assert "names no broker_version" in shown.notes[0]
    assert shown.rates.messages.sum() > 0
    assert as_json(shown)["rules"] is None


def test_where_no_line_is_as_early() -> None:
    log = log_of(DRAIN)
    with pytest.raises(NoStateError, match="no line is as early as 5"):
        statistics_at([log], 5)
    with pytest.raises(NoStateError, match="no line has a time"):
        statistics_at([replace(log, events=log.events.slice(0, 0))])


def test_a_long_trace_is_read_without_it() -> None:
    shown = statistics_at([log_of(DRAIN)], largest_trace=10)
    assert shown.level == "E"
    assert "more than 10" in shown.notes[0]


def test_the_incarnation_of_the_moment_is_shown() -> None:
    first = stripped(log_of(DRAIN))
    column = first.events.column_names.index("t_us")
    minute_later = pc.add(first.events["t_us"], 60_000_000)
    later = replace(first, incarnation=2, events=first.events.set_column(column, "t_us", minute_later))
    t_us = quiet_moments(first, 1)[0]
    assert statistics_at([first, later], t_us).log is first
    assert statistics_at([first, later]).log is later


def test_an_entry_that_is_sent_while_it_is_held_leaves_its_counter_open(small: Small) -> None:
    """The broker counts it twice. After a redelivery request it is not held, and everything is known."""
    log = small([added(1), flow(1), sent(1, 0, 1), sent(1, 1), ack(1, 0, 1), added(2)])
    own = statistics_at([log]).consumers[0]
    assert "twice" in own.not_known["unackedMessages"]
    log = small([added(1), flow(1), sent(1, 0, 1), redeliver(1, 1), sent(1, 1), ack(1, 0), added(2)])
    own = statistics_at([log]).consumers[0]
    assert own.known["unackedMessages"] == 1


def test_a_move_of_the_cursor_leaves_counters_open(small: Small) -> None:
    """A skip passes entries that are held: nobody says when the broker forgets them."""
    moved = {"kind": "cursor_moved", "by": "skip", "from": "5:0", "to": "5:2"}
    log = small([added(1), flow(1), sent(1, 0, 1, 2), moved, flow(1), added(2)])
    shown = statistics_at([log])
    assert "cursor was moved" in shown.consumers[0].not_known["unackedMessages"]
    assert "msgInReplay" in shown.values.not_known
    assert "msgBacklog" in shown.values.not_known


@pytest.mark.parametrize("kind", ["Shared", "Failover"])
def test_behind_a_checkpoint_consumers_are_known_and_counters_are_not(small: Small, kind: str) -> None:
    checkpoint = {"kind": "checkpoint", "consumers": [{"consumer": 1, "name": "w"}], "mark_delete": "5:-1"}
    log = small([checkpoint, flow(1), sent(1, 0), added(2), flow(2)], subscription_type=kind)
    first, second = statistics_at([log]).consumers
    assert (first.known["consumerName"], second.known["consumerName"]) == ("w", "worker-2")
    assert "checkpoint" in first.not_known["availablePermits"]
    empty = {"kind": "checkpoint", "consumers": [], "mark_delete": "5:-1"}
    log = small([empty, added(1), flow(1), sent(1, 0), added(2), flow(2)], subscription_type=kind)
    assert statistics_at([log]).consumers[0].known["availablePermits"] == 99


def test_lost_lines_of_shared_leave_counters_open(small: Small) -> None:
    lines = numbered([added(1), flow(1), sent(1, 0), sent(1, 1), added(2)])
    log = small([line for line in lines if line["seq"] != 3], subscription_type="Shared")
    assert statistics_at([log]).consumers[0].not_known["availablePermits"] == "lines of the log are missing"
