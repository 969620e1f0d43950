"""Find the snapshots that the replay of an interval can go on from. Reads Delta tables; ``snapshot_files`` does without."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow.compute as pc

from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.errors import SnapshotError
from dispatch_core.recording import schema
from dispatch_core.recording.log_profile import Overrides
from dispatch_core.recording.stored_files import parquet_rows
from dispatch_core.replay import snapshots
from dispatch_core.times import from_micros
from spark_jobs.intervals import Interval
from spark_jobs.progress import say
from spark_jobs.replay.snapshot_files import TABLE, WITHOUT, Group, Saved, core_digest
from spark_jobs.warehouse import inputs
from spark_jobs.warehouse.contracts import file_schema
from spark_jobs.warehouse.delta_tables import Place, files_until, has_table
from spark_jobs.warehouse.run_ledger import Ledger

_ABOUT: Final = (*("history", "settings", "code", "format", "sha256", "kept_in", "kept_end_us", "ends_lost"),)


def snapshot_key(ledger: Ledger, span: Interval, settings: str) -> str:
    """Return what the snapshots of an interval rest on, beside the code: all rows up to its end, and the settings."""
    return json.dumps({"history": ledger.rows_until(span), "settings": settings})


def settings_digest(limits: LimitRules, overrides: Overrides) -> str:
    """Return a digest of the limits and of what holds in place of the logs' headers."""
    text = json.dumps([limits.digest, overrides.json()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class EarlierSnapshots:
    """The newest snapshots of earlier intervals that can be used.

    ``end``: of the newest interval that has any. ``saved``: all dispatchers that are known then; ``None`` = one has no
    snapshot.
    """

    end: datetime
    saved: dict[Group, Saved | None]


def earlier_snapshots(
    warehouse: Place, ledger: Ledger, span: Interval, settings: str | None
) -> EarlierSnapshots | None:
    """Find for each dispatcher the newest earlier interval whose snapshot can be used; ``None`` = there is none.

    Only dispatchers of which rows came late have to go back further than the newest interval. ``settings``: digest of the
    limits and of what holds in place of the logs' headers, ``None`` = any will do. Raises ``SnapshotError`` for snapshots
    that a later version wrote.
    """
    if not has_table(warehouse, TABLE):
        return None
    files = Files(warehouse, span)
    end: datetime | None = None
    saved: dict[Group, Saved | None] = {}
    unfit: set[Group] = set()  # of these no row that was read can be used
    other_code = 0
    for earlier in ledger.intervals_before(span):
        kept = files.rows_of(earlier, ledger, settings)
        if kept.other_code and not other_code:
            other_code = kept.other_code
            say(
                f"replay {span.name}: {other_code} snapshots of {earlier.name} are of another version of the code, and are "
                "not used; their logs are replayed from an earlier one that fits, or from the beginning"
            )
        fitting = kept.usable.keys() & unfit
        if end is None:
            unfit |= kept.unfit
            if not kept.usable:
                continue
            end, fitting = earlier.end, set(kept.usable)
        saved |= {group: kept.usable[group].saved for group in fitting}
        unfit = {group for group in unfit - saved.keys() if kept.knows(group)}
        if not unfit:
            break
    return None if end is None else EarlierSnapshots(end, {**dict.fromkeys(unfit), **saved})


@dataclass(frozen=True, slots=True)
class Usable:
    """A row of the table that can be used: the snapshot (``None`` = there is none), and the digest of its lost ends."""

    saved: Saved | None
    ends_lost: str | None


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows of an interval: those that can be used, the dispatchers of others, and those of which rows changed.

    ``changed`` is ``None`` where that is not known for all rows. ``other_code``: snapshots of another version of the code.
    """

    usable: dict[Group, Usable]
    unfit: set[Group]
    changed: frozenset[Group] | None
    other_code: int

    def knows(self, group: Group) -> bool:
        """Tell if the dispatcher had rows up to the interval, as far as is known."""
        listed = group in self.usable or group in self.unfit
        return listed or self.changed is None or touches(self.changed, group)


def touches(changed: Collection[Group], group: Group) -> bool:
    """Tell if rows of a dispatcher or of its topic are among those that changed."""
    return group in changed or group[:2] in changed


class Files:
    """The data files of the snapshots up to an interval."""

    def __init__(self, warehouse: Place, span: Interval) -> None:
        self._warehouse = warehouse
        self._paths: defaultdict[datetime, list[str]] = defaultdict(list)
        for path, start in files_until(warehouse, TABLE, span):
            self._paths[start].append(path)
        self._live = {path for paths in self._paths.values() for path in paths}
        self._ends_us: set[int] = set()  # of the intervals that have files

    def of(self, span: Interval) -> list[str]:
        """List those of one interval."""
        return self._paths[span.start]

    def rows_of(self, span: Interval, ledger: Ledger, settings: str | None) -> Kept:
        """Sort the rows of an interval by whether they can be used.

        Those can that were written by the same code, with the same settings, when the dispatcher's own rows up to the
        interval's end were those of now.
        """
        if not self._ends_us:
            ends = {from_micros(start): end_us for start, (end_us, _digest) in ledger.ingested().items()}
            self._ends_us = {ends[start] for start in self._paths if start in ends}
        usable: dict[Group, Usable] = {}
        groups: set[Group] = set()
        other_code = 0
        changes: dict[str, frozenset[Group] | None] = {}
        for row in self._read(span):
            group = tuple(row[name] for name in schema.DISPATCHER_KEY)
            groups.add(group)
            if row["code"] != core_digest():
                other_code += row["sha256"] is not None
                continue
            if settings not in (None, row["settings"]):
                continue
            history = row["history"]
            if history not in changes:
                since = ledger.changes_since(history, span)
                changes[history] = inputs.changed(self._warehouse, span, since)
            changed = changes[history]
            if changed is None or touches(changed, group):
                continue
            path, end = row["path"], span.end
            if row["kept_in"] is not None:
                path, end = row["kept_in"], from_micros(row["kept_end_us"])
            elif row["sha256"] is None:
                path = None
            if path is not None and path not in self._live:
                # Its interval was replayed again and has another file, or maintenance has removed it.
                if row["kept_end_us"] in self._ends_us:
                    continue
                path = None
            usable[group] = Usable(None if path is None else Saved(end, path, span.end), row["ends_lost"])
        known = [changed for changed in changes.values() if changed is not None]
        is_known = 0 < len(known) == len(changes)
        changed_groups = frozenset[Group]().union(*known) if is_known else None
        return Kept(usable, groups - usable.keys(), changed_groups, other_code)

    def _read(self, span: Interval) -> Iterator[dict[str, Any]]:
        columns = [*schema.DISPATCHER_KEY, *_ABOUT]
        for path in self.of(span):
            rows = parquet_rows(path, columns=columns, schema=file_schema(TABLE))
            newest = pc.max(rows["format"]).as_py()
            if newest is not None and newest > snapshots.FORMAT:
                raise SnapshotError(
                    f"{path}: a snapshot of form {newest}, which a later version wrote; this one knows form "
                    f"{snapshots.FORMAT}. Use that version, or set {WITHOUT}=1 to replay from the beginning"
                )
            for row in rows.to_pylist():
                yield row | {"path": path}
