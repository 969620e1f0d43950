"""Rules of retention, and the check of landed files against their checksums. No Spark.

A dispatcher's state is the fold of its log from its beginning, and this version keeps no snapshots. So the logs stay: the
landed segments, ``messages``, ``consumer_events`` and ``quarantine``. From them everything else can be made again, at any
time, by running an interval again. What is small and tells what was found stays too: ``verdicts``, ``anomalies``,
``divergences``, ``balance``, ``waits``, ``dispatcher_state``. Removed, when it has not been made anew for so many days, is

* what is large and can be made again: rows of ``deliveries``, ``ownership`` and ``blocked`` of an interval;
* pages: reports, Data Docs, comparisons of what-if;
* what no reader can reach: earlier versions of tables and files of writers that died (Delta's VACUUM), landed files that no
  catalogue names any more, staged files of runs that ended long ago.

The files are removed by ``spark_jobs.maintenance.maintain``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from dispatch_core.errors import DispatchAuditError
from spark_jobs.intervals import Interval

#: Large, and a function of the logs.
REMADE_TABLES: Final = ("deliveries", "ownership", "blocked")
#: Below this a run that is at work, or a reader of an earlier version, could lose what it needs.
LEAST_DAYS: Final = 2
#: Names that this project gives to folders of pages: an interval, or a digest. Anything else was put there by others.
_PAGES: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}-[0-9]{2}-[0-9]{2}(\.[0-9]{6})?Z)?|[0-9a-f]{20}"
)
#: Landed files that an error names.
_NAMED_AT_MOST: Final = 20


class RetentionError(DispatchAuditError):
    """A number of days that would take away what is in use."""


class ChecksumError(DispatchAuditError):
    """Landed files that are not what was landed."""


@dataclass(frozen=True, slots=True)
class Retention:
    """For how many days what can be made again is kept; ``None`` = for ever.

    ``results``: rows of ``REMADE_TABLES``; ``pages``: reports and Data Docs; ``what_if``: comparisons; ``unreachable``:
    earlier versions of tables, files of writers that died, landed files that were replaced.
    """

    results: int | None = None
    pages: int | None = 365
    what_if: int | None = 90
    unreachable: int | None = 30

    def __post_init__(self) -> None:
        for name in self.__slots__:
            days = getattr(self, name)
            if days is not None and days < LEAST_DAYS:
                raise RetentionError(
                    f"keep {name} for {days} days: give at least {LEAST_DAYS}, or nothing to keep them for ever. "
                    "Nothing was removed"
                )


def expired(worked: Mapping[Interval, datetime], now: datetime, days: int | None) -> list[Interval]:
    """The intervals whose results may go, oldest first: they ended, and were last worked on, more than ``days`` ago.

    ``worked``: when the last stage of any run of the interval ended. An old interval that was run again stays as long as a
    new one: somebody wanted to see it.
    """
    if days is None:
        return []
    limit = now - timedelta(days=days)
    found = [span for span, at in worked.items() if span.end <= limit and at <= limit]
    return sorted(found, key=lambda span: span.start)


@dataclass(frozen=True, slots=True)
class Pages:
    """A folder of pages and when it was last written."""

    folder: Path
    written: datetime


def expired_pages(pages: Iterable[Pages], now: datetime, days: int | None) -> list[Path]:
    """The folders that were last written more than ``days`` ago, by name; foreign ones are never among them."""
    if days is None:
        return []
    limit = now - timedelta(days=days)
    return sorted(
        one.folder for one in pages if one.written <= limit and _PAGES.fullmatch(one.folder.name) is not None
    )


@dataclass(frozen=True, slots=True)
class Checked:
    """A landed file with its checksum as landed and as ``found`` (``None`` where the file is missing)."""

    path: Path
    name: str
    expected: str
    found: str | None


def check_sums(checked: Iterable[Checked]) -> int:
    """Count the landed files that were checked. Raises ``ChecksumError`` that names those which are not what was landed."""
    files = list(checked)
    wrong = [one for one in files if one.found != one.expected]
    if not wrong:
        return len(files)
    lines = [
        f"{one.path}: {'is missing' if one.found is None else f'its sha256 is {one.found}'}, landed was {one.expected} "
        f"as {one.name}"
        for one in wrong[:_NAMED_AT_MOST]
    ]
    if len(wrong) > _NAMED_AT_MOST:
        lines.append(f"and {len(wrong) - _NAMED_AT_MOST} more")
    raise ChecksumError(
        f"{len(wrong)} of {len(files)} landed files are not what was landed; nothing was removed or changed. Tables that "
        "were made from them are untouched. Bring the files back from a backup, or remove the named ones and run the "
        "interval again while the source has them\n" + "\n".join(lines)
    )
