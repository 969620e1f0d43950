"""Replay a log of level E straight from Parquet files, piece by piece."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.batches import no_rows
from dispatch_core.audit.deliveries.fold import EVENT_COLUMNS, MESSAGE_COLUMNS, RARE_KINDS
from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import RECORDED, Overrides
from dispatch_core.recording.schema import DISPATCHER_KEY, MESSAGES
from dispatch_core.recording.stream import LogBatch, kept, log_batches, survey
from dispatch_core.replay.assembler import Replay
from dispatch_core.replay.divergence_anomalies import in_pieces
from dispatch_core.replay.interval_totals import IntervalTotals


class NotUserLevelError(DispatchAuditError):
    """The log is not one incarnation of level E: it has to be replayed as a whole. Nothing was read but its kinds."""


def replay_files(
    dispatcher: Mapping[str, Any],
    *,
    interval_start: datetime,
    interval_end: datetime,
    limits: Limits = DEFAULT_LIMITS,
    overrides: Overrides = RECORDED,
    open_file: Callable[[], IO[bytes]] | None = None,
) -> Iterator[dict[str, pa.Table]]:
    """Rows of the result tables, as they become known.

    ``dispatcher``: ``cluster, topic, subscription`` and its ``event_files`` and ``message_files`` in the order of the log.
    ``limits``: how long is too long. ``overrides``: what holds in place of the log's header. ``open_file``: opens an empty
    file for sums that outgrow memory (``EntryWaits``).
    Raises ``NotUserLevelError``, and ``NotStreamableError`` for what a window cannot judge: rows handed out before are void.
    """
    identity = {name: dispatcher[name] for name in DISPATCHER_KEY}
    events, messages = dispatcher["event_files"], dispatcher["message_files"]
    head = overrides.of(_head(identity, events))
    replay = Replay(head, interval_start=interval_start, interval_end=interval_end, limits=limits)
    totals = IntervalTotals(head, interval_start, limits, open_file)
    log = log_batches(
        events, messages, identity, event_columns=EVENT_COLUMNS, message_columns=MESSAGE_COLUMNS
    )
    whole: dict[str, pa.Table] = {}
    for found in in_pieces(head, interval_start, _fed(replay, totals, log)):
        whole |= found
        yield found
    yield totals.finish(whole["ownership"], whole["blocked"], replay.never_delivered())


def _fed(replay: Replay, totals: IntervalTotals, log: Iterator[LogBatch]) -> Iterator[dict[str, pa.Table]]:
    for piece, following in _with_next(log):
        if piece.nobodys:
            replay.pass_over(piece.messages)
            continue
        found = replay.feed(piece.messages, piece.events, following)
        totals.add(found["deliveries"], replay.ownership_changes)
        yield found
    yield replay.finish()


def _head(identity: Mapping[str, str], event_files: list[str]) -> DispatcherLog:
    """Read the identity of a log, with the rare lines of all of it."""
    found = survey(event_files, identity, RARE_KINDS)
    is_header = pc.equal(found.rare["kind"], "header")
    texts = [text for text in found.rare["header_json"].filter(is_header).to_pylist() if text]
    if found.traced or found.incarnations != 1:
        what = "a dispatcher trace" if found.traced else f"{found.incarnations} incarnations"
        raise NotUserLevelError(f"{identity['topic']} / {identity['subscription']}: {what}")
    rare = kept(found.rare, np.asarray(pc.invert(is_header)))
    broker, incarnation = (
        (found.rare[name][0].as_py() for name in ("broker", "incarnation")) if len(found.rare) else (None, 0)
    )
    return DispatcherLog(
        recording="",
        **identity,
        broker=broker,
        incarnation=incarnation or 0,
        header=json.loads(texts[-1]) if texts else {},  # every interval's files bring one; the latest stands
        messages=no_rows(MESSAGES),
        events=rare,
    )


def _with_next(log: Iterator[LogBatch]) -> Iterator[tuple[LogBatch, pa.Table | None]]:
    """Each piece with the events of the one behind it."""
    before = next(log, None)
    for piece in log:
        if before is not None:
            yield before, piece.events
        before = piece
    if before is not None:
        yield before, None
