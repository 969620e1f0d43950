"""Reports: one self-contained HTML page per subscription of a judged interval, from the warehouse's tables.

Runs after the verdicts are published. No Spark and no JVM: tables are read batch by batch, for some subscriptions at a time;
of deliveries and messages only counts over time are kept, so that memory follows neither their number nor that of the
subscriptions. Pages depend on the tables alone: writing them again gives the same files.

Run as ``python -m spark_jobs.reports --interval-start 2026-11-21 --warehouse DIR --reports DIR``.
"""

from __future__ import annotations

import fcntl
import html
import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.sentences.names import LONGEST_ON_PAGES, printable
from dispatch_core.errors import DispatchAuditError, names_disk_errors
from dispatch_core.recording.schema import DISPATCHER_KEY
from dispatch_core.report.aggregate import Collected, gather
from dispatch_core.report.flow import Flow
from dispatch_core.report.names import file_name
from dispatch_core.report.page import page
from dispatch_core.report.ring import Change, changes_of
from spark_jobs import stage_command
from spark_jobs.intervals import Interval, interval
from spark_jobs.progress import complain, say
from spark_jobs.reports.subscription_rows import rows_by_key
from spark_jobs.warehouse.contracts import CONTRACTS, file_schema
from spark_jobs.warehouse.run_ledger import Ledger

#: (cluster, topic, subscription)
Dispatcher = tuple[str, ...]

#: Pages of an interval at most; those of subscriptions that passed are left out first. A page is 5 MB or more.
LIMIT_VARIABLE: Final = "DISPATCH_AUDIT_MAX_REPORTS"
DEFAULT_LIMIT: Final = 500

