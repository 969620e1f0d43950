"""The window of a replay holds what is outstanding, not the log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dispatch_core.audit.deliveries.fold import AuditFold
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.log_files import replay_files
from dispatch_core.replay.replay_log import replay
from dispatch_core.tables import REPLAY_TABLES
from tests.dispatch_core.logs_without_trace import recorded
from tests.dispatch_core.replay.test_any_batches import set_sizes
from tests.dispatch_core.replay.test_log_files import DAY, LOGS, NEXT, gathered, written

#: Lines of a batch.
_ROWS: Final = 20


def with_past(log: DispatcherLog, entries: int) -> DispatcherLog:
    """A log whose topic has further entries, stored in the minutes before the subscription began."""
    past = log.messages.slice(0, entries)
    ledger = pc.subtract(pa.array([log.messages["ledger_id"][0].as_py()] * past.num_rows), 1)
    earlier = pc.subtract(past["publish_time_ms"], 300_000)
    for name, values in (("ledger_id", ledger), ("publish_time_ms", earlier)):
        past = past.set_column(past.column_names.index(name), name, values)
    return replace(log, messages=pa.concat_tables([past.cast(log.messages.schema), log.messages]))


@pytest.fixture
def window_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of entries in the window after each batch."""
    sizes: list[int] = []
    feed = AuditFold.feed

    def noted(fold: AuditFold, *args: Any) -> Any:
        found = feed(fold, *args)
        sizes.append(len(fold.window))
        return found

    monkeypatch.setattr(AuditFold, "feed", noted)
    return sizes


@pytest.mark.slow
@pytest.mark.parametrize("name", LOGS)
def test_entries_of_before_the_subscription_leave_the_window(
    name: str, window_sizes: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = with_past(recorded(name), 400)
    past = log.messages.num_rows - recorded(name).messages.num_rows
    assert past >= 60
    whole = replay(log, interval_start=DAY, interval_end=NEXT)
    set_sizes(monkeypatch, _ROWS, 0)
    window_sizes.clear()
    dispatcher = written(log, tmp_path, row_group_rows=_ROWS)
    batches = gathered(replay_files(dispatcher, interval_start=DAY, interval_end=NEXT))
    for table in REPLAY_TABLES:
        assert batches[table] == whole[table].to_pylist(), table
    assert window_sizes[0] >= past
    assert window_sizes[-1] < past
