"""Decide what may be removed, and compare landed files with their checksums. Does not use Spark.

The small tables with the findings are always kept: ``verdicts``, ``anomalies``, ``divergences``, ``balance``, ``waits``,
``dispatcher_state``. The logs are kept by default: the landed segments, ``messages``, ``messages_ahead``,
``consumer_events`` and ``quarantine``. Running an interval again makes everything else from them. With a number of days
for logs, those of intervals that ended before are removed (``spark_jobs.maintenance.log_retention``), and these intervals
are not computed again. The following is removed when it was last written more than a given number of days ago:

* large results that can be made again: the rows of ``REMADE_TABLES`` of an interval;
* snapshots, from which replays go on; without one a log is replayed from an earlier one, or from its beginning;
* pages: reports with the scripts they share, Data Docs, what-if comparisons, hunts; files of alerts, if a number of days is
  given;
* what no reader can reach: earlier versions of tables and files of writers that died (Delta's VACUUM), landed files that the
  catalogue does not name any more, staged files of runs that ended long ago.

The files are removed by ``spark_jobs.maintenance.maintain``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from dispatch_core.errors import DispatchAuditError
from spark_jobs.intervals import Interval
from spark_jobs.location import Location, Stored
from spark_jobs.reports.report_pages import SCRIPT_AGE

#: Large tables that can be made again from the logs.
REMADE_TABLES: Final = ("deliveries", "ownership", "blocked", "key_totals")
#: With fewer days, a run at work or a reader of an earlier version could lose files that it needs.
LEAST_DAYS: Final = 2
#: Names that this project gives to folders of pages: an interval, or a digest. All others are left alone.
_PAGES: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9]{2}-[0-9]{2}-[0-9]{2}(\.[0-9]{6})?Z)?|[0-9a-f]{20}"
)
#: Landed files that an error names, at most.
_NAMED_AT_MOST: Final = 20


class RetentionError(DispatchAuditError):
    """A number of days so small that files in use would be removed."""


class ChecksumError(DispatchAuditError):
    """Landed files that differ from what was landed."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Number of days for which files are kept; ``None`` = for ever.

    ``logs``: of intervals that ended before; ``results``: rows of ``REMADE_TABLES``; ``snapshots``: of an interval;
    ``pages``: reports and Data Docs; ``what_if``: comparisons; ``hunts``: of releases; ``alerts``: their files;
    ``unreachable``: earlier versions of tables, files of writers that died, landed files that were replaced.
    """

    logs: int | None = None
    results: int | None = None
    snapshots: int | None = 30
    pages: int | None = 365
    what_if: int | None = 90
    hunts: int | None = 365
    alerts: int | None = None
    unreachable: int | None = 30

    def __post_init__(self) -> None:
        for name in self.__slots__:
            days = getattr(self, name)
            if days is not None and days < LEAST_DAYS:
                raise RetentionError(
                    f"keep {name} for {days} days: give at least {LEAST_DAYS}, or no number to keep them for ever. "
                    "Nothing was removed"
                )


def expired(worked: Mapping[Interval, datetime], now: datetime, days: int | None) -> list[Interval]:
    """List the intervals whose results may be removed, oldest first.

    These ended, and their last run ended, more than ``days`` ago. ``worked``: when the last stage of any run of the interval
    ended. An old interval that was run again is kept as long as a new one, because somebody wanted to see it.
    """
    if days is None:
        return []
    limit = now - timedelta(days=days)
    found = [span for span, at in worked.items() if span.end <= limit and at <= limit]
    return sorted(found, key=lambda span: span.start)


@dataclass(frozen=True, slots=True)
class Pages:
    """A folder of pages or alerts and when it was last written."""

    folder: Location
    written: datetime


def expired_pages(pages: Iterable[Pages], now: datetime, days: int | None) -> list[Location]:
    """List the folders last written more than ``days`` ago, by name; never folders that this project did not make."""
    if days is None:
        return []
    limit = now - timedelta(days=days)
    old = (page.folder for page in pages if page.written <= limit)
    return sorted(folder for folder in old if _PAGES.fullmatch(folder.name) is not None)


def expired_scripts(scripts: Iterable[Stored], now: datetime, days: int | None) -> list[Stored]:
    """List the scripts that no page needs that is kept for ``days``.

    A script is written again when a page needs it that is written more than ``SCRIPT_AGE`` later.
    """
    if days is None:
        return []
    limit = now - timedelta(days=days) - SCRIPT_AGE
    return [script for script in scripts if script.written <= limit]


@dataclass(frozen=True, slots=True)
class Checked:
    """A landed file with the checksum it was landed with, and the one ``found`` (``None`` if the file is missing)."""

    path: Location
    name: str
    expected: str
    found: str | None


def check_sums(checked: Iterable[Checked]) -> int:
    """Count the checked files. Raises ``ChecksumError`` naming those that differ from what was landed."""
    files = list(checked)
    wrong = [file for file in files if file.found != file.expected]
    if not wrong:
        return len(files)
    lines = [
        f"{file.path}: {'is missing' if file.found is None else f'its sha256 is {file.found}'}, landed was {file.expected} "
        f"as {file.name}"
        for file in wrong[:_NAMED_AT_MOST]
    ]
    if len(wrong) > _NAMED_AT_MOST:
        lines.append(f"and {len(wrong) - _NAMED_AT_MOST} more")
    raise ChecksumError(
        f"{len(wrong)} of {len(files)} landed files differ from what was landed; nothing was removed or changed. Tables "
        "made from them are unchanged. Bring the files back from a backup, or remove the named ones and run the "
        "interval again while the source has them\n" + "\n".join(lines)
    )