_SMALL: Final = ("ownership", "blocked", "balance", "dispatcher_state")
_MEMBERSHIP: Final = ("consumer_added", "consumer_removed")
_VERDICTS: Final = {"FAIL": 0, "UNKNOWN": 1, "PASS": 2}
_NOBODY: Final = "*"
#: Tables that name every subscription that can have a page.
_NAMING: Final = ("dispatcher_state", "anomalies", "waits")
#: Subscriptions whose rows are in memory together, and so many rows of ownership, of which there is most.
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
    warehouse: Path, span: Interval, reports: Path, *, limit: int | None = None
) -> dict[str, Any]:
    """Write the pages of an interval and their index below ``reports``; returns a summary.

    ``limit``: pages at most (default ``DISPATCH_AUDIT_MAX_REPORTS``, else 500). Pages of the interval that no subscription
    has any more are removed. Another run that writes pages of the interval is waited for: the last one reads what is newest.
    """
    began = time.monotonic()
    limit = _limit() if limit is None else limit
    folder = folder_of(reports, span)
    folder.mkdir(parents=True, exist_ok=True)
    # Beside the folder: within it all that is no page is removed.
    with folder.with_name(f".{folder.name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
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


def _write_all(warehouse: Path, span: Interval, folder: Path, limit: int) -> tuple[dict[str, int], int]:
    """Bytes by page, and how many dispatchers there are."""
    verdicts = _judged(warehouse, span)
    given = ", ".join(Ledger(warehouse).newest("replay").get(span.start_us, {}).get("overrides", ()))
    order = sorted(verdicts, key=lambda one: (_VERDICTS.get(_overall(verdicts[one]), 1), one))
    written: dict[str, int] = {}
    for together in _in_turns(warehouse, span, sorted(order[:limit])):
        subjects = _read(warehouse, span, {one: verdicts[one] for one in together})
        for dispatcher, subject in subjects.items():
            name = file_name(*dispatcher)
            written[name] = _write(folder / name, _page(dispatcher, subject, span, given))
    lines = [
        (one, _overall(verdicts[one]), file_name(*one) if place < limit else None)
        for place, one in enumerate(order)
    ]
    _write(folder / "index.html", _index(span, lines))
    for path in folder.iterdir():
        if path.name not in written and path.name != "index.html":
            path.unlink()
    if len(written) < len(order):
        say(
            f"report {span.name}: {len(order) - len(written)} of {len(order)} have no page ({LIMIT_VARIABLE}={limit})"
        )
    return written, len(order)


def folder_of(reports: Path, span: Interval) -> Path:
    """Folder of an interval's pages."""
    return Path(reports) / span.name


def _limit() -> int:
    text = os.environ.get(LIMIT_VARIABLE) or str(DEFAULT_LIMIT)
    if not text.isdecimal():
        raise DispatchAuditError(
            f"{LIMIT_VARIABLE} is {text!r}; it must be a number of pages. No report was written"
        )
    return int(text)


def _overall(verdicts: Sequence[dict[str, Any]]) -> str:
    return next((one["verdict"] for one in verdicts if one["promise"] == "all"), "UNKNOWN")


def _judged(warehouse: Path, span: Interval) -> dict[Dispatcher, list[dict[str, Any]]]:
    """Every dispatcher that was judged or replayed in the interval, with its verdicts."""
    found: defaultdict[Dispatcher, list[dict[str, Any]]] = defaultdict(list)
    for dispatcher, rows in rows_by_key(warehouse, "verdicts", span):
        found[dispatcher] += rows.to_pylist()
    for table in _NAMING:
        for dispatcher, _rows in rows_by_key(warehouse, table, span, ("incarnation",)):
            found[dispatcher] += ()
    return {dispatcher: rows for dispatcher, rows in found.items() if dispatcher[1] != _NOBODY}


def _in_turns(
    warehouse: Path, span: Interval, dispatchers: Sequence[Dispatcher]
) -> Iterator[list[Dispatcher]]:
    """The dispatchers, some at a time, as many as fit into memory."""
    spans: Counter[Dispatcher] = Counter()
    for dispatcher, rows in rows_by_key(warehouse, "ownership", span, ("incarnation",)):
        spans[dispatcher] += rows.num_rows
    together: list[Dispatcher] = []
    for one in dispatchers:
        full = sum(spans[other] for other in together) + spans[one] > _SPANS_AT_ONCE
        if together and (full or len(together) == _SUBJECTS_AT_ONCE):
            yield together
            together = []
        together.append(one)
    if together:
        yield together


def _read(
    warehouse: Path, span: Interval, verdicts: Mapping[Dispatcher, list[dict[str, Any]]]
) -> dict[Dispatcher, _Subject]:
    """Read the rows of these dispatchers from the tables."""
    subjects = {
        one: _Subject(Flow(span.start_us, span.end_us), verdicts=mine) for one, mine in verdicts.items()
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
        if subject.members:  # whole: a line of leaving has the name that the line of joining says
            _joined(subject, pa.concat_tables(subject.members))
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


def _joined(subject: _Subject, rows: pa.Table) -> None:
    for incarnation in sorted(rows["incarnation"].unique().to_pylist()):
        mine = rows.filter(pc.equal(rows["incarnation"], incarnation)).sort_by("seq")
        subject.changes += changes_of(mine)
        for kind, consumer, name in zip(
            *(mine[one].to_pylist() for one in ("kind", "consumer", "name")), strict=True
        ):
            if kind == "consumer_added" and name is not None:
                subject.names[incarnation, consumer] = name


def _page(dispatcher: Dispatcher, subject: _Subject, span: Interval, given: str) -> str:
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
        verdicts=sorted(subject.verdicts, key=lambda one: one["promise"] != "all"),
        changes=sorted(subject.changes, key=lambda one: (one.t_us, one.seq)),
        flow=subject.flow,
        never_sent=subject.never_sent,
        anomalies=subject.anomalies,
        names=subject.names,
    )
    if given:  # what holds in place of the logs' headers is nowhere else to be seen
        data = replace(data, facts=(*data.facts, ("Given for the run", given)))
    return page(data)


def _index(span: Interval, lines: Iterable[tuple[Dispatcher, str, str | None]]) -> str:
    """A page that lists the interval's subscriptions, worst first, with links to their pages."""
    rows = [
        f"<tr><td>{html.escape(verdict)}</td><td>{_linked(topic, name)}</td><td>{_shown(subscription)}</td>"
        f"<td>{_shown(cluster)}</td></tr>"
        for (cluster, topic, subscription), verdict, name in lines
    ]
    return "\n".join(
        [
            '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>Dispatch reports {span.name}</title>",
            "<style>body { font: 15px/1.6 system-ui, sans-serif; margin: 24px } td, th { text-align: left; "
            "padding: 2px 18px 2px 0; overflow-wrap: anywhere }</style></head><body>",
            f"<h1>Dispatch reports, {span.name}</h1>",
            "<table><tr><th>verdict</th><th>topic</th><th>subscription</th><th>cluster</th></tr>",
            *rows,
            "</table></body></html>\n",
        ]
    )


def _linked(topic: str, name: str | None) -> str:
    return _shown(topic) if name is None else f'<a href="{name}">{_shown(topic)}</a>'


def _shown(name: str) -> str:
    return html.escape(printable(name, LONGEST_ON_PAGES))


def _write(path: Path, text: str) -> int:
    content = text.encode("utf-8", "backslashreplace")
    unfinished = path.with_name(f".{path.name}.part")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise
    return len(content)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the reports of one interval; see ``--help``."""
    parser = stage_command.parser(
        "python -m spark_jobs.reports", "one page per subscription of a judged interval"
    )
    parser.add_argument("--reports", required=True, type=Path, help="folder that the pages go to")
    options = parser.parse_args(arguments)
    try:
        span = interval(options.interval_start, options.interval_end)
        summary = write_reports(options.warehouse, span, options.reports)
    except DispatchAuditError as error:
        complain(f"error: {error}")
        return 2
    print(json.dumps(summary, sort_keys=True, default=str), flush=True)
    return 0
