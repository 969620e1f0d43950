"""``dispatch-audit report``: write one HTML file per recorded dispatcher, and an index of several.

A single page has plotly's script within itself, so that it can be mailed. Several pages share it, a file in the folder
``scripts``, unless ``--self-contained`` is given.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.assumptions import Assumptions
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.promises.counts import Counts
from dispatch_core.audit.root_causes import NO_NAMES
from dispatch_core.audit.sentences.lists import counted
from dispatch_core.audit.sentences.moments import as_of as as_of_sentence
from dispatch_core.audit.sentences.names import ConsumerNames
from dispatch_core.audit.verdict import FAIL, PASS, UNKNOWN, Quarantined, overall, verdicts
from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.policy_file import add_policy_argument, policy_given
from dispatch_core.cli.recordings import (
    AsOf,
    add_as_of_arguments,
    add_recording_arguments,
    as_of_given,
    moment,
    overrides_given,
    progress,
    quarantined,
    read_all,
    set_aside,
)
from dispatch_core.cli.selection import Selection, add_selection_arguments
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.known_until import connected_at_end, last_line_us, logs_until
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.recording.reader import Recording
from dispatch_core.report.advice import AdviceShown, is_wanted, not_computed
from dispatch_core.times import from_micros, micros

if TYPE_CHECKING:
    from dispatch_core.report.aggregate import ReportData
    from dispatch_core.report.index import IndexRow
    from dispatch_core.report.statistics import StatisticsShown

_EXIT: Final = {PASS: CLEAN, FAIL: FINDINGS, UNKNOWN: COULD_NOT_JUDGE}
_DAY: Final = timedelta(days=1)
#: Longer logs are not simulated for advice: they take more than some seconds.
_ADVICE_EVENTS: Final = 20_000
_INDEX: Final = "index.html"
_SCRIPTS: Final = "scripts"
_TABLES: Final = (
    ("deliveries", "deliveries"),
    ("anomalies", "anomalies"),
    ("ownership", "ownership"),
    ("blocked", "blocked"),
    ("dispatcher_state", "state"),
    ("balance", "balance"),
    ("waits", "waits"),
)


@dataclass(frozen=True, slots=True)
class _Written:
    """The content of one line of the output."""

    recording: str
    topic: str
    subscription: str
    report: str
    verdict: str
    bytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``report``."""
    add_recording_arguments(parser, ": one object per report")
    add_as_of_arguments(parser)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the reports")
    parser.add_argument(
        "--self-contained",
        action="store_true",
        help="put plotly's script (4.8 MB) into every page, so that each can be mailed; a single page always has it",
    )
    add_selection_arguments(parser, "write only reports whose verdict is FAIL")
    add_policy_argument(parser)
    parser.add_argument(
        "--advice-events",
        type=int,
        default=_ADVICE_EVENTS,
        metavar="N",
        help="simulate what would have prevented order violations, as advise does, of logs with at most N lines of events; "
        "0: of none (default %(default)s)",
    )
    parser.add_argument(
        "--interval-start",
        "--from",
        type=moment,
        metavar="TIME",
        help="day or ISO 8601 time, UTC (default: the whole log)",
    )
    parser.add_argument(
        "--interval-end",
        "--to",
        type=moment,
        metavar="TIME",
        help="exclusive (default: a day after the start)",
    )


@dataclass(frozen=True, slots=True)
class _Judged:
    """A dispatcher and what its page shows. ``where``: the page's file."""

    recording: str
    topic: str
    subscription: str
    where: Path
    verdict: str
    data: ReportData


def run(options: argparse.Namespace) -> int:
    """Write all reports; returns 0 if every verdict is PASS, 1 if one is FAIL, else 2."""
    from dispatch_core.report.index import IndexRow

    given: list[str] = []
    rows: list[IndexRow] = []
    selection = Selection.given(options)
    pages = _Pages(options.out, self_contained=options.self_contained, as_json=options.json)
    try:
        for judged in _judged(options, selection, given):
            is_written = judged.verdict == FAIL or not options.failed_only
            rows.append(
                IndexRow(
                    judged.topic,
                    judged.subscription,
                    judged.recording,
                    judged.where.relative_to(options.out).as_posix() if is_written else None,
                    judged.data.verdicts,
                )
            )
            if is_written:
                pages.add(judged)
    finally:
        pages.close()
    if len(rows) > 1:
        _write_index(options, rows)
    if selection.complain("report"):
        return COULD_NOT_JUDGE
    return FINDINGS if FAIL in given else COULD_NOT_JUDGE if UNKNOWN in given or not given else CLEAN


