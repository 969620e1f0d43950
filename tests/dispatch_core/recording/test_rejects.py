"""Lines put into quarantine, with their reasons, which docs/log-format.md quotes."""

import pytest

from dispatch_core.recording.reader import Limits
from dispatch_core.recording.unread_keys import unread_keys
from tests.dispatch_core.recording.reading import HEADER, flow, line_of, message, read, sent

CONSUMER = {"seq": 1, "t_us": 1, "kind": "consumer_added", "consumer": 1, "name": "c"}
MOVED = {"seq": 1, "t_us": 1, "kind": "cursor_moved", "by": "skip", "from": "3:0", "to": "3:4"}
LIMIT = {"seq": 1, "t_us": 1, "kind": "limit", "what": "dispatch_rate", "value": 15, "active": True}

BAD_EVENTS = [
    (b'{"seq":1', None, "not valid JSON: Expecting ',' delimiter at column 9"),
    (b"[1]", None, "not a JSON object"),
    (b'{"seq":1}{"seq":2}', None, "more than one JSON value in the line (the first ends at column 9)"),
    (line_of(flow(1)) + b"x", None, "more than one JSON value in the line"),
    (b"\xef\xbb\xbf" + line_of(flow(1)), None, "not a JSON object"),
    (line_of(flow(1))[:-1] + b',"name":"\xff"}', None, "not UTF-8: byte 0xff at column"),
    (line_of(flow(1))[:-1] + b',"name":"\\ud800"}', None, "surrogate pair"),
    (line_of(flow(1))[:-1] + b',"permits":11}', "permits", "given twice"),
    (line_of(flow(1))[:-1] + b',"name":"a\tb"}', None, "not valid JSON: Invalid control character"),
    (flow(1, permits="10"), "permits", 'expected an integer, found "10"'),
    (flow(1, permits=1.0), "permits", "expected an integer, found 1.0"),
    (flow(1, permits=True), "permits", "expected an integer, found true"),
    (flow(1, permits=1 << 63), "permits", "9223372036854775808 is out of range for a 64-bit integer"),
    (
        line_of(flow(1)).replace(b'"permits": 10', b'"permits":' + b"1" * 5000),
        "permits",
        "a very long number is out",
    ),
    (flow(1, permits=0), "permits", "0 is below 1"),
    (flow(1, permits=None), "permits", "missing in a line of kind flow"),
    (flow(1, consumer=-1), "consumer", "-1 is below 0"),
    (flow(1, blocked="no"), "blocked", 'expected true or false, found "no"'),
    (flow(1, kind=None), "kind", "missing"),
    (flow(1, kind=7), "kind", "expected a text, found 7"),
    (flow(1, t_us=None), "t_us", "missing"),
    (flow(1, t_us=-1), "t_us", "-1 is below 0"),
    (flow(1, t_us=1 << 60), "t_us", "1152921504606846976 is above 253402300799999999"),
    (flow(0), "seq", "0 is below 1"),
    (flow(1) | {"seq": None}, "seq", "missing"),
    (flow(1, incarnation=-1), "incarnation", "-1 is below 0"),
    (flow(1, topic=""), "topic", "empty"),
    (
        sent(1, positions=["3:0", "3:x"]),
        "positions",
        "expected a position \"ledger:entry\", each at least -1, found '3:x'",
    ),
    (sent(1, positions=["3:0", "0x3:1"]), "positions", "found '0x3:1'"),
    (sent(1, positions=["3:0", "3:-2"]), "positions", "found '3:-2'"),
    (sent(1, positions=["3:0", "3:9223372036854775808"]), "positions", "found '3:9223372036854775808'"),
    (sent(1, positions=["3:0", "3"]), "positions", "found '3'"),
    (sent(1, positions=["3:0", None]), "positions", "found None"),
    (sent(1, positions="3:0"), "positions", 'expected a list, found "3:0"'),
    (sent(1, positions=[3, 4]), "positions", "expected a text, found 3"),
    (sent(1, positions=None), "positions", "missing in a line of kind sent"),
    (sent(1, batch_sizes=[1]), "batch_sizes", "1 values for 2 positions"),
    (sent(1, batch_sizes=[1, 0]), "batch_sizes", "a number in the list is not within 1..2147483647"),
    (sent(1, batch_sizes=[1, None]), "batch_sizes", "null inside the list"),
    (sent(1, batch_sizes=None), "batch_sizes", "missing in a line of kind sent"),
    (sent(1, read_position="3"), "read_position", "found '3'"),
    (MOVED | {"by": None}, "by", "missing in a line of kind cursor_moved"),
    (
        MOVED | {"by": "hand"},
        "by",
        "'hand' is none of seek, reset_cursor, skip, clear_backlog, expiry, unknown",
    ),
    (MOVED | {"from": 3}, "from", "expected a text, found 3"),
    (MOVED | {"to": "3"}, "to", "found '3'"),
    (MOVED | {"to": "3:-2"}, "to", "found '3:-2'"),
    (MOVED | {"entries": -1}, "entries", "-1 is below 0"),
    (LIMIT | {"active": 1}, "active", "expected true or false, found 1"),
    (LIMIT | {"active": None}, "active", "missing in a line of kind limit"),
    (LIMIT | {"what": None}, "what", "missing in a line of kind limit"),
    (flow(1, active=True), "active", "expected an integer, found true"),
    (CONSUMER | {"key_shared": []}, "key_shared", "expected an object, found []"),
    (CONSUMER | {"key_shared": {"mode": 1}}, "key_shared.mode", "expected a text, found 1"),
    (CONSUMER | {"key_shared": {"ranges": [[5, 4]]}}, "ranges", "expected pairs [start, end] of hashes"),
    (CONSUMER | {"key_shared": {"ranges": [[1, 2, 3]]}}, "ranges", "expected pairs [start, end] of hashes"),
    (
        {"seq": 1, "t_us": 1, "kind": "ack", "consumer": 1, "ack_type": "individual", "positions": ["3:0"]},
        "ack_type",
        "'individual' is none of Individual, Cumulative",
    ),
    (CONSUMER | {"key_shared": {"mode": "AUTO"}}, "key_shared.mode", "'AUTO' is none of AUTO_SPLIT, STICKY"),
    (CONSUMER | {"priority_level": 1 << 31}, "priority_level", "2147483648 is above 2147483647"),
    ({"seq": 1, "t_us": 1, "kind": "gap", "from": 5, "to": 4}, "to", "the gap ends before it begins"),
    ({"seq": 1, "t_us": 1, "kind": "gap", "from": 5}, "to", "missing in a line of kind gap"),
]

