"""``dispatch-audit verify``: compare every recorded decision of the broker with its rules.

Recordings are independent of each other, so they are verified in separate processes, one per core. Results are printed in
the order of the recordings' names. A failure of one recording, even the end of its process, affects only its own result.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.recordings import (
    AsOf,
    add_as_of_argument,
    add_recording_arguments,
    as_of_given,
    overrides_given,
    set_aside,
    sources_at,
    with_progress_bar,
)
from dispatch_core.cli.selection import Selection, add_dispatcher_arguments, add_refused_arguments
from dispatch_core.errors import DispatchAuditError, LogError
from dispatch_core.recording.known_until import lines_until
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import Overrides
from dispatch_core.recording.reader import Recording, RecordingSource, read_recording

#: Options of other commands that mean nothing here.
_REFUSED: Final = {
    "--from": "each decision depends on all lines before it, so a comparison begins with the first line",
    "--complete": "decisions are compared line by line, and what still waits at the end is not judged",
    "--policy": "a decision is exact, uncertain or divergent, and no policy tolerates one; audit takes a policy",
}


@dataclass(frozen=True, slots=True)
class _Order:
    """The work for one process."""

    source: RecordingSource
    overrides: Overrides
    strict: bool
    as_json: bool
    selection: Selection
    as_of: AsOf


@dataclass(slots=True)
class _Verified:
    """The result for one recording.

    ``complaints`` go to stderr. ``selection``: with what it has met. ``stopped``: the error that ended a strict run.
    """

    name: str
    results: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    ignored_settings: set[str] = field(default_factory=set)
    judged: int = 0
    not_judged: int = 0
    divergent: int = 0
    incomplete: bool = False
    selection: Selection | None = None
    stopped: str | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``verify``."""
    add_recording_arguments(parser, ", one object per dispatcher and load")
    add_dispatcher_arguments(parser)
    add_as_of_argument(parser, "--to")
    add_refused_arguments(parser, _REFUSED)
    parser.add_argument(
        "--strict",
        action="store_true",
        help="stop at the first line that no broker can have written, instead of reporting it and continuing",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=os.cpu_count() or 1,
        metavar="N",
        help="recordings verified at the same time (default: one per core)",
    )


def run(options: argparse.Namespace) -> int:
    """Verify all recordings; returns 0 clean, 1 divergent, 2 could not judge."""
    overrides = overrides_given(options)
    sources = sources_at(options.paths, follow_links=options.follow_links)
    selection = Selection.given(options)
    as_of = as_of_given(options)
    orders = [
        _Order(source, overrides, options.strict, options.json, Selection.given(options), as_of)
        for source in sources
    ]
    total = _Verified("")
    jobs = max(1, min(options.jobs, len(orders)))
    for verified in with_progress_bar(_in_order(orders, jobs), len(orders), "verifying"):
        for complaint in verified.complaints:
            print(complaint, file=sys.stderr)
        for result in verified.results:
            print(result, flush=True)
        if verified.stopped is not None:
            raise DispatchAuditError(verified.stopped)
        if verified.selection is not None:
            selection.merge(verified.selection)
        total.divergent += verified.divergent
        total.judged += verified.judged
        total.not_judged += verified.not_judged
        total.incomplete |= verified.incomplete
        total.ignored_settings |= verified.ignored_settings
    if selection.complain("verify"):
        return COULD_NOT_JUDGE
    if not options.json:
        print(_summary(total))
    if total.divergent:
        return FINDINGS
    return CLEAN if total.judged and not total.not_judged and not total.incomplete else COULD_NOT_JUDGE


def _in_order(orders: list[_Order], jobs: int) -> Iterator[_Verified]:
    """One result per order, in their order."""
    if jobs == 1:
        yield from map(_verify, orders)
        return
    with _pool(jobs) as pool:
        # The largest first: a long one that starts last would run alone at the end.
        largest = sorted(range(len(orders)), key=lambda at: -_size(orders[at].source))
        futures = {at: pool.submit(_verify, orders[at]) for at in largest}
        try:
            for at, order in enumerate(orders):
                yield _result(futures[at], order)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _result(future: Future[_Verified], order: _Order) -> _Verified:
    try:
        return future.result()
    except BrokenProcessPool:
        # A process ended without a word and took the pool along: this one is tried again, alone.
        pass
    try:
        with _pool(1) as pool:
            return pool.submit(_verify, order).result()
    except BrokenProcessPool:
        return _failed(
            order, "the process that verified it ended without a word, possibly for lack of memory"
        )


