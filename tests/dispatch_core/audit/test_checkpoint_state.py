"""Logs that begin with a checkpoint against the whole log: behind the cut the same is found, and nothing else is certain.

The state at the cut is computed here from the raw lines by brute force, one line after the other.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dispatch_core.audit.deliveries.rows import Audit
from dispatch_core.cli.main import main
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.schema import EVENTS
from tests.dispatch_core.audit.batches import in_batches, same
from tests.dispatch_core.audit.small_logs import (
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
    without_trace,
    write,
)
from tests.dispatch_core.audit.test_second_opinion import CONSUMERS, ENTRIES, SAMPLES, TYPES, from_lines

#: Kinds that the pending and acknowledged entries at the cut decide entirely.
OF_STATE = ("split_key", "double_outstanding", "duplicate_after_ack")
OF_ORDER = ("out_of_order",)
Position = tuple[int, int]


@dataclass
class Truth:
    """Connected consumers in order, the entries pending on each, the acknowledged ones, and the highest entry ever sent."""

    single_active: bool
    connected: list[int] = field(default_factory=list)
    pending: dict[int, set[Position]] = field(default_factory=dict)
    acked: set[Position] = field(default_factory=set)
    sent: set[Position] = field(default_factory=set)
    left: dict[Position, list[int]] = field(
        default_factory=dict
    )  # of batches: the messages that are not acknowledged
    upto: Position = (-1, -1)  # acknowledged cumulatively

    def take(self, line: dict[str, Any]) -> None:
        kind, consumer = line["kind"], line["consumer"]
        named = {(named["ledger_id"], named["entry_id"]) for named in line["positions"] or ()}
        if kind == "consumer_added" and consumer not in self.connected:
            self.connected.append(consumer)
        elif kind == "consumer_removed" and consumer in self.connected:
            self.connected.remove(consumer)
            self.pending.pop(consumer, None)
        elif kind == "sent":
            self.pending.setdefault(consumer, set()).update(named)
            self.sent |= named
        elif kind == "ack" and line["ack_type"] == "Cumulative":
            if self.single_active:
                upto = max(named)
                self.settle({position for position in self.sent if position <= upto} | named, upto=upto)
        elif kind == "ack":
            self.settle({position for position in named if self.whole(position, line)})
        elif kind == "redeliver":
            lost = self.pending.get(consumer, set()) if line["positions"] is None else named
            self.pending[consumer] = self.pending.get(consumer, set()) - lost

    def whole(self, position: Position, line: dict[str, Any]) -> bool:
        """Check whether an acknowledgement of a position, with those before, is for all messages of the entry."""
        named = [(named["ledger_id"], named["entry_id"]) for named in line["positions"]]
        at = named.index(position)
        words = line["ack_sets"][at] if line["ack_sets"] else None
        if not words:
            return True
        left = self.left.get(position, [-1] * len(words))
        self.left[position] = [old & new for old, new in zip(left, words, strict=True)]
        return not any(self.left[position])

    def settle(self, named: set[Position], upto: Position = (-1, -1)) -> None:
        self.acked |= named
        self.upto = max(self.upto, upto)
        for consumer in self.pending:
            self.pending[consumer] -= named

    def line(self, stored: Iterable[Position], first: Position) -> dict[str, Any]:
        """The checkpoint; entries before ``first`` were not for this subscription."""
        mark_delete = (-1, -1)
        for position in sorted(stored):
            if not (position < first or position in self.acked or position <= self.upto):
                break
            mark_delete = position
        holes = sorted(position for position in self.acked if position > mark_delete)
        highest = max(self.sent, default=(-1, -1))
        return {
            "consumers": self.connected,
            "mark_delete": text(mark_delete),
            "ack_holes": [text(position) for position in holes],
            "pending_acks": {
                str(consumer): [text(position) for position in sorted(self.pending.get(consumer, ()))]
                for consumer in self.connected
            },
            "read_position": text((highest[0], highest[1] + 1)),
        }


def as_consumer(line: dict[str, Any]) -> dict[str, Any]:
    """A ``consumer_added`` line as the consumer of a checkpoint."""
    ranges = [[bounds["start"], bounds["end"]] for bounds in line["ranges"] or ()]
    policy = {"mode": line["key_shared_mode"], "allow_out_of_order": line["key_shared_allow_out_of_order"]}
    names = ("consumer", "name", "consumer_id", "address", "priority_level")
    return {name: line[name] for name in names} | {"key_shared": policy | {"ranges": ranges}}


def text(position: Position) -> str:
    return f"{position[0]}:{position[1]}"


def cut(log: DispatcherLog, at: int, *, queued: int = 0) -> DispatcherLog:
    """The log from its line ``at`` on; before it, in the place of the last lost line, the checkpoint of the state there.

    ``queued``: so many of the lines behind it had happened when the state was read; who was connected is as of the line.
    """
    lines = log.events.slice(0, at).to_pylist()
    truth = Truth(log.header.get("subscription_type") in ("Failover", "Exclusive"))
    for line in lines:
        truth.take(line)
    connected = list(truth.connected)
    for line in log.events.slice(at, queued).to_pylist():
        truth.take(line)
    stored = zip(log.messages["ledger_id"].to_pylist(), log.messages["entry_id"].to_pylist(), strict=True)
    added_as = {line["consumer"]: as_consumer(line) for line in lines if line["kind"] == "consumer_added"}
    named = [position for row in log.events["positions"].to_pylist() for position in row or ()]
    first_named = min((position["ledger_id"], position["entry_id"]) for position in named)
    still_connected = set(truth.connected)
    truth.connected = connected
    said = truth.line(stored, first_named)
    said["pending_acks"] = {
        number: pending for number, pending in said["pending_acks"].items() if int(number) in still_connected
    }
    if queued:
        said["state_t_us"] = log.events["t_us"][at + queued - 1].as_py()
    said["consumers"] = [added_as[number] for number in said["consumers"]]
    row = {name: lines[-1][name] for name in ("cluster", "topic", "subscription", "broker", "incarnation")}
    row |= {"seq": lines[-1]["seq"], "t_us": lines[-1]["t_us"], "kind": "checkpoint"}
    row["checkpoint_json"] = json.dumps(said)
    first = pa.Table.from_pylist([row], schema=EVENTS)
    return replace(log, events=pa.concat_tables([first, log.events.slice(at)]))


def found(
    audit: Audit, kinds_: Sequence[str], *, certain: bool = False, after: int = 0, all_after: int = 0
) -> Counter[Any]:
    """(kind, key, position, proving line); ``after``: of proving lines, ``all_after``: of all lines of the evidence."""
    return Counter(
        (row["kind"], row["key"], row["positions"][0], row["seqs"][-1])
        for row in audit.anomalies.to_pylist()
        if row["kind"] in kinds_
        and not (certain and row["uncertain"])
        and row["seqs"][-1] > after
        and row["seqs"][0] > all_after
    )


def compare(log: DispatcherLog, at: int) -> Audit:
    """Compare the cut log's audit with the whole log's; returns it."""
    whole, part = audited(log), audited(cut(log, at))
    last = log.events["seq"][at - 1].as_py()
    assert found(part, OF_STATE) == found(whole, OF_STATE, after=last)
    everything = found(part, OF_ORDER)
    assert not found(whole, OF_ORDER, after=last, all_after=last) - everything
    certain = (*OF_STATE, *OF_ORDER)
    assert not found(part, certain, certain=True) - found(whole, certain, after=last)
    expected = [
        row | {"delivery_number": 0, "cause": None}
        for row in whole.deliveries.to_pylist()
        if row["seq"] > last
    ]
    assert [row | {"delivery_number": 0, "cause": None} for row in part.deliveries.to_pylist()] == expected
    assert not of_kind(part, "unknown_consumer")
    assert not of_kind(part, "log_gap")
    return part


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda folder: folder.name)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.8])
def test_a_recording_cut_anywhere_says_the_same_behind_the_cut(folder: Path, share: float) -> None:
    log = without_trace(read(folder))
    compare(log, int(share * log.events.num_rows))


@pytest.mark.parametrize("folder", SAMPLES, ids=lambda folder: folder.name)
@pytest.mark.parametrize("queued", [1, 20, 150])
def test_lines_that_were_queued_when_the_state_was_read_happen_once(folder: Path, queued: int) -> None:
    """Lines that the state includes already are no second delivery, and the lines behind them are judged as ever."""
    log = without_trace(read(folder))
    at = log.events.num_rows // 2
    queued = min(queued, log.events.num_rows - at)
    last, read_at = (log.events["seq"][row].as_py() for row in (at - 1, at + queued - 1))
    whole, part = audited(log), audited(cut(log, at, queued=queued))
    every = (*OF_STATE, *OF_ORDER)
    assert not found(part, every, certain=True) - found(whole, every, after=last)
    assert found(part, OF_STATE, after=read_at) == found(whole, OF_STATE, after=read_at)
    lines = log.events.slice(at, queued).to_pylist()
    if all(line["kind"] in ("sent", "flow") or _is_whole_ack(line) for line in lines):
        assert not found(part, OF_STATE) - found(whole, OF_STATE, after=last)
        assert not found(part, ("redelivered",)) - found(whole, ("redelivered",), after=last)


def _is_whole_ack(line: dict[str, Any]) -> bool:
    return line["kind"] == "ack" and line["ack_type"] != "Cumulative" and not any(line["ack_sets"] or ())


def test_a_split_whose_first_half_lies_before_the_cut_rests_on_the_checkpoint() -> None:
    (folder,) = [folder for folder in SAMPLES if folder.name == "designed-rolling-restart-classic-ch"]
    log = without_trace(read(folder))  # numbered from 1
    proven = sorted({row["seqs"][-1] for row in of_kind(audited(log), "split_key")})
    assert len(proven) > 3
    for seq in proven:
        part = compare(log, seq - 1)
        splits = [row for row in of_kind(part, "split_key") if row["seqs"][-1] == seq]
        assert any(row["seqs"][0] == seq - 1 and "at or before" in row["explanation"] for row in splits)


def test_a_cumulative_acknowledgement_settles_nothing_above_it() -> None:
    """An entry that comes again behind its acknowledgement is open until it is acknowledged again, also in a cut log."""
    events = [sent(1, 0), ack(1, 1, cumulative=True), sent(1, 1), ack(1, 0, cumulative=True), sent(2, 1)]
    log = from_lines(numbered(possible(events)), "Failover")
    assert [row["seqs"] for row in of_kind(audited(log), "double_outstanding")] == [[5, 7]]
    for at in (4, 5, 6):
        compare(log, at)


#: Events of connected consumers, without acknowledgements of parts of batches, which no checkpoint holds.
EVENT_LISTS = st.lists(
    st.one_of(
        st.builds(lambda c, e: sent(c, *e), CONSUMERS, st.lists(ENTRIES, min_size=1, max_size=3)),
        st.builds(lambda c, e: sent(c, *e), CONSUMERS, st.lists(ENTRIES, min_size=1, max_size=3)),
        st.builds(lambda c, e: ack(c, *e), CONSUMERS, st.lists(ENTRIES, min_size=1, max_size=2, unique=True)),
        st.builds(lambda c, e: redeliver(c, *e), CONSUMERS, st.lists(ENTRIES, max_size=4, unique=True)),
        st.builds(lambda c, e: ack(c, e, cumulative=True), CONSUMERS, ENTRIES),
        st.builds(added, CONSUMERS),
        st.builds(removed, CONSUMERS),
    ),
    min_size=4,
    max_size=40,
)


def possible(events: list[Event]) -> list[Event]:
    """The events without those of connections that are not there, each of which joins once."""
    kept: list[Event] = []
    connected, numbers = {1: 1, 2: 2}, 2
    for event in events:
        consumer = event["consumer"]
        if event["kind"] == "consumer_added" and consumer not in connected:
            numbers += 1
            connected[consumer] = numbers
        elif event["kind"] == "consumer_added" or consumer not in connected:
            continue
        number = connected.pop(consumer) if event["kind"] == "consumer_removed" else connected[consumer]
        kept.append(event | {"consumer": number})
    return [added(1), added(2), *kept]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(EVENT_LISTS, TYPES, st.floats(0, 1))
def test_a_random_log_cut_anywhere_says_the_same_behind_the_cut(
    events: list[Event], subscription_type: str, share: float
) -> None:
    log = from_lines(numbered(possible(events)), subscription_type)
    assume("sent" in log.events["kind"].to_pylist())
    compare(log, 1 + int(share * (log.events.num_rows - 1)))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(EVENT_LISTS, TYPES, st.floats(0, 1), st.lists(st.integers(1, 42), max_size=5))
def test_in_batches_a_log_with_a_checkpoint_gives_the_same(
    events: list[Event], subscription_type: str, share: float, cuts: list[int]
) -> None:
    whole = from_lines(numbered(possible(events)), subscription_type)
    assume("sent" in whole.events["kind"].to_pylist())
    log = cut(whole, 1 + int(share * (whole.events.num_rows - 1)))
    cuts = [cut for cut in cuts if cut < log.events.num_rows]
    same(in_batches(log, cuts, all_messages=True), audited(log))
    with contextlib.suppress(NotStreamableError):  # a line that names what has left the window
        same(in_batches(log, cuts, all_messages=True, trim_above=0, keep_behind=0), audited(log))


CHECKPOINT = {
    "kind": "checkpoint",
    "consumers": [{"consumer": 1, "name": "a"}, {"consumer": 2, "name": "b"}],
    "mark_delete": "5:0",
    "ack_holes": ["5:2"],
    "pending_acks": {"1": ["5:1"]},
    "read_position": "5:3",
}
FEW = [message(entry, "k") for entry in range(5)]


def begun(tmp_path: Path, *events: Event, **fields: Any) -> DispatcherLog:
    lines = numbered([CHECKPOINT | fields, *events])
    return read(write(tmp_path / "a" / "b", FEW, [line | {"seq": 100 + line["seq"]} for line in lines]))


def test_who_and_what_a_checkpoint_names_counts_from_the_first_line(tmp_path: Path) -> None:
    audit = audited(begun(tmp_path, sent(2, 3), sent(2, 0), sent(2, 2), sent(2, 1), removed(1), sent(2, 1)))
    (split,) = of_kind(audit, "split_key")[:1]
    assert (split["positions"], split["consumers"], split["seqs"]) == (["5:3", "5:1"], [2, 1], [101, 102])
    assert not split["uncertain"]
    assert "while a still held 5:1, sent to it at or before 00:00:01" in split["explanation"]
    assert [row["positions"] for row in of_kind(audit, "double_outstanding")] == [["5:1"]]
    duplicates = of_kind(audit, "duplicate_after_ack")
    assert [row["positions"][0] for row in duplicates] == ["5:0", "5:2"]
    assert "although it was acknowledged at or before 00:00:01" in duplicates[0]["explanation"]
    assert not any(row["uncertain"] for row in duplicates)
    assert "unknown_consumer" not in kinds(audit)
    assert audit.deliveries["consumer_name"].to_pylist() == ["b"] * 5


def test_what_the_past_may_explain_is_uncertain(tmp_path: Path) -> None:
    audit = audited(begun(tmp_path, sent(2, 4), sent(2, 1), sent(2, 3)))
    orders = {row["positions"][0]: row for row in of_kind(audit, "out_of_order")}
    assert {position: row["uncertain"] for position, row in orders.items()} == {"5:1": True, "5:3": False}
    assert orders["5:1"]["reason"] == "before_checkpoint"
    unknown = audited(begun(tmp_path / "u", sent(2, 4), sent(2, 3), read_position=None))
    assert [row["uncertain"] for row in of_kind(unknown, "out_of_order")] == [True]


def test_an_acknowledgement_may_be_on_its_way_when_the_checkpoint_is_made(tmp_path: Path) -> None:
    soon = numbered([CHECKPOINT])[0]["t_us"] + 19_000
    events = [sent(2, 1, 2) | {"t_us": soon}]
    found = audited(begun(tmp_path, *events)).anomalies.to_pylist()
    assert {row["kind"] for row in found} == {"split_key", "double_outstanding", "duplicate_after_ack"}
    assert {(row["uncertain"], row["reason"]) for row in found} == {(True, "ack_racing")}


def test_lines_that_a_recorder_had_queued_when_it_read_the_state_prove_nothing_against_it(
    tmp_path: Path,
) -> None:
    read_us = numbered([CHECKPOINT])[0]["t_us"] + 10_000_000
    queued = [sent(2, 1, 2) | {"t_us": read_us - 5_000_000}]
    found = audited(begun(tmp_path / "queued", *queued, state_t_us=read_us)).anomalies.to_pylist()
    assert {row["kind"] for row in found} == {"split_key", "double_outstanding", "duplicate_after_ack"}
    assert {(row["uncertain"], row["reason"]) for row in found} == {(True, "ack_racing")}
    assert any(row["explanation"].endswith("that state was read after it was sent") for row in found)
    later = [sent(2, 1, 2) | {"t_us": read_us + 25_000}]
    proven = audited(begun(tmp_path / "later", *later, state_t_us=read_us)).anomalies.to_pylist()
    assert {row["kind"] for row in proven if not row["uncertain"]} == {row["kind"] for row in found}


def test_a_checkpoint_in_an_unbroken_log_changes_nothing(tmp_path: Path) -> None:
    events = [added(1), added(2), sent(1, 0), sent(2, 1), ack(1, 0), redeliver(2, 1), sent(1, 1), sent(2, 0)]
    plain = audited(read(write(tmp_path / "p" / "r", FEW, numbered(events))))
    false = CHECKPOINT | {"t_us": numbered(events)[3]["t_us"]}
    lines = [*numbered(events)[:4], false | {"seq": 5}]
    lines += [line | {"seq": line["seq"] + 1} for line in numbered(events)[4:]]
    audit = audited(read(write(tmp_path / "c" / "r", FEW, lines)))
    assert kinds(audit) == kinds(plain) != {}
    assert [row["explanation"] for row in audit.anomalies.to_pylist()] == [
        row["explanation"] for row in plain.anomalies.to_pylist()
    ]


def test_who_owns_a_hash_when_the_log_begins_is_nobodys_leaving(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(tmp_path, sent(2, 3), removed(1), sent(2, 4))
    assert main(["explain", str(tmp_path), "--key", "k"]) == 1  # a split
    first = [line for line in capsys.readouterr().out.splitlines() if line.startswith("00:00:01.000")]
    assert first
    assert not any("leaves" in line or "joins" in line for line in first)
