"""A stall that no rule explains is found after it has ended, by the command line and by the pipeline in any batches.

Each log has one stall of two hours: the first consumer had permits, entries of several keys waited for it, and it was sent
nothing. Then everything goes on as before, for minutes or for hours. In Key_Shared a second consumer got its entries
meanwhile; in Failover and Exclusive nobody else is there, so nothing was read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from dispatch_core.audit.deliveries import fold
from dispatch_core.cli.main import main
from dispatch_core.recording import stream, table_rows
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.times import from_micros
from tests.dispatch_core.audit.small_logs import T0_US, Event, ack, added, flow, message, sent
from tests.dispatch_core.audit.test_found_everywhere import numbered, write
from tests.dispatch_core.replay.test_log_files import gathered, written

SECOND: Final = 1_000
HOUR: Final = 3_600 * SECOND
#: Entries before the stall, in it, and behind it; each has a key of its own, and one is stored every second.
BEFORE, STALLED, BEHIND = 10, 6, 60
STALL_MS: Final = BEFORE * SECOND
TYPES: Final = ("Failover", "Exclusive", "Key_Shared")
#: Kind and reason of the stall.
FOUND: Final[dict[str, tuple[str, str | None]]] = {
    "Failover": ("stuck_subscription", "no_read"),
    "Exclusive": ("stuck_subscription", "no_read"),
    "Key_Shared": ("stuck_consumer", None),
}
WHOLE_DAY: Final = (T0_US, T0_US + 24 * HOUR * 1_000)
Line = tuple[int, Event]


def stalled_log(folder: Path, kind: str, *, keys: bool = True, tail_ms: int = 0) -> Path:
    """Write the log below ``folder``. ``tail_ms``: until the last line, behind the entries after the stall."""
    consumers = 2 if kind == "Key_Shared" else 1
    lines: list[Line] = [(0, event) for c in range(1, consumers + 1) for event in (added(c), flow(c, 1_000))]
    messages = []
    entries = BEFORE + STALLED + BEHIND
    owner = owners(folder, entries) if kind == "Key_Shared" and keys else [1] * entries
    for entry in range(entries):
        stored = entry * SECOND
        if entry >= BEFORE + STALLED:
            stored += 2 * HOUR
        stalls = BEFORE <= entry < BEFORE + STALLED and owner[entry] == 1
        at = STALL_MS + 2 * HOUR + entry if stalls else stored + 2
        messages.append(
            message(entry, f"k{entry}" if keys else None, publish_time_ms=T0_US // 1_000 + stored)
        )
        lines += [(at, sent(owner[entry], entry)), (at + 2, ack(owner[entry], entry))]
    lines.append((lines[-1][0] + tail_ms + 1, flow(1, 1)))
    write(folder / "logs" / kind, "messages", messages)
    rows = numbered(sorted(lines, key=lambda line: line[0]))
    write(folder / "logs" / kind, "events", rows, subscription_type=kind)
    return folder / "logs" / kind


def owners(folder: Path, entries: int) -> list[int]:
    """Return the consumer that Key_Shared sends each key to, by its rule."""
    lines = [(0, event) for consumer in (1, 2) for event in (added(consumer), flow(consumer, 1_000))]
    lines += [(1 + entry, sent(1, entry)) for entry in range(entries)]
    write(folder / "asked" / "owners", "messages", [message(entry, f"k{entry}") for entry in range(entries)])
    write(folder / "asked" / "owners", "events", numbered(lines), subscription_type="Key_Shared")
    (source,) = find_recordings([str(folder / "asked" / "owners")])
    (log,) = read_recording(source).logs
    rows = replay(log, interval_start=from_micros(WHOLE_DAY[0]), interval_end=from_micros(WHOLE_DAY[1]))
    expected: list[int | None] = rows["deliveries"]["expected_consumer"].to_pylist()
    return [2 if consumer == 2 else 1 for consumer in expected]


def in_intervals(
    log: Path, folder: Path, spans: list[tuple[int, int]], rows: int, monkeypatch: pytest.MonkeyPatch
) -> list[list[dict[str, Any]]]:
    """Return the stalls that the pipeline's way finds in each interval, in batches of so many lines."""
    monkeypatch.setattr(stream, "BATCH_ROWS", rows)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
    monkeypatch.setattr(
        fold.AuditFold.__init__,
        "__kwdefaults__",
        {**(fold.AuditFold.__init__.__kwdefaults__ or {}), "trim_above": 0},
    )
    (source,) = find_recordings([str(log)])
    dispatcher = written(read_recording(source).logs[0], folder, row_group_rows=20)
    found = []
    for begin, end in spans:
        tables = gathered(
            replay_files(dispatcher, interval_start=from_micros(begin), interval_end=from_micros(end))
        )
        found.append([row for row in tables["anomalies"] if row["kind"].startswith("stuck_")])
    return found


@pytest.mark.parametrize("tail_ms", [0, 300, 10 * HOUR])
@pytest.mark.parametrize("kind", TYPES)
def test_the_command_line_finds_it(
    kind: str, tail_ms: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["audit", "--json", str(stalled_log(tmp_path, kind, tail_ms=tail_ms))])
    *findings, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    stuck, reason = FOUND[kind]
    stalls = [row for row in findings if row["kind"] == stuck]
    assert [(row["consumers"], row["uncertain"], row.get("reason")) for row in stalls] == [
        ([1], False, reason)
    ]
    says = "nothing was read" if reason else "no rule that the log shows held it back"
    assert says in stalls[0]["explanation"]
    assert verdict["verdict"] == "FAIL"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [3, 20, 10_000])
@pytest.mark.parametrize("kind", TYPES)
def test_each_interval_that_it_reaches_into_has_it(
    kind: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stalled_log(tmp_path, kind, tail_ms=10 * HOUR)
    spans = [(T0_US + hour * HOUR * 1_000, T0_US + (hour + 1) * HOUR * 1_000) for hour in range(4)]
    found = in_intervals(log, tmp_path, spans, rows, monkeypatch)
    # it ends ten seconds behind the second hour
    stuck, _ = FOUND[kind]
    expected: list[set[str]] = [{stuck}, {stuck}, {stuck}, set()]
    assert [{*_kinds(of_hour)} - {"stuck_key"} for of_hour in found] == expected
    assert all(not row["uncertain"] for of_hour in found for row in of_hour)


@pytest.mark.parametrize("kind", TYPES)
def test_batches_of_any_size_give_the_same_stalls(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = stalled_log(tmp_path, kind)
    by_size = []
    for rows in (2, 3, 7, 50, 10_000):
        (folder := tmp_path / str(rows)).mkdir()
        by_size.append(in_intervals(log, folder, [WHOLE_DAY], rows, monkeypatch))
    assert all(found == by_size[0] for found in by_size)
    assert FOUND[kind][0] in _kinds(by_size[0][0])


def _kinds(rows: list[dict[str, Any]]) -> list[str]:
    return [row["kind"] for row in rows]
