"""Recorded clients under other rules: what they acknowledge instead, ask for, and take ahead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.simulation.dispatcher_run import Delays
from dispatch_core.simulation.world import NEVER
from dispatch_core.what_if.clients import (
    Borrowed,
    Deliveries,
    RecordedClients,
    asked_for_all,
    borrowed_turns,
    clients_of,
    last_parts,
    left_after,
    taken_ahead,
)
from dispatch_core.what_if.connections import Join
from dispatch_core.what_if.recorded import RecordedLoad, Request, load_of
from dispatch_core.what_if.rules import named
from dispatch_core.what_if.run import deliveries_of, simulate
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    ack,
    added,
    flow,
    message,
    numbered,
    read,
    removed,
    sent,
    write,
)

MS = 1_000


def at(line: dict[str, Any], ms: int) -> dict[str, Any]:
    return line | {"t_us": T0_US + ms * MS}


def log_of(
    folder: Path, lines: list[dict[str, Any]], kind: str = "Key_Shared", keys: int = 40, messages: int = 1
) -> DispatcherLog:
    """Make a log of entries of as many keys, published at its beginning."""
    published = [
        message(entry, f"key-{entry}", publish_time_ms=T0_US // 1000 + 1, num_messages=messages)
        for entry in range(keys)
    ]
    return read(write(folder / "a" / "b", published, numbered(lines), subscription_type=kind))


def deliveries(*rows: tuple[int, int, int]) -> Deliveries:
    """Deliveries: time in ms, consumer, entry."""
    at_ms, consumer, entry = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return Deliveries(at_ms * MS, consumer, entry, Delays(), np.zeros(0, np.int64))


def acked(log: DispatcherLog, consumer: int) -> list[tuple[int, int]]:
    """The acks of a consumer in a log: ms and entry."""
    lines = log.events.filter(
        pc.and_(pc.equal(log.events["kind"], "ack"), pc.equal(log.events["consumer"], consumer))
    )
    found = []
    for line in lines.to_pylist():
        found += [((line["t_us"] - T0_US) // MS, position["entry_id"]) for position in line["positions"]]
    return found


def two_steps(folder: Path, first: int, second: int) -> DispatcherLog:
    """Make a Failover log whose active consumer acknowledges some entries at 100 ms and some more at 200 ms, of 40."""
    entries = range(40)
    lines = [
        at(added(1), 0),
        at(flow(1, 100), 0),
        at(added(2) | {"priority_level": 1}, 1),
        at(flow(2, 100), 1),
    ]
    lines += [at(sent(1, *entries), 10)]
    lines += [at(ack(1, entry), 100) for entry in entries[:first]]
    lines += [at(ack(1, entry), 200) for entry in entries[first : first + second]]
    return log_of(folder, [*lines, at(removed(2), 400), at(removed(1), 400)], "Failover")


def all_to_the_active(load: RecordedLoad) -> Deliveries:
    """Deliveries of all entries to consumer 1 at 10 ms."""
    known = deliveries(*((10, 1, entry) for entry in range(len(load.stored_us))))
    return replace(known, at_us=known.at_us + T0_US, stored_us=load.stored_us)


def test_a_client_that_acknowledged_some_of_what_it_had_acknowledges_as_many_of_other_entries(
    tmp_path: Path,
) -> None:
    """10 of 40 entries at 100 ms, and 10 at 200 ms: with half of the keys as many, though they are other entries."""
    log = two_steps(tmp_path, 10, 10)
    load = load_of(log)
    simulated = simulate(load, named("ch").profile_for(log), deliveries=all_to_the_active(load))
    times = [ms for ms, _ in acked(simulated, 1)]
    assert [times.count(100), times.count(200)] == [10, len(times) - 10]
    assert len(times) <= 20
    entries = [entry for _, entry in acked(simulated, 1)]
    assert len(set(entries)) == len(entries)
    assert entries[10:] != list(range(10, 20))


def test_a_client_that_had_nothing_left_acknowledges_all_that_it_has(tmp_path: Path) -> None:
    """All 40 at 100 ms: what it gets by then of other rules is acknowledged at 100 ms, too."""
    log = two_steps(tmp_path, 40, 0)
    load = load_of(log)
    simulated = simulate(load, named("ch").profile_for(log), deliveries=all_to_the_active(load))
    lines = simulated.events.filter(pc.equal(simulated.events["kind"], "sent")).to_pylist()
    got = sum(len(line["positions"]) for line in lines if line["consumer"] == 1)
    assert 0 < got < 40
    assert [ms for ms, _ in acked(simulated, 1)] == [100] * got


def test_what_is_left_after_an_answer() -> None:
    """10 entries at 10 ms and two at 200 ms: 0 and 1 are answered at 100 ms, the rest of the ten at 300 ms."""
    sent_at = deliveries(*((10, 1, entry) for entry in range(10)), (200, 1, 10), (200, 1, 11))
    answer = np.array([100 * MS] * 2 + [300 * MS] * 8 + [NEVER] * 2, np.int64)
    left = left_after(sent_at, answer)
    assert left.ends_us[:2].tolist() == [0, 0]  # of those that came together eight were left
    assert left.until_us[:2].tolist() == [NEVER, NEVER]
    assert left.busy[:10].tolist() == [True] * 10
    assert (
        left.ends_us[2:10].tolist() == [30 * MS] * 8
    )  # all that came together, and nothing of what came later
    everything = left_after(sent_at, np.full(12, 300 * MS))
    assert everything.ends_us.tolist() == [NEVER] * 12
    assert not everything.busy.any()


def test_what_was_received_before_the_answered_entry_keeps_no_client_busy() -> None:
    sent_at = deliveries((10, 1, 0), (200, 1, 1), (200, 1, 2))
    left = left_after(sent_at, np.array([NEVER, 300 * MS, 301 * MS], np.int64))
    assert left.busy.tolist() == [False, True, False]


def test_a_client_that_ran_out_of_entries_borrows_turns() -> None:
    """At 100 ms client 1 answers three of five entries, client 2 its only one and client 3 nothing; client 4 comes later."""
    sent_at = deliveries(*((10, 1, entry) for entry in range(5)), (10, 2, 5))
    answer = np.array([100 * MS] * 3 + [NEVER] * 2 + [100 * MS], np.int64)
    connected = {1: (0, NEVER), 2: (0, NEVER), 3: (0, NEVER), 4: (150 * MS, NEVER)}
    number, us = np.array([1, 1, 1, 2]), np.array([100, 101, 102, 103]) * MS
    found = borrowed_turns(number, us, sent_at, answer, connected)
    assert found == [Borrowed(2, [3, 3], 100 * MS, 103 * MS), Borrowed(3, [0, 1, 2], 100 * MS, 103 * MS)]
    sooner = borrowed_turns(number, np.array([100, 101, 102, 101]) * MS, sent_at, answer, connected)
    assert sooner[0].places == [3, 2]


def test_nobody_borrows_from_a_client_that_ran_out_of_entries_too() -> None:
    sent_at = deliveries((10, 1, 0), (10, 1, 1), (10, 2, 2))
    answer = np.full(3, 100 * MS, np.int64)
    connected = {1: (0, NEVER), 2: (0, NEVER)}
    assert not borrowed_turns(np.array([1, 1, 2]), np.full(3, 100 * MS), sent_at, answer, connected)


def test_a_client_that_ran_out_of_entries_acknowledges_as_many_as_others(tmp_path: Path) -> None:
    """Under the recorded rules consumer 2 got two entries and answered both, consumer 1 five of many."""
    lines = [at(added(1, "c1"), 0), at(added(2, "c2"), 0), at(flow(1, 100), 1), at(flow(2, 100), 1)]
    end = [at(removed(1), 400), at(removed(2), 400)]
    log = log_of(tmp_path, [*lines, *end])
    load = load_of(log)
    profile = named("ch").profile_for(log)
    got = [line["positions"] for line in simulate(load, profile).events.to_pylist() if line["kind"] == "sent"]
    first, second = (sorted(position["entry_id"] for position in some) for some in got[:2])
    acks = [at(ack(1, *first[:5]), 100), at(ack(2, *second[:2]), 101)]
    shown = load_of(log_of(tmp_path / "with acks", [*lines, *acks, *end]))
    known = deliveries(*((5, 1, entry) for entry in first), *((5, 2, entry) for entry in second[:2]))
    assert min(len(first), len(second)) > 5
    simulated = simulate(shown, profile, deliveries=replace(known, stored_us=shown.stored_us))
    assert [len(acked(simulated, consumer)) for consumer in (1, 2)] == [5, 5]


def test_an_ack_in_the_midst_of_others_is_not_their_end() -> None:
    """The last of a group is answered together with some of the next group: what was sent first may still be left over."""
    sent_at = deliveries((10, 1, 0), (100, 1, 1), (100, 1, 2))
    left = left_after(sent_at, np.array([200, 201, 400]) * MS)
    assert left.ends_us.tolist() == [0, 0, NEVER]


def test_a_client_that_answers_in_any_order_has_not_ended_with_the_last_one() -> None:
    """Of five entries that came together it answers the last two: it had three left."""
    sent_at = deliveries(*((10, 1, entry) for entry in range(5)))
    left = left_after(sent_at, np.array([NEVER, NEVER, NEVER, 100 * MS, 101 * MS]))
    assert left.ends_us[3:].tolist() == [0, 0]


def test_connections_of_one_name_are_one_client_only_if_they_follow_each_other(tmp_path: Path) -> None:
    same = {"name": "worker"}
    lines = [
        at(added(1) | same, 0),
        at(added(2) | same, 1),
        at(removed(1), 50),
        at(added(3) | same, 60),
        at(flow(2, 1), 70),
    ]
    load = load_of(log_of(tmp_path, lines))
    who = clients_of(load)
    assert who[1] == who[3] != who[2]
    other = Join(5, 9, "worker-9", 0, None, 0, (), like=2)
    assert clients_of(load, [other])[9] == who[2]


def test_permits_show_how_far_a_client_takes_ahead(tmp_path: Path) -> None:
    """It granted 20 more when it had acknowledged 5: it had taken 15 that it had not acknowledged."""
    lines = [at(added(1), 0), at(flow(1, 20), 0), at(sent(1, *range(20)), 10)]
    lines += [at(ack(1, entry), 20) for entry in range(5)]
    load = load_of(log_of(tmp_path, [*lines, at(flow(1, 20), 30)]))
    assert taken_ahead(load) == {1: 15}


def test_a_client_takes_ahead_after_its_last_recorded_grant(tmp_path: Path) -> None:
    """A standby of Failover that took its queue at once, and acknowledged nothing, is not starved by its few permits."""
    entries = range(40)
    lines = [at(added(1), 0), at(flow(1, 4), 0), at(sent(1, *entries[:4]), 10), at(flow(1, 4), 11)]
    lines += [at(sent(1, *entries[4:8]), 12), at(ack(1, 0), 300)]
    load = load_of(log_of(tmp_path, [*lines, at(removed(1), 400)], "Failover"))
    assert taken_ahead(load) == {1: 4}
    log = simulate(
        load,
        named("ch").profile_for(log_of(tmp_path / "x", lines, "Failover")),
        deliveries=deliveries_of(load),
    )
    lines_sent = log.events.filter(pc.equal(log.events["kind"], "sent")).to_pylist()
    assert sum(len(line["positions"]) for line in lines_sent) >= 8


@pytest.mark.parametrize(
    ("named_entries", "for_all"), [((1, 2), True), ((1,), False), ((2, 3), False), ((1, 2, 7), True)]
)
def test_a_request_that_names_all_asks_for_everything(named_entries: tuple[int, ...], for_all: bool) -> None:
    """The consumer has 1 and 2: it acknowledged 0, and was never sent 3."""
    sent_at = deliveries((10, 1, 0), (10, 1, 1), (10, 1, 2))
    answer = np.array([20 * MS, NEVER, NEVER])
    found = asked_for_all([Request(30 * MS, 1, named_entries)], sent_at, answer)
    assert found == (frozenset({0}) if for_all else frozenset())


def test_the_last_message_of_a_batch_is_the_answer(tmp_path: Path) -> None:
    """Three messages in an entry, acknowledged one by one by two consumers; together they are done, each alone is not."""
    parts = [(1, [6]), (2, [5]), (1, [3])]
    lines = [at(added(1), 0), at(flow(1, 9), 0), at(added(2), 0), at(flow(2, 9), 0), at(sent(1, 0), 1)]
    lines += [
        at(ack(number, 0) | {"ack_sets": [words]}, 10 + step) for step, (number, words) in enumerate(parts)
    ]
    acks = load_of(log_of(tmp_path, lines, keys=1, messages=3)).acks
    assert last_parts(acks, None).tolist() == [False, False, True]
    assert last_parts(acks, acks.consumer).tolist() == [False, False, False]


def test_turns_are_the_times_of_acks_of_whole_entries(tmp_path: Path) -> None:
    log = two_steps(tmp_path, 10, 10)
    load = load_of(log)
    clients = RecordedClients(load, all_to_the_active(load))
    first, end = clients.connecting(_join_of(1), 0).turns
    acts = clients.acts
    assert ((acts.us[acts.turn_act[first:end]] - T0_US) // MS).tolist() == [100] * 10 + [200] * 10


def test_an_ack_of_an_entry_that_went_elsewhere_is_no_turn(tmp_path: Path) -> None:
    load = load_of(two_steps(tmp_path, 10, 10))
    known = all_to_the_active(load)
    elsewhere = replace(known, consumer=np.where(known.entry < 5, 2, 1))
    clients = RecordedClients(load, elsewhere)
    first, end = clients.connecting(_join_of(1), 0).turns
    assert clients.acts.entry[clients.acts.turn_act[first:end]].tolist() == list(range(5, 20))


def _join_of(number: int) -> Any:
    from dispatch_core.simulation.churn import Change

    return Change(0, True, number, number=number)
