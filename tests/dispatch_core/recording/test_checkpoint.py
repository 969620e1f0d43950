"""Checkpoint lines: their meaning, and values that are refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from dispatch_core.recording.checkpoint import Checkpoint, Connected, fault_in, joins, leading, upto
from dispatch_core.recording.checkpoint import read as meaning
from tests.dispatch_core.recording.reading import HEADER, read

WHOLE: dict[str, Any] = {
    "consumers": [
        {
            "consumer": 7,
            "name": "a",
            "consumer_id": 3,
            "address": "127.0.0.1",
            "priority_level": 1,
            "key_shared": {"mode": "STICKY", "allow_out_of_order": True, "ranges": [[0, 9]]},
            "permits": -2,
            "unacked": 5,
        },
        2,
    ],
    "mark_delete": "5:-1",
    "ack_holes": ["5:4", "5:2", "5:4"],
    "pending_acks": {"7": ["5:3", "5:1"], "2": []},
    "read_position": "5:9",
    "partly_acked": {"5:3": [6, -1]},
}


def line(**fields: Any) -> dict[str, Any]:
    return {"seq": 4, "t_us": 1, "kind": "checkpoint"} | fields


def test_every_field_has_its_meaning() -> None:
    consumer = Connected(7, "a", 3, "127.0.0.1", 1, "STICKY", True, ((0, 9),), -2, 5)
    pending = {7: ((5, 1), (5, 3)), 2: ()}
    expected = Checkpoint(
        (consumer, Connected(2)), (5, -1), ((5, 2), (5, 4)), pending, (5, 9), partly_acked={(5, 3): (6, -1)}
    )
    assert meaning(json.dumps(WHOLE)) == expected
    assert meaning("{}") == Checkpoint()
    assert read([HEADER, line(**WHOLE), line(seq=5)]).refused == []


@pytest.mark.parametrize(
    ("fields", "field", "reason"),
    [
        ({"consumers": 3}, "consumers", "expected a list, found 3"),
        ({"consumers": [1, "2"]}, "consumers[1]", "expected an integer, found '2'"),
        ({"consumers": [-1]}, "consumers[0]", "-1 is below 0"),
        ({"consumers": [True]}, "consumers[0]", "expected an integer, found true"),
        ({"consumers": [1, {"consumer": 1}]}, "consumers[1]", "connection 1 is named twice"),
        ({"consumers": [{"name": "a"}]}, "consumers[0].consumer", "missing"),
        ({"consumers": [{"consumer": 1, "name": 2}]}, "consumers[0].name", "expected a text, found 2"),
        (
            {"consumers": [{"consumer": 1, "permits": 0.5}]},
            "consumers[0].permits",
            "expected an integer, found 0.5",
        ),
        ({"consumers": [{"consumer": 1, "unacked": -1}]}, "consumers[0].unacked", "-1 is below 0"),
        (
            {"consumers": [{"consumer": 1, "key_shared": {"mode": "SPLIT"}}]},
            "consumers[0].key_shared.mode",
            "'SPLIT' is none of AUTO_SPLIT, STICKY",
        ),
        (
            {"consumers": [{"consumer": 1, "key_shared": {"ranges": [[9, 5]]}}]},
            "consumers[0].key_shared.ranges",
            "expected pairs [start, end] of hashes with 0 <= start <= end",
        ),
        (
            {"ack_holes": ["5;0"]},
            "ack_holes",
            "expected a position \"ledger:entry\", each at least -1, found '5;0'",
        ),
        (
            {"consumers": [1], "pending_acks": {"2": []}},
            "pending_acks",
            "'2' is none of the consumers of this checkpoint",
        ),
        (
            {"consumers": [1], "pending_acks": {"1": "5:0"}},
            'pending_acks["1"]',
            "expected a list, found '5:0'",
        ),
        ({"partly_acked": ["5:3"]}, "partly_acked", 'expected an object, found ["5:3"]'),
        (
            {"partly_acked": {"5:3": [1 << 63]}},
            'partly_acked["5:3"]',
            "expected a list of 64-bit integers, found [9223372036854775808]",
        ),
        (
            {"partly_acked": {"5": [1]}},
            "partly_acked",
            "expected a position \"ledger:entry\", each at least -1, found '5'",
        ),
    ],
)
def test_what_breaks_the_rules_is_quarantined_by_field(
    fields: dict[str, Any], field: str, reason: str
) -> None:
    result = read([HEADER, line(**fields), {"seq": 5, "t_us": 1, "kind": "end"}])
    assert result.refused == [(2, field, reason)]
    assert result.events["kind"].to_pylist() == ["header", "end"]
    assert fault_in(json.dumps(fields)) == (field, reason)
    assert meaning(json.dumps(fields)) is None


@pytest.mark.parametrize(
    "text", ["[1]", "{", '{"consumers":' + "[" * 100_000, '{"mark_delete":"5:' + "9" * 5000]
)
def test_no_text_raises(text: str) -> None:
    assert fault_in(text) is not None


def test_only_a_checkpoint_that_begins_a_log_and_names_its_consumers_leads() -> None:
    first = read([HEADER, line(consumers=[3]), line(seq=5, consumers=[4])]).events
    assert leading(first.slice(1)) == Checkpoint((Connected(3),))
    assert leading(first.slice(2)) == Checkpoint((Connected(4),))
    assert leading(first) is None  # the header
    assert leading(first.slice(3)) is None
    assert leading(read([HEADER, line(mark_delete="5:0")]).events.slice(1)) is None


def test_joins_are_the_lines_and_then_who_only_checkpoints_name() -> None:
    named = {"consumer": 1, "name": "b", "key_shared": {"mode": "STICKY", "ranges": [[1, 2]]}}
    added = {"seq": 5, "t_us": 2, "kind": "consumer_added", "consumer": 2, "name": "c"}
    events = read([HEADER, line(consumers=[1, 2]), added, line(seq=6, consumers=[named])]).events
    assert joins(events, ["consumer", "name", "ranges"]) == [
        {"consumer": 2, "name": "c", "ranges": None},
        {"consumer": 1, "name": "b", "ranges": [{"start": 1, "end": 2}]},
    ]


def test_upto_counts_the_positions_that_are_not_later() -> None:
    ledger, entry = np.array([4, 5, 5, 7]), np.array([9, 0, 3, 0])
    cases = [(3, 9), (4, 9), (5, -1), (5, 2), (5, 3), (6, 0), (7, 0), (9, 9)]
    assert [upto(ledger, entry, at) for at in cases] == [0, 1, 1, 2, 3, 3, 4, 4]
