"""Write reports: one HTML page per subscription of a judged interval, from the warehouse's tables.

The pages of all intervals share plotly's script, ``scripts/plotly-….js`` beside the intervals' folders.

Runs after the verdicts are published, without Spark. Tables are read batch by batch, for some subscriptions at a time. Of
deliveries and messages only counts over time are kept, so that memory does not grow with their number or that of the
subscriptions. Pages depend on the tables alone: writing them again gives the same files.

Run as ``python -m spark_jobs.reports --interval-start 2026-11-21 --warehouse DIR --reports DIR``.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.errors import DispatchAuditError, names_disk_errors
from dispatch_core.recording.schema import DISPATCHER_KEY
from dispatch_core.report.advice import AdviceShown, is_wanted
from dispatch_core.report.aggregate import Collected, gather
from dispatch_core.report.flow import Flow
from dispatch_core.report.index import IndexRow, index
from dispatch_core.report.names import file_name
from dispatch_core.report.page import library_name, library_script, page
from dispatch_core.report.ring import Change, changes_of
from spark_jobs import stage_command
from spark_jobs.intervals import Interval, interval
from spark_jobs.location import Location
from spark_jobs.progress import complain, say
from spark_jobs.warehouse.advice_file import FILE, missing, read_advice
from spark_jobs.warehouse.contracts import CONTRACTS, conform, file_schema, in_one
from spark_jobs.warehouse.delta_tables import Place, data_files
from spark_jobs.warehouse.file_rows import file_rows
from spark_jobs.warehouse.run_ledger import Ledger

#: (cluster, topic, subscription)
Dispatcher = tuple[str, ...]

#: Folder of the scripts that pages share, beside the folders of the intervals.
SCRIPTS: Final = "scripts"
#: A shared script is written again when it is older, so that its age says when a page last needed it.
SCRIPT_AGE: Final = timedelta(days=1)

#: Maximum number of pages of an interval; subscriptions that passed are left out first.
LIMIT_VARIABLE: Final = "DISPATCH_AUDIT_MAX_REPORTS"
DEFAULT_LIMIT: Final = 500

_SMALL: Final = ("ownership", "blocked", "balance", "dispatcher_state")
_MEMBERSHIP: Final = ("consumer_added", "consumer_removed")
_VERDICTS: Final = {"FAIL": 0, "UNKNOWN": 1, "PASS": 2}
_NOBODY: Final = "*"
#: Tables that together name every subscription that can have a page.
_NAMING: Final = ("dispatcher_state", "anomalies", "waits")
#: Subscriptions whose rows are in memory at the same time, and their rows of ``ownership``, the largest of the tables.
_SUBJECTS_AT_ONCE: Final = 100
_SPANS_AT_ONCE: Final = 1_000_000


@dataclass
class _Subject:
    """Data of one dispatcher, collected while the tables are read."""

    flow: Flow
    small: dict[str, list[pa.Table]] = field(default_factory=lambda: defaultdict(list))
    anomalies: Collected = field(default_factory=Collected)
    members: list[pa.Table] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    names: dict[tuple[int, int], str] = field(default_factory=dict)
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    never_sent: int = 0


@names_disk_errors("reports")
def write_reports(
    warehouse: Place, span: Interval, reports: Place, *, limit: int | None = None
) -> dict[str, Any]:
    """Write the pages of an interval and their index below ``reports``; return a summary.

    ``limit``: maximum number of pages (default ``DISPATCH_AUDIT_MAX_REPORTS``, else 500). Pages of the interval that belong
    to no subscription any more are removed. Runs that write pages of the same tables at once write the same pages.
    """
    began = time.monotonic()
    limit = _limit() if limit is None else limit
    folder = folder_of(reports, span)
    _write_script(Location.of(reports) / SCRIPTS)
    written, dispatchers = _write_all(warehouse, span, folder, limit)
    return {
        "stage": "report",
        "interval_start": span.start.isoformat(),
        "reports": len(written),
        "dispatchers": dispatchers,
        "bytes": sum(written.values()),
        "seconds": round(time.monotonic() - began, 3),
        "index": str(folder / "index.html"),
    }


def _write_all(warehouse: Place, span: Interval, folder: Location, limit: int) -> tuple[dict[str, int], int]:
    """Write all pages; return the bytes of each page, and the number of dispatchers."""
    verdicts = _judged(warehouse, span)
    advice = _advice(warehouse, span, folder, verdicts)
    overrides = ", ".join(Ledger(warehouse).newest("replay").get(span.start_us, {}).get("overrides", ()))
    order = sorted(
        verdicts, key=lambda dispatcher: (_VERDICTS.get(_overall(verdicts[dispatcher]), 1), dispatcher)
    )
    written: dict[str, int] = {}
    for group in _in_groups(warehouse, span, sorted(order[:limit])):
        subjects = _read(warehouse, span, {dispatcher: verdicts[dispatcher] for dispatcher in group})
        for dispatcher, subject in subjects.items():
            name = file_name(*dispatcher)
            written[name] = _write(
                folder / name, _page(dispatcher, subject, span, overrides, advice.get(dispatcher))
            )
    rows = [
        IndexRow(
            topic,
            subscription,
            cluster,
            file_name(cluster, topic, subscription) if place < limit else None,
            verdicts[cluster, topic, subscription],
        )
        for place, (cluster, topic, subscription) in enumerate(order)
    ]
    _write(folder / "index.html", index(rows, title=f"Dispatch reports, {span.name}", origin="cluster"))
    for page_there in folder.children():
        if page_there.location.name not in (*written, "index.html", FILE):
            page_there.location.delete()
    if len(written) < len(order):
        say(
            f"report {span.name}: {len(order) - len(written)} of {len(order)} have no page ({LIMIT_VARIABLE}={limit})"
        )
    return written, len(order)


def _advice(
    warehouse: Place, span: Interval, folder: Location, verdicts: Mapping[Dispatcher, list[dict[str, Any]]]
) -> dict[Dispatcher, AdviceShown]:
    """Return the advice for each dispatcher that breaks the order per key; what is missing says how to compute it."""
    known = read_advice(folder)
    found: dict[Dispatcher, AdviceShown] = {}
    for (cluster, topic, subscription), rows in verdicts.items():
        if is_wanted(rows):
            key = cluster, topic, subscription
            found[key] = known.get(key) or missing(warehouse, span, key)
    return found


def _write_script(folder: Location) -> None:
    """Write the script that the pages share, unless it was written within the last day."""
    name = library_name()
    fresh = datetime.now(UTC) - SCRIPT_AGE
    if not any(stored.location.name == name and stored.written > fresh for stored in folder.children()):
        (folder / name).write_text(library_script())


def folder_of(reports: Place, span: Interval) -> Location:
    """Return the folder of an interval's pages."""
    return Location.of(reports) / span.name


