"""Clocks that are off make no certain finding: of producers by days, of brokers by hours. What really waited is found."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from tests.dispatch_core.audit.small_logs import (
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

HOUR_US = 3_600_000_000
START_US = T0_US + 30 * HOUR_US
STEP_US = 100_000
#: Entries come 5 ms after they were published, if the clocks agree.
LAG_US = 5_000
HOURS = [-24, -2, 2, 24]
#: Kinds that stand for a fault of the broker, or for two loads at once.
HARMLESS = {"clock_step", "redelivered"}


def write(folder: Path, messages: list[Event], *segments: list[Event], **fields: Any) -> Path:
    """A message log and the logs of loads of the topic, one broker each."""
    folder.mkdir(parents=True)
    files = {"messages": messages}
    for number, events in enumerate(segments, start=1):
        head = header(format="pulsar-consumer-events", broker=f"b{number}", incarnation=1, **fields)
        files[f"events-{number}"] = [head, *numbered(events)]
    for name, lines in files.items():
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
    return folder


def certain(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, set[str], set[str]]:
    """The verdict, and the kinds of certain and of uncertain findings."""
    main(["audit", "--json", str(folder)])
    *found, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    kinds: dict[bool, set[str]] = {False: set(), True: set()}
    for finding in found:
        kinds[finding["uncertain"]].add(finding["kind"])
    return verdict["verdict"], kinds[False] - HARMLESS, kinds[True]


def at(t_us: int, event: Event) -> Event:
    return event | {"t_us": t_us}


def delivered(entries: range, since_us: int) -> list[Event]:
    """Each entry is sent and acknowledged, one every 100 ms."""
    lines = []
    for number, entry in enumerate(entries):
        t_us = since_us + number * STEP_US
        lines += [at(t_us, sent(1, entry)), at(t_us + STEP_US // 2, ack(1, entry))]
    return lines


def two_hours_idle() -> tuple[list[Event], list[int]]:
    """Ten entries, then nothing is published for two hours, then twenty; and when each entry was stored."""
    again_us = START_US + 2 * HOUR_US
    begin = [at(START_US, added(1)), at(START_US + 1, flow(1, 1000))]
    events = [
        *begin,
        *delivered(range(10), START_US + STEP_US),
        *delivered(range(10, 30), again_us),
        at(again_us + 30 * STEP_US, removed(1)),
    ]
    sent_us = [event["t_us"] for event in events if event["kind"] == "sent"]
    return events, [t_us - LAG_US for t_us in sent_us]


def published(stored_us: list[int], off_us: dict[str, int]) -> list[Event]:
    """Entries of several producers in turn, whose clocks are off by so much."""
    names = list(off_us)
    return [
        message(
            entry,
            f"k{entry % 3}",
            producer=names[entry % len(names)],
            publish_time_ms=(t_us + off_us[names[entry % len(names)]]) // 1000,
        )
        for entry, t_us in enumerate(stored_us)
    ]


@pytest.mark.parametrize("hours", HOURS)
@pytest.mark.parametrize("producers", [1, 2])
@pytest.mark.parametrize("kind", ["Key_Shared", "Failover", "Shared"])
def test_a_producers_clock_makes_no_certain_stall(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, producers: int, hours: int
) -> None:
    """Nothing waits, but by the clock of a producer that is behind, its entries were there before the topic was idle."""
    events, stored_us = two_hours_idle()
    off_us = {"right": 0, "off": hours * HOUR_US}
    messages = published(stored_us, off_us if producers == 2 else {"off": hours * HOUR_US})
    folder = write(tmp_path / "a" / "b", messages, events, subscription_type=kind)
    verdict, found, _ = certain(folder, capsys)
    assert (verdict != "FAIL", found) == (True, set())


@pytest.mark.parametrize("off_us", [0, -3_000, 20_000])
def test_a_stall_by_clocks_that_agree_is_certain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], off_us: int
) -> None:
    """The same lines, but entry 10 was stored when the idle time began."""
    events, stored_us = two_hours_idle()
    stored_us[10:13] = [START_US + 20 * STEP_US] * 3
    folder = write(tmp_path / "a" / "b", published(stored_us, {"p": off_us}), events)
    verdict, found, _ = certain(folder, capsys)
    assert verdict == "FAIL"
    assert found & {"stuck_key", "stuck_consumer", "stuck_subscription"}


@pytest.mark.parametrize("hours", [2, 24])
def test_a_stall_that_a_producers_clock_explains_is_uncertain_and_not_gone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hours: int
) -> None:
    events, stored_us = two_hours_idle()
    folder = write(tmp_path / "a" / "b", published(stored_us, {"p": -hours * HOUR_US}), events)
    verdict, found, uncertain = certain(folder, capsys)
    assert (verdict, found, uncertain) == ("UNKNOWN", set(), {"stuck_subscription"})


@pytest.mark.parametrize("hours", HOURS)
def test_a_brokers_clock_that_steps_and_comes_back_makes_no_certain_finding(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], hours: int
) -> None:
    lines = begun(permits=1000, entries=30)
    stored_us = [event["t_us"] - LAG_US for event in lines if event["kind"] == "sent"]
    half = len(lines) // 2
    for event in lines[half : half + 20]:
        event["t_us"] += hours * HOUR_US
    folder = write(tmp_path / "a" / "b", published(stored_us, {"p": 0}), lines)
    verdict, found, _ = certain(folder, capsys)
    assert (verdict != "FAIL", found) == (True, set())


@pytest.mark.parametrize("seconds", [20, 7_200, 86_400])
@pytest.mark.parametrize("producers", [{"p": 0}, {"p": 0, "ahead": HOUR_US}, {"behind": -HOUR_US}])
@pytest.mark.parametrize("kind", ["Key_Shared", "Failover"])
def test_a_brokers_clock_that_jumps_forward_makes_no_certain_stall(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    producers: dict[str, int],
    seconds: int,
) -> None:
    """It jumps while an entry is on its way, and never comes back."""
    lines = begun(permits=1000, entries=30)
    sends = [number for number, event in enumerate(lines) if event["kind"] == "sent"]
    stored_us = [lines[number]["t_us"] - LAG_US for number in sends]
    for event in lines[sends[12] :]:
        event["t_us"] += seconds * 1_000_000
    folder = write(tmp_path / "a" / "b", published(stored_us, producers), lines, subscription_type=kind)
    verdict, found, uncertain = certain(folder, capsys)
    assert (verdict != "FAIL", found) == (True, set())
    assert kind == "Failover" or uncertain & {"stuck_key", "stuck_consumer", "stuck_subscription"}


def begun(*, permits: int, entries: int) -> list[Event]:
    """The beginning of a log: a consumer with permits, and the first entries, delivered one after the other."""
    return [
        at(START_US, added(1)),
        at(START_US + 1, flow(1, permits)),
        *delivered(range(entries), START_US + STEP_US),
    ]


def jumped(lines: list[Event], first: int, seconds: int) -> list[Event]:
    """The lines, and all from the ``first`` one on later by a jump of the clock."""
    return [
        event | {"t_us": event["t_us"] + seconds * 1_000_000} if number >= first else event
        for number, event in enumerate(lines)
    ]


@pytest.mark.parametrize("seconds", [20, 7_200, 86_400])
@pytest.mark.parametrize("kind", ["Key_Shared", "Failover"])
@pytest.mark.parametrize("open_", [False, True])
def test_a_clock_that_jumps_while_permits_lack_makes_no_certain_stall(
    open_: bool, kind: str, seconds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The consumer lacks permits for 300 ms; the clock jumps then. ``open_``: the rest waits still at the last line."""
    begin = begun(permits=10, entries=10)
    again_us = START_US + 14 * STEP_US
    end = [
        at(again_us, flow(1, 18 if open_ else 100)),
        *delivered(range(10, 28 if open_ else 30), again_us + 1),
    ]
    lines = [*begin, *end]
    stored_us = [START_US + (1 + entry) * STEP_US - LAG_US for entry in range(30)]
    stored_us[14:30] = [again_us + (entry - 10) * STEP_US + 1 - LAG_US for entry in range(14, 30)]
    for jump, findings in ((0, set()), (seconds, {"stuck_consumer"})):
        made = jumped(lines, len(begin), jump)
        folder = write(tmp_path / str(jump), published(stored_us, {"p": 0}), made, subscription_type=kind)
        verdict, found, uncertain = certain(folder, capsys)
        assert (verdict, found) == ("UNKNOWN" if findings else "PASS", set())
        assert uncertain >= findings


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover"])
def test_a_stall_for_lack_of_permits_that_later_entries_confirm_is_certain(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin = begun(permits=10, entries=10)
    again_us = START_US + 30_000_000
    lines = [*begin, at(again_us, flow(1, 100)), *delivered(range(10, 30), again_us + 1)]
    stored_us = [START_US + (1 + entry) * STEP_US - LAG_US for entry in range(14)]
    stored_us += [again_us + (entry - 10) * STEP_US + 1 - LAG_US for entry in range(14, 30)]
    folder = write(tmp_path / "a", published(stored_us, {"p": 0}), lines, subscription_type=kind)
    verdict, found, _ = certain(folder, capsys)
    assert (verdict, found) == ("FAIL", {"stuck_consumer"})


def test_a_clock_that_jumps_makes_no_certain_hole_and_no_open_stall(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """5:20 is not acknowledged when the log ends, a second after it was sent; the clock jumped by a day in that second."""
    lines = begun(permits=1000, entries=40)
    stored_us = [event["t_us"] - LAG_US for event in lines if event["kind"] == "sent"]
    del lines[2 + 41]
    for seconds, reason in ((0, None), (86_400, "clock_jumped")):
        folder = write(
            tmp_path / str(seconds), published(stored_us, {"p": 0}), jumped(lines, 2 + 44, seconds)
        )
        main(["audit", "--json", "--limit", "ack_hole_ms=30000", str(folder)])
        *found, verdict = map(json.loads, capsys.readouterr().out.splitlines())
        holes = [(row["uncertain"], row["reason"]) for row in found if row["kind"] == "ack_hole"]
        assert holes == ([(True, reason)] if reason else [])
        assert verdict["verdict"] == ("UNKNOWN" if reason else "PASS")


def test_a_jump_before_a_stall_leaves_it_certain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The clock jumped by a day; the stall of half a minute comes later, and lines stand in it."""
    lines = begun(permits=20, entries=20)
    stored_us = [event["t_us"] - LAG_US for event in lines if event["kind"] == "sent"]
    stalled_us = START_US + 22 * STEP_US
    stored_us += [stalled_us + number * STEP_US for number in range(10)]
    lines += [
        at(stalled_us + s * 1_000_000, {"kind": "redeliver", "consumer": 1, "positions": ["5:0"]})
        for s in range(1, 30)
    ]
    lines += [at(stalled_us + 30_000_000, flow(1, 100)), *delivered(range(20, 30), stalled_us + 30_000_001)]
    folder = write(tmp_path / "a", published(stored_us, {"p": 0}), jumped(lines, 22, 86_400))
    verdict, found, _ = certain(folder, capsys)
    assert (verdict, found) == ("FAIL", {"stuck_consumer"})


def test_a_stall_during_which_the_log_goes_on_is_certain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All later entries are late, but no silence is long enough for one jump of the clock."""
    stalled_us = START_US + 14 * STEP_US
    begin = begun(permits=1000, entries=10)
    stored_us = [event["t_us"] - LAG_US for event in begin if event["kind"] == "sent"]
    stored_us += [stalled_us + number * STEP_US for number in range(20)]
    for silent, expected in ((False, "FAIL"), (True, "UNKNOWN")):
        going_on = [] if silent else [at(stalled_us + s * 1_000_000, flow(1, 1)) for s in range(1, 30)]
        lines = [*begin, *going_on, *delivered(range(10, 30), stalled_us + 30_000_000)]
        folder = write(tmp_path / str(silent), published(stored_us, {"p": 0}), lines)
        verdict, found, uncertain = certain(folder, capsys)
        stuck = "stuck_subscription"
        assert (verdict, stuck in found, stuck in uncertain) == (expected, not silent, silent)


def test_a_stall_that_later_entries_confirm_is_certain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same stall, and the last entries come as soon after their publish times as the first."""
    lines = [
        at(START_US, added(1)),
        at(START_US + 1, flow(1, 1000)),
        *delivered(range(12), START_US + STEP_US),
        *delivered(range(12, 30), START_US + 20_000_000),
    ]
    stored_us = [event["t_us"] - LAG_US for event in lines if event["kind"] == "sent"]
    stored_us[12:16] = [START_US + 13 * STEP_US] * 4
    folder = write(tmp_path / "a" / "b", published(stored_us, {"p": 0}), lines)
    verdict, found, _ = certain(folder, capsys)
    assert (verdict, "stuck_subscription" in found) == ("FAIL", True)


@pytest.mark.parametrize("hours", [*HOURS, 0])
@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("kind", ["Key_Shared", "Failover", "Shared"])
def test_a_topic_that_moves_to_a_broker_with_another_clock(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
    checkpoint: bool,
    again: bool,
    hours: int,
) -> None:
    """The second load goes on behind the first. ``again``: the last entry was not acknowledged and comes again."""
    moved_us = START_US + 34 * STEP_US
    first = begun(permits=1000, entries=30)
    if again:
        del first[-1]
    first.append(at(moved_us - STEP_US, removed(1)))
    begin = 29 if again else 30
    second = [at(moved_us, added(1)), at(moved_us + 1, flow(1, 1000))]
    second += [*delivered(range(begin, 60), moved_us + STEP_US), at(moved_us + 40 * STEP_US, removed(1))]
    if checkpoint:
        state = {"consumers": [], "mark_delete": f"5:{begin - 1}", "read_position": f"5:{begin}"}
        second.insert(
            0, {"kind": "checkpoint", "t_us": moved_us - 10, "ack_holes": [], "pending_acks": {}, **state}
        )
    second = [event | {"t_us": event["t_us"] + hours * HOUR_US} for event in second]
    stored_us = [START_US + STEP_US * (entry + 1) - LAG_US for entry in range(60)]
    messages = published(stored_us, {"p": 0})
    folder = write(tmp_path / "a" / "b", messages, first, second, subscription_type=kind)
    verdict, found, _ = certain(folder, capsys)
    assert (verdict != "FAIL", found) == (True, set())
    if not again or hours >= 0:
        assert verdict == "PASS"
