"""A load of the topic behind one that lost lines: without a checkpoint nothing says what had been acknowledged by then."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.tables import REPLAY_TABLES
from tests.dispatch_core.audit.small_logs import (
    MIDNIGHT,
    T0_US,
    Event,
    ack,
    added,
    flow,
    header,
    message,
    numbered,
    removed,
    sent,
)
from tests.dispatch_core.replay.test_log_files import gathered, written

#: The recorder writes all of this: what has no line did not happen.
RECORDS = ["cursor_moved", "limit", "subscription_deleted", "deliver_at_ms", "txn"]
TYPES = ["Key_Shared", "Exclusive"]
#: The first load sends 5:0 to 5:3, and all of them are acknowledged.
FIRST = numbered(
    [added(1), flow(1, 100), sent(1, 0, 1), ack(1, 0, 1), sent(1, 2, 3), ack(1, 2, 3), removed(1)]
)
#: The second one sends the rest.
SECOND = [added(1), flow(1, 100), sent(1, 4), ack(1, 4), sent(1, 5), ack(1, 5)]
CHECKPOINT = {
    "kind": "checkpoint",
    "consumers": [],
    "mark_delete": "5:3",
    "read_position": "5:4",
    "pending": {},
}
KINDS = ("ack_hole", "never_delivered", "divergence", "out_of_order", "stuck_key", "stuck_consumer")


def at(events: list[Event], hours: int) -> list[Event]:
    """The lines some hours later."""
    return [event | {"t_us": event["t_us"] + hours * 3_600_000_000} for event in events]


def without(lines: list[Event], *seqs: int) -> list[Event]:
    return [line for line in lines if line["seq"] not in seqs]


def write(folder: Path, *loads: list[Event], subscription_type: str, damaged: bool = False) -> Path:
    """A folder with one file for each load of the topic; ``damaged``: a line behind the first one is not JSON."""
    folder.mkdir(parents=True)
    stored = [message(entry, f"k{entry % 3}") for entry in range(6)]
    files: dict[str, list[Any]] = {"messages": stored}
    for number, events in enumerate(loads, start=1):
        head = header(
            format="pulsar-consumer-events",
            broker="b",
            incarnation=number,
            subscription_type=subscription_type,
            records=RECORDS,
        )
        files[f"events-{number}"] = [head, *events, *([None] if damaged and number == 1 else [])]
    for name, lines in files.items():
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as out:
            out.writelines((json.dumps(line) if line else "x") + "\n" for line in lines)
    return folder


def findings(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, list[dict[str, Any]]]:
    main(["audit", "--json", "--complete", str(folder)])
    *found, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    return verdict["verdict"], found


def certain(found: list[dict[str, Any]]) -> set[str]:
    return {finding["kind"] for finding in found if not finding["uncertain"]} & set(KINDS)


#: Lines of the first load that are lost. Without them entries seem not to be acknowledged, or not to be sent.
LOST = {
    "acknowledgements in the middle": ([4], {"ack_hole"}),
    "acknowledgements at the end": ([6, 7], {"ack_hole"}),
    "a delivery and its acknowledgement": ([5, 6], {"never_delivered", "divergence"}),
    "all but the first lines": ([5, 6, 7], {"never_delivered", "divergence"}),
}


def loads_of(lost: str, *, again: bool = False) -> list[list[Event]]:
    """Both loads, the first without the lost lines: a ``gap`` line stands in their place."""
    gone = LOST[lost][0]
    first = without(FIRST, *gone)
    gap = {"seq": gone[0], "t_us": FIRST[gone[0] - 1]["t_us"], "kind": "gap", "from": gone[0], "to": gone[-1]}
    first = sorted([*first, gap], key=lambda line: line["seq"])
    return [first, at(numbered([*([CHECKPOINT] if again else []), *SECOND]), 1)]


@pytest.mark.parametrize("subscription_type", TYPES)
@pytest.mark.parametrize("lost", LOST)
def test_what_lost_lines_of_the_load_before_may_explain_is_uncertain(
    lost: str, subscription_type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loads = loads_of(lost)
    verdict, found = findings(write(tmp_path / "a", *loads, subscription_type=subscription_type), capsys)
    assert (verdict, certain(found)) == ("UNKNOWN", set())
    gaps = [(row["incarnation"], row["reason"]) for row in found if row["kind"] == "log_gap"]
    assert gaps == [(1, "gap_line"), (2, "earlier_load")]


@pytest.mark.parametrize(
    ("lost", "subscription_type"),
    [
        ("acknowledgements at the end", "Key_Shared"),
        ("acknowledgements at the end", "Exclusive"),
        ("a delivery and its acknowledgement", "Exclusive"),
    ],
)
def test_the_same_fault_without_lost_lines_is_certain(
    lost: str, subscription_type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, kinds = LOST[lost]
    loads = [
        numbered([{**line, "seq": n} for n, line in enumerate(without(FIRST, *gone), 1)]),
        loads_of(lost)[1],
    ]
    verdict, found = findings(write(tmp_path / "a", *loads, subscription_type=subscription_type), capsys)
    assert verdict == "FAIL"
    assert certain(found) & kinds


@pytest.mark.parametrize("subscription_type", TYPES)
@pytest.mark.parametrize("lost", LOST)
def test_behind_a_checkpoint_the_next_load_is_certain_again(
    lost: str, subscription_type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loads = loads_of(lost, again=True)
    sound = write(tmp_path / "a", *loads, subscription_type=subscription_type)
    verdict, found = findings(sound, capsys)
    assert (verdict, certain(found)) == ("UNKNOWN", set())
    assert [row["incarnation"] for row in found if row["kind"] == "log_gap"] == [1]
    lines = [line for line in loads[1] if line.get("positions") != ["5:4"]]
    faulty = [line | {"seq": seq} for seq, line in enumerate(lines, 1)]
    folder = write(tmp_path / "b", loads[0], faulty, subscription_type=subscription_type)
    verdict, found = findings(folder, capsys)
    assert verdict == "FAIL"
    assert "never_delivered" in certain(found)


@pytest.mark.parametrize("subscription_type", TYPES)
def test_a_checkpoint_behind_the_lost_lines_is_no_false_alarm(
    subscription_type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next load begins without one."""
    gap = {"seq": 6, "t_us": FIRST[5]["t_us"], "kind": "gap", "from": 6, "to": 6}
    state = CHECKPOINT | {"consumers": [{"consumer": 1, "name": "worker-1"}], "pending": {"1": []}}
    first = [*FIRST[:5], gap, state | {"seq": 7, "t_us": FIRST[5]["t_us"] + 1}, FIRST[6] | {"seq": 8}]
    second = at(numbered(SECOND), 1)
    folder = write(tmp_path / "a", first, second, subscription_type=subscription_type)
    verdict, found = findings(folder, capsys)
    assert (verdict, certain(found)) == ("UNKNOWN", set())