def _limit() -> int:
    text = os.environ.get(LIMIT_VARIABLE) or str(DEFAULT_LIMIT)
    if not text.isdecimal():
        raise DispatchAuditError(
            f"{LIMIT_VARIABLE} is {text!r}; it must be a number of pages. No report was written"
        )
    return int(text)


def _overall(verdicts: Sequence[dict[str, Any]]) -> str:
    return next((row["verdict"] for row in verdicts if row["promise"] == "all"), "UNKNOWN")


def _judged(warehouse: Place, span: Interval) -> dict[Dispatcher, list[dict[str, Any]]]:
    """Read every dispatcher that was judged or replayed in the interval, with its verdicts."""
    found: defaultdict[Dispatcher, list[dict[str, Any]]] = defaultdict(list)
    for dispatcher, rows in rows_by_key(warehouse, "verdicts", span):
        found[dispatcher] += rows.to_pylist()
    for table in _NAMING:
        for dispatcher, _rows in rows_by_key(warehouse, table, span, ("incarnation",)):
            found[dispatcher] += ()
    return {dispatcher: rows for dispatcher, rows in found.items() if dispatcher[1] != _NOBODY}


def _in_groups(
    warehouse: Place, span: Interval, dispatchers: Sequence[Dispatcher]
) -> Iterator[list[Dispatcher]]:
    """Yield the dispatchers in groups whose rows fit into memory."""
    spans: Counter[Dispatcher] = Counter()
    for dispatcher, rows in rows_by_key(warehouse, "ownership", span, ("incarnation",)):
        spans[dispatcher] += rows.num_rows
    group: list[Dispatcher] = []
    for dispatcher in dispatchers:
        full = sum(spans[other] for other in group) + spans[dispatcher] > _SPANS_AT_ONCE
        if group and (full or len(group) == _SUBJECTS_AT_ONCE):
            yield group
            group = []
        group.append(dispatcher)
    if group:
        yield group


def _read(
    warehouse: Place, span: Interval, verdicts: Mapping[Dispatcher, list[dict[str, Any]]]
) -> dict[Dispatcher, _Subject]:
    """Read the rows of these dispatchers from the tables."""
    subjects = {
        dispatcher: _Subject(Flow(span.start_us, span.end_us), verdicts=rows)
        for dispatcher, rows in verdicts.items()
    }
    topics = sorted({topic for _cluster, topic, _subscription in subjects})

    def groups(
        table: str, columns: Sequence[str] | None = None, kinds: Sequence[str] | None = None
    ) -> Iterator[tuple[_Subject, pa.Table]]:
        for dispatcher, found in rows_by_key(warehouse, table, span, columns, topics=topics, kinds=kinds):
            if dispatcher in subjects:
                yield subjects[dispatcher], found

    for table in _SMALL:
        for subject, rows in groups(table):
            subject.small[table].append(rows)
    for subject, rows in groups("anomalies"):
        subject.anomalies.add(rows)
    for subject, rows in groups("waits", ("never_delivered",)):
        subject.never_sent += int(pc.sum(rows["never_delivered"]).as_py() or 0)
    for subject, rows in groups("deliveries", ("t_us", "delivery_number")):
        subject.flow.deliveries(rows)
    columns = ("kind", "t_us", "seq", "consumer", "name", "incarnation")
    for subject, rows in groups("consumer_events", columns, _MEMBERSHIP):
        subject.members.append(rows)
    for subject in subjects.values():
        if (
            subject.members
        ):  # all at once: only the line of a join has the name of the consumer that leaves later
            _add_changes(subject, pa.concat_tables(subject.members))
    stored: defaultdict[Dispatcher, Flow] = defaultdict(lambda: Flow(span.start_us, span.end_us))
    times = rows_by_key(
        warehouse, "messages", span, ("publish_time_ms",), topics=topics, key=DISPATCHER_KEY[:2]
    )
    for topic, rows in times:
        stored[topic].stored(rows["publish_time_ms"])
    for dispatcher, subject in subjects.items():
        if dispatcher[:2] in stored:
            subject.flow.merged(stored[dispatcher[:2]])
    return subjects


