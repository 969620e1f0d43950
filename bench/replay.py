"""Measurements of a replay: the whole task, its start, the fold inside it, and ``verify`` of a trace."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numba.core.event import install_recorder

from bench.generated import dispatchers, first_day
from bench.harness import BenchError
from dispatch_core.recording.reader import find_recordings, read_recording
from spark_jobs.intervals import interval
from spark_jobs.location import Location
from spark_jobs.replay.replay_task import replay_dispatchers
from spark_jobs.worker_memory import take_little_memory

_COUNTS: Final = ("entries_stored", "entries_sent", "decisions", "uncertain", "divergent")


def product(source: str, staging: str, warm: str | None) -> tuple[float, dict[str, Any]]:
    """Replay all dispatchers of ``source`` as one task does; the files stay in ``staging``. Returns seconds, and rows.

    ``warm`` is replayed before the clock starts, so that imports and loading compiled code do not count. Raises
    ``BenchError`` if a dispatcher was not judged, a decision differs, or a message is lost: that would be less work.
    """
    if warm is None:
        return _replay(source, staging)
    _replay(warm, staging)
    with install_recorder("numba:compile") as compiled:
        seconds, facts = _replay(source, staging)
    if not compiled.buffer:
        return seconds, facts
    seconds, facts = _replay(source, staging)
    return seconds, facts | {"compiled_first": len(compiled.buffer) // 2}  # an event each for start and end


def fold_alone(source: str, staging: str, warm: str) -> tuple[float, dict[str, Any]]:
    """Measure the seconds of a replay inside ``without_trace.rounds.fold``: the rules without reading, audit, writing."""
    from dispatch_core.verify.without_trace import rounds

    spent = [0.0]
    rounds.fold = _timed(rounds.fold, spent)
    _replay(warm, staging)
    spent[0] = 0.0
    seconds, facts = _replay(source, staging)
    shutil.rmtree(staging, ignore_errors=True)
    if not spent[0]:
        raise BenchError(f"{source}: its replay does not go through rounds.fold")
    return spent[0], facts | {"replay_seconds": round(seconds, 3)}


def verify_trace(source: str, warm: str) -> tuple[float, dict[str, Any]]:
    """Verify the traces (level T) in ``source``, read before the clock starts; returns seconds, and decisions.

    The seconds are the processor's: one thread computes, and waits for nothing.
    """
    from dispatch_core.verify.trace.runner import verify

    def verified(folder: str) -> tuple[float, dict[str, Any]]:
        logs = [log for source in find_recordings([folder]) for log in read_recording(source).logs]
        began = time.process_time()
        tallies = [verify(log).tally for log in logs]
        seconds = time.process_time() - began
        counts = {name: sum(tally.total(name) for tally in tallies) for name in ("decisions", "divergent")}
        if not counts["decisions"] or counts["divergent"]:
            raise BenchError(f"{folder}: {counts}: verify does not hold on it")
        return seconds, counts | {"messages": sum(log.messages.num_rows for log in logs)}

    verified(warm)
    return verified(source)


def _replay(source: str, staging: str) -> tuple[float, dict[str, Any]]:
    take_little_memory()
    given = dispatchers(source)
    folder = Path(staging)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    span = interval(first_day(source))
    began = time.perf_counter()
    rows = replay_dispatchers(given, Location.of(folder), span)
    seconds = time.perf_counter() - began
    facts: dict[str, Any] = {"dispatchers": len(given)}
    for row in rows:
        if row.get("not_judged_reason"):
            raise BenchError(f"{source}: {row['topic']}: not judged: {row['not_judged_reason']}")
        if row["table"]:
            facts[row["table"]] = facts.get(row["table"], 0) + row["rows"]
    if not facts.get("ownership"):
        raise BenchError(f"{source}: no row of ownership, though consumers came: results are missing")
    states = [row["path"] for row in rows if row["table"] == "dispatcher_state"]
    return seconds, facts | _checked(source, states)


def _checked(source: str, state_files: Sequence[str]) -> dict[str, int]:
    """Check the replay's counts over all dispatchers: every entry sent, every delivery judged, none wrong; returns them."""
    states = pa.concat_tables([pq.read_table(path, columns=list(_COUNTS)) for path in state_files])
    counts = {name: int(pc.sum(states[name]).as_py() or 0) for name in _COUNTS}
    whole = counts["entries_sent"] >= counts["entries_stored"] > 0
    if not whole or counts["decisions"] != counts["entries_sent"] or counts["divergent"]:
        raise BenchError(
            f"{source}: {counts}: not every message was sent and judged, or some not as the rule says"
        )
    return counts


def _timed(call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*arguments)
        finally:
            spent[0] += time.perf_counter() - began

    return timed
