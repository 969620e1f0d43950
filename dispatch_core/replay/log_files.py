"""Replay a dispatcher's log straight from Parquet files, batch by batch: all incarnations, one after the other.

A part of a log (``recording.resumed_parts``) or a further incarnation continues with the window of the lines before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, pairwise
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.batches import no_rows
from dispatch_core.arrays.columns import marked
from dispatch_core.audit.assumptions import Assumptions
from dispatch_core.audit.deliveries.fold import EVENT_COLUMNS, MESSAGE_COLUMNS, RARE_KINDS
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.errors import DispatchAuditError, NotStreamableError
from dispatch_core.recording.checkpoint import Position, leading
from dispatch_core.recording.load_order import Load, named_extent
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import RECORDED, Overrides, subscription_type
from dispatch_core.recording.resumed_parts import parts_of
from dispatch_core.recording.schema import DISPATCHER_KEY, MESSAGES
from dispatch_core.recording.stream import (
    INCARNATION,
    LogBatch,
    incarnations,
    kept,
    log_batches,
    survey,
)
from dispatch_core.replay.assembler import Replay
from dispatch_core.replay.divergence_anomalies import in_batches
from dispatch_core.replay.incarnation_ends import StoredEntries, judged_until
from dispatch_core.replay.interval_totals import IntervalTotals
from dispatch_core.replay.join_parts import joined
from dispatch_core.times import micros


class DispatcherTraceError(DispatchAuditError):
    """The log is a dispatcher trace: it has to be replayed as a whole. Nothing was read but its kinds."""


def replay_files(
    dispatcher: Mapping[str, Any],
    *,
    interval_start: datetime,
    interval_end: datetime,
    limits: Limits = DEFAULT_LIMITS,
    overrides: Overrides = RECORDED,
    open_file: Callable[[], IO[bytes]] | None = None,
) -> Iterator[dict[str, pa.Table]]:
    """Replay all incarnations of a dispatcher; yields rows of the result tables as they become known.

    Args:
        dispatcher: ``cluster, topic, subscription`` and its ``event_files`` and ``message_files`` in the order of the log.
        interval_start: a row belongs to the interval of the event that proves it.
        interval_end: what waits is judged as of then.
        limits: how long, or how much, is too much.
        overrides: what holds in place of the log's header.
        open_file: opens an empty file for sums that outgrow memory (``EntryWaits``).

    Raises:
        DispatcherTraceError: the log is a trace.
        NotStreamableError: a window cannot judge it; rows handed out before are void.
    """
    identity = {name: dispatcher[name] for name in DISPATCHER_KEY}
    events, messages = dispatcher["event_files"], dispatcher["message_files"]
    logs = _logs(identity, events, interval_end, overrides)
    batches = log_batches(
        events,
        messages,
        identity,
        event_columns=EVENT_COLUMNS,
        message_columns=MESSAGE_COLUMNS,
        logs=[(log.lines, log.limit) for log in logs[:-1]],
    )
    stored = StoredEntries(micros(interval_start), [micros(log.end) for log in logs])
    asked = _Asked(interval_start, limits, stored)
    several_brokers = len({log.parts[0].broker for log in logs}) > 1
    states: list[pa.Table] = []
    replay: Replay | None = None
    before: Load | None = None
    in_logs = groupby(_with_next(batches), key=lambda pair: pair[0].log)
    for (number, batches_of_log), log in zip(in_logs, logs, strict=True):
        head = log.parts[0]
        assumptions = Assumptions.of(head.header, subscription_type(head), limits.assume_absent)
        totals = IntervalTotals(log.parts[0], interval_start, limits, open_file)
        finished: list[dict[str, pa.Table]] = []
        extent = _Extent()
        changes = np.empty(0, np.int64)
        noted = extent.noted(batches_of_log) if several_brokers else batches_of_log
        for part, of_part in groupby(noted, key=lambda pair: pair[0].part):
            if part >= len(log.parts):
                raise NotStreamableError(f"a checkpoint follows a gap line where none was found: part {part}")
            replay = asked.replay_of(logs, number, part, replay)
            for found in in_batches(log.parts[part], interval_start, _fed(replay, totals, of_part, changes)):
                if "anomalies" in found:
                    found = found | {"anomalies": assumptions.applied(found["anomalies"])}  # noqa: PLW2901 - as above
                if "dispatcher_state" in found:
                    finished.append(found)
                    found = {name: found[name] for name in ("blocked", "anomalies")}  # noqa: PLW2901 - what is left of it
                yield found
            changes = np.append(changes, replay.ownership_changes)
        if len(finished) != len(log.parts):
            raise NotStreamableError("a gap line and a checkpoint after it were found apart")
        load = extent.load(log.parts[0].broker)
        if before is not None and before.is_behind(load):
            raise NotStreamableError(
                f"by its positions, load {number + 1} of the topic came before the one in front of it"
            )
        before = load
        whole = finished[0] if len(finished) == 1 else joined(log.parts, finished, micros(interval_start))
        states.append(whole["dispatcher_state"])
        assert replay is not None
        never_delivered = replay.never_delivered() if number == len(logs) - 1 else 0
        yield {"ownership": whole["ownership"]} | totals.finish(
            whole["ownership"], whole["blocked"], never_delivered
        )
    yield {"dispatcher_state": pa.concat_tables(map(stored.counted, states, range(len(states))))}


@dataclass(frozen=True, slots=True)
class _Log:
    """The log of one incarnation.

    ``parts``: its identity, header and rare lines, by part (``resumed_parts``). ``end``: what waits is judged as of then.
    ``lines``: their number. ``limit``: the first position that was stored after it had ended, if the next one says so.
    ``last_t_us``: of its last line.
    """

    parts: list[DispatcherLog]
    end: datetime
    lines: int = 0
    limit: Position | None = None
    last_t_us: int | None = None

    def as_earlier(self) -> DispatcherLog:
        """Return its identity with the time of its last line."""
        return replace(self.parts[0], events=pa.table({"t_us": pa.array([self.last_t_us], pa.int64())}))


class _Extent:
    """The lowest and the highest position that the lines of a log name."""

    def __init__(self) -> None:
        self._lowest: Position = (-1, -1)
        self._highest: Position = (-1, -1)

    def noted(
        self, batches: Iterator[tuple[LogBatch, pa.Table | None]]
    ) -> Iterator[tuple[LogBatch, pa.Table | None]]:
        """Pass on the batches of the log."""
        for batch, following in batches:
            lowest, highest = named_extent(batch.events)
            self._highest = max(self._highest, highest)
            if lowest >= (0, 0):
                self._lowest = lowest if self._lowest < (0, 0) else min(self._lowest, lowest)
            yield batch, following

    def load(self, broker: str | None) -> Load:
        """Return the load that the log is of, by the batches so far."""
        return Load(broker, self._lowest, self._highest)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The arguments of every replay."""

    interval_start: datetime
    limits: Limits
    stored: StoredEntries

    def replay_of(self, logs: list[_Log], number: int, part: int, after: Replay | None) -> Replay:
        """Begin the replay of a part of a log, behind the one before it."""
        log = logs[number]
        return Replay(
            log.parts[part],
            interval_start=self.interval_start,
            interval_end=log.end,
            earlier=[before.as_earlier() for before in logs[:number]] if not part else (),
            after=after,
            resumes=part > 0,
            stored=self.stored,
            limits=self.limits,
            closed=part < len(log.parts) - 1,
        )