@pytest.mark.parametrize("subscription_type", TYPES)
def test_rows_that_could_not_be_read_at_the_end_of_a_load_are_lost_lines_too(
    subscription_type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loads = [FIRST[:5], at(numbered(SECOND), 1)]
    folder = write(tmp_path / "a", *loads, subscription_type=subscription_type, damaged=True)
    verdict, found = findings(folder, capsys)
    assert verdict == "FAIL"  # of the quality of the input
    assert certain(found) == set()
    assert {row["reason"] for row in found if row["kind"] == "log_gap"} == {"earlier_load"}


@pytest.mark.parametrize("subscription_type", TYPES)
def test_the_doubt_goes_on_until_a_checkpoint(
    subscription_type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second load is as short as it can be; the third one has to begin behind what the first one acknowledged."""
    first = loads_of("all but the first lines")[0]
    second = at(numbered([added(1), removed(1)]), 1)
    for again, kinds in ((False, set()), (True, {"never_delivered"})):
        third = at(
            numbered([*([CHECKPOINT] if again else []), added(1), flow(1, 100), sent(1, 5), ack(1, 5)]), 2
        )
        folder = write(tmp_path / str(again), first, second, third, subscription_type=subscription_type)
        _verdict, found = findings(folder, capsys)
        assert certain(found) & {"never_delivered"} == kinds


def test_an_entry_may_have_been_sent_in_lost_lines_before_a_later_one_of_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """5:0 and 5:3 have one key. A checkpoint does not say what an earlier load sent."""
    lines = [added(1), flow(1, 100), sent(1, 0), ack(1, 1), sent(1, 3), ack(1, 3), removed(1)]
    state = CHECKPOINT | {"mark_delete": "4:-1", "read_position": "5:0", "ack_holes": ["5:1", "5:3"]}
    second = at(
        numbered([state, added(1), flow(1, 100), sent(1, 0, 2), ack(1, 0, 2), sent(1, 4, 5), ack(1, 4, 5)]), 1
    )
    first = numbered(lines)
    whole = write(tmp_path / "a", without(first, 3), second, subscription_type="Key_Shared")
    _verdict, found = findings(whole, capsys)
    (order,) = [row for row in found if row["kind"] == "out_of_order"]
    assert (order["uncertain"], order["reason"], order["incarnation"]) == (True, "log_gap", 2)
    renumbered = [line | {"seq": seq} for seq, line in enumerate(without(first, 3), 1)]
    folder = write(tmp_path / "b", renumbered, second, subscription_type="Key_Shared")
    _verdict, found = findings(folder, capsys)
    assert "out_of_order" in certain(found)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("subscription_type", TYPES)
@pytest.mark.parametrize("lost", [*LOST, "rows at the end"])
def test_batches_judge_both_loads_as_the_whole_log(
    lost: str, subscription_type: str, again: bool, tmp_path: Path
) -> None:
    at_end = lost not in LOST
    loads = loads_of("all but the first lines" if at_end else lost, again=again)
    if at_end:
        loads[0] = FIRST[:5]
    (source,) = find_recordings([str(write(tmp_path / "a", *loads, subscription_type=subscription_type))])
    logs = list(read_recording(source).logs)
    logs[0] = replace(logs[0], end_lost=at_end)
    files = []
    for number, log in enumerate(logs):
        (tmp_path / str(number)).mkdir()
        files.append(written(log, tmp_path / str(number), row_group_rows=10))
    dispatcher = files[0] | {"event_files": [file["event_files"][0] for file in files]}
    dispatcher["ends_lost"] = [{"broker": "b", "incarnation": 1}] if at_end else []
    span = {"interval_start": MIDNIGHT, "interval_end": MIDNIGHT + timedelta(days=1)}
    in_batches = gathered(replay_files(dispatcher, complete=True, **span))  # type: ignore[arg-type]
    whole: dict[str, list[dict[str, Any]]] = {name: [] for name in REPLAY_TABLES}
    for number, log in enumerate(logs):
        last = number == len(logs) - 1
        until = span if last else span | {"interval_end": MIDNIGHT + timedelta(hours=1, seconds=1)}
        found = replay(log, earlier=logs[:number], closed=last, last=last, **until)  # type: ignore[arg-type]
        for table in REPLAY_TABLES:
            whole[table] += found[table].to_pylist()
    for table in ("deliveries", "anomalies", "divergences"):
        assert in_batches[table] == whole[table], table
    doubted = [row["reason"] == "earlier_load" for row in in_batches["anomalies"] if row["incarnation"] == 2]
    assert any(doubted) is not again


@pytest.mark.parametrize("subscription_type", ["Key_Shared", "Failover"])
def test_what_differs_in_an_interval_behind_the_one_that_lost_lines_is_uncertain(
    subscription_type: str, tmp_path: Path
) -> None:
    """The finding ``log_gap`` belongs to the interval before; one of two consumers gets 5:1 against the rules."""
    begin = numbered([added(1), added(2), flow(1, 100), flow(2, 100), flow(1, 1), flow(1, 1)])
    gap = {"seq": 5, "t_us": begin[4]["t_us"], "kind": "gap", "from": 5, "to": 5}
    span = {"interval_start": MIDNIGHT + timedelta(minutes=1), "interval_end": MIDNIGHT + timedelta(days=1)}
    differs: dict[bool, list[tuple[bool, str]]] = {False: [], True: []}
    for lost in (False, True):
        first = [*begin[:4], gap, *begin[5:]] if lost else begin
        for consumer in (1, 2):
            later = at([sent(consumer, 0, 1) | {"seq": 7, "t_us": T0_US}], 1)
            folder = tmp_path / str(lost) / str(consumer)
            write(folder / "a", [*first, *later], subscription_type=subscription_type)
            (source,) = find_recordings([str(folder / "a")])
            (log,) = read_recording(source).logs
            whole = replay(log, **span)["anomalies"].to_pylist()  # type: ignore[arg-type]
            dispatcher = written(log, folder, row_group_rows=10)
            assert gathered(replay_files(dispatcher, **span))["anomalies"] == whole  # type: ignore[arg-type]
            differs[lost] += [
                (row["uncertain"], row["reason"]) for row in whole if row["kind"] == "divergence"
            ]
    assert set(differs[False]) == {(False, "dispatch")}
    assert differs[True] == [(True, "log_gap")] * len(differs[False])
