"""Checkpoint lines: the state of a dispatcher at one point of its log, so that it can be judged without earlier lines.

A checkpoint is a JSON object. An absent field is not known. ``read`` parses a checkpoint, ``fault_in`` finds its first
fault. Consumers are the log's numbers, positions are ``"ledger:entry"``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import has, rows_at
from dispatch_core.arrays.line_kinds import rows_of_kind
from dispatch_core.times import LAST_US

Position = tuple[int, int]

_MOST: Final = (1 << 63) - 1
_INT32: Final = 1 << 31
_MODES: Final = ("AUTO_SPLIT", "STICKY")

#: Fields of a consumer → smallest and largest integer.
_NUMBERS: Final[dict[str, tuple[int, int]]] = {
    "consumer": (0, _MOST),
    "consumer_id": (0, _MOST),
    "priority_level": (-_INT32, _INT32 - 1),
    "permits": (-_INT32, _INT32 - 1),
    "unacked": (0, _INT32 - 1),
}
_TEXTS: Final = ("name", "address")
#: Parsed lines kept.
_KEPT: Final = 4


@dataclass(frozen=True, slots=True)
class Connected:
    """A connected consumer. ``None`` = not known; ``permits`` may be below 0, as a broker's count may.

    ``ranges``: those that it announced (STICKY); ``hash_ranges``: those that it owns now, under any selector.
    """

    number: int
    name: str | None = None
    consumer_id: int | None = None
    address: str | None = None
    priority_level: int | None = None
    mode: str | None = None
    allow_out_of_order: bool | None = None
    ranges: tuple[tuple[int, int], ...] | None = None
    permits: int | None = None
    unacked: int | None = None
    hash_ranges: tuple[tuple[int, int], ...] | None = None

    @property
    def has_policy(self) -> bool:
        """True if the line gives the policy with which the consumer subscribed (KeySharedMeta)."""
        return self.mode is not None or self.allow_out_of_order is not None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state before every later line of the log.

    ``consumers``: in the order in which they joined; ``None`` = not known. ``ack_holes``: entries above ``mark_delete`` that
    were acknowledged individually. ``partly_acked``: by entry the words of a batch acknowledged in part, whose 1 bits are
    the indexes that were not. ``pending``: by consumer, the entries sent and not acknowledged; nothing is known of
    consumers that are not in it. ``read_position``: no entry from it on had been sent. ``state_t_us``: the time at which the
    broker was asked for everything except ``consumers``; the state may contain later lines with an earlier time
    (``recording.queued``). ``inferred``: the state was computed from earlier lines of the log, not read from the broker, so
    it does not know of moves of the cursor that the log has no line of. ``not_yet_acked``: entries up to ``mark_delete``
    whose acknowledgement is one of these later lines; set by ``queued``, not by a line.
    """

    consumers: tuple[Connected, ...] | None = None
    mark_delete: Position | None = None
    ack_holes: tuple[Position, ...] = ()
    pending: Mapping[int, tuple[Position, ...]] = field(default_factory=dict)
    read_position: Position | None = None
    state_t_us: int | None = None
    inferred: bool = False
    not_yet_acked: tuple[Position, ...] = ()
    partly_acked: Mapping[Position, tuple[int, ...]] = field(default_factory=dict)

    def is_below(self, position: Position) -> bool:
        """True if a position is not above ``mark_delete``."""
        return self.mark_delete is not None and position <= self.mark_delete

    @property
    def named(self) -> list[Position]:
        """All positions of single entries: acknowledgement holes and pending acknowledgements."""
        return [*self.ack_holes, *(position for many in self.pending.values() for position in many)]


class _FaultError(Exception):
    def __init__(self, field_name: str | None, reason: str) -> None:
        super().__init__(field_name, reason)
        self.field, self.reason = field_name, reason


def fault_in(text: str) -> tuple[str | None, str] | None:
    """Field and reason of the first fault of a checkpoint line; ``None`` if it has none."""
    try:
        _checkpoint(text)
    except _FaultError as fault:
        return fault.field, fault.reason
    return None


@lru_cache(maxsize=_KEPT)
def read(text: str) -> Checkpoint | None:
    """Parse a checkpoint line; ``None`` if it has a fault (``fault_in`` gives the reason).

    The last ones are kept: a replay reads the line that a log begins with a dozen times.
    """
    try:
        return _checkpoint(text)
    except _FaultError:
        return None


# ---- in a log ----


