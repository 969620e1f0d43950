"""Find the days of a source's logs, and read the verdicts stated beside the sample."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dispatch_airflow.local_run.settings import LocalRunError

STATED_VERDICTS: Final = "expected-verdicts.json"


@dataclass(frozen=True, slots=True)
class Statement:
    """The expected result of one recording: its verdicts by promise, with ``all``, and kinds that must be found."""

    recording: str
    verdicts: Mapping[str, str]
    main_kinds: frozenset[str]


@dataclass(frozen=True, slots=True)
class Source:
    """The recordings to audit, and their expected results by (topic, subscription); none for a user's own logs."""

    folder: Path
    recordings: int
    days: tuple[datetime, ...]
    stated: Mapping[tuple[str, str], Statement]


def read_source(folder: Path) -> Source:
    """Find the recordings below ``folder`` and the UTC days of their rows.

    Raises ``DispatchAuditError`` if the folder has no recording or none of its rows is readable.
    """
    from dispatch_core.recording.files import find_recordings

    recordings = find_recordings([folder])
    days = sorted({day for recording in recordings for day in _days(recording)})
    if not days:
        raise LocalRunError(
            f"{folder}: {len(recordings)} recordings, but none of their lines could be read as an event or a message; "
            "nothing was started. Run `dispatch-audit verify` on the folder to see the bad lines."
        )
    return Source(folder, len(recordings), tuple(days), _stated(folder / STATED_VERDICTS))


def _days(recording: Any) -> set[datetime]:
    import pyarrow.compute as pc

    from dispatch_core.recording.reader import read_recording

    found: set[int] = set()
    for log in read_recording(recording).logs:
        for column, per_day in (
            (log.events["t_us"], 86_400_000_000),
            (log.messages["publish_time_ms"], 86_400_000),
        ):
            found.update(pc.unique(pc.divide(pc.drop_null(column.combine_chunks()), per_day)).to_pylist())
    return {datetime.fromtimestamp(day * 86_400, UTC) for day in found}


def _stated(path: Path) -> dict[tuple[str, str], Statement]:
    if not path.is_file():
        return {}
    try:
        recordings = json.loads(path.read_text(encoding="utf-8"))["recordings"]
        return {
            (expected["topic"], expected["subscription"]): Statement(
                name, {"all": expected["all"], **expected["promises"]}, frozenset(expected["main_kinds"])
            )
            for name, expected in recordings.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LocalRunError(
            f"{path}: not readable as stated verdicts ({error!r}); nothing was started."
        ) from None
