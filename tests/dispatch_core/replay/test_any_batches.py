"""Every stored recording, cut into batches of any size, with a window that is cut at every batch, gives what its whole log
gives, row for row.

A log is replayed as a whole where a line sends an entry again that has left the window, or that the message log lacks.
Batches of three lines take long: ``make conformance-all`` tries them with every recording.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pytest

from dispatch_core.audit.deliveries import fold
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording import stream, table_rows
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.tables import REPLAY_TABLES
from dispatch_core.times import from_micros
from tests.dispatch_core.logs_without_trace import DATA, stripped
from tests.dispatch_core.replay.test_log_files import gathered, written
from tests.sample import some

SHARED: Final = Path(__file__).resolve().parents[4] / "shared" / "recordings"
#: Lines of the largest log that is taken.
_MOST_LINES: Final = 6_000
#: Settled entries that stay in the window.
_KEPT: Final = (0, 1, 100)
_SECOND_US: Final = 1_000_000
#: A log that may be replayed as a whole, by the reason.
_SENT_AGAIN: Final = "lies before the window that is kept|keys of the message log cannot be read"


def folders(root: Path) -> list[Path]:
    """Return the folders of recordings below one."""
    return sorted({path.parent for path in root.rglob("*.jsonl*")})


def name_of(folder: Path) -> str:
    return "/".join(folder.parts[-2:])


def log_of(folder: Path) -> DispatcherLog | None:
    """Read the only log of a recording, without its trace; ``None`` if it has several, or is none."""
    recordings = find_recordings([folder])
    logs = read_recording(recordings[0]).logs if recordings else []
    log = stripped(logs[0]) if len(logs) == 1 else None
    return log if log is not None and 5 < log.events.num_rows < _MOST_LINES else None


def set_sizes(monkeypatch: pytest.MonkeyPatch, rows: int, keep_behind: int) -> None:
    """Make batches of so many lines, and cut the window at each, down to so many settled entries."""
    monkeypatch.setattr(stream, "BATCH_ROWS", rows)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
    monkeypatch.setattr(stream, "BEGINNING_LINES", 30)
    sizes = {"keep_behind": keep_behind, "trim_above": 0}
    monkeypatch.setattr(
        fold.AuditFold.__init__, "__kwdefaults__", fold.AuditFold.__init__.__kwdefaults__ | sizes
    )


def compare(log: DispatcherLog, folder: Path, rows: int) -> bool:
    """Compare the tables of a log in batches with those of the whole; false if it was replayed as a whole."""
    times = pc.min_max(log.events["t_us"]).as_py()
    span: dict[str, Any] = {
        "interval_start": from_micros(times["min"] // _SECOND_US * _SECOND_US),
        "interval_end": from_micros((times["max"] // _SECOND_US + 2) * _SECOND_US),
    }
    whole = replay(log, **span)
    own = folder / str(len([*folder.iterdir()]))  # files are read once and kept
    own.mkdir()
    dispatcher = written(log, own, row_group_rows=max(rows, 20))
    try:
        batches = gathered(replay_files(dispatcher, **span))
    except NotStreamableError as error:
        if any(reason in str(error) for reason in _SENT_AGAIN.split("|")):
            return False
        raise
    for table in REPLAY_TABLES:
        assert batches[table] == whole[table].to_pylist(), table
    return True


@pytest.mark.parametrize("rows", [3, None], ids=["tiny", "random"])
@pytest.mark.parametrize(
    "group",
    [
        "recordings/4.2.4",
        "operations/4.0.0",
        "operations/4.2.4",
        pytest.param("races", marks=pytest.mark.slow),
        "verify",
        "cases",
    ],
)
def test_any_batches_give_what_the_whole_log_gives(
    group: str, rows: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    stored = some(folders(DATA / group), 8 if rows else 4)
    for folder in stored:
        choice = random.Random(name_of(folder))
        log = log_of(folder)
        if log is None:
            continue
        size = rows or choice.randint(4, 120)
        set_sizes(monkeypatch, size, 0 if rows else choice.choice(_KEPT))
        compared += compare(log, tmp_path, size)
    assert compared > len(stored) // 2


@pytest.mark.conformance
@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="no recordings beside the repository")
def test_any_batches_of_all_recordings_give_what_the_whole_logs_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    for folder in some(folders(SHARED), 32):
        log = log_of(folder)
        if log is None:
            continue
        choice = random.Random(name_of(folder))
        size = choice.randint(3, 120)
        set_sizes(monkeypatch, size, choice.choice(_KEPT))
        compared += compare(log, tmp_path, size)
    assert compared > 10