def _fed(
    replay: Replay,
    totals: IntervalTotals,
    batches: Iterator[tuple[LogBatch, pa.Table | None]],
    changes_before: npt.NDArray[np.int64],
) -> Iterator[dict[str, pa.Table]]:
    for batch, following in batches:
        if batch.nobodys:
            replay.pass_over(batch.messages)
            continue
        found = replay.feed(batch.messages, batch.events, following)
        totals.add(found["deliveries"], np.append(changes_before, replay.ownership_changes), replay.pairs)
        yield found
    yield replay.finish()


def _logs(
    identity: Mapping[str, str], event_files: list[str], interval_end: datetime, overrides: Overrides
) -> list[_Log]:
    """Find the incarnations of a dispatcher and the parts of their logs, with the rare lines of each."""
    found = survey(event_files, identity, (*RARE_KINDS, "gap"))
    if found.traced:
        raise DispatcherTraceError(f"{identity['topic']} / {identity['subscription']}: a dispatcher trace")
    if len(found.incarnations) < 2:
        broker, number = found.incarnations[0] if found.incarnations else (None, 0)
        return [_Log(_parts(identity, broker, number or 0, found.rare, overrides), interval_end)]
    known = incarnations(event_files, identity)
    of_row = [
        (broker, number or 0)
        for broker, number in zip(*(found.rare[name].to_pylist() for name in INCARNATION), strict=True)
    ]
    if len(known) < len({(broker, number or 0) for broker, number in found.incarnations}):
        raise NotStreamableError("of an incarnation nothing but its header is known")
    for earlier, later in pairwise(known):
        overlap = (later.first_t_us or 0) <= (earlier.last_t_us or -1)
        if overlap and earlier.broker != later.broker:
            raise NotStreamableError("by their clocks, two brokers served the topic at once")
    logs: list[_Log] = []
    for at, incarnation in enumerate(known):
        of_this = [key == (incarnation.broker, incarnation.number) for key in of_row]
        rare = found.rare.filter(pa.array(of_this, pa.bool_()))
        later_begins_us = [later.first_t_us for later in known[at + 1 :] if later.first_t_us is not None]
        log = _Log(
            _parts(identity, incarnation.broker, incarnation.number, rare, overrides),
            judged_until(incarnation.last_t_us, later_begins_us, interval_end),
            incarnation.lines,
            last_t_us=incarnation.last_t_us,
        )
        if logs:
            logs[-1] = replace(logs[-1], limit=_first_unread(log.parts[0].events, incarnation.first_seq))
        logs.append(log)
    return logs


