"""Split a log into parts that are judged as logs of their own: behind lost lines, and where its subscription was made again.

A recorder that had to drop lines writes a ``gap`` line and a checkpoint after it. State from before the gap is not reliable
after it, and the checkpoint gives the new state. The gap line ends the earlier part. An entry that is sent in one part and
again in the next counts as sent for the first time in each.

After a ``subscription_deleted`` line the next ``consumer_added`` line or checkpoint belongs to a new subscription of the
same name: it knows nothing of what the deleted one sent and got acknowledged.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.line_kinds import has_kind, of_kinds, rows_of_kind
from dispatch_core.recording import checkpoint
from dispatch_core.recording.log import DispatcherLog

_DELETED: Final = "subscription_deleted"
#: Lines that begin a subscription which is made again.
_BEGIN: Final = ("consumer_added", "checkpoint")


def resumes_at(events: pa.Table, *, after_gap: bool = False, after_deletion: bool = False) -> list[int]:
    """Rows that begin a part.

    They are checkpoints that name the connected consumers and directly follow a gap line, and the first line of a
    subscription that is made again.

    ``after_gap``: a gap line stands before the first row; ``after_deletion``: the subscription was deleted before it.
    """
    again = made_again(events, after_deletion=after_deletion)
    return sorted({*_behind_gaps(events, after_gap=after_gap), *again})


def is_deleted(events: pa.Table, *, before: bool = False) -> bool:
    """Check whether the subscription was deleted by the end of the lines, and not made again; ``before``: at their begin."""
    deleted = rows_of_kind(events, _DELETED)
    begun = rows_of_kind(events, *_BEGIN)
    if not len(deleted):
        return before and not len(begun)
    return not len(begun) or bool(begun[-1] < deleted[-1])


def made_again(events: pa.Table, *, after_deletion: bool) -> list[int]:
    """Rows that begin a subscription which is made again; ``after_deletion``: one was deleted before the first row."""
    deleted = rows_of_kind(events, _DELETED)
    if not len(deleted) and not after_deletion:
        return []
    begun = rows_of_kind(events, *_BEGIN)
    since = np.append(-1, deleted) if after_deletion else deleted
    at = np.searchsorted(begun, since, side="right")
    return [int(row) for row in np.unique(begun[at[at < len(begun)]])]


def _behind_gaps(events: pa.Table, *, after_gap: bool) -> list[int]:
    if not has_kind(events, "checkpoint"):
        return []
    gap = np.append(after_gap, of_kinds(events, "gap")[:-1])
    rows = np.flatnonzero(of_kinds(events, "checkpoint") & gap).tolist()
    texts = events["checkpoint_json"].take(pa.array(rows, pa.int64())).to_pylist()
    said = [None if text is None else checkpoint.read(text) for text in texts]
    return [
        row
        for row, state in zip(rows, said, strict=True)
        if state is not None and state.consumers is not None
    ]


def parts_of(log: DispatcherLog) -> list[DispatcherLog]:
    """The parts of a log, in order; only the log itself if it has no such gap, and no such deletion."""
    rows = resumes_at(log.events)
    if not rows:
        return [log]
    ends = [*rows, log.events.num_rows]
    parts = [replace(log, events=log.events.slice(0, rows[0]), end_lost=False)]
    for first, end in zip(rows, ends[1:], strict=True):
        if log.events["kind"][first].as_py() == "consumer_added":
            parts.append(replace(log, events=log.events.slice(first, end - first), repeats=()))
            continue
        line = _with_names(log.events.slice(0, first), log.events.slice(first, 1))
        parts.append(
            replace(
                log,
                events=pa.concat_tables([line, log.events.slice(first + 1, end - first - 1)]),
                repeats=(),
                end_lost=log.end_lost and end == ends[-1],
            )
        )
    return parts


def needed_later(rare: pa.Table) -> pa.Table:
    """Leave out the rare lines and headers of a log on which no line behind them can depend.

    These are all headers but the latest, and checkpoints in the middle of a part that name no connection which other lines
    of the part do not name. A checkpoint that begins a log or a part stays, and the first one behind a gap or a deletion.
    """
    kinds = rare["kind"].to_pylist()
    headers = [row for row, kind in enumerate(kinds) if kind == "header"]
    said = [row for row in headers if rare["header_json"][row].as_py()]
    left_out = {*headers} - {*(said or headers)[-1:]}
    if has_kind(rare, "checkpoint"):
        left_out |= _repeating_checkpoints(rare, kinds)
    return rare.take(pa.array(sorted({*range(len(kinds))} - left_out), pa.int64())) if left_out else rare


def _repeating_checkpoints(rare: pa.Table, kinds: list[str]) -> set[int]:
    """Rows of checkpoints in the middle of a part, whose connections lines before them in the part have named."""
    texts, numbers = (rare[name].to_pylist() for name in ("checkpoint_json", "consumer"))
    lines = [row for row, kind in enumerate(kinds) if kind != "header"]
    begins = {behind for row, behind in pairwise(lines) if kinds[row] == "gap"}
    begins |= {*lines[:1], *made_again(rare, after_deletion=False)}
    added: set[int | None] = set()
    named: dict[int, bool] = {}  # by number, if more than that is known
    found: set[int] = set()
    for row in lines:
        if row in begins:
            added, named = set(), {}
        if kinds[row] == "consumer_added":
            added.add(numbers[row])
        if kinds[row] == "checkpoint":
            state = checkpoint.read(texts[row]) if texts[row] else None
            says = {
                consumer.number: consumer != checkpoint.Connected(consumer.number)
                for consumer in (state.consumers if state is not None else None) or ()
            }
            new = {
                number: more
                for number, more in says.items()
                if number not in added and (number not in named or more > named[number])
            }
            if state is not None and row not in begins and not new:
                found.add(row)
            named |= new
    return found


def _with_names(before: pa.Table, line: pa.Table) -> pa.Table:
    """A checkpoint's line with names and policies, taken from earlier lines, for consumers that it only numbers."""
    known = {consumer.number: consumer for consumer in checkpoint.named_by(checkpoint.checkpoints(before))}
    added = before.filter(pc.equal(before["kind"], "consumer_added"))
    columns = ["consumer", "name", "consumer_id", "address", "priority_level", "ranges"]
    columns += ["key_shared_mode", "key_shared_allow_out_of_order"]
    lines = {row["consumer"]: row for row in added.select(columns).to_pylist()}
    said = json.loads(line["checkpoint_json"][0].as_py())
    consumers: list[Any] = []
    for consumer in said.get("consumers") or ():
        row = None if isinstance(consumer, dict) else lines.get(consumer)
        if row is None and not isinstance(consumer, dict) and consumer in known:
            row = checkpoint.as_line(known[consumer])
        consumers.append(consumer if row is None else _consumer(row))
    column = line.column_names.index("checkpoint_json")
    if "consumers" not in said:
        return line
    text = pa.array([json.dumps(said | {"consumers": consumers})], pa.string())
    return line.set_column(column, line.schema.field(column), text)


def _consumer(row: dict[str, Any]) -> dict[str, Any]:
    names = ("consumer", "name", "consumer_id", "address", "priority_level")
    policy = {
        "mode": row["key_shared_mode"],
        "allow_out_of_order": row["key_shared_allow_out_of_order"],
        "ranges": None
        if row["ranges"] is None
        else [[bounds["start"], bounds["end"]] for bounds in row["ranges"]],
    }
    said = {name: row[name] for name in names} | {
        "key_shared": {name: value for name, value in policy.items() if value is not None} or None
    }
    return {name: value for name, value in said.items() if value is not None}
