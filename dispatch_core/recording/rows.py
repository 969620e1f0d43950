"""Convert the rows of a block from the shapes of JSON to those of the schema, and check the rules for each row.

All rules are columnar: one pass over a column for all rows. A row at fault gets its first fault only and is removed; the
other rows stay unchanged. The same rules apply to rows from Parquet.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording import checkpoint
from dispatch_core.recording.parse import OF_KIND, RENAMED, separate_name
from dispatch_core.recording.schema import CLIENT_KINDS, EVENTS, KINDS, POSITION, POSITIONS
from dispatch_core.times import LAST_US

Mask = npt.NDArray[np.bool_]
Columns = dict[str, pa.Array]

_INT64: Final = (-(1 << 63), (1 << 63) - 1)

#: Smallest and largest value of integer fields, also inside lists. Fields that are not named may be any integer.
RANGES: Final[dict[str, tuple[int, int]]] = {
    "seq": (1, _INT64[1]),
    "t_us": (0, LAST_US),
    "incarnation": (0, _INT64[1]),
    "consumer": (0, _INT64[1]),
    "consumer_id": (0, _INT64[1]),
    "priority_level": (-(1 << 31), (1 << 31) - 1),
    "batch_sizes": (1, (1 << 31) - 1),
    "hashes": (0, (1 << 31) - 1),
    "hash": (0, (1 << 31) - 1),
    "ref_count_before": (0, _INT64[1]),
    "in_replay": (0, _INT64[1]),
    "max_entries": (0, _INT64[1]),
    "partition_index": (-1, (1 << 31) - 1),
    "gap_from_seq": (1, _INT64[1]),
    "gap_to_seq": (1, _INT64[1]),
    "gap_lines": (1, _INT64[1]),
    "key_h31": (0, (1 << 31) - 1),
    "publish_time_ms": (0, LAST_US // 1000),
    "num_messages": (1, (1 << 31) - 1),
    "size_bytes": (0, _INT64[1]),
    "entries": (0, _INT64[1]),
    "keys": (0, _INT64[1]),
    "deliver_at_ms": (0, LAST_US // 1000),
    "batch_index": (0, (1 << 31) - 1),
    "batch_size": (1, (1 << 31) - 1),
    "redelivery_count": (0, (1 << 31) - 1),
    "disconnected_us": (0, LAST_US),
}

#: The values that text fields may have. Fields that are not named may be any text.
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "ack_type": ("Individual", "Cumulative"),
    "key_shared_mode": ("AUTO_SPLIT", "STICKY"),
    "type": ("Normal", "Replay"),
    "by": ("seek", "reset_cursor", "skip", "clear_backlog", "expiry", "unknown"),
    "op": ("skip", "clear_backlog", "reset", "mark_delete"),
}

_BASE64: Final = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_MOST_DIGITS: Final = 19
_POSITION_TEXT: Final = re.compile(rf"-?[0-9]{{1,{_MOST_DIGITS}}}:-?[0-9]{{1,{_MOST_DIGITS}}}")

#: Column -> its name in a JSON line.
_SHOWN: Final = {
    **{column: name for name, column in RENAMED.items()},
    **{column: name for fields in OF_KIND.values() for name, column in fields.items()},
    "key_shared_mode": "key_shared.mode",
    "key_shared_allow_out_of_order": "key_shared.allow_out_of_order",
}
#: Name under which a line's field is parsed -> column.
_PARSED: Final = RENAMED | {
    separate_name(kind, name): column for kind, fields in OF_KIND.items() for name, column in fields.items()
}
#: Columns with one position.
SINGLE_POSITIONS: Final = ("read_position", "mark_delete", "moved_from", "moved_to", "target")


def shown(column: str) -> str:
    """The name that a column has in a JSON line."""
    return _SHOWN.get(column, column)


#: Fields of a message line without which its entry can be judged, by their names in JSON, which are those of the columns.
SPARED: Final = frozenset(
    (
        *("key", "key_b64", "ordering_key_b64", "key_h31", "producer", "sequence_id"),
        *("publish_time_ms", "num_messages", "size_bytes"),
    )
)


class Faults:
    """The first fault of each row of a block, and the fields that are unknown in rows that are kept.

    A fault in one of the fields ``spared`` does not make a row wrong: that field of it is unknown.
    """

    def __init__(self, rows: int, spared: frozenset[str] = frozenset()) -> None:
        self.mask: Mask = np.zeros(rows, dtype=bool)
        self.found: dict[int, tuple[str | None, str]] = {}
        #: The reason for each unknown field, by row and field.
        self.unknown: dict[tuple[int, str], str] = {}
        self._spared = spared

    def add(
        self, wrong: Mask, field: str | None, reason: str | Callable[[int], str], *, whole: bool = False
    ) -> None:
        """Mark rows as wrong; ``reason`` is a text, or makes one from a row's number.

        ``whole``: the row is wrong even if the field is one of those ``spared``.
        """
        if field in self._spared and not whole:
            for row in np.flatnonzero(wrong).tolist():
                self.unknown.setdefault((row, field), reason if isinstance(reason, str) else reason(row))
            return
        fresh = wrong & ~self.mask
        if not fresh.any():
            return
        for row in np.flatnonzero(fresh).tolist():
            self.found[row] = (field, reason if isinstance(reason, str) else reason(row))
        self.mask |= fresh

    def add_row(self, row: int, field: str | None, reason: str) -> None:
        """Mark one row as wrong."""
        if field in self._spared:
            self.unknown.setdefault((row, field), reason)
        elif not self.mask[row]:
            self.mask[row] = True
            self.found[row] = (field, reason)

    def unknown_in(self, field: str) -> Mask:
        """The rows in which a field is unknown."""
        wrong = np.zeros(len(self.mask), dtype=bool)
        wrong[[row for row, name in self.unknown if name == field]] = True
        return wrong

    def taken(self, rows: npt.NDArray[np.int64]) -> Faults:
        """The faults of some of the rows, in their order."""
        made = Faults(len(rows), self._spared)
        made.mask = self.mask[rows]
        made.found = {new: self.found[int(rows[new])] for new in np.flatnonzero(made.mask).tolist()}
        if self.unknown:
            place = {row: new for new, row in enumerate(rows.tolist())}
            made.unknown = {
                (place[row], field): reason for (row, field), reason in self.unknown.items() if row in place
            }
        return made


def columns_of(table: pa.Table) -> Columns:
    """The columns of a table, each as one array."""
    made: Columns = {}
    for name in table.column_names:
        chunks = table[name].combine_chunks()
        made[name] = chunks if isinstance(chunks, pa.Array) else pa.concat_arrays(chunks.chunks)
    return made


def from_json(rows: pa.Table, faults: Faults) -> Columns:
    """Columns of the schema from a table of ``parse.py``: positions and ranges parsed, names and objects resolved."""
    raw = columns_of(rows)
    made: Columns = {}
    for name, values in raw.items():
        column = _PARSED.get(name, name)
        if name == "positions":
            made[name] = _position_lists(values, faults)
        elif column in SINGLE_POSITIONS:
            made[column] = _positions(values, faults, shown(column))
        elif name == "position":
            parsed = _positions(values, faults, name)
            made["ledger_id"], made["entry_id"] = (pc.struct_field(parsed, i) for i in (0, 1))
        elif name in ("ranges", "key_shared"):
            continue
        else:
            made[column] = values
    made.update(_key_shared(raw, faults))
    return made


# ---- positions ----


def _position_lists(lists: pa.ListArray, faults: Faults) -> pa.ListArray:
    """Lists of ``"ledger:entry"`` texts to lists of positions; a null list stays null."""
    texts = pc.list_flatten(lists)
    ledgers, entries, bad = _numbers(texts)
    if bad.any():
        parents = pc.list_parent_indices(lists).to_numpy()
        first = {int(parents[at]): at for at in np.flatnonzero(bad)[::-1].tolist()}
        _add_bad_positions(first, texts, "positions", faults)
    return _lists_like(lists, _struct(ledgers, entries))


def _positions(texts: pa.StringArray, faults: Faults, field: str) -> pa.StructArray:
    """``"ledger:entry"`` texts to positions; null stays null."""
    rows = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
    known = texts.drop_null()
    some_ledgers, some_entries, bad = _numbers(known)
    if bad.any():
        _add_bad_positions({int(rows[at]): at for at in np.flatnonzero(bad).tolist()}, known, field, faults)
    if len(rows) == len(texts):
        return _struct(some_ledgers, some_entries)
    ledgers, entries = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.int64)
    ledgers[rows], entries[rows] = some_ledgers, some_entries
    return _struct(ledgers, entries, texts.is_null())


def _struct(
    ledgers: npt.NDArray[np.int64], entries: npt.NDArray[np.int64], mask: pa.BooleanArray | None = None
) -> pa.StructArray:
    return pa.StructArray.from_arrays(
        [pa.array(ledgers), pa.array(entries)], fields=list(POSITION), mask=mask
    )


def _add_bad_positions(
    row_to_text: dict[int, int], texts: pa.StringArray, field: str, faults: Faults
) -> None:
    wrong = np.zeros(len(faults.mask), dtype=bool)
    wrong[list(row_to_text)] = True
    faults.add(
        wrong,
        field,
        lambda row: (
            f'expected a position "ledger:entry", each at least -1, found {_cut(texts[row_to_text[row]].as_py())}'
        ),
    )


def _numbers(texts: pa.StringArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Mask]:
    """Ledger and entry of each text, and a mask of the texts that are no positions (their numbers mean nothing)."""
    fine = np.zeros(len(texts), dtype=bool)
    if not len(texts):
        empty = np.zeros(0, dtype=np.int64)
        return empty, empty, fine
    if not texts.null_count and _only_digits(texts):
        parts = pc.split_pattern(texts, ":")
        flat = pc.list_flatten(parts)
        # Longer ones are judged below: Arrow would ignore any number of leading zeros.
        usual = pc.max(pc.binary_length(flat)).as_py() <= _MOST_DIGITS
        if usual and pc.all(pc.equal(pc.list_value_length(parts), 2)).as_py():
            try:
                pairs = flat.cast(pa.int64()).to_numpy().reshape(-1, 2)
            except pa.ArrowInvalid:
                pass  # a part is no number or too large: found below
            else:
                if pairs.min() >= -1:
                    return pairs[:, 0].copy(), pairs[:, 1].copy(), fine
    pairs = np.zeros((len(texts), 2), dtype=np.int64)
    for at, text in enumerate(texts.to_pylist()):
        values = [int(part) for part in text.split(":")] if text and _POSITION_TEXT.fullmatch(text) else []
        fine[at] = bool(values) and all(-1 <= value <= _INT64[1] for value in values)
        pairs[at] = values if fine[at] else 0
    return pairs[:, 0].copy(), pairs[:, 1].copy(), ~fine


def _only_digits(texts: pa.StringArray) -> bool:
    """True if all bytes are digits, ``-`` or ``:``. Arrow's number parser would also accept other forms, such as 0x10."""
    offsets = np.frombuffer(texts.buffers()[1], dtype=np.int32, count=len(texts) + 1, offset=texts.offset * 4)
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return bool(_POSITION_BYTES[data].all())


