"""A fixed sample of ``make snapshots``: recordings cut into intervals that go on from snapshots."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.snapshots import SHARED, cuts_of, folders, summary
from tests.sample import some

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not SHARED.is_dir(), reason="no recordings beside the repository"),
]
#: Larger recordings, in bytes of their compressed files, are left to ``make snapshots``.
_LARGE = 150_000


def small(step: int) -> list[str]:
    sizes = {folder: sum(path.stat().st_size for path in Path(folder).iterdir()) for folder in folders()}
    return [str(Path(folder).relative_to(SHARED)) for folder in some(sizes, step) if sizes[folder] < _LARGE]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", small(24) if SHARED.is_dir() else [])
def test_intervals_from_snapshots_give_the_tables_of_whole_replays(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_windows(monkeypatch)
    found = cuts_of(SHARED / name, count=2)
    assert not any(row["wrong"] for row in found), "\n".join(summary(found))


def keep_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the sizes of windows that the cuts choose undone behind the test."""
    from dispatch_core.audit.deliveries import fold
    from dispatch_core.recording import stream, table_rows

    for name in ("BEGINNING_LINES", "BATCH_ROWS"):
        monkeypatch.setattr(stream, name, getattr(stream, name))
    monkeypatch.setattr(table_rows, "SLICE_ROWS", table_rows.SLICE_ROWS)
    for name in ("KEEP_SAVED", "SAVED_US"):
        monkeypatch.setattr(fold, name, getattr(fold, name))
    monkeypatch.setattr(fold.AuditFold.__init__, "__kwdefaults__", fold.AuditFold.__init__.__kwdefaults__)
