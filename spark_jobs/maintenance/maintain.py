"""Maintain an installation: verify landed files, remove what may be removed, compact tables. No Spark, no JVM.

``spark_jobs.maintenance.retention`` decides what may be removed; this module finds and removes it. An interval on which
a run is at work is left alone: its locks are taken first.

Run as ``python -m spark_jobs.maintenance verify|retain|compact --home DIR [--dry-run]``; ``--keep-results`` and similar
arguments take days.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
from deltalake import DeltaTable

from dispatch_core.audit.sentences.names import LONGEST_ON_PAGES, printable
from dispatch_core.errors import DispatchAuditError
from spark_jobs.intervals import Interval, interval
from spark_jobs.maintenance.retention import (
    REMADE_TABLES,
    Checked,
    Pages,
    Retention,
    check_sums,
    expired,
    expired_pages,
)
from spark_jobs.progress import complain, say
from spark_jobs.pull.segments import landing_lock, read_catalogue
from spark_jobs.warehouse.contracts import APPENDED, CONTRACTS
from spark_jobs.warehouse.delta_tables import (
    WarehouseError,
    all_files,
    data_files,
    has_table,
    join_files,
    replace_interval,
    stage_run,
    table_path,
)

#: The stages whose locks are taken before rows of an interval are removed.
_STAGES: Final = ("ingest", "replay", "aggregates")
#: Commits since the last checkpoint from which on a new one is written; opening a table reads each commit.
_COMMITS: Final = 20
#: Files of an appended table from which on they are joined: every stage of every run adds one to ``run_metadata``.
_SMALL_FILES: Final = 32
_SECONDS_BETWEEN_LINES: Final = 10.0

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


def verify(landing: Path, report: Say = say) -> dict[str, Any]:
    """Compare the sha256 of every landed file in the catalogue with the one it was landed with.

    Raises ``ChecksumError`` naming the files that differ. Changes nothing.
    """
    began = reported_at = time.monotonic()
    read_bytes = 0
    segments = {
        (segment.sha256, segment.name): segment
        for files in read_catalogue(landing).values()
        for segment in files.values()
    }
    checked = []
    for number, segment in enumerate(segments.values(), start=1):
        path = segment.path(landing)
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


def _sha256(path: Path) -> str | None:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def retain(
    home: Path, keep: Retention, *, dry_run: bool = False, now: datetime | None = None, report: Say = say
) -> dict[str, Any]:
    """Remove below ``home`` what ``keep`` does not keep; return counts by kind. ``dry_run``: report it, remove nothing."""
    now = now or datetime.now(UTC)
    removed = Removed(dry_run, report)
    warehouse = home / "warehouse"
    worked = last_worked(warehouse)
    for names, days in ((REMADE_TABLES, keep.results), (("snapshots",), keep.snapshots)):
        for span in expired(worked, now, days):
            _remove_results(warehouse, span, names, removed)
    for kind, days in (("reports", keep.pages), ("data-docs", keep.pages), ("what-if", keep.what_if)):
        for folder in expired_pages(_pages(home / kind), now, days):
            removed.note(kind, folder.name, _size_bytes(folder))
            if not dry_run:
                shutil.rmtree(folder)
    if keep.unreachable is not None:
        limit = now - timedelta(days=keep.unreachable)
        _remove_unnamed_segments(home / "landing", limit, removed)
        _remove_staging(warehouse, limit, removed)
        for name in _tables(warehouse):
            _vacuum(warehouse, name, keep.unreachable, removed)
    return {
        "stage": "retain",
        "dry_run": dry_run,
        "removed": removed.counts,
        "bytes": removed.size_bytes,
        "left_alone": removed.left_alone,
    }


def last_worked(warehouse: Path) -> dict[Interval, datetime]:
    """Read from ``run_metadata`` when the last stage of any run of each interval ended."""
    files = all_files(warehouse, "run_metadata")
    if not files:
        return {}
    columns = ["interval_start", "finished_at", "summary_json"]
    found: dict[datetime, tuple[datetime, datetime]] = {}
    rows = ds.dataset(files, format="parquet").to_table(columns=columns).to_pylist()
    for row in rows:
        end = json.loads(row["summary_json"]).get("interval_end")
        span = interval(row["interval_start"], end)
        known = found.get(span.start)
        if known is None:
            found[span.start] = span.end, row["finished_at"]
        else:
            found[span.start] = max(known[0], span.end), max(known[1], row["finished_at"])
    return {Interval(start, end): at for start, (end, at) in found.items()}


def _remove_results(warehouse: Path, span: Interval, names: Sequence[str], removed: Removed) -> None:
    files = {name: data_files(warehouse, name, span) for name in names}
    if not any(files.values()):
        return
    try:
        with ExitStack() as locks:
            for stage in _STAGES:
                locks.enter_context(stage_run(warehouse, stage, span))
            for name, paths in files.items():
                if paths:
                    size_bytes = sum(Path(path).stat().st_size for path in paths)
                    removed.note(f"rows of {name}", span.name, size_bytes)
                    if not removed.dry_run:
                        replace_interval(warehouse, name, span, [])
    except WarehouseError:
        removed.leave(f"the interval {span.name}")


def _pages(folder: Path) -> Iterator[Pages]:
    """Yield the folders of pages, each with the time of the last write of its index."""
    if not folder.is_dir():
        return
    for child in folder.iterdir():
        index = child / "index.html"
        if child.is_dir() and not child.is_symlink() and index.is_file():
            yield Pages(child, datetime.fromtimestamp(index.stat().st_mtime, UTC))


def _remove_unnamed_segments(landing: Path, limit: datetime, removed: Removed) -> None:
    """Remove landed files that were replaced by other contents: the catalogue does not name them, no interval needs them."""
    store = landing / "segments"
    if not store.is_dir():
        return
    with landing_lock(landing):  # a pull writes the catalogue under this lock
        named = {
            segment.path(landing).parent.name
            for files in read_catalogue(landing).values()
            for segment in files.values()
        }
        for folder in sorted(store.iterdir()):
            if len(folder.name) == 64 and folder.name not in named and _newest(folder) <= limit:
                removed.note("landed files that were replaced", folder.name, _size_bytes(folder))
                if not removed.dry_run:
                    shutil.rmtree(folder)


def _remove_staging(warehouse: Path, limit: datetime, removed: Removed) -> None:
    """Remove staged files of runs that ended long ago."""
    for home in sorted((warehouse / "_staging").glob("*/")):
        lock = home / ".lock"
        with ExitStack() as stack:
            if lock.exists():
                stream = stack.enter_context(lock.open("a"))
                try:
                    fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
            for folder in sorted(child for child in home.iterdir() if child.is_dir()):
                if _newest(folder) <= limit:
                    removed.note("staged files", f"{home.name}/{folder.name}", _size_bytes(folder))
                    if not removed.dry_run:
                        shutil.rmtree(folder, ignore_errors=True)


def _vacuum(warehouse: Path, name: str, days: int, removed: Removed) -> None:
    """Remove files of a table that none of its versions of the last ``days`` days has."""
    root = table_path(warehouse, name).absolute()
    table = DeltaTable(root)
    files = table.vacuum(days * 24, dry_run=True, enforce_retention_duration=False, full=True)
    if not files:
        return
    sizes = [path.stat().st_size for file in files if (path := root / file).is_file()]
    removed.note("unreachable files of", f"table {name}: {len(files):,}", sum(sizes), len(files))
    if not removed.dry_run:
        table.vacuum(days * 24, dry_run=False, enforce_retention_duration=False, full=True)


def compact(warehouse: Path, *, dry_run: bool = False, report: Say = say) -> dict[str, Any]:
    """Join the small files of appended tables, and write a checkpoint of each table that has many commits since the last."""
    checkpoints, joined = [], 0
    for name in _tables(warehouse):
        table = DeltaTable(table_path(warehouse, name).absolute())
        files = len(table.file_uris())
        if name in APPENDED and files >= _SMALL_FILES:
            joined += files
            report(f"compact: {'would join' if dry_run else 'joins'} {files:,} files of {name}")
            if not dry_run:
                join_files(warehouse, name)
                table = DeltaTable(table_path(warehouse, name).absolute())
        behind = _commits_since_checkpoint(table, table_path(warehouse, name) / "_delta_log")
        if behind >= _COMMITS:
            checkpoints.append(name)
            report(
                f"compact: {'would make' if dry_run else 'makes'} a checkpoint of {name}, {behind} commits"
            )
            if not dry_run:
                table.create_checkpoint()
    return {"stage": "compact", "dry_run": dry_run, "checkpoints": checkpoints, "files_joined": joined}


def _commits_since_checkpoint(table: DeltaTable, log: Path) -> int:
    versions = [
        int(path.name[:20]) for path in log.glob("*.checkpoint*.parquet") if path.name[:20].isdecimal()
    ]
    return int(table.version()) - max(versions, default=-1)


def _tables(warehouse: Path) -> list[str]:
    return [name for name in CONTRACTS if has_table(warehouse, name)]


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _newest(folder: Path) -> datetime:
    """Return the time of the last write to anything in the folder."""
    times = [path.lstat().st_mtime for path in (folder, *folder.rglob("*"))]
    return datetime.fromtimestamp(max(times), UTC)


def main(arguments: Sequence[str] | None = None) -> int:
    """Maintain one installation; see ``--help``."""
    parser = argparse.ArgumentParser(
        prog="python -m spark_jobs.maintenance", description="verify, remove, compact"
    )
    parser.add_argument("what", choices=("verify", "retain", "compact"))
    parser.add_argument(
        "--home", required=True, type=Path, help="the folder that holds landing and warehouse"
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
            summary = verify(options.home / "landing")
        elif options.what == "retain":
            kept = {name: getattr(options, f"keep_{name}") for name in Retention.__slots__}
            summary = retain(options.home, Retention(**kept), dry_run=options.dry_run)
        else:
            summary = compact(options.home / "warehouse", dry_run=options.dry_run)
    except DispatchAuditError as error:
        complain(f"error: {error}")
        return 2
    print(json.dumps(summary, sort_keys=True), flush=True)
    return 0