def _judged(options: argparse.Namespace, selection: Selection, given: list[str]) -> Iterator[_Judged]:
    """Judge the chosen dispatchers, one after another. ``given`` gets every verdict, also of logs that cannot be judged."""
    overrides = overrides_given(options)
    span = _interval(options.interval_start, options.interval_end)
    as_of = as_of_given(options)
    policy = policy_given(options)
    taken = {options.out / _INDEX}
    for recording in read_all(options.paths, follow_links=options.follow_links):
        problem = set_aside(recording)
        if problem is not None:
            progress("")
            print(f"{problem}; the report is of the rest", file=sys.stderr)
        found = 0
        for read in selection.dispatchers(recording, overrides, as_of):
            logs = _begun(read, span)
            if not logs:
                continue
            rule = policy.rule_for(logs[0].topic, logs[0].subscription)
            data, verdict = _report(logs, span, problem, quarantined(recording), as_of, rule)
            if is_wanted(data.verdicts):
                data = replace(data, advice=_advice(logs, span, rule, recording, options.advice_events))
            found += 1
            given.append(verdict)
            where = _place(options.out, recording, logs[0], taken)
            yield _Judged(recording.name, logs[0].topic, logs[0].subscription, where, verdict, data)
        if not found and not (recording.logs and (options.topics or options.subscriptions)):
            given.append(UNKNOWN)
            why = "no dispatcher's events could be read" if span is None else "no event lies in the interval"
            print(f"{recording.name}: {why}, no report", file=sys.stderr)


@dataclass(slots=True)
class _Pages:
    """Write pages one after another. The first one waits for the second: alone it has plotly's script within itself."""

    out: Path
    self_contained: bool
    as_json: bool
    _first: _Judged | None = None
    _shares: bool = False

    def add(self, judged: _Judged) -> None:
        """Write a page, or keep it until the next one is added."""
        if self.self_contained or self._shares:
            self._write(judged)
        elif self._first is None:
            self._first = judged
        else:
            from dispatch_core.report.page import library_name, library_script

            _write(self.out / _SCRIPTS / library_name(), library_script())
            self._shares = True
            first, self._first = self._first, None
            self._write(first)
            self._write(judged)

    def close(self) -> None:
        """Write the page that still waits."""
        if self._first is not None:
            first, self._first = self._first, None
            self._write(first)

    def _write(self, judged: _Judged) -> None:
        from dispatch_core.report.page import library_name, page

        folders = len(judged.where.relative_to(self.out).parts) - 1
        library = f"{'../' * folders}{_SCRIPTS}/{library_name()}" if self._shares else None
        size_bytes = _write(judged.where, page(judged.data, library=library))
        progress("")
        _tell(
            _Written(
                judged.recording,
                judged.topic,
                judged.subscription,
                str(judged.where),
                judged.verdict,
                size_bytes,
            ),
            as_json=self.as_json,
        )


def _write_index(options: argparse.Namespace, rows: Sequence[IndexRow]) -> None:
    from dispatch_core.report.index import index

    left_out = sum(row.address is None for row in rows)
    have = counted(left_out, "dispatcher has", "dispatchers have")
    remarks = [f"{have} no page, because the verdict is not FAIL (--failed-only)."]
    _write(
        options.out / _INDEX,
        index(rows, title="Dispatch reports", origin="recording", remarks=remarks if left_out else ()),
    )
    print(f"index of {len(rows):,} dispatchers: {options.out / _INDEX}", file=sys.stderr)


def _interval(start: datetime | None, end: datetime | None) -> tuple[int, int] | None:
    if start is None:
        if end is not None:
            raise DispatchAuditError("--interval-end needs --interval-start; nothing was written")
        return None
    end = start + _DAY if end is None else end
    if end <= start:
        raise DispatchAuditError(
            f"the interval ends at {end.isoformat()}, not after its start {start.isoformat()}; nothing was written"
        )
    return micros(start), micros(end)


def _begun(logs: list[DispatcherLog], span: tuple[int, int] | None) -> list[DispatcherLog]:
    """The incarnations that have events before the interval's end; none if no event lies in the interval."""
    if span is None:
        return [log for log in logs if log.start_t_us is not None]
    inside = [
        pc.and_(pc.greater_equal(log.events["t_us"], span[0]), pc.less(log.events["t_us"], span[1]))
        for log in logs
    ]
    if not any(pc.any(mask).as_py() for mask in inside):
        return []
    return [log for log in logs if log.start_t_us is not None and log.start_t_us < span[1]]