def checkpoints(events: pa.Table) -> list[Checkpoint]:
    """The checkpoints among ``events`` (columns ``kind``, ``checkpoint_json``), in order."""
    if not has(events, "checkpoint_json"):
        return []
    rows = rows_of_kind(events, "checkpoint")
    if not len(rows):
        return []
    texts = rows_at(events.select(["checkpoint_json"]), rows)["checkpoint_json"].to_pylist()
    return [said for text in texts if text and (said := read(text)) is not None]


def leading(events: pa.Table) -> Checkpoint | None:
    """The checkpoint with which ``events`` begin, if it names the connected consumers."""
    if not events.num_rows or events["kind"][0].as_py() != "checkpoint":
        return None
    first = checkpoints(events.slice(0, 1))
    return first[0] if first and first[0].consumers is not None else None


def joins(events: pa.Table, columns: Sequence[str]) -> list[dict[str, Any]]:
    """``consumer_added`` lines as dicts of ``columns``, then one dict for each connection that only checkpoints name."""
    added = rows_of_kind(events, "consumer_added")
    rows: list[dict[str, Any]] = []
    if len(added):
        rows = rows_at(events.select(list(columns)), added).to_pylist()
    found = checkpoints(events)
    if found:
        known = set(rows_at(events.select(["consumer"]), added)["consumer"].to_pylist())
        for consumer in named_by(found):
            if consumer.number not in known:
                line = as_line(consumer)
                rows.append({name: line.get(name) for name in columns})
    return rows


def named_by(found: Iterable[Checkpoint]) -> list[Connected]:
    """The connections that checkpoints name, each from the first checkpoint that gives more than its number."""
    best: dict[int, Connected] = {}
    for checkpoint in found:
        for consumer in checkpoint.consumers or ():
            if consumer.number not in best or best[consumer.number] == Connected(consumer.number):
                best[consumer.number] = consumer
    return list(best.values())


def as_line(consumer: Connected) -> dict[str, Any]:
    """The columns of the ``consumer_added`` line with the same content."""
    ranges = None if consumer.ranges is None else [{"start": a, "end": b} for a, b in consumer.ranges]
    return {
        "kind": "consumer_added",
        "consumer": consumer.number,
        "name": consumer.name,
        "consumer_id": consumer.consumer_id,
        "address": consumer.address,
        "priority_level": consumer.priority_level,
        "key_shared_mode": consumer.mode,
        "key_shared_allow_out_of_order": consumer.allow_out_of_order,
        "ranges": ranges,
    }


def first_after(position: Position) -> Position:
    """The lowest position that is later."""
    return position[0], position[1] + 1


def as_text(position: Position) -> str:
    """Write a position as ``"ledger:entry"``."""
    return f"{position[0]}:{position[1]}"


def upto(ledger: Any, entry: Any, position: Position) -> int:
    """The number of positions (two ascending arrays) that are not later than ``position``."""
    low, high = np.searchsorted(ledger, [position[0], position[0] + 1])
    return int(low + np.searchsorted(entry[low:high], position[1], side="right"))


# ---- the line ----


def _checkpoint(text: str) -> Checkpoint:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _FaultError(None, f"a checkpoint that is not valid JSON: {error}") from None
    if not isinstance(line, dict):
        raise _FaultError(None, "a checkpoint that is not a JSON object")
    consumers = _consumers(line.get("consumers"))
    mark_delete = _optional_position(line.get("mark_delete"), "mark_delete")
    return Checkpoint(
        consumers,
        mark_delete,
        _positions(line.get("ack_holes"), "ack_holes"),
        _pending(line.get("pending_acks"), consumers),
        _optional_position(line.get("read_position"), "read_position"),
        None if line.get("state_t_us") is None else _time(line["state_t_us"]),
        _flag(line.get("inferred"), "inferred"),
        partly_acked=_partly_acked(line.get("partly_acked")),
    )


def _flag(value: Any, where: str) -> bool:
    if value is not None and not isinstance(value, bool):
        raise _FaultError(where, f"expected true or false, found {_short(value)}")
    return bool(value)


