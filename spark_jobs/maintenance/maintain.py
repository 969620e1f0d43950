"""Maintain an installation: verify landed files, remove what may be removed, compact tables. No Spark, no JVM.

``spark_jobs.maintenance.retention`` decides what may be removed; this module finds and removes it. It takes no lock: what a
run at work has written is younger than ``retention.LEAST_DAYS``, and rows are removed by commits like all others.

Run as ``python -m spark_jobs.maintenance verify|retain|compact --home DIR [--dry-run]``; ``--keep-results`` and similar
arguments take days.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from dispatch_core.audit.sentences.names import LONGEST_ON_PAGES, printable
from dispatch_core.errors import DispatchAuditError, names_disk_errors
from dispatch_core.recording.stored_files import parquet_dataset
from spark_jobs.intervals import Interval, interval
from spark_jobs.location import Location, Stored
from spark_jobs.maintenance.log_retention import expired_logs, remove_logs, removed_segments
from spark_jobs.maintenance.retention import (
    REMADE_TABLES,
    Checked,
    Pages,
    Retention,
    check_sums,
    expired,
    expired_pages,
    expired_scripts,
)
from spark_jobs.progress import complain, say
from spark_jobs.pull.segments import read_catalogue, store_of, tables_of
from spark_jobs.reports.report_pages import SCRIPTS
from spark_jobs.warehouse.contracts import APPENDED, CONTRACTS
from spark_jobs.warehouse.delta_tables import (
    Place,
    all_files,
    data_files,
    has_table,
    is_delta,
    join_files,
    open_delta,
    replace_interval,
    table_path,
)
from spark_jobs.warehouse.run_ledger import REMOVAL, Ledger

#: Commits since the last checkpoint from which on a new one is written; opening a table reads each commit.
_COMMITS: Final = 20
#: Files of an appended table from which on they are joined: every stage of every run adds one to ``run_metadata``.
_SMALL_FILES: Final = 32
_SECONDS_BETWEEN_LINES: Final = 10.0
_CHUNK_BYTES: Final = 4 << 20

#: Names of the folders of landed files; all others are left alone.
_TOKEN: Final = re.compile(r"[0-9a-f]{32}|[0-9a-f]{64}")

Say = Callable[[str], None]


@dataclass(slots=True)
class Removed:
    """Totals of what was removed, or would be (``dry_run``): counts by kind, bytes, and what was left alone."""

    dry_run: bool
    report: Say
    counts: dict[str, int] = field(default_factory=dict)
    size_bytes: int = 0
    left_alone: list[str] = field(default_factory=list)

    def note(self, kind: str, what: str, size_bytes: int, count: int = 1) -> None:
        """Count and report something that was removed."""
        self.counts[kind] = self.counts.get(kind, 0) + count
        self.size_bytes += size_bytes
        would = "would remove" if self.dry_run else "removed"
        self.report(f"retain: {would} {kind} {what} ({size_bytes / 1e6:,.1f} MB)")

    def leave(self, what: str) -> None:
        """Record something that was left alone because a run is at work on it."""
        self.left_alone.append(what)
        self.report(f"retain: left alone {what}: a run is at work there")


@names_disk_errors("verify")
def verify(landing: Place, report: Say = say, *, logs_from: datetime | None = None) -> dict[str, Any]:
    """Compare the sha256 of every landed file in the catalogue with the one it was landed with.

    ``logs_from``: logs of before were removed, their files may be missing. Raises ``ChecksumError`` naming the files that
    differ. Changes nothing.
    """
    began = reported_at = time.monotonic()
    read_bytes = 0
    removed = (
        set()
        if logs_from is None
        else {segment.sha256 for segment in removed_segments(Location.of(landing), logs_from)}
    )
    segments = {
        (segment.sha256, segment.name): segment
        for files in read_catalogue(landing).values()
        for segment in files.values()
    }
    checked = []
    for number, segment in enumerate(segments.values(), start=1):
        path = segment.path(landing)
        if segment.sha256 in removed and not path.exists():
            continue
        checked.append(
            Checked(path, printable(segment.name, LONGEST_ON_PAGES), segment.sha256, _sha256(path))
        )
        read_bytes += segment.size_bytes
        if time.monotonic() - reported_at >= _SECONDS_BETWEEN_LINES:
            reported_at = time.monotonic()
            report(
                f"verify: {number:,} of {len(segments):,} files, {read_bytes / 1e6 / (reported_at - began):,.0f} MB/s"
            )
    files = check_sums(checked)
    seconds = time.monotonic() - began
    report(f"verify: {files:,} landed files are unchanged")
    return {"stage": "verify", "files": files, "bytes": read_bytes, "seconds": round(seconds, 3)}


def _sha256(path: Location) -> str | None:
    sha256 = hashlib.sha256()
    try:
        with path.stream() as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                sha256.update(chunk)
    except FileNotFoundError:
        return None
    return sha256.hexdigest()


@names_disk_errors("retain")
def retain(
    home: Place, keep: Retention, *, dry_run: bool = False, now: datetime | None = None, report: Say = say
) -> dict[str, Any]:
    """Remove below ``home`` what ``keep`` does not keep; return counts by kind. ``dry_run``: report it, remove nothing."""
    now = now or datetime.now(UTC)
    removed = Removed(dry_run, report)
    root = Location.of(home)
    warehouse = root / "warehouse"
    last = expired_logs(Ledger(warehouse), now, keep.logs)
    if last is not None:
        remove_logs(root, last, dry_run=dry_run, note=removed.note, report=report)
    worked = last_worked(warehouse)
    for names, days in ((REMADE_TABLES, keep.results), (("snapshots",), keep.snapshots)):
        for span in expired(worked, now, days):
            _remove_results(warehouse, span, names, removed)
    for kind, pages, days in (
        ("reports", _pages(root / "reports"), keep.pages),
        ("data-docs", _pages(root / "data-docs"), keep.pages),
        ("what-if", _pages(root / "what-if"), keep.what_if),
        ("hunts", _hunts(root / "hunts"), keep.hunts),
        ("alerts", _alerts(root / "alerts"), keep.alerts),
    ):
        for folder in expired_pages(pages, now, days):
            removed.note(kind, folder.name, _size_bytes(folder))
            if not dry_run:
                folder.delete_folder()
    for script in expired_scripts((root / "reports" / SCRIPTS).children(), now, keep.pages):
        removed.note("scripts of reports", script.location.name, script.size_bytes)
        if not dry_run:
            script.location.delete()
    if keep.unreachable is not None:
        limit = now - timedelta(days=keep.unreachable)
        _remove_unnamed_segments(root / "landing", limit, removed)
        _remove_staging(warehouse, limit, removed)
        for place in _all_tables(root):
            _vacuum(place, keep.unreachable, removed)
    return {
        "stage": "retain",
        "dry_run": dry_run,
        "removed": removed.counts,
        "bytes": removed.size_bytes,
        "left_alone": removed.left_alone,
    }


def last_worked(warehouse: Place) -> dict[Interval, datetime]:
    """Read from ``run_metadata`` when the last stage of any run of each interval ended."""
    files = all_files(warehouse, "run_metadata")
    if not files:
        return {}
    columns = ["stage", "interval_start", "finished_at", "summary_json"]
    found: dict[datetime, tuple[datetime, datetime]] = {}
    rows = parquet_dataset(files).to_table(columns=columns).to_pylist()
    for row in rows:
        if row["stage"] == REMOVAL:  # by maintenance
            continue
        end = json.loads(row["summary_json"]).get("interval_end")
        span = interval(row["interval_start"], end)
        known = found.get(span.start)
        if known is None:
            found[span.start] = span.end, row["finished_at"]
        else:
            found[span.start] = max(known[0], span.end), max(known[1], row["finished_at"])
    return {Interval(start, end): at for start, (end, at) in found.items()}


def _remove_results(warehouse: Location, span: Interval, names: Sequence[str], removed: Removed) -> None:
    files = {name: data_files(warehouse, name, span) for name in names}
    for name, paths in files.items():
        if not paths:
            continue
        size_bytes = sum(Location.of(path).size_bytes() or 0 for path in paths)
        try:
            if not removed.dry_run:
                replace_interval(warehouse, name, span, [])
        except CommitFailedError:
            removed.leave(f"rows of {name} of the interval {span.name}")
            continue
        removed.note(f"rows of {name}", span.name, size_bytes)


def _pages(folder: Location) -> Iterator[Pages]:
    """Yield the folders of pages, each with the time of the last write of its index."""
    for child in folder.folders():
        if child.local is not None and child.local.is_symlink():
            continue
        for page in child.children():
            if page.location.name == "index.html":
                yield Pages(child, page.written)


def _hunts(folder: Location) -> Iterator[Pages]:
    """Yield the folders of hunts, also of those that were killed, each with the time of its newest file."""
    for child in folder.folders():
        written = max((stored.written for stored in child.files()), default=None)
        if written is not None:
            yield Pages(child, written)


def _alerts(folder: Location) -> Iterator[Pages]:
    """Yield the folders of alerts, each with the time of its newest file."""
    for child in folder.folders():
        written = max((alert.written for alert in child.children()), default=None)
        if written is not None:
            yield Pages(child, written)


def _remove_unnamed_segments(landing: Location, limit: datetime, removed: Removed) -> None:
    """Remove landed files that the catalogue does not name: they were replaced, or their pull died, long ago."""
    stored = list(store_of(landing).files())
    if not stored:
        return
    named = {
        segment.path(landing).parent.name
        for files in read_catalogue(landing).values()
        for segment in files.values()
    }
    folders: dict[Location, list[Stored]] = {}
    for file in stored:
        folders.setdefault(file.location.parent, []).append(file)
    for folder, files in sorted(folders.items()):
        ours = folder.parent == store_of(landing) and _TOKEN.fullmatch(folder.name)
        if ours and folder.name not in named and all(file.written <= limit for file in files):
            removed.note(
                "landed files that were replaced", folder.name, sum(file.size_bytes for file in files)
            )
            if not removed.dry_run:
                folder.delete_folder()


def _remove_staging(warehouse: Location, limit: datetime, removed: Removed) -> None:
    """Remove what runs that ended long ago have noted for their tasks."""
    for kind in (warehouse / "_staging").folders():
        for folder in kind.folders() if kind.name.startswith("groups-") else [kind]:
            files = list(folder.files())
            if all(file.written <= limit for file in files):
                removed.note(
                    "staged files", f"{kind.name}/{folder.name}", sum(file.size_bytes for file in files)
                )
                if not removed.dry_run:
                    folder.delete_folder()


def _vacuum(place: Location, days: int, removed: Removed) -> None:
    """Remove files of a table that none of its versions of the last ``days`` days has."""
    table = open_delta(place)
    files = table.vacuum(days * 24, dry_run=True, enforce_retention_duration=False, full=True)
    if not files:
        return
    sizes = {stored.location.below(place): stored.size_bytes for stored in place.files()}
    size_bytes = sum(sizes.get(file, 0) for file in files)
    removed.note("unreachable files of", f"table {place.name}: {len(files):,}", size_bytes, len(files))
    if not removed.dry_run:
        table.vacuum(days * 24, dry_run=False, enforce_retention_duration=False, full=True)


@names_disk_errors("compact")
def compact(home: Place, *, dry_run: bool = False, report: Say = say) -> dict[str, Any]:
    """Join the small files of appended tables, and shorten the logs of all tables.

    A table that has many commits since its last checkpoint gets a new one. Commits before a checkpoint are removed when they
    are older than the table's ``delta.logRetentionDuration`` (30 days).
    """
    root = Location.of(home)
    warehouse = root / "warehouse"
    checkpoints, joined, commits = [], 0, 0
    for place in _all_tables(root):
        table = open_delta(place)
        files = len(table.file_uris())
        if place.parent == warehouse and place.name in APPENDED and files >= _SMALL_FILES:
            joined += files
            report(f"compact: {'would join' if dry_run else 'joins'} {files:,} files of {place.name}")
            if not dry_run:
                join_files(warehouse, place.name)
                table = open_delta(place)
        behind = _commits_since_checkpoint(table, place / "_delta_log")
        if behind >= _COMMITS:
            checkpoints.append(place.name)
            report(
                f"compact: {'would make' if dry_run else 'makes'} a checkpoint of {place.name}, {behind} commits"
            )
            if not dry_run:
                table.create_checkpoint()
        if not dry_run:
            before = _files_of_log(place)
            table.cleanup_metadata()
            commits += before - _files_of_log(place)
    if commits:
        report(f"compact: removed {commits:,} old files of the tables' logs")
    return {
        "stage": "compact",
        "dry_run": dry_run,
        "checkpoints": checkpoints,
        "files_joined": joined,
        "log_files_removed": commits,
    }


def _files_of_log(table: Location) -> int:
    return len((table / "_delta_log").children())


def _commits_since_checkpoint(table: DeltaTable, log: Location) -> int:
    names = [stored.location.name for stored in log.children()]
    versions = [
        int(name[:20])
        for name in names
        if ".checkpoint" in name and name.endswith(".parquet") and name[:20].isdecimal()
    ]
    return int(table.version()) - max(versions, default=-1)


def _all_tables(home: Location) -> list[Location]:
    """List the tables of the warehouse, of the landing, of the turns and of the outbox that exist."""
    warehouse = home / "warehouse"
    found = [table_path(warehouse, name) for name in CONTRACTS if has_table(warehouse, name)]
    others = [*tables_of(home / "landing"), home / "turns", *(home / "outbox").folders()]
    return [*found, *(place for place in others if is_delta(place))]


def _size_bytes(folder: Location) -> int:
    return sum(stored.size_bytes for stored in folder.files())


def main(arguments: Sequence[str] | None = None) -> int:
    """Maintain one installation; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.maintenance", description="verify, remove, compact"
    )
    parser.add_argument("what", choices=("verify", "retain", "compact"))
    parser.add_argument(
        "--home", required=True, type=Location.of, help="the folder or URL that holds landing and warehouse"
    )
    parser.add_argument("--dry-run", action="store_true", help="report what would be done, and do nothing")
    usual = Retention()
    for name in Retention.__slots__:
        days = getattr(usual, name)
        parser.add_argument(
            f"--keep-{name.replace('_', '-')}",
            type=int,
            default=days,
            metavar="DAYS",
            help=f"(default: {days if days is not None else 'for ever'})",
        )
    options = parser.parse_args(arguments)
    try:
        if options.what == "verify":
            summary = verify(
                options.home / "landing", logs_from=Ledger(options.home / "warehouse").logs_from()
            )
        elif options.what == "retain":
            kept = {name: getattr(options, f"keep_{name}") for name in Retention.__slots__}
            summary = retain(options.home, Retention(**kept), dry_run=options.dry_run)
        else:
            summary = compact(options.home, dry_run=options.dry_run)
    except DispatchAuditError as error:
        complain(f"error: {error}")
        return 2
    print(json.dumps(summary, sort_keys=True), flush=True)
    return 0
