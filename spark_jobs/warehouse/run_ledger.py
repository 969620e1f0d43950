"""Read from ``run_metadata`` what the last runs did to each interval.

Rows are only appended to that table, so ``refresh`` reads only the new files. Does not use a JVM.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.stored_files import parquet_dataset
from dispatch_core.times import from_micros, micros
from spark_jobs.intervals import Interval, interval
from spark_jobs.warehouse.contracts import PARTITION
from spark_jobs.warehouse.delta_tables import Place, all_files

_COLUMNS: Final = ("stage", PARTITION, "finished_at", "summary_json")

#: Length of a digest of rows.
_DIGITS: Final = 32
#: Behind the digest of an interval that is judged as of the last lines.
_OPEN_END: Final = "-to-last-line"

#: Between the digest of the files of an interval and that of its rows of ``messages_ahead``.
_AND_AHEAD: Final = "+"

#: Ingests that are undone at most, to find out what rows there were when something was computed.
_MOST_UNDONE: Final = 100

#: By the start of each interval (microseconds): its end, and the digest of the files its rows come from ("" for none), with
#: that of its rows of ``messages_ahead`` if it has some.
Ingested = Mapping[int, tuple[int, str]]


def with_ahead(digest: str, ahead: str) -> str:
    """Join the digests of an interval's files and of its rows of ``messages_ahead`` ("" for none)."""
    return f"{digest}{_AND_AHEAD}{ahead}" if digest and ahead else digest


def without_ahead(digest: str) -> tuple[str, str]:
    """Split what ``with_ahead`` joined."""
    of_files, _, ahead = digest.partition(_AND_AHEAD)
    return of_files, ahead


@dataclass(frozen=True, slots=True)
class Change:
    """An interval with other rows than before: its end and the digest of its rows, ``then`` and ``now``.

    ``None`` = it had no rows.
    """

    then: tuple[int, str] | None
    now: tuple[int, str] | None


def without_end(history: str) -> tuple[str, str]:
    """Split the digest of what a replay depends on into that of the rows, and what tells as of when it is judged."""
    return history[:_DIGITS], history[_DIGITS:]


def without_open_end(history: str) -> str:
    """Return the digest of a history without the mark of an interval that was judged as of the last lines."""
    return history.removesuffix(_OPEN_END)


#: Name under which ``run_metadata`` has the removals of logs.
REMOVAL: Final = "remove_logs"


class LogsRemovedError(DispatchAuditError):
    """An interval whose logs are not kept any more."""