BAD_MESSAGES = [
    (message(1, position=None), "position", "missing"),
    (message(1, position="3:-1"), "position", "a stored entry has no negative ledger or entry number"),
    (message(1, position="3;1"), "position", "found '3;1'"),
    (message(1, topic=None), "topic", "the line names no topic, and no header before it does"),
    (flow(1), "kind", "an event ('flow') in a message log; events belong in events* or trace*"),
]


@pytest.mark.parametrize(("line", "field", "reason"), BAD_EVENTS, ids=range(len(BAD_EVENTS)))
def test_a_bad_event_is_quarantined_alone(line, field, reason):
    result = read([HEADER, flow(1), line, flow(3)])
    ((number, found_field, found_reason),) = result.refused
    assert (number, found_field) == (3, field)
    assert reason in found_reason
    assert result.quarantine["raw"].to_pylist() == [line_of(line)[:4096]]
    assert result.events["seq"].to_pylist() == [0, 1, 3]
    assert read([HEADER, flow(1), line, flow(3)], line_by_line=True).same_as(result)


@pytest.mark.parametrize(("line", "field", "reason"), BAD_MESSAGES, ids=range(len(BAD_MESSAGES)))
def test_a_bad_message_is_quarantined_alone(line, field, reason):
    result = read([message(0), line, message(2)], "messages.jsonl")
    ((number, found_field, found_reason),) = result.refused
    assert (number, found_field) == (2, field)
    assert reason in found_reason
    assert result.messages["entry_id"].to_pylist() == [0, 2]