_POSITION_BYTES: Final = np.isin(np.arange(256), list(b"0123456789-:"))


def _cut(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ---- Key_Shared policies ----


def _key_shared(raw: Columns, faults: Faults) -> Columns:
    """The columns of ``key_shared`` and of ``ranges``, which is part of it (consumers) or a field beside it (refusals)."""
    made: Columns = {}
    ranges = raw.get("ranges")
    if "key_shared" in raw:
        policy = raw["key_shared"]
        # struct_field keeps the struct's own nulls, .field() would not
        made["key_shared_mode"] = pc.struct_field(policy, "mode")
        made["key_shared_allow_out_of_order"] = pc.struct_field(policy, "allow_out_of_order")
        own = pc.struct_field(policy, "ranges")
        ranges = own if ranges is None else pc.coalesce(ranges, own)
    if ranges is not None:
        made["ranges"] = _hash_ranges(ranges, faults)
    return made


def _hash_ranges(pairs: pa.ListArray, faults: Faults) -> pa.ListArray:
    """Lists of ``[start, end]`` to lists of ranges. Few rows have any: consumers with sticky ranges."""
    kind = EVENTS.field("ranges").type
    if len(pc.list_flatten(pairs)) == 0:
        empty = pa.array([[]], type=kind)
        index = pc.if_else(pairs.is_valid(), pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64()))
        return empty.take(index)
    made: list[Any] = []
    wrong = np.zeros(len(pairs), dtype=bool)
    for row, value in enumerate(pairs.to_pylist()):
        wrong[row] = value is not None and not all(_is_range(pair) for pair in value)
        made.append(None if value is None or wrong[row] else [{"start": a, "end": b} for a, b in value])
    faults.add(wrong, "ranges", "expected pairs [start, end] of hashes with 0 <= start <= end")
    return pa.array(made, type=kind)