def _report(
    logs: list[DispatcherLog],
    span: tuple[int, int] | None,
    problem: str | None,
    lost: Quarantined,
    as_of: AsOf,
    rule: Rule,
) -> tuple[ReportData, str]:
    """Judge one dispatcher; return the data of its page, and its verdict."""
    from dispatch_core.replay.result_rows import names_of
    from dispatch_core.report.aggregate import gather
    from dispatch_core.report.flow import flow_of
    from dispatch_core.report.ring import changes_of

    limits = rule.finding_limits
    tables, doubts = _tables(logs, span, limits, complete=as_of.complete)
    judged = _as_of_note(logs, span, as_of)
    if span is None:
        span = _whole(logs)
    unsent = tables["waits"]["never_delivered"][-1].as_py()
    promises = verdicts(
        tables["anomalies"],
        _counts(logs, tables, doubts, lost),
        rule=rule,
        assumptions=Assumptions.of(logs[-1], limits.assume_absent),
        # In another load of the topic the same number is another consumer.
        names=ConsumerNames(names_of(logs[0].events)) if len(logs) == 1 else NO_NAMES,
    )
    verdict = overall(promises)
    reason = "; ".join(
        f"{promise.promise}: {promise.reason}" for promise in promises if promise.verdict == verdict
    )
    notes = [] if judged is None else [judged]
    if problem is not None:
        notes.append(f"{problem}.")
    whole = {
        "promise": "all",
        "verdict": verdict,
        "reason": "every promise was kept" if verdict == PASS else reason,
        "findings": 0,
        "tolerated": 0,
        "top_findings": (),
    }
    data = gather(
        tables,
        title=logs[0].topic,
        subscription=logs[0].subscription,
        interval=_called(span),
        span_us=span,
        verdicts=[whole, *(asdict(promise) for promise in promises)],
        changes=[change for load, log in enumerate(logs) for change in changes_of(log.events, load)],
        flow=flow_of(tables["deliveries"], logs[-1].messages, span),
        never_sent=unsent,
        notes=notes,
        statistics=_statistics(logs, span),
    )
    return data, verdict


def _advice(
    logs: Sequence[DispatcherLog],
    span: tuple[int, int] | None,
    rule: Rule,
    recording: Recording,
    most_events: int,
) -> AdviceShown:
    """Simulate what would have prevented the order violations; of a long log only say how to."""
    from dispatch_core.what_if.advise import advice
    from dispatch_core.what_if.advise_text import for_page
    from dispatch_core.what_if.compare import OrderLimits
    from dispatch_core.what_if.rules import SEEDS

    words = ["dispatch-audit", "advise", str(recording.folder), f"--topic={logs[0].topic}"]
    words.append(f"--subscription={logs[0].subscription}")
    if span is not None:
        logs = logs_until(logs, span[1] - 1)
        words += [
            f"--from={from_micros(span[0]).isoformat()}",
            f"--to={from_micros(span[1] - 1).isoformat()}",
        ]
    command = shlex.join(words)
    lines = sum(log.events.num_rows for log in logs)
    if lines > most_events:
        return not_computed(
            f"the log has {lines:,} lines, more than {most_events:,} (--advice-events)", command
        )
    tolerated = OrderLimits.of(rule)
    from_us = None if span is None else span[0]
    return for_page(
        [advice(log, range(SEEDS), tolerated, alternatives=False, from_us=from_us) for log in logs], command
    )


def _statistics(logs: Sequence[DispatcherLog], span: tuple[int, int]) -> StatisticsShown | None:
    """The statistics at the end of the interval; ``None`` where no line has a time."""
    from dispatch_core.replay.moment_statistics import statistics_at
    from dispatch_core.replay.traced_state import NoStateError
    from dispatch_core.report.statistics import statistics_shown

    try:
        return statistics_shown(statistics_at(logs, span[1] - 1, from_us=span[0]))
    except NoStateError:
        return None


@dataclass(slots=True)
class _Doubts:
    """Decisions that differ from the rules and prove nothing: their number, and what may explain them."""

    decisions: int = 0
    because: list[str] = field(default_factory=list)


def _counts(
    logs: Sequence[DispatcherLog], tables: Mapping[str, pa.Table], doubts: _Doubts, lost: Quarantined
) -> Counts:
    """Return the counts over all incarnations."""
    counts = Counts(
        subscription_type(logs[-1]),
        in_log=any(log.events.num_rows for log in logs),
        quarantined=lost.rows,
        first_quarantined=f"; first: {lost.first}" if lost.rows else "",
    )
    counts.add_load(
        max(log.incarnation for log in logs),
        deliveries=tables["deliveries"],
        anomalies=tables["anomalies"],
        state=tables["dispatcher_state"],
        waits=tables["waits"],
        balance=tables["balance"],
        doubted=doubts.decisions,
        doubted_by=doubts.because,
    )
    return counts