def rows_by_key(
    warehouse: Place,
    table: str,
    span: Interval,
    columns: Sequence[str] | None = None,
    *,
    topics: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    key: Sequence[str] = DISPATCHER_KEY,
) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """Read rows of one interval of a table; yield them as pairs of key and rows, several pairs for a large key.

    ``columns``: to read beside the key (default: all). ``topics`` (sorted) and ``kinds``: leave out the rows of all others.
    """
    names = list(dict.fromkeys([*key, *(columns or file_schema(table).names)]))
    wanted = pa.schema([CONTRACTS[table].field(column) for column in names])
    for rows in file_rows(data_files(warehouse, table, span), names, topics=topics, kinds=kinds):
        yield from by_key(conform(rows, wanted), key)


def by_key(rows: pa.Table, key: Sequence[str]) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """Group rows by key; the rows of each key keep their order."""
    code = np.zeros(rows.num_rows, np.int64)
    for name in key:
        encoded = in_one(rows[name]).dictionary_encode()
        code = code * len(encoded.dictionary) + np.asarray(encoded.indices)
        code = np.unique(code, return_inverse=True)[1]
    order = np.argsort(code, kind="stable")
    borders = np.flatnonzero(np.diff(code[order])) + 1
    rows = rows.take(pa.array(order)) if borders.size else rows
    for low, high in zip([0, *borders.tolist()], [*borders.tolist(), rows.num_rows], strict=True):
        part = rows.slice(low, high - low)
        yield tuple(part[name][0].as_py() for name in key), part


def _add_changes(subject: _Subject, rows: pa.Table) -> None:
    """Add the changes of membership and the consumers' names, incarnation by incarnation."""
    for incarnation in sorted(rows["incarnation"].unique().to_pylist()):
        events = rows.filter(pc.equal(rows["incarnation"], incarnation)).sort_by("seq")
        subject.changes += changes_of(events, incarnation)
        for kind, consumer, name in zip(
            *(events[column].to_pylist() for column in ("kind", "consumer", "name")), strict=True
        ):
            if kind == "consumer_added" and name is not None:
                subject.names[incarnation, consumer] = name


def _page(
    dispatcher: Dispatcher, subject: _Subject, span: Interval, overrides: str, advice: AdviceShown | None
) -> str:
    _cluster, topic, subscription = dispatcher
    small = {
        table: pa.concat_tables(
            [CONTRACTS[table].empty_table().select(file_schema(table).names), *subject.small[table]]
        )
        for table in _SMALL
    }
    last_us = pc.max(small["dispatcher_state"]["last_t_us"]).as_py()
    until_us = span.end_us if last_us is None else max(span.start_us + 1, min(span.end_us, last_us + 1))
    data = gather(
        small,
        title=topic,
        subscription=subscription,
        interval=f"{span.start:%Y-%m-%d %H:%M:%S} to {span.end:%Y-%m-%d %H:%M:%S} UTC, cluster {dispatcher[0]}",
        span_us=(span.start_us, until_us),
        verdicts=sorted(subject.verdicts, key=lambda row: row["promise"] != "all"),
        changes=sorted(subject.changes, key=lambda change: (change.t_us, change.seq)),
        flow=subject.flow,
        never_sent=subject.never_sent,
        anomalies=subject.anomalies,
        names=subject.names,
        advice=advice,
    )
    if overrides:  # settings in place of those in the logs' headers are shown nowhere else
        data = replace(data, facts=(*data.facts, ("Given for the run", overrides)))
    return page(data, library=f"../{SCRIPTS}/{library_name()}")


def _write(path: Location, text: str) -> int:
    content = text.encode("utf-8", "backslashreplace")
    path.write_bytes(content)
    return len(content)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the reports of one interval; see ``--help``."""
    parser = stage_command.parser(
        "python -m spark_jobs.reports", "write one page per subscription of a judged interval"
    )
    parser.add_argument(
        "--reports", required=True, type=Location.of, help="folder or URL that the pages go to"
    )
    options = parser.parse_args(arguments)
    try:
        span = interval(options.interval_start, options.interval_end)
        summary = write_reports(options.warehouse, span, options.reports)
    except DispatchAuditError as error:
        complain(f"error: {error}")
        return 2
    print(json.dumps(summary, sort_keys=True, default=str), flush=True)
    return 0