def _is_range(pair: Any) -> bool:
    return (
        pair is not None
        and len(pair) == 2
        and None not in pair
        and 0 <= pair[0] <= pair[1] <= RANGES["hash"][1]
    )


# ---- rules ----


def judge_events(columns: Mapping[str, pa.Array], rows: int, faults: Faults) -> None:
    """Check the rules for event rows, except those for their dispatcher. Header rows must have been removed."""
    _require(columns, rows, faults, "kind")
    kinds = columns["kind"].dictionary_encode() if "kind" in columns else None
    names: list[str] = kinds.dictionary.to_pylist() if kinds is not None else []
    codes = (
        pc.fill_null(kinds.indices, len(names)).to_numpy() if kinds is not None else np.zeros(rows, np.int32)
    )

    def of_kind(*wanted: str) -> Mask:
        is_wanted = np.array([name in wanted for name in names] + [False])
        mask: Mask = is_wanted[codes]
        return mask

    _require(columns, rows, faults, "t_us", unless=of_kind("footer"))
    _require(columns, rows, faults, "seq", unless=of_kind("footer"))
    fields = {field: None for name in names if name in KINDS for field in KINDS[name].required}
    for field in fields:
        needing = of_kind(*(name for name in names if name in KINDS and field in KINDS[name].required))
        missing = _missing(columns, field, rows) & needing
        faults.add(missing, shown(field), lambda row: f"missing in a line of kind {names[codes[row]]}")
    if "gap_from_seq" in columns and "gap_to_seq" in columns:
        backwards = pc.fill_null(pc.less(columns["gap_to_seq"], columns["gap_from_seq"]), False)
        faults.add(_mask(backwards), "to", "the gap ends before it begins")
    _judge_numbers(columns, faults)
    for field, choices in CHOICES.items():
        if field in columns:
            values = columns[field]
            other = _mask(values.is_valid()) & ~_mask(pc.is_in(values, pa.array(choices)))
            faults.add(other, shown(field), partial(_other, values, choices))
    _judge_lists(columns, rows, faults)
    if "permits" in columns:
        permits = pc.fill_null(columns["permits"], 1).to_numpy()
        faults.add((permits < 1) & of_kind("flow"), "permits", lambda row: f"{permits[row]} is below 1")
    if "checkpoint" in names and "checkpoint_json" in columns:
        for row in np.flatnonzero(
            of_kind("checkpoint") & _mask(columns["checkpoint_json"].is_valid())
        ).tolist():
            if wrong := checkpoint.fault_in(columns["checkpoint_json"][row].as_py()):
                faults.add_row(row, *wrong)


