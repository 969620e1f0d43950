"""Subjects of a question: keys by their bytes, positions, consumers by name or number; near matches if there is none."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from dispatch_core.broker import hashing
from dispatch_core.errors import DispatchAuditError
from dispatch_core.explain.record import Record
from dispatch_core.explain.subject import NothingMatchedError, Subject, moment_of, subject_of
from tests.dispatch_core.audit.small_logs import added, message, numbered, read, removed, sent, write

BINARY = bytes([0, 1, 2, 255])


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    messages = [
        message(0, "order-17"),
        message(1, base64.b64encode(BINARY).decode(), key_b64=True),
        message(2, base64.b64encode(b"order-17").decode(), key_b64=True),
        message(3, "other", ordering_key_b64=base64.b64encode(b"order-17").decode()),
        message(4, None),
        message(5, None, key_h31=hashing.h31(b"hidden")),
        message(6, "key-61"),
        message(7, "key-76844"),  # same hash as key-61 in 4.x
        message(8, "h31:5"),
        message(9, ""),
    ]
    events = [
        added(1, "a"),
        sent(1, 0, 1),
        removed(1),
        added(2, "a"),
        added(30, "7"),
        added(7, "b"),
        sent(7, 2),
    ]
    return Record.of(read(write(tmp_path_factory.mktemp("log"), messages, numbered(events))))


def positions(record: Record, subject: Subject) -> list[str]:
    return list(record.positions(subject.ordinals.tolist()))


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("order-17", ["5:0", "5:2", "5:3"]),
        ("base64:" + base64.b64encode(b"order-17").decode(), ["5:0", "5:2", "5:3"]),
        ("base64:" + base64.b64encode(BINARY).decode(), ["5:1"]),
        ("hidden", ["5:5"]),
        (f"h31:{hashing.h31(b'hidden')}", ["5:5"]),
        (f"h31:{hashing.h31(b'order-17')}", ["5:0", "5:2", "5:3"]),
        ("base64:" + base64.b64encode(b"h31:5").decode(), ["5:8"]),
        ("", ["5:9"]),
    ],
)
def test_a_key_is_its_bytes(record: Record, asked: str, found: list[str]) -> None:
    assert positions(record, subject_of(record, key=asked)) == found


def test_the_key_that_shares_a_hash_is_named_and_not_meant(record: Record) -> None:
    subject = subject_of(record, key="key-61")
    assert positions(record, subject) == ["5:6"]
    assert subject.also == ("key-76844",)
    assert len(subject.mates) == 2


def test_an_entry_may_have_no_key(record: Record) -> None:
    assert "no key" in subject_of(record, position="5:4").title
    assert subject_of(record, position=" 5:4 ").keys == ()


def test_a_name_means_all_its_connections_and_goes_before_a_number(record: Record) -> None:
    def numbers(asked: str) -> list[int | None]:
        return [record.number_of(place) for place in subject_of(record, consumer=asked).places]

    assert numbers("a") == [1, 2]
    assert numbers("7") == [30]
    assert numbers("1") == [1]
    assert "connections 1, 2" in subject_of(record, consumer="a").title


@pytest.mark.parametrize(
    ("asked", "near"),
    [
        ({"key": "order-18"}, "order-17"),
        ({"key": "ORDER-17"}, "order-17"),
        ({"key": "key-6184"}, "key-76844"),
        ({"position": "5:400"}, "5:9"),
        ({"position": "4:0"}, "5:0"),
        ({"consumer": "bb"}, "b"),
        ({"consumer": "nobody at all"}, "a"),
    ],
)
def test_what_is_near_is_named(record: Record, asked: dict[str, str], near: str) -> None:
    with pytest.raises(NothingMatchedError) as raised:
        subject_of(record, **asked)
    assert near in raised.value.near


@pytest.mark.parametrize(
    "asked",
    [
        {"key": "base64:*"},
        {"key": "h31:x"},
        {"key": "h31:99999999999"},
        {"key": "\x1b[2Jx"},
        {"position": "5"},
        {"position": "5:-1"},
        {"position": "٥:٠"},
        {"position": "9" * 18 + ":" + "9" * 18},
        {"consumer": ""},
    ],
)
def test_what_cannot_be_matches_nothing_and_is_shown_harmlessly(
    record: Record, asked: dict[str, str]
) -> None:
    with pytest.raises(NothingMatchedError) as raised:
        subject_of(record, **asked)
    assert str(raised.value).isprintable()


def test_one_thing_is_asked_for(record: Record) -> None:
    with pytest.raises(DispatchAuditError):
        subject_of(record)
    with pytest.raises(DispatchAuditError):
        subject_of(record, key="a", consumer="b")


BEGIN = 1_795_249_218_695_112  # 08:20:18.695112


@pytest.mark.parametrize(
    ("text", "t_us"),
    [
        ("08:20:18.695112", BEGIN),
        ("08:20:18.695", BEGIN - 112),  # as the log's own times are shown
        ("8:20:19", BEGIN + 304_888),
        ("08:20", BEGIN - 18_695_112),
        ("08:19", BEGIN - 18_695_112 - 60_000_000 + 86_400_000_000),  # the next day's
        ("2026-11-21T08:20:18.695112Z", BEGIN),
        ("2026-11-21T09:20:18.695112+01:00", BEGIN),
        ("2026-11-21 08:20:18.695112", BEGIN),
        (str(BEGIN), BEGIN),
    ],
)
def test_a_time_is_of_the_log_s_days_and_utc(text: str, t_us: int) -> None:
    assert moment_of(text, (BEGIN, BEGIN + 60_000_000)) == t_us


@pytest.mark.parametrize(
    "text", ["", "yesterday", "25:00:00", "08:61", "2026-13-01", "٠٨:٢٠", "\x1b]0;x\x07"]
)
def test_what_is_no_time_is_refused_with_the_log_s_span(text: str) -> None:
    with pytest.raises(DispatchAuditError, match=r"08:20:18\.695") as raised:
        moment_of(text, (BEGIN, BEGIN))
    assert str(raised.value).isprintable()


def test_of_a_log_without_consumers_nobody_is_near(tmp_path: Path) -> None:
    record = Record.of(read(write(tmp_path, [message(0, "k")], numbered([{"kind": "step", "note": "x"}]))))
    with pytest.raises(NothingMatchedError) as raised:
        subject_of(record, consumer="c")
    assert raised.value.near == ()
