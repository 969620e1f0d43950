"""Findings about the log itself: gaps, clock steps, consumers and positions that cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dispatch_core.audit.deliveries.log_checks import HANDLED_LATE_US
from dispatch_core.audit.deliveries.rows import Audit
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    Event,
    ack,
    added,
    audited,
    kinds,
    message,
    numbered,
    of_kind,
    read,
    redeliver,
    removed,
    sent,
    write,
)

KEYS = [message(entry, "k") for entry in range(6)]


@pytest.fixture
def audit(tmp_path: Path) -> Any:
    def run(events: list[Event], **header: Any) -> Audit:
        return audited(read(write(tmp_path / "a" / "b", KEYS, events, **header)))

    return run


def without(events: list[Event], *seqs: int) -> list[Event]:
    return [event for event in events if event["seq"] not in seqs]


def test_a_hole_in_seq_is_a_gap(audit: Any) -> None:
    events = numbered([added(1), sent(1, 0), ack(1, 0), sent(1, 1), sent(1, 2)])
    result = audit(without(events, 3, 4))
    (finding,) = of_kind(result, "log_gap")
    assert (finding["reason"], finding["seqs"]) == ("seq_hole", [2, 5])
    assert "2 lines are missing between seq 2 and seq 5" in finding["explanation"]
    assert kinds(result) == {"log_gap": [""]}


def test_a_gap_line_is_one_gap_and_fills_its_hole(audit: Any) -> None:
    events = numbered([added(1), sent(1, 0), ack(1, 0), sent(1, 1), sent(1, 2)])
    gap = {"kind": "gap", "seq": 3, "t_us": T0_US + 3_000_000, "from": 3, "to": 4, "lost": 2}
    result = audit([*without(events, 3, 4), gap])
    (finding,) = of_kind(result, "log_gap")
    assert (finding["reason"], finding["seqs"]) == ("gap_line", [3])
    assert "2 lines are missing, seq 3 to 4" in finding["explanation"]


def test_a_log_that_begins_late_has_lost_its_beginning(audit: Any) -> None:
    events = without(numbered([added(1), added(2), sent(2, 0)]), 1)
    (finding,) = of_kind(audit(events), "log_gap")
    assert (finding["reason"], finding["seqs"]) == ("starts_late", [2])


def test_what_a_gap_may_explain_is_uncertain_and_what_it_cannot_is_not(audit: Any) -> None:
    hidden = numbered([added(1), added(2), sent(1, 0), ack(1, 0), sent(2, 1), sent(2, 3), sent(2, 2)])
    result = audit(without(hidden, 4))
    splits = of_kind(result, "split_key")
    assert [(row["positions"][0], row["uncertain"], row["reason"]) for row in splits] == [
        (f"5:{entry}", True, "log_gap") for entry in (1, 3, 2)
    ]
    assert "lines of the log are missing" in splits[0]["explanation"]
    (first_time,) = of_kind(result, "out_of_order")
    assert first_time["uncertain"], "5:2 may have been sent before, in the gap"
    again = [*without(hidden, 4), *numbered([sent(1, 4), sent(2, 4)])]
    for seq, event in enumerate(again[-2:], start=8):
        event["seq"], event["t_us"] = seq, T0_US + seq * 1_000_000
    (double,) = of_kind(audit(again), "double_outstanding")
    assert not double["uncertain"], "both deliveries stand behind the gap"


def test_a_line_that_stands_twice_counts_once_and_is_reported(audit: Any) -> None:
    events = numbered([added(1), sent(1, 0), sent(1, 1)])
    result = audit([*events[:2], events[1], *events[2:]])
    assert of_kind(result, "log_gap") == []
    (finding,) = of_kind(result, "repeated_lines")
    assert (finding["reason"], finding["seqs"]) == ("segment", [2])
    assert finding["explanation"].startswith("line 4 of segment ")
    assert "repeat line 3 of segment the same file" in finding["explanation"]
    assert result.deliveries.num_rows == 2


def test_two_different_lines_with_one_seq_are_both_kept(audit: Any) -> None:
    events = numbered([added(1), sent(1, 0), sent(1, 1)])
    events[2]["seq"] = 2
    result = audit(events)
    assert [row["reason"] for row in of_kind(result, "log_gap")] == ["duplicate_seq"]
    assert result.deliveries.num_rows == 2


def test_a_clock_that_goes_back(audit: Any) -> None:
    events = numbered([added(1), sent(1, 0), sent(1, 1)])
    events[2]["t_us"] = events[1]["t_us"] - 1500
    (finding,) = of_kind(audit(events), "clock_step")
    assert finding["seqs"] == [2, 3]
    assert "1.500 ms" in finding["explanation"]
    events[2]["t_us"] = events[1]["t_us"]
    assert kinds(audit(events)) == {}


def test_connections_that_are_not_there(audit: Any) -> None:
    result = audit(
        numbered(
            [
                sent(7, 0),
                added(1),
                sent(1, 1),
                removed(1),
                sent(1, 2),
                {"kind": "flow", "consumer": 9, "permits": 1},
            ]
        )
    )
    found = [(row["seqs"], row["consumers"], row["reason"]) for row in of_kind(result, "unknown_consumer")]
    assert found == [([1], [7], "never_added"), ([5], [1], "already_removed"), ([6], [9], "never_added")]


@pytest.mark.parametrize(
    "command",
    [
        ack(1, 1),
        {"kind": "flow", "consumer": 1, "permits": 1},
        {"kind": "redeliver", "consumer": 1},
        removed(1),
    ],
)
def test_a_connection_goes_on_with_commands_when_its_consumer_is_removed(audit: Any, command: Any) -> None:
    """Another thread removes the consumer: when the topic is unloaded, or the cursor is reset.

    If the client closes it then, it is removed again.
    """
    events = numbered([added(1), sent(1, 0), sent(1, 1), removed(1), command])
    events[-1]["t_us"] = events[-2]["t_us"] + HANDLED_LATE_US
    assert kinds(audit(events)).get("unknown_consumer") is None
    events[-1]["t_us"] += 1
    (finding,) = of_kind(audit(events), "unknown_consumer")
    assert (finding["seqs"], finding["reason"]) == ([5], "already_removed")


def test_a_connection_that_a_gap_may_have_added_is_uncertain(audit: Any) -> None:
    events = without(numbered([added(1), added(2), sent(2, 0)]), 2)
    (finding,) = of_kind(audit(events), "unknown_consumer")
    assert finding["uncertain"]


def test_a_notice_before_the_consumer_is_listed_is_normal(audit: Any) -> None:
    notice = {"kind": "active_notified", "consumer": 1, "active": 1}
    assert kinds(audit(numbered([notice, added(1)]), subscription_type="Failover")) == {}


def test_positions_that_were_never_stored(audit: Any) -> None:
    result = audit(numbered([added(1), sent(1, 0, 77, 78), ack(1, 0), redeliver(1, 99)]))
    first, second = of_kind(result, "unknown_position")
    assert (first["positions"], first["seqs"], first["consumers"]) == (["5:77", "5:78"], [2], [1])
    assert second["positions"] == ["5:99"]
    stray = result.deliveries.to_pylist()[1]
    assert (stray["entry_id"], stray["key"], stray["hash"], stray["num_messages"]) == (77, None, None, None)
    assert set(kinds(result)) == {"unknown_position"}


def test_a_position_is_in_doubt_where_messages_with_later_publish_times_were_not_read(tmp_path: Path) -> None:
    log = read(write(tmp_path / "a" / "b", KEYS, numbered([added(1), sent(1, 0, 77)])))
    (finding,) = of_kind(audited(replace(log, messages_cut=True)), "unknown_position")
    assert (finding["uncertain"], finding["reason"]) == (True, "maybe_clock_ahead")
    assert finding["explanation"].endswith("has a later publish time by a producer's clock that is ahead")
    (finding,) = of_kind(audited(log), "unknown_position")
    assert (finding["uncertain"], finding["reason"]) == (False, "not_stored")


@pytest.mark.parametrize("far", [2**62, 2**40, 2**40 - 2])
def test_positions_at_the_edge_of_what_a_number_holds(tmp_path: Path, far: int) -> None:
    messages = [message(0, "k") | {"position": f"{far}:{far}"}, message(1, "k") | {"position": f"{far}:3"}]
    events = numbered(
        [added(1), sent(1) | {"positions": [f"{far}:{far}", f"{far}:3"], "batch_sizes": [1, 1]}]
    )
    result = audited(read(write(tmp_path / "a" / "b", messages, events)))
    assert kinds(result) == {"out_of_order": [f"{far}:3"]}


def test_an_empty_log_and_a_log_without_header(tmp_path: Path) -> None:
    log = read(write(tmp_path / "a" / "b", KEYS, numbered([added(1), sent(1, 1, 0)])))
    bare = audited(replace(log, header={}))
    assert kinds(bare) == {"out_of_order": ["5:0"]}
    assert bare.deliveries["hash"].null_count == 2
    unreadable = audited(replace(log, header=log.header | {"broker_version": "no version"}))
    assert kinds(unreadable) == {"out_of_order": ["5:0"]}
    nothing = audited(replace(log, events=log.events.slice(0, 0)))
    assert (nothing.deliveries.num_rows, nothing.anomalies.num_rows) == (0, 0)
    no_messages = audited(replace(log, messages=log.messages.slice(0, 0)))
    assert set(kinds(no_messages)) == {"unknown_position"}


def test_connections_named_by_a_checkpoint_are_known(audit: Any) -> None:
    checkpoint = {"kind": "checkpoint", "consumers": [{"consumer": 1, "name": "w"}], "mark_delete": "5:0"}
    events = numbered([checkpoint, sent(1, 1)])
    for event in events:
        event["seq"] += 100
    assert kinds(audit(events)) == {}, json.dumps(events)


def test_chunked_tables_give_the_same(tmp_path: Path) -> None:
    log = read(
        write(tmp_path / "a" / "b", KEYS, numbered([added(1), sent(1, 1), sent(1, 0), ack(1, 1), sent(1, 2)]))
    )
    events = pa.concat_tables([log.events.slice(i, 1) for i in range(log.events.num_rows)])
    messages = pa.concat_tables([log.messages.slice(i, 2) for i in range(0, log.messages.num_rows, 2)])
    whole, cut = audited(log), audited(replace(log, events=events, messages=messages))
    assert cut.anomalies.equals(whole.anomalies)
    assert cut.deliveries.equals(whole.deliveries)


@pytest.mark.parametrize(
    ("behind_us", "brokers", "entry", "found"),
    [
        (-1, ("b-1\n", "b-1\n"), 0, "certain"),
        (-3_600_000_000, ("b-1\n", "b-2\n"), 0, "uncertain"),  # two clocks
        (-500_000, ("b-1\n", "b-2\n"), 1, "nothing"),  # it goes on behind what the other one sent
        (1, ("b-1\n", "b-2\n"), 0, "nothing"),
    ],
)
def test_two_loads_of_a_topic_at_once_are_a_finding(
    tmp_path: Path, behind_us: int, brokers: tuple[str, str], entry: int, found: str
) -> None:
    before = numbered([added(1), sent(1, 0), ack(1, 0)])
    begins_us = before[-1]["t_us"] + behind_us
    after = [event | {"t_us": begins_us + event["seq"]} for event in numbered([added(1), sent(1, entry)])]
    after[0]["t_us"] = begins_us
    logs = [
        read(write(tmp_path / "a" / str(number), KEYS, lines, broker=brokers[number - 1], incarnation=number))
        for number, lines in ((1, before), (2, after))
    ]
    result = audited(logs[1], earlier=logs[:1])
    rows = of_kind(result, "overlapping_incarnations")
    assert [row["uncertain"] for row in rows] == {"certain": [False], "uncertain": [True], "nothing": []}[
        found
    ]
    for row in rows:
        assert row["seqs"] == [1]
        assert row["explanation"].startswith(f"broker b-{brokers[1][2]}\\n (incarnation 2) has events from ")
    assert set(kinds(result)) <= {"overlapping_incarnations", "redelivered", "duplicate_after_ack"}