def _other(values: pa.StringArray, choices: tuple[str, ...], row: int) -> str:
    return f"{_cut(values[row].as_py())} is none of {', '.join(choices)}"


def judge_messages(columns: Columns, rows: int, faults: Faults) -> None:
    """Check the rules for message rows, except those for their topic.

    An entry whose position is known is kept. A field of it that cannot be read (``SPARED``) becomes null, as if the line did
    not have it; an unknown key gets the mark of ``schema.MESSAGES``.
    """
    if "kind" in columns:
        stray = columns["kind"]
        faults.add(
            _mask(stray.is_valid()),
            "kind",
            lambda row: (
                f"an event ({_cut(stray[row].as_py())}) in a message log; events belong in events* or trace*"
            ),
        )
    faults.add(_missing(columns, "ledger_id", rows), "position", "missing")
    faults.add(_missing(columns, "entry_id", rows), "position", "missing")
    _judge_numbers(columns, faults)
    for field in ("ledger_id", "entry_id"):
        if field in columns:
            below = pc.fill_null(pc.less(columns[field], 0), False)
            faults.add(_mask(below), "position", "a stored entry has no negative ledger or entry number")
    if "key_b64" in columns and "key" in columns:
        _judge_base64(columns, "key", _mask(pc.fill_null(columns["key_b64"], False)), faults)
    if "ordering_key_b64" in columns:
        _judge_base64(columns, "ordering_key_b64", np.ones(rows, dtype=bool), faults)
    if faults.unknown:
        _forget_unknown(columns, rows, faults)