class Ledger:
    """The newest run of each stage for each interval, as of the last ``refresh``."""

    def __init__(self, warehouse: Place) -> None:
        self._warehouse = warehouse
        self._read: set[str] = set()
        self._newest: dict[tuple[str, int], tuple[datetime, dict[str, Any]]] = {}
        self._run_on_its_own: dict[int, Interval] = {}  # ingested by a run of their own
        self._ingests: list[
            tuple[datetime, int, tuple[int, str]]
        ] = []  # when, start, end and digest of its rows
        self.refresh()

    def refresh(self) -> None:
        """Read what was recorded since the last refresh."""
        new = sorted(set(all_files(self._warehouse, "run_metadata")) - self._read)
        if not new:
            return
        rows = parquet_dataset(new).to_table(columns=list(_COLUMNS)).to_pylist()
        for row in rows:
            key = row["stage"], micros(row[PARTITION])
            summary = json.loads(row["summary_json"])
            if key not in self._newest or self._newest[key][0] <= row["finished_at"]:
                self._newest[key] = row["finished_at"], summary
            if row["stage"] == "ingest" and not summary.get("as_history"):
                self._run_on_its_own[key[1]] = _span(summary)
            if row["stage"] == "ingest" and "inputs_digest" in summary:
                self._ingests.append((row["finished_at"], key[1], _rows_of(summary)))
        self._ingests.sort(key=lambda ingest: ingest[0])
        self._read.update(new)

    def newest(self, stage: str) -> dict[int, dict[str, Any]]:
        """Return the summary of the stage's newest run for each interval, by its start (microseconds)."""
        return {start: summary for (name, start), (_at, summary) in self._newest.items() if name == stage}

    def finished_at(self, stage: str, span: Interval) -> datetime | None:
        """Return when the stage's newest run for an interval ended; None if there was none."""
        found = self._newest.get((stage, span.start_us))
        return found[0] if found else None

    def is_later(self, stage: str, other: str, span: Interval) -> bool:
        """Tell if the newest run of a stage for an interval ended after that of another stage; False if one has none."""
        first, second = self.finished_at(other, span), self.finished_at(stage, span)
        return first is not None and second is not None and first < second

    def ingested(self) -> dict[int, tuple[int, str]]:
        """Return the end (microseconds) and the digest of the rows of each interval that was ingested, by its start."""
        return {
            start: _rows_of(summary)
            for start, summary in self.newest("ingest").items()
            if "inputs_digest" in summary
        }

    def read_ahead(self) -> dict[int, str]:
        """Return the digest of the files that messages behind an interval's end were looked for in, by its start."""
        return {
            start: summary.get("ahead_inputs_digest", "") for start, summary in self.newest("ingest").items()
        }

    def logs_go_on(self) -> set[int]:
        """Return the starts of the intervals behind whose end the landed logs had rows when they were ingested."""
        return {start for start, summary in self.newest("ingest").items() if summary.get("logs_go_on")}

    def goes_on(self, span: Interval) -> bool:
        """Check whether logs are known to go on behind the end of an interval."""
        return span.start_us not in open_ended(self.ingested(), self.logs_go_on())

    def messages_go_on(self, span: Interval) -> bool:
        """Check whether message logs may have had rows that are not read for an interval when it was ingested."""
        return bool(self.newest("ingest").get(span.start_us, {}).get("messages_go_on", True))

    def history_of(self, span: Interval) -> str:
        """Return the digest of all that a replay of the interval depends on now; "" if nothing was ingested."""
        ingested = self.ingested()
        return history_digests(ingested, open_ended(ingested, self.logs_go_on())).get(span.start_us, "")

    def rows_until(self, span: Interval) -> str:
        """Return the digest of all rows up to the end of an interval; "" if nothing was ingested for it."""
        return history_digests(self.ingested()).get(span.start_us, "")

    def changes_since(self, rows: str, span: Interval) -> dict[int, Change] | None:
        """Return the intervals whose rows changed since ``rows_until(span)`` was ``rows``, by start.

        For that the last ingests are undone one after the other, until the digest is ``rows``. ``None``: it was never that,
        or too long ago.
        """
        versions: dict[int, list[tuple[int, str]]] = {}
        order = []
        for _at, start, made in self._ingests:
            known = versions.setdefault(start, [])
            if start <= span.start_us and (not known or known[-1] != made):
                known.append(made)
                order.append(start)
        now = {start: known[-1] for start, known in versions.items() if known}
        then = dict(now)
        undone = order[-_MOST_UNDONE:]
        while history_digests(then).get(span.start_us) != rows:
            if not undone:
                return None
            start = undone.pop()
            versions[start].pop()
            del then[start]
            if versions[start]:
                then[start] = versions[start][-1]
        return {
            start: Change(_if_any(then.get(start)), _if_any(now.get(start)))
            for start in sorted(now)
            if _if_any(then.get(start)) != _if_any(now.get(start))
        }

    def intervals_before(self, span: Interval) -> list[Interval]:
        """List the ingested intervals that end before another begins, or as it does, the latest first."""
        ends = sorted(
            ((start, end) for start, (end, digest) in self.ingested().items() if digest), reverse=True
        )
        return [Interval(from_micros(start), from_micros(end)) for start, end in ends if end <= span.start_us]

    def replayed(self) -> dict[int, tuple[Interval, str]]:
        """Return the bounds and the history digest of each interval that was replayed, by its start.

        An interval whose own run found no event has the digest "", because there was nothing to replay.
        """
        found = {
            start: (_span(summary), summary.get("history_digest", ""))
            for start, summary in self.newest("replay").items()
        }
        ingests = self.newest("ingest")
        for start, span in self._run_on_its_own.items():
            newest = ingests[start]
            if start not in found and (newest.get("as_history") or not newest.get("inputs_digest")):
                found[start] = span, ""
        return found

    def removals(self) -> dict[datetime, bool]:
        """Return the times before which logs were removed, and for each if that came to its end."""
        return {
            datetime.fromisoformat(summary["logs_from"]): bool(summary.get("done"))
            for summary in self.newest(REMOVAL).values()
        }

    def logs_from(self) -> datetime | None:
        """Return the time before which logs are not kept any more; ``None`` = all are."""
        return max(self.removals(), default=None)

    def is_kept(self, span: Interval) -> bool:
        """Check whether the logs of an interval are kept, so that it can be computed again."""
        first = self.logs_from()
        return first is None or first <= span.start

    def check_kept(self, span: Interval) -> None:
        """Raise ``LogsRemovedError`` for an interval whose logs are not kept any more."""
        if not self.is_kept(span):
            first = self.logs_from()
            assert first is not None
            raise LogsRemovedError(
                f"{span.name}: logs from before {first.isoformat()} were removed by maintenance (keep_logs), so this "
                f"interval cannot be computed again; its results are as before. The first one that can begins at "
                f"{first.isoformat()}"
            )

    def marked_stale(self) -> dict[int, str]:
        """Return the history digest with which each interval was marked as stale, by its start."""
        return {start: summary["history_digest"] for start, summary in self.newest("stale").items()}


def _span(summary: dict[str, Any]) -> Interval:
    return interval(summary["interval_start"], summary.get("interval_end"))


def _rows_of(summary: dict[str, Any]) -> tuple[int, str]:
    """Return the end (microseconds) and the digest of the rows that an ingest left in an interval."""
    digest = with_ahead(summary["inputs_digest"], summary.get("ahead_rows_digest", ""))
    return _span(summary).end_us, digest


def _if_any(rows: tuple[int, str] | None) -> tuple[int, str] | None:
    return rows if rows is not None and rows[1] else None


def open_ended(ingested: Ingested, logs_go_on: Collection[int]) -> set[int]:
    """Return the starts of the intervals behind whose end no row is known.

    ``logs_go_on``: starts of those behind whose end the landed files have rows.
    """
    last = max((start for start, (_end, digest) in ingested.items() if digest), default=None)
    return {
        start
        for start, (end, _digest) in ingested.items()
        if start not in logs_go_on and (last is None or last < end)
    }


def history_digests(ingested: Ingested, open_ends: Collection[int] = ()) -> dict[int, str]:
    """Compute for each interval that has rows the digest of its rows and all before it, by its start.

    Results of an interval depend on all these rows, so they are out of date when this digest changes. They also depend on
    whether logs go on behind its end: ``open_ends`` are the intervals behind which no row is known.
    """
    digests = {}
    chain = hashlib.sha256()
    for start, (end, digest) in sorted(ingested.items()):
        if digest:
            chain.update(json.dumps([start, end, digest]).encode())
            digests[start] = chain.hexdigest()[:_DIGITS] + (_OPEN_END if start in open_ends else "")
    return digests