def _parts(
    identity: Mapping[str, str], broker: str | None, number: int, rare: pa.Table, overrides: Overrides
) -> list[DispatcherLog]:
    """Return the parts of one incarnation's log, with their rare lines alone."""
    is_header = pc.equal(rare["kind"], "header")
    texts = [text for text in rare["header_json"].filter(is_header).to_pylist() if text]
    whole = DispatcherLog(
        recording="",
        **identity,
        broker=broker,
        incarnation=number,
        header=json.loads(texts[-1]) if texts else {},  # every interval's files bring one; the latest stands
        messages=no_rows(MESSAGES),
        events=kept(rare, np.asarray(pc.invert(is_header))),
    )
    parts = parts_of(overrides.of(whole))
    return [replace(part, events=kept(part.events, ~marked(part.events["kind"], "gap"))) for part in parts]


def _first_unread(rare: pa.Table, first_seq: int) -> Position | None:
    """Return the read position of the checkpoint that a log begins with, if it begins with one."""
    if not rare.num_rows or rare["seq"][0].as_py() != first_seq:
        return None
    first = leading(rare)
    return None if first is None else first.read_position


def _with_next(log: Iterator[LogBatch]) -> Iterator[tuple[LogBatch, pa.Table | None]]:
    """Each batch with the events of the next one of the same part."""
    before = next(log, None)
    for batch in log:
        if before is not None:
            same = (batch.log, batch.part) == (before.log, before.part)
            yield before, batch.events if same else None
        before = batch
    if before is not None:
        yield before, None