def _time(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LAST_US:
        raise _FaultError("state_t_us", f"expected microseconds from 0 to {LAST_US:,}, found {_short(value)}")
    return value


def _consumers(value: Any) -> tuple[Connected, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise _FaultError("consumers", f"expected a list, found {_short(value)}")
    found = tuple(_consumer(item, f"consumers[{at}]") for at, item in enumerate(value))
    seen: set[int] = set()
    for at, consumer in enumerate(found):
        if consumer.number in seen:
            raise _FaultError(f"consumers[{at}]", f"connection {consumer.number} is named twice")
        seen.add(consumer.number)
    return found


def _consumer(value: Any, where: str) -> Connected:
    if not isinstance(value, dict):
        return Connected(_integer(value, where, "consumer"))
    if value.get("consumer") is None:
        raise _FaultError(f"{where}.consumer", "missing")
    numbers = {
        name: _integer(value[name], f"{where}.{name}", name)
        for name in _NUMBERS
        if value.get(name) is not None
    }
    texts: dict[str, str | None] = {name: value.get(name) for name in _TEXTS}
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise _FaultError(f"{where}.{name}", f"expected a text, found {_short(text)}")
    mode, free, ranges = _policy(value.get("key_shared"), f"{where}.key_shared")
    return Connected(
        number=numbers["consumer"],
        name=texts["name"],
        consumer_id=numbers.get("consumer_id"),
        address=texts["address"],
        priority_level=numbers.get("priority_level"),
        mode=mode,
        allow_out_of_order=free,
        ranges=ranges,
        permits=numbers.get("permits"),
        unacked=numbers.get("unacked"),
        hash_ranges=_ranges(value.get("hash_ranges"), f"{where}.hash_ranges"),
    )


def _policy(value: Any, where: str) -> tuple[str | None, bool | None, tuple[tuple[int, int], ...] | None]:
    if value is None:
        return None, None, None
    if not isinstance(value, dict):
        raise _FaultError(where, f"expected an object, found {_short(value)}")
    mode, free, ranges = value.get("mode"), value.get("allow_out_of_order"), value.get("ranges")
    if mode is not None and mode not in _MODES:
        raise _FaultError(f"{where}.mode", f"{_short(mode)} is none of {', '.join(_MODES)}")
    if free is not None and not isinstance(free, bool):
        raise _FaultError(f"{where}.allow_out_of_order", f"expected true or false, found {_short(free)}")
    return mode, free, _ranges(ranges, f"{where}.ranges")


def _ranges(value: Any, where: str) -> tuple[tuple[int, int], ...] | None:
    if value is None:
        return None
    if not (isinstance(value, list) and all(_is_range(pair) for pair in value)):
        raise _FaultError(where, "expected pairs [start, end] of hashes with 0 <= start <= end")
    return tuple((start, end) for start, end in value)


def _is_range(pair: Any) -> bool:
    if not (isinstance(pair, list) and len(pair) == 2 and all(type(bound) is int for bound in pair)):
        return False
    return 0 <= pair[0] <= pair[1] < _INT32


def _pending(value: Any, consumers: tuple[Connected, ...] | None) -> dict[int, tuple[Position, ...]]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _FaultError("pending_acks", f"expected an object, found {_short(value)}")
    connected = {consumer.number for consumer in consumers or ()}
    pending = {}
    for number, positions in value.items():
        if not (number.isascii() and number.isdecimal() and len(number) <= 19 and int(number) in connected):
            raise _FaultError("pending_acks", f"{_short(number)} is none of the consumers of this checkpoint")
        pending[int(number)] = _positions(positions, f'pending_acks["{number}"]')
    return pending


def _partly_acked(value: Any) -> dict[Position, tuple[int, ...]]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _FaultError("partly_acked", f"expected an object, found {_short(value)}")
    found = {}
    for position, words in value.items():
        if not (
            isinstance(words, list)
            and all(type(word) is int and -_MOST - 1 <= word <= _MOST for word in words)
        ):
            raise _FaultError(
                f'partly_acked["{position}"]', f"expected a list of 64-bit integers, found {_short(words)}"
            )
        found[_position(position, "partly_acked")] = tuple(words)
    return found


def _positions(value: Any, where: str) -> tuple[Position, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _FaultError(where, f"expected a list, found {_short(value)}")
    return tuple(sorted({_position(position, where) for position in value}))


def _optional_position(value: Any, where: str) -> Position | None:
    return None if value is None else _position(value, where)


def _position(value: Any, where: str) -> Position:
    ledger, _, entry = value.partition(":") if isinstance(value, str) else ("", "", "")
    if all(
        part.isascii() and part.removeprefix("-").isdecimal() and len(part) <= 20 for part in (ledger, entry)
    ):
        found = int(ledger), int(entry)
        if all(-1 <= part <= _MOST for part in found):
            return found
    reason = f'expected a position "ledger:entry", each at least -1, found {_short(value)}'
    raise _FaultError(where, reason)


def _integer(value: Any, where: str, name: str) -> int:
    if type(value) is not int:
        raise _FaultError(where, f"expected an integer, found {_short(value)}")
    least, most = _NUMBERS[name]
    if not least <= value <= most:
        raise _FaultError(where, f"{value} is {f'below {least}' if value < least else f'above {most}'}")
    return value


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
