"""Find the snapshots that the replay of an interval can go on from. Reads Delta tables; ``snapshot_files`` does without."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.errors import SnapshotError
from dispatch_core.recording import schema
from dispatch_core.recording.log_profile import Overrides
from dispatch_core.recording.stored_files import parquet_rows
from dispatch_core.replay import snapshots
from dispatch_core.times import from_micros
from spark_jobs.intervals import Interval
from spark_jobs.replay.snapshot_files import TABLE, WITHOUT, Group, Saved, core_digest
from spark_jobs.warehouse.delta_tables import Place, files_until, has_table
from spark_jobs.warehouse.run_ledger import Ledger


def snapshot_key(ledger: Ledger, span: Interval, settings: str) -> str:
    """Return what the snapshots of an interval rest on, beside the code: all rows up to its end, and the settings."""
    return json.dumps({"history": ledger.rows_until(span), "settings": settings})


def settings_digest(limits: LimitRules, overrides: Overrides) -> str:
    """Return a digest of the limits and of what holds in place of the logs' headers."""
    text = json.dumps([limits.digest, overrides.json()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class EarlierSnapshots:
    """The snapshots of the newest earlier interval that can be used.

    ``end``: of that interval. ``saved``: all dispatchers that are known then; ``None`` = one has no snapshot.
    """

    end: datetime
    saved: dict[Group, Saved | None]


def earlier_snapshots(
    warehouse: Place, ledger: Ledger, span: Interval, settings: str
) -> EarlierSnapshots | None:
    """Find the newest earlier interval whose snapshots can be used; ``None`` = there is none.

    ``settings``: digest of the limits and of what holds in place of the logs' headers. Raises ``SnapshotError`` for
    snapshots that a later version wrote.
    """
    if not has_table(warehouse, TABLE):
        return None
    paths: dict[datetime, list[str]] = {}
    for path, start in files_until(warehouse, TABLE, span):
        paths.setdefault(start, []).append(path)
    for earlier in ledger.intervals_before(span):
        if earlier.start in paths:
            key = {"history": ledger.rows_until(earlier), "settings": settings}
            saved = _usable(paths[earlier.start], earlier, key)
            if saved:
                return EarlierSnapshots(earlier.end, saved)
    return None


def _usable(paths: Sequence[str], span: Interval, key: Mapping[str, str]) -> dict[Group, Saved | None]:
    """Return the snapshots of an interval that were written on the same rows, by the same code, with the same settings."""
    found: dict[Group, Saved | None] = {}
    wanted = {**key, "code": core_digest()}
    for path in paths:
        columns = [*schema.DISPATCHER_KEY, *wanted, "format", "sha256", "kept_in", "kept_end_us"]
        for row in parquet_rows(path, columns=columns).to_pylist():
            if row["format"] > snapshots.FORMAT:
                raise SnapshotError(
                    f"{path}: a snapshot of form {row['format']}, which a later version wrote; this one knows form "
                    f"{snapshots.FORMAT}. Use that version, or set {WITHOUT}=1 to replay from the beginning"
                )
            if any(row[name] != value for name, value in wanted.items()):
                continue
            group = tuple(row[name] for name in schema.DISPATCHER_KEY)
            if row["kept_in"] is not None:
                found[group] = Saved(from_micros(row["kept_end_us"]), row["kept_in"])
            else:
                found[group] = None if row["sha256"] is None else Saved(span.end, path)
    return found
