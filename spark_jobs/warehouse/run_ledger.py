"""The ledger: what ``run_metadata`` says was done last to each interval.

Rows are only ever added to that table, so a ledger that is refreshed reads what is new and no more. No JVM here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds

from dispatch_core.times import micros
from spark_jobs.intervals import Interval, interval
from spark_jobs.warehouse.contracts import PARTITION
from spark_jobs.warehouse.delta_tables import all_files

_COLUMNS: Final = ("stage", PARTITION, "finished_at", "summary_json")

#: By the start of each interval (microseconds): its end, and the digest of what its rows were made of ("" for nothing).
Ingested = Mapping[int, tuple[int, str]]


class Ledger:
    """The newest run of each stage for each interval, as of the last ``refresh``."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = Path(warehouse)
        self._read: set[str] = set()
        self._newest: dict[tuple[str, int], tuple[datetime, dict[str, Any]]] = {}
        self._asked: dict[int, Interval] = {}  # ingested by a run of their own
        self.refresh()

    def refresh(self) -> None:
        """Take in what was recorded since."""
        new = sorted(set(all_files(self._warehouse, "run_metadata")) - self._read)
        if not new:
            return
        rows = ds.dataset(new, format="parquet").to_table(columns=list(_COLUMNS)).to_pylist()
        for row in rows:
            key = row["stage"], micros(row[PARTITION])
            summary = json.loads(row["summary_json"])
            if key not in self._newest or self._newest[key][0] <= row["finished_at"]:
                self._newest[key] = row["finished_at"], summary
            if row["stage"] == "ingest" and not summary.get("as_history"):
                self._asked[key[1]] = _span(summary)
        self._read.update(new)

    def newest(self, stage: str) -> dict[int, dict[str, Any]]:
        """By the start of the interval (microseconds), the summary of the stage's newest run."""
        return {start: summary for (name, start), (_at, summary) in self._newest.items() if name == stage}

    def ingested(self) -> dict[int, tuple[int, str]]:
        """Of each interval that was ingested: its end (microseconds) and the digest of what its rows were made of."""
        return {
            start: (_span(summary).end_us, summary["inputs_digest"])
            for start, summary in self.newest("ingest").items()
            if "inputs_digest" in summary
        }

    def history_of(self, span: Interval) -> str:
        """The digest of what a replay of the interval rests on now; "" where nothing of it was ingested."""
        return history_digests(self.ingested()).get(span.start_us, "")

    def replayed(self) -> dict[int, tuple[Interval, str]]:
        """Of each interval that was replayed: its bounds and the digest of the history it was replayed on.

        One whose own run found no event has "", once that run is over: there was nothing to replay then.
        """
        found = {
            start: (_span(summary), summary.get("history_digest", ""))
            for start, summary in self.newest("replay").items()
        }
        ingests = self.newest("ingest")
        for start, span in self._asked.items():
            newest = ingests[start]
            if start not in found and (newest.get("as_history") or not newest.get("inputs_digest")):
                found[start] = span, ""
        return found

    def marked_stale(self) -> dict[int, str]:
        """Of each interval that was marked: the digest of the history that it should have been replayed on."""
        return {start: summary["history_digest"] for start, summary in self.newest("stale").items()}


def _span(summary: dict[str, Any]) -> Interval:
    return interval(summary["interval_start"], summary.get("interval_end"))


def history_digests(ingested: Ingested) -> dict[int, str]:
    """By the start of each interval that has rows, what the fold up to its end rests on: its rows and all before it."""
    digests = {}
    chain = hashlib.sha256()
    for start, (end, digest) in sorted(ingested.items()):
        if digest:
            chain.update(json.dumps([start, end, digest]).encode())
            digests[start] = chain.hexdigest()[:32]
    return digests