def _pool(jobs: int) -> ProcessPoolExecutor:
    # Forking a process in which numba and Arrow have started threads is not safe.
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def _size(source: RecordingSource) -> int:
    return sum(file.stat().st_size for file in (*source.messages, *source.events) if file.exists())


def _verify(order: _Order) -> _Verified:
    """Verify one recording; every error becomes its result."""
    try:
        return _verify_source(order)
    except LogError as error:
        return _Verified(order.source.name, stopped=f"{order.source.name}: {error}", incomplete=True)
    except (DispatchAuditError, OSError) as error:
        return _failed(order, str(error))
    except Exception as error:  # noqa: BLE001 - an error of one recording must not stop the others; it is reported
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).stem}.{frame.name}, line {frame.lineno}"
        return _failed(order, f"internal error {type(error).__name__} in {where}: {error}; please report it")


def _failed(order: _Order, reason: str) -> _Verified:
    from dispatch_core.verify.tally import Tally

    name = order.source.name
    if order.as_json:
        empty = {"recording": name, "broker_version": None, **Tally().as_json(), "warnings": []}
        result = json.dumps({**empty, "ignored_settings": [], "log_findings": [], "not_judged": reason})
    else:
        result = f"{name}\n  not judged: {reason}\n"
    return _Verified(name, results=[result], not_judged=1)


def _verify_source(order: _Order) -> _Verified:
    from dispatch_core.cli.verify_report import for_people
    from dispatch_core.verify.trace.runner import verify

    recording = read_recording(order.source)
    verified = _Verified(order.source.name, selection=order.selection)
    problem = set_aside(recording)
    if problem is not None:
        if order.strict:
            first = recording.quarantine.slice(0, 1).to_pylist()[0]
            line = "" if first["source_line"] is None else f":{first['source_line']}"
            raise LogError(
                f"{first['reason']}; nothing was verified: mend the file or run without --strict",
                where=f"{first['source_file']}{line}",
                rule="every line can be read",
            )
        verified.complaints.append(f"{problem}; the rest was verified")
        verified.incomplete = True
    verified.complaints += [f"{recording.name}: {text}" for text in recording.mismatches]
    if not recording.logs:
        return _failed(order, "no dispatcher's events could be read")
    for log, until in _chosen(recording, order):
        result = verify(log, strict=order.strict, goes_on=until is not None, until=until)
        verified.divergent += result.tally.total("divergent")
        judged = result.tally.total("decisions") > 0
        verified.judged += judged
        verified.not_judged += not judged
        verified.incomplete |= bool(result.log_findings)
        if result.profile is not None:
            verified.ignored_settings |= set(result.profile.ignored_settings)
        verified.results.append(json.dumps(result.as_json()) if order.as_json else for_people(result))
    return verified


def _chosen(recording: Recording, order: _Order) -> Iterator[tuple[DispatcherLog, int | None]]:
    """Yield the loads of the chosen dispatchers that began by the moment that is asked for.

    And the ``seq`` of the last line by then; ``None`` = no line is later.
    """
    until_us = order.as_of.until_us
    for logs in order.selection.dispatchers(recording, order.overrides):
        for log in logs:
            lines = log.events.num_rows if until_us is None else lines_until(log, until_us)
            if lines == log.events.num_rows:
                yield log, None
            elif lines:
                yield log, log.events["seq"][lines - 1].as_py()


def _summary(total: _Verified) -> str:
    text = f"{total.judged} verified, {total.divergent} divergent decisions"
    if total.not_judged:
        text += f", {total.not_judged} not judged"
    if total.ignored_settings:
        text += "\nsettings without effect on a decision: " + ", ".join(sorted(total.ignored_settings))
    return text