def _tables(
    logs: Sequence[DispatcherLog], span: tuple[int, int] | None, limits: Limits, *, complete: bool
) -> tuple[dict[str, pa.Table], _Doubts]:
    """Result tables of all incarnations of a dispatcher, restricted to ``span``, and the doubted comparisons."""
    from dispatch_core.replay.whole_log import audit_whole

    of_incarnations = []
    doubts = _Doubts()
    for number, log in enumerate(logs):
        until = None if span is None else span[1] - 1
        last = number == len(logs) - 1
        # Entries that an incarnation leaves unsent are for the next one.
        closed = complete and last and not _goes_on([log], until)
        audit = audit_whole(
            log, earlier=logs[:number], limits=limits, as_of_us=until, closed=closed, last=last
        )
        doubts.decisions += audit.doubted
        doubts.because += audit.doubted_by
        tables = {table: getattr(audit, name) for table, name in _TABLES}
        of_incarnations.append(tables if span is None else _of_interval(tables, log, span, limits))
    return {
        name: pa.concat_tables([tables[name] for tables in of_incarnations]) for name, _ in _TABLES
    }, doubts


def _goes_on(logs: Sequence[DispatcherLog], until_us: int | None) -> bool:
    """Check whether a line of some logs is later than ``until_us``."""
    last_us = last_line_us(logs)
    return until_us is not None and last_us is not None and last_us > until_us


def _as_of_note(logs: Sequence[DispatcherLog], span: tuple[int, int] | None, as_of: AsOf) -> str | None:
    """Say as of when the page judges; ``None`` where no line has a time, or the log goes on behind the interval."""
    last_us = last_line_us(logs)
    if last_us is None or (span is not None and _goes_on(logs, span[1] - 1)):
        return None
    text = as_of_sentence(last_us, connected_at_end(logs[-1].events), complete=as_of.complete)
    return f"Judged {text}."


def _of_interval(
    tables: Mapping[str, pa.Table], log: DispatcherLog, span: tuple[int, int], limits: Limits
) -> dict[str, pa.Table]:
    """Return the rows of an interval: those whose proving event lies in it, and spans that overlap it."""
    from dispatch_core.replay.interval_totals import with_totals

    start_us = span[0]
    since = {name: pc.greater_equal(tables[name]["t_us"], start_us) for name in ("deliveries", "anomalies")}
    reaching = {
        name: pc.fill_null(pc.greater(tables[name]["until_t_us"], start_us), True)
        for name in ("ownership", "blocked")
    }
    of_it = {name: tables[name].filter(pc.fill_null(mask, True)) for name, mask in (since | reaching).items()}
    unsent = tables["waits"]["never_delivered"][0].as_py()
    totals = with_totals(log, of_it, from_micros(start_us), limits, never_delivered=unsent)
    return {**tables, **of_it, "balance": totals["balance"], "waits": totals["waits"]}


def _whole(logs: Sequence[DispatcherLog]) -> tuple[int, int]:
    """The time of the first event of some logs, and the time just after the last one."""
    ends = [pc.min_max(log.events["t_us"]).as_py() for log in logs]
    known = [end for end in ends if end["min"] is not None]
    return (min(end["min"] for end in known), max(end["max"] for end in known) + 1) if known else (0, 1)


def _called(span: tuple[int, int]) -> str:
    try:
        start, end = (from_micros(t_us).strftime("%Y-%m-%d %H:%M:%S") for t_us in span)
    except (OverflowError, ValueError):
        return f"{span[0]} to {span[1]} us"  # times that no calendar has
    return f"{start} to {end} UTC"


def _place(out: Path, recording: Recording, log: DispatcherLog, taken: set[Path]) -> Path:
    """The file of a report, named after its recording; equal names get a number.

    Topics and subscriptions are names from a log and never part of a path.
    """
    parts = [re.sub(r"[^A-Za-z0-9._-]", "_", part) for part in recording.name.split("/")]
    parts = [part if part.strip(".") else "_" for part in parts]
    name = parts.pop()
    dispatchers = {(other.cluster, other.topic, other.subscription) for other in recording.logs}
    if len(dispatchers) > 1:
        identity = json.dumps([log.cluster, log.topic, log.subscription])
        name += f"-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    where, number = out.joinpath(*parts, f"{name}.html"), 1
    while where in taken:
        number += 1
        where = where.with_name(f"{name}-{number}.html")
    taken.add(where)
    return where


def _write(where: Path, text: str) -> int:
    """Write a report completely or not at all; returns its size in bytes."""
    content = text.encode("utf-8", "backslashreplace")
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        unfinished = where.with_name(f".{where.name}.part")
        unfinished.write_bytes(content)
        unfinished.replace(where)
    except OSError as error:
        raise DispatchAuditError(
            f"{where}: the report cannot be written: {error.strerror or error}; those before it are kept. "
            "Name another folder with --out"
        ) from error
    return len(content)


def _tell(written: _Written, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(asdict(written), ensure_ascii=False))
    else:
        print(f"{written.verdict:8}{written.report}")
    sys.stdout.flush()