UNKNOWN_KEY = {"key": None, "key_b64": True, "ordering_key_b64": None, "key_h31": None}
#: Base64 of "order".
ORDER = "b3JkZXI="


@pytest.mark.parametrize(
    ("fields", "field", "reason", "read_as"),
    [
        ({"num_messages": 0}, "num_messages", "0 is below 1", {"num_messages": 0}),
        ({"num_messages": 1 << 31}, "num_messages", "2147483648 is above 2147483647", {"num_messages": 0}),
        ({"num_messages": "2"}, "num_messages", 'expected an integer, found "2"', {"num_messages": 0}),
        ({"size_bytes": -1}, "size_bytes", "-1 is below 0", {"size_bytes": None}),
        ({"size_bytes": 1.5}, "size_bytes", "expected an integer, found 1.5", {"size_bytes": None}),
        ({"publish_time_ms": -1}, "publish_time_ms", "-1 is below 0", {"publish_time_ms": None}),
        ({"producer": ["p"]}, "producer", 'expected a text, found ["p"]', {"producer": None}),
        (
            {"sequence_id": 1 << 64},
            "sequence_id",
            "a very long number is out of range for a 64-bit integer",
            {"sequence_id": None},
        ),
        ({"key": "not base64", "key_b64": True}, "key", "not base64", UNKNOWN_KEY),
        ({"key": 5}, "key", "expected a text, found 5", UNKNOWN_KEY),
        ({"key_b64": "yes"}, "key_b64", 'expected true or false, found "yes"', UNKNOWN_KEY),
        ({"ordering_key_b64": "?"}, "ordering_key_b64", "not base64", UNKNOWN_KEY),
        ({"key": None, "key_h31": 1 << 31}, "key_h31", "2147483648 is above 2147483647", UNKNOWN_KEY),
        # What remains is the key that was dispatched by, or its hash.
        ({"key_h31": -1}, "key_h31", "-1 is below 0", {"key": "k1"}),
        (
            {"key": "?", "key_b64": True, "ordering_key_b64": ORDER},
            "key",
            "not base64",
            {"key": None, "key_b64": None, "ordering_key_b64": ORDER},
        ),
        ({"key": "?", "key_b64": True, "key_h31": 7}, "key", "not base64", {"key": None, "key_h31": 7}),
        (
            {"ordering_key_b64": "?", "key_h31": 7},
            "ordering_key_b64",
            "not base64",
            {"key": None, "key_h31": 7},
        ),
    ],
)
def test_a_message_with_one_bad_field_is_kept_without_it(fields, field, reason, read_as):
    lines = [message(0), message(1, **fields), message(2), message(3, **fields)]
    result = read(lines, "messages.jsonl")
    assert result.refused == []
    assert result.counts.unknown_fields == {field: 2}
    assert result.counts.first_unknown == {field: f"messages.jsonl:2: {reason}"}
    good = read([message(0), message(1), message(2), message(3)], "messages.jsonl").messages.to_pylist()
    kept = result.messages.to_pylist()
    assert (kept[0], kept[2]) == (good[0], good[2])
    assert kept[1] == good[1] | read_as
    assert unread_keys(result.messages).tolist() == [False, read_as == UNKNOWN_KEY] * 2
    assert read(lines, "messages.jsonl", line_by_line=True).same_as(result)


def test_a_field_that_is_given_twice_is_unknown():
    line = line_of(message(1))[:-1] + b',"producer":"q","key":"k1"}'
    result = read([message(0), line], "messages.jsonl")
    assert result.counts.unknown_fields == {"key": 1, "producer": 1}
    assert result.messages["producer"].to_pylist() == ["p", None]
    assert unread_keys(result.messages).tolist() == [False, True]