def judge_clients(columns: Mapping[str, pa.Array], rows: int, faults: Faults) -> None:
    """Check the rules for lines of client logs, except those for their dispatcher. Header rows must have been removed."""
    _require(columns, rows, faults, "kind")
    kinds = (columns["kind"] if "kind" in columns else pa.nulls(rows, pa.string())).to_pylist()
    _require(columns, rows, faults, "t_us")
    about_message = np.array([kind in CLIENT_KINDS and bool(CLIENT_KINDS[kind].required) for kind in kinds])
    missing = _missing(columns, "ledger_id", rows) | _missing(columns, "entry_id", rows)
    faults.add(missing & about_message, "position", lambda row: f"missing in a line of kind {kinds[row]}")
    _judge_numbers(columns, faults)
    for field in ("ledger_id", "entry_id"):
        if field in columns:
            below = _mask(pc.fill_null(pc.less(columns[field], 0), False))
            faults.add(below & about_message, "position", "a message has no negative ledger or entry number")
    if "batch_index" in columns and "batch_size" in columns:
        beyond = pc.fill_null(pc.greater_equal(columns["batch_index"], columns["batch_size"]), False)
        faults.add(_mask(beyond), "batch_index", "not below batch_size")
    if "ack_type" in columns:
        values, choices = columns["ack_type"], CHOICES["ack_type"]
        other = _mask(values.is_valid()) & ~_mask(pc.is_in(values, pa.array(choices)))
        faults.add(other, "ack_type", partial(_other, values, choices))
    if "key_b64" in columns and "key" in columns:
        _judge_base64(columns, "key", _mask(pc.fill_null(columns["key_b64"], False)), faults)
    if "ordering_key_b64" in columns:
        _judge_base64(columns, "ordering_key_b64", np.ones(rows, dtype=bool), faults)


def _forget_unknown(columns: Columns, rows: int, faults: Faults) -> None:
    """Replace the fields that are unknown by null, and mark the entries of which no key is left."""
    for field in {field for _, field in faults.unknown}:
        _set_null(columns, field, faults.unknown_in(field))
    # Dispatch looks at the ordering key first, then at the key. A hash stands for both.
    bad_ordering_key, bad_hash = faults.unknown_in("ordering_key_b64"), faults.unknown_in("key_h31")
    bad_key = (faults.unknown_in("key") | faults.unknown_in("key_b64")) & _missing(
        columns, "ordering_key_b64", rows
    )
    _set_null(columns, "key", bad_ordering_key | faults.unknown_in("key_b64"))
    has_key = ~_missing(columns, "key", rows) | ~_missing(columns, "ordering_key_b64", rows)
    has_hash = ~_missing(columns, "key_h31", rows)
    unknown = (bad_ordering_key | bad_key | (bad_hash & ~has_key)) & ~has_hash
    _set_null(columns, "key_b64", faults.unknown_in("key"))
    if unknown.any():
        flags = columns.get("key_b64", pa.nulls(rows, pa.bool_()))
        columns["key_b64"] = pc.if_else(pa.array(unknown), True, flags)


def _set_null(columns: Columns, field: str, wrong: Mask) -> None:
    if field in columns and wrong.any():
        columns[field] = pc.if_else(pa.array(wrong), None, columns[field])


def _judge_base64(columns: Mapping[str, pa.Array], field: str, where: Mask, faults: Faults) -> None:
    where = where & _mask(columns[field].is_valid())
    if where.any():
        right = pc.fill_null(pc.match_substring_regex(columns[field], _BASE64), True)
        faults.add(where & ~_mask(right), field, "not base64")


def _judge_numbers(columns: Mapping[str, pa.Array], faults: Faults) -> None:
    for field, (least, most) in RANGES.items():
        values = columns.get(field)
        if values is None or not pa.types.is_integer(values.type) or len(values) == values.null_count:
            continue
        bounds = pc.min_max(values).as_py()
        if bounds["min"] < least or bounds["max"] > most:
            numbers = pc.fill_null(values, least).to_numpy()
            wrong = (numbers < least) | (numbers > most)
            faults.add(wrong, shown(field), partial(_outside, numbers, least, most))


def _outside(numbers: npt.NDArray[np.int64], least: int, most: int, row: int) -> str:
    bound = f"below {least}" if numbers[row] < least else f"above {most}"
    return f"{numbers[row]} is {bound}"


def _judge_lists(columns: Mapping[str, pa.Array], rows: int, faults: Faults) -> None:
    for field, values in columns.items():
        if not pa.types.is_list(values.type) or field == "ranges":
            continue
        items = pc.list_flatten(values)
        inner = pc.list_flatten(items) if pa.types.is_list(items.type) else None
        if items.null_count or (inner is not None and inner.null_count):
            faults.add(_has_null(values), shown(field), "null inside the list")
        if field in RANGES and len(items) > items.null_count:
            least, most = RANGES[field]
            numbers = pc.fill_null(items, least).to_numpy()
            outside = (numbers < least) | (numbers > most)
            if outside.any():
                wrong = np.zeros(rows, dtype=bool)
                wrong[pc.list_parent_indices(values).to_numpy()[outside]] = True
                faults.add(wrong, shown(field), f"a number in the list is not within {least}..{most}")
    positions = columns.get("positions")
    if positions is None:
        return
    lengths = pc.fill_null(pc.list_value_length(positions), 0).to_numpy()
    for field in ("batch_sizes", "hashes", "ack_sets"):
        if field not in columns:
            continue
        own = pc.fill_null(pc.list_value_length(columns[field]), -1).to_numpy()
        faults.add((own != lengths) & (own >= 0), field, partial(_unequal, own, lengths))


