"""Logs with moves of the cursor, batch by batch out of Parquet files or as one batch: the same tables."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dispatch_core.audit.deliveries import fold
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording import stream, table_rows
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.tables import REPLAY_TABLES
from tests.dispatch_core.audit.test_cursor_moves import SAMPLES, name_of, with_moves, without_moves
from tests.dispatch_core.replay.test_log_files import gathered, written

DAY, NEXT = datetime(2026, 11, 23, tzinfo=UTC), datetime(2026, 11, 24, tzinfo=UTC)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("logged", [True, False])
@pytest.mark.parametrize("rows", [40, 300])
@pytest.mark.parametrize("folder", SAMPLES, ids=name_of)
def test_batches_give_what_the_whole_log_gives(
    folder: Path, rows: int, logged: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = with_moves if logged else without_moves
    monkeypatch.setattr(stream, "BATCH_ROWS", rows)
    monkeypatch.setattr(table_rows, "SLICE_ROWS", rows)
    defaults = fold.AuditFold.__init__.__kwdefaults__ | {"trim_above": 0}
    monkeypatch.setattr(fold.AuditFold.__init__, "__kwdefaults__", defaults)
    (log,) = read_recording(find_recordings([made(folder, tmp_path)])[0]).logs
    dispatcher = written(log, tmp_path, row_group_rows=rows)
    batches = None
    with contextlib.suppress(NotStreamableError):
        batches = gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
    whole = replay(log, interval_start=DAY, interval_end=NEXT)
    if batches is None:
        # What a move brings back must not have left the window.
        assert not logged or {"seek", "reset_cursor"} & set(log.events["by"].to_pylist())
        return
    assert len(batches["deliveries"]) > 50
    for table in REPLAY_TABLES:
        assert batches[table] == whole[table].to_pylist(), table