def test_a_message_without_a_known_position_is_refused_whatever_else_is_bad():
    lines = [message(1, size_bytes="5", position=None), message(2, size_bytes="5", topic=7)]
    result = read(lines, "messages.jsonl")
    assert [field for _, field, _ in result.refused] == ["position", "topic"]
    assert result.counts.unknown_fields == {}


def test_all_bad_lines_in_one_file_are_found_each_by_itself():
    result = read([HEADER, *(line for line, _, _ in BAD_EVENTS)])
    assert [(field, True) for _, field, _ in BAD_EVENTS] == [
        (found, reason in text)
        for (_, _, reason), (_, found, text) in zip(BAD_EVENTS, result.refused, strict=True)
    ]
    assert [number for number, _, _ in result.refused] == list(range(2, len(BAD_EVENTS) + 2))


def test_unknown_fields_and_kinds_are_tolerated_and_counted():
    own = flow(2, kind="my_mark", extra={"a": [1, "x", None]}, nan=float("nan"))
    result = read([HEADER, flow(1, colour="red"), own, flow(3, kind="my_mark"), flow(4)])
    assert result.quarantine.num_rows == 0
    assert result.events["kind"].to_pylist() == ["header", "flow", "my_mark", "my_mark", "flow"]
    assert result.counts.unknown_kinds == {"my_mark": 2}


def test_a_null_field_is_an_absent_one():
    assert read([HEADER, flow(1, name=None, positions=None, format=None)]).events["seq"].to_pylist() == [0, 1]


def test_redeliver_without_positions_means_all_unacknowledged():
    line = {"seq": 1, "t_us": 1, "kind": "redeliver", "consumer": 1}
    rows = read(
        [HEADER, line | {"positions": None}, line | {"seq": 2}, line | {"seq": 3, "positions": []}]
    ).events
    assert rows["positions"].to_pylist() == [None, None, None, []]


def test_deep_nesting_neither_crashes_nor_differs():
    deep = line_of(flow(1))[:-1] + b',"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    for other in ([], [b"broken"]):
        result = read([HEADER, deep, *other])
        assert result.events["seq"].to_pylist() == [0, 1]


def test_an_object_over_two_lines_is_two_bad_lines():
    result = read([HEADER, b'{"seq":1,"t_us":1,', b'"kind":"end"}', flow(2)])
    assert [number for number, _, _ in result.refused] == [2, 3]
    assert result.events["seq"].to_pylist() == [0, 2]


def test_a_long_line_is_cut_and_the_next_one_read():
    limits = Limits(line_bytes=200, raw_bytes=50)
    for long in (201, 500, 100_000, 900_000):
        text = line_of(flow(1))[:-1] + b"," + b" " * (long - len(line_of(flow(1))) - 1) + b"}"
        result = read([HEADER, flow(1), text, flow(2)], limits=limits)
        assert result.refused == [(3, None, f"line of {long} bytes, longer than the limit of 200")]
        assert result.quarantine.to_pylist()[0]["raw"] == text[:50]
        assert result.quarantine.to_pylist()[0]["raw_truncated"]
        assert result.events["source_line"].to_pylist() == [1, 2, 4]
    exact = line_of(flow(1))[:-1] + b" " * (200 - len(line_of(flow(1)))) + b"}"
    assert read([HEADER, exact], limits=limits).quarantine.num_rows == 0


def test_raw_bytes_are_kept_up_to_the_limit():
    result = read([HEADER, b"x" * 100, b"y" * 10], limits=Limits(raw_bytes=10))
    assert result.quarantine.select(["raw", "raw_truncated"]).to_pylist() == [
        {"raw": b"x" * 10, "raw_truncated": True},
        {"raw": b"y" * 10, "raw_truncated": False},
    ]
