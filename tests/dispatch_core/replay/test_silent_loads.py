"""A load of the topic that sends nothing: what earlier loads left waits, and is found.

The first load is sent some entries. Three more are stored, or sent and not acknowledged, before the topic is unloaded. The
second load has a consumer with permits for half a minute.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from dispatch_core.audit.verdict import PASS
from dispatch_core.recording import stream, table_rows
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.log_files import replay_files
from dispatch_core.times import from_micros
from tests.dispatch_core.audit.small_logs import T0_US, Event, ack, added, flow, message, sent
from tests.dispatch_core.audit.test_found_everywhere import RULES, Timed, judged, numbered, write
from tests.dispatch_core.replay.test_log_files import gathered, written

SENT, LEFT = range(3), range(3, 6)
RELOAD_MS: Final = 20_000
#: The state that the recorder writes when a dispatcher is made.
STATE: Final[Event] = {
    "kind": "checkpoint",
    "mark_delete": "5:2",
    "ack_holes": [],
    "read_position": "5:3",
    "consumers": [],
}
REPLAYED: Final = sorted({*RULES} - {"Shared"})


def two_loads(folder: Path, rules: str, *, pending: bool, checkpoint: bool, keys: bool = True) -> Path:
    first: list[Timed] = [(1, added(1)), (2, flow(1, 100))]
    for entry in [*SENT, *(LEFT if pending else ())]:
        first.append((1_002 + 100 * entry, sent(1, entry)))
        if entry in SENT:
            first.append((1_004 + 100 * entry, ack(1, entry)))
    second: list[Timed] = [(RELOAD_MS, added(1)), (RELOAD_MS, flow(1, 100)), (RELOAD_MS + 30_000, flow(1, 1))]
    if checkpoint:
        second.insert(0, (RELOAD_MS, STATE))
    messages = [
        message(entry, f"k{entry}" if keys else None, publish_time_ms=T0_US // 1_000 + 1_000 + 100 * entry)
        for entry in [*SENT, *LEFT]
    ]
    write(folder, "messages", messages)
    for incarnation, lines in enumerate((first, second), 1):
        fields = RULES[rules] | {"broker": "b1", "incarnation": incarnation}
        write(folder, f"events-{incarnation}", numbered(lines), **fields)
    return folder


def stuck(rules: str) -> str:
    """Return the kind as which the wait is found: of Failover and Exclusive it is known since when nothing is read."""
    return "stuck_subscription" if rules in ("Failover", "Exclusive") else "stuck_consumer"


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("pending", [True, False])
@pytest.mark.parametrize("rules", REPLAYED)
def test_what_an_earlier_load_left_is_stuck(
    rules: str, pending: bool, checkpoint: bool, tmp_path: Path
) -> None:
    verdict, certain, found = judged(
        two_loads(tmp_path / "a" / "b", rules, pending=pending, checkpoint=checkpoint)
    )
    assert stuck(rules) in found
    assert ("never_delivered" in found) == (not pending and stuck(rules) == "stuck_consumer")
    # Without a checkpoint the cursor may have passed it while no dispatcher was logged.
    assert (verdict, certain) == (("FAIL", found) if checkpoint else ("UNKNOWN", set()))


@pytest.mark.parametrize("rules", REPLAYED)
def test_entries_without_a_key_are_found_too(rules: str, tmp_path: Path) -> None:
    folder = two_loads(tmp_path / "a" / "b", rules, pending=True, checkpoint=True, keys=False)
    assert judged(folder)[1] == {stuck(rules)}


@pytest.mark.parametrize("rules", REPLAYED)
def test_what_was_acknowledged_is_not_owed(rules: str, tmp_path: Path) -> None:
    folder = two_loads(tmp_path / "a" / "b", rules, pending=True, checkpoint=False)
    acked: list[Timed] = [
        (1, added(1)),
        (2, flow(1, 100)),
        *((1_002 + 100 * entry, sent(1, entry)) for entry in [*SENT, *LEFT]),
        *((1_004 + 100 * entry, ack(1, entry)) for entry in [*SENT, *LEFT]),
    ]
    rows = numbered(sorted(acked, key=lambda line: line[0]))
    write(folder, "events-1", rows, **RULES[rules], broker="b1", incarnation=1)
    assert judged(folder) == (PASS, set(), set())


@pytest.mark.parametrize("rules", REPLAYED)
def test_batches_of_any_size_find_the_same(
    rules: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = two_loads(tmp_path / "a" / "b", rules, pending=True, checkpoint=False)
    (source,) = find_recordings([str(folder)])
    files: list[str] = []
    for number, log in enumerate(read_recording(source).logs):
        (own := tmp_path / str(number)).mkdir()
        dispatcher = written(log, own, row_group_rows=20)
        files += dispatcher["event_files"]
    span: dict[str, Any] = {"interval_start": from_micros(T0_US), "to_last_line": True}
    span["interval_end"] = from_micros(T0_US + 86_400_000_000)
    found = []
    for rows in (2, 5, 10_000):
        monkeypatch.setattr(stream, "BATCH_ROWS", rows)
        monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
        tables = gathered(replay_files(dispatcher | {"event_files": files}, **span))
        found.append(tables["anomalies"])
    assert stuck(rules) in {row["kind"] for row in found[0]}
    assert found[1:] == found[:-1]
