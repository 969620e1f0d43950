"""Let a log begin at the place of a saved state: a checkpoint line in place of all lines before it.

A saved state (``snapshots``) holds for one version of the code. A checkpoint holds for all, so it is what is left of a log
whose old lines are removed: who is connected, what is acknowledged, what is pending, and how far was sent. Its line has the
``seq`` of the last line that it stands for, so that the next line follows without a gap. ``limit`` lines before the place
come behind it, because they are in force until others end them.

A log that begins in this way is judged as any log that begins with a checkpoint (docs/log-format.md#checkpoints).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import rows_at
from dispatch_core.arrays.line_kinds import rows_of_kind
from dispatch_core.audit.deliveries import layout as at
from dispatch_core.audit.deliveries.window import LogWindow
from dispatch_core.recording.checkpoint import Position, as_text, first_after, joins, read
from dispatch_core.recording.schema import EVENTS
from dispatch_core.replay.assembler import Replay
from dispatch_core.replay.judge import DispatcherPosition
from dispatch_core.replay.snapshots import ReplayState

_OWN_FIELDS = ("consumer", "name", "consumer_id", "address", "priority_level")
_ABOUT_CONSUMER = (*_OWN_FIELDS, "key_shared_mode", "key_shared_allow_out_of_order", "ranges")
#: Permits from here on were never counted: a checkpoint did not give them.
_NOT_COUNTED = 1 << 29


@dataclass(frozen=True, slots=True)
class Beginning:
    """The lines that stand for those of a log before a place, and the entries that it needs.

    Attributes:
        lines: the checkpoint, and the ``limit`` lines before the place; none where an incarnation begins there.
        needed_from: the first position of which the entry is needed behind the place: of those that the saved state holds,
            and the one up to which everything is acknowledged. ``None`` = all are.
    """

    lines: pa.Table
    needed_from: Position | None


def beginning_of(state: ReplayState) -> Beginning:
    """Make the beginning of the log behind the place of a saved state, which is not changed."""
    replay = state.replay
    stands = replay.judge.position(replay.audit)
    window, mark_delete = replay.audit.window, _mark_delete(replay, stands)
    first_in_window = _position(window, 0) if len(window) else window.dropped_to
    needed_from = min(
        (position for position in (first_in_window, mark_delete) if position is not None), default=None
    )
    if state.cut.last_seq < 0:
        return Beginning(EVENTS.empty_table(), needed_from)
    last = {"seq": state.cut.last_seq, "t_us": replay.last_line[1]}
    head = replay.head
    shared: dict[str, Any] = {
        name: getattr(head, name) for name in ("cluster", "topic", "subscription", "broker", "incarnation")
    }
    limits = rows_at(state.rare, rows_of_kind(state.rare, "limit")).to_pylist()
    rows = [
        {
            **shared,
            **last,
            "kind": "checkpoint",
            "checkpoint_json": _checkpoint(replay, state.rare, mark_delete, stands),
        },
        *({**row, **last} for row in limits),
    ]
    for number, row in enumerate(rows):
        row["seq"] -= len(rows) - 1 - number
    return Beginning(pa.Table.from_pylist(rows, schema=EVENTS), needed_from)


def _checkpoint(
    replay: Replay, rare: pa.Table, mark_delete: Position | None, stands: DispatcherPosition
) -> str:
    """Write the checkpoint line as JSON."""
    audit = replay.audit
    window, scan = audit.window, audit.scan
    connected = _connected(rare)
    counted = _counted(replay, stands.state_json)
    ranges = _only_ranges(replay)
    about = {row["consumer"]: row for row in joins(rare, _ABOUT_CONSUMER)}
    acked = np.flatnonzero(scan.acknowledged)
    holes = [_position(window, ordinal) for ordinal in acked.tolist()]
    rows = scan.deliveries
    open_rows = rows[rows[:, at.END] == at.OPEN]
    pending: dict[int, list[Position]] = {number: [] for number in connected}
    for ordinal, consumer in zip(
        open_rows[:, at.ENTRY].tolist(), open_rows[:, at.CONSUMER].tolist(), strict=True
    ):
        pending.setdefault(window.consumers[consumer].number, []).append(_position(window, ordinal))
    unsent = _unsent_from(replay)
    line: dict[str, Any] = {
        "inferred": True,
        "consumers": [
            _consumer(about.get(number, {"consumer": number}), counted, ranges) for number in connected
        ],
        "ack_holes": [as_text(hole) for hole in holes if mark_delete is None or hole > mark_delete],
        "pending_acks": {
            str(number): [as_text(position) for position in sorted(set(pending[number]))]
            for number in connected
        },
    }
    if mark_delete is not None:
        line["mark_delete"] = as_text(mark_delete)
    if unsent is not None:
        line["read_position"] = as_text(unsent)
    return json.dumps(line)


def _consumer(
    row: Mapping[str, Any], counted: Mapping[int, int], ranges: Mapping[int, tuple[int, int]]
) -> dict[str, Any]:
    number = row["consumer"]
    consumer = {name: row[name] for name in _OWN_FIELDS if row.get(name) is not None}
    policy: dict[str, Any] = {}
    if row.get("key_shared_mode") is not None:
        policy["mode"] = row["key_shared_mode"]
    if row.get("key_shared_allow_out_of_order") is not None:
        policy["allow_out_of_order"] = row["key_shared_allow_out_of_order"]
    if row.get("ranges") is not None:
        policy["ranges"] = [[bounds["start"], bounds["end"]] for bounds in row["ranges"]]
    if policy:
        consumer["key_shared"] = policy
    if number in counted:
        consumer["permits"] = counted[number]
    if number in ranges:
        consumer["hash_ranges"] = [list(ranges[number])]
    return consumer


def _connected(rare: pa.Table) -> list[int]:
    """Return the numbers of the connected consumers in the order in which they joined."""
    connected: dict[int, None] = {}
    begins = True
    columns = (rare[name].to_pylist() for name in ("kind", "consumer", "checkpoint_json"))
    for kind, consumer, text in zip(*columns, strict=True):
        if kind == "header":
            continue
        if kind == "checkpoint" and begins:
            said = read(text) if text else None
            connected |= dict.fromkeys(who.number for who in (said.consumers if said else None) or ())
        elif kind == "consumer_added":
            connected[consumer] = None
        elif kind == "consumer_removed":
            connected.pop(consumer, None)
        # A checkpoint changes who is connected only where a log, or a part behind lost lines, begins with it.
        begins = kind == "gap"
    return list(connected)


def _counted(replay: Replay, state_json: str | None) -> dict[int, int]:
    """Return the permits of the consumers of which they are known.

    Where entries hold several messages they are not: acknowledgements of single messages of a batch need not be in the log.
    """
    if state_json is None or bool((replay.audit.window.num_messages > 1).any()):
        return {}
    permits = {
        consumer["consumer"]: consumer.get("availablePermits")
        for consumer in json.loads(state_json)["consumers"]
    }
    return {number: count for number, count in permits.items() if count is not None and count < _NOT_COUNTED}


def _only_ranges(replay: Replay) -> dict[int, tuple[int, int]]:
    """Return the range of hashes of each consumer if each has one: it may depend on consumers that have left."""
    if replay.audit.window.single_active:
        return {}
    columns = replay.judge.ownership().columns()
    is_open = columns["until_seq"] < 0
    owners, starts, ends = (columns[name][is_open].tolist() for name in ("owner", "start", "end"))
    if len(set(owners)) < len(owners):
        return {}
    return {owner: (start, end) for owner, start, end in zip(owners, starts, ends, strict=True)}


def _mark_delete(replay: Replay, stands: DispatcherPosition) -> Position | None:
    """Return the highest position up to which everything is acknowledged, skipped, or older than the subscription."""
    if stands.mark_delete is not None:
        ledger, _, entry = stands.mark_delete.partition(":")
        return int(ledger), int(entry)
    window, acked = replay.audit.window, replay.audit.scan.acknowledged
    first = len(acked) if acked.all() else int(np.argmin(acked))
    known = [window.dropped_to if first == 0 else _position(window, first - 1)]
    if window.checkpoint_state is not None:
        known.append(window.checkpoint_state.checkpoint.mark_delete)
    return max((position for position in known if position is not None), default=None)


def _unsent_from(replay: Replay) -> Position | None:
    """Return the first position behind all that was sent."""
    window, scan = replay.audit.window, replay.audit.scan
    sent = np.flatnonzero(scan.times_sent)
    known: list[Position | None] = []
    if len(sent):
        known.append(first_after(_position(window, int(sent[-1]))))
    elif window.dropped_to is not None:
        known.append(first_after(window.dropped_to))
    if window.checkpoint_state is not None:
        known.append(window.checkpoint_state.checkpoint.read_position)
    return max((position for position in known if position is not None), default=None)


def _position(window: LogWindow, ordinal: int) -> Position:
    return int(window.ledger[ordinal]), int(window.entry[ordinal])