def _unequal(own: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], row: int) -> str:
    return f"{own[row]} values for {lengths[row]} positions"


def _has_null(values: pa.ListArray) -> Mask:
    return np.array([v is not None and _contains_null(v) for v in values.to_pylist()], dtype=bool)


def _contains_null(values: list[Any]) -> bool:
    return any(value is None or (isinstance(value, list) and _contains_null(value)) for value in values)


def _require(
    columns: Mapping[str, pa.Array], rows: int, faults: Faults, field: str, unless: Mask | None = None
) -> None:
    missing = _missing(columns, field, rows)
    faults.add(missing if unless is None else missing & ~unless, shown(field), "missing")


def _missing(columns: Mapping[str, pa.Array], field: str, rows: int) -> Mask:
    if field not in columns:
        return np.ones(rows, dtype=bool)
    return _mask(columns[field].is_null())


def _mask(values: pa.BooleanArray) -> Mask:
    mask: Mask = values.to_numpy(zero_copy_only=False)
    return mask


def judge_positions(field: str, values: pa.Array, faults: Faults) -> None:
    """Check the rules for positions that are structs; those from JSON are checked while parsing."""
    reason = "a position needs ledger and entry, each at least -1"
    if pa.types.is_struct(values.type):
        faults.add(_bad_structs(values), field, reason)
    else:
        _judge_items(values, _bad_structs, field, reason, faults)


def judge_ranges(values: pa.ListArray, faults: Faults) -> None:
    """Check the rules for hash ranges that are structs; those from JSON are checked while parsing."""
    _judge_items(values, _bad_ranges, "ranges", "expected 0 <= start <= end", faults)


def solid(values: pa.Array) -> pa.Array:
    """Convert positions, or lists of them, to the type of the schema: parts of null positions become 0 instead of null."""
    if pa.types.is_struct(values.type):
        ledgers, entries = (
            pc.fill_null(pc.struct_field(values, field.name).cast(pa.int64()), 0).to_numpy()
            for field in POSITION
        )
        return _struct(ledgers, entries, values.is_null())
    return _lists_like(values, solid(pc.list_flatten(values)))


def _lists_like(lists: pa.ListArray, items: pa.StructArray) -> pa.ListArray:
    """Lists of ``items`` with the lengths and nulls of ``lists``."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    mask = lists.is_null() if lists.null_count else None
    return pa.ListArray.from_arrays(pa.array(offsets), items, type=POSITIONS, mask=mask)


def _judge_items(
    lists: pa.ListArray, bad: Callable[[pa.StructArray], Mask], field: str, reason: str, faults: Faults
) -> None:
    items = pc.list_flatten(lists)
    wrong = np.zeros(len(lists), dtype=bool)
    wrong[pc.list_parent_indices(lists).to_numpy()[bad(items) | _mask(items.is_null())]] = True
    faults.add(wrong, field, reason)


def _bad_structs(values: pa.StructArray) -> Mask:
    wrong = np.zeros(len(values), dtype=bool)
    for part_field in POSITION:
        part = pc.struct_field(values, part_field.name)
        wrong |= _mask(pc.fill_null(pc.less(part, -1), True))
    return wrong & _mask(values.is_valid())


def _bad_ranges(values: pa.StructArray) -> Mask:
    start, end = pc.struct_field(values, "start"), pc.struct_field(values, "end")
    right = pc.and_(
        pc.and_(pc.greater_equal(start, 0), pc.less_equal(start, end)), pc.less_equal(end, RANGES["hash"][1])
    )
    return ~_mask(pc.fill_null(right, False))


def rows_of_kind(columns: Mapping[str, pa.Array], kind: str) -> list[int]:
    """The numbers of the rows of one kind."""
    if "kind" not in columns:
        return []
    rows: list[int] = np.flatnonzero(_mask(pc.fill_null(pc.equal(columns["kind"], kind), False))).tolist()
    return rows
