"""Messages of a topic become the entries that the broker dispatches, and lines of the message log."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from dispatch_core.broker.hashing import h31
from dispatch_core.importers.topic_messages.entries import (
    Entries,
    Lines,
    MessageIdError,
    batch_of,
    entries_of,
)
from tests.dispatch_core.importers.fake_topic import Encrypted, FakeId, FakeMessage, batch

TOPIC = "persistent://public/default/orders"


def lines(messages: list[FakeMessage], keys: Any = "key", **how: Any) -> list[dict[str, Any]]:
    writer = Lines(TOPIC, keys, **how)
    return [json.loads(writer.line(entry)) for entry in entries_of(messages)]


def test_one_line_per_entry_with_the_batch_s_size_and_the_payloads_bytes() -> None:
    single = FakeMessage(FakeId(3, 0), "order-17", publish_ms=7)
    found = lines([single, *batch(3, 1, ["a"] * 3), *batch(4, 0, ["b"] * 2)])
    assert found[0] == {
        "topic": TOPIC,
        "position": "3:0",
        "key": "order-17",
        "producer": "p1",
        "publish_time_ms": 7,
        "num_messages": 1,
        "size_bytes": 10,
    }
    assert [(row["position"], row["num_messages"], row["size_bytes"]) for row in found[1:]] == [
        ("3:1", 3, 30),
        ("4:0", 2, 20),
    ]


def test_an_entry_is_given_as_soon_as_its_last_message_is_there() -> None:
    joined = Entries()
    first, second = batch(3, 1, ["a", "a"])
    assert list(joined.push(first)) == []
    assert [entry.position for entry in joined.push(second)] == [(3, 1)]
    assert [entry.position for entry in joined.push(FakeMessage(FakeId(3, 2)))] == [(3, 2)]
    assert list(joined.flush()) == []


def test_a_batch_of_which_messages_are_missing_keeps_its_size() -> None:
    assert [
        row["num_messages"] for row in lines([*batch(3, 1, ["a"] * 5)[2:4], FakeMessage(FakeId(3, 2))])
    ] == [5, 1]


def test_a_client_that_does_not_say_the_batch_s_size_is_counted_after() -> None:
    messages = [FakeMessage(FakeId(3, 1, index)) for index in range(4)] + [FakeMessage(FakeId(3, 2, 0))]
    assert [row["num_messages"] for row in lines(messages)] == [4, 1]


def test_the_key_of_an_entry_is_its_first_message_s_and_several_are_noticed() -> None:
    mixed, same, ordered = entries_of(
        [
            *batch(3, 1, ["a", "b"]),
            *batch(3, 2, ["a", "a"]),
            FakeMessage(FakeId(3, 3, 0, 2), ordering="x"),
            FakeMessage(FakeId(3, 3, 1, 2), ordering="y"),
        ]
    )
    assert (mixed.key, mixed.more_keys) == (b"a", True)
    assert not same.more_keys
    assert ordered.more_keys


@pytest.mark.parametrize(
    ("message", "fields", "dispatched"),
    [
        (FakeMessage(FakeId(1, 0), "käse"), {"key": "käse"}, "käse".encode()),
        (FakeMessage(FakeId(1, 0), ""), {"key": None}, None),
        (FakeMessage(FakeId(1, 0), b"\xff\x00"), {"key": "/wA=", "key_b64": True}, b"\xff\x00"),
        (FakeMessage(FakeId(1, 0), "k", "o"), {"key": "k", "ordering_key_b64": "bw=="}, b"o"),
        (FakeMessage(FakeId(1, 0), "", b"\xfe"), {"key": None, "ordering_key_b64": "/g=="}, b"\xfe"),
    ],
)
def test_keys_of_every_sort(message: FakeMessage, fields: dict[str, Any], dispatched: bytes | None) -> None:
    (row,) = lines([message])
    assert {name: row[name] for name in row if "key" in name} == fields
    (row,) = lines([message], "key_h31")
    expected = {"key": None} if dispatched is None else {"key_h31": h31(dispatched)}
    assert {name: row[name] for name in row if "key" in name} == expected


def test_keys_that_producers_set_as_bytes() -> None:
    message = FakeMessage(FakeId(1, 0), base64.b64encode(b"\x00\x01\x02").decode())
    (row,) = lines([message], keys_are_base64=True)
    assert (row["key"], row["key_b64"]) == ("AAEC", True)
    assert lines([message], "key_h31", keys_are_base64=True)[0]["key_h31"] == h31(b"\x00\x01\x02")
    writer = Lines(TOPIC, "key", keys_are_base64=True)
    (entry,) = entries_of([FakeMessage(FakeId(1, 0), "no base64!")])
    assert json.loads(writer.line(entry))["key"] == "no base64!"
    assert writer.base64_failed == 1


def test_an_encrypted_batch_that_nobody_can_open_has_its_size() -> None:
    (row,) = lines([FakeMessage(FakeId(1, 0), encrypted=Encrypted(7))])
    assert row["num_messages"] == 7


def test_a_chunked_message_is_noticed() -> None:
    chunked, whole = entries_of([FakeMessage(FakeId(1, 3, chunked=True)), FakeMessage(FakeId(1, 4))])
    assert (chunked.chunked, whole.chunked) == (True, False)


def test_message_ids_are_read_as_the_client_writes_them() -> None:
    # 17:5, batch index 2 of 3, as pulsar-client 3.13.0 serializes it
    assert batch_of(b"\x08\x11\x10\x05\x18\x00 \x020\x03") == (3, False)
    assert batch_of(FakeId(2**40, 300, 2, 300).serialize()) == (300, False)
    assert batch_of(b"") == (0, False)


@pytest.mark.parametrize("data", [b"\x08", b"\x08\xff\xff", b"\x0d\x01\x02\x03\x04", b"\x08" + b"\xff" * 12])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(MessageIdError):
        batch_of(data)
