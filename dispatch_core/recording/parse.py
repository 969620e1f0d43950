"""Parse lines of JSON to Arrow rows in bulk, and find the lines that cannot be parsed.

A block of lines goes to Arrow's JSON parser at once. If the parser refuses a block, the block is halved until the lines at
fault stand alone, so that the result for a line never depends on its neighbours or on the size of the block. Python's parser
gives the reason for which a line was refused, and finds most such lines before halving.

Faults that Arrow's parser accepts are checked around it: several values on a line, a value over several lines, bytes that
are not UTF-8.

The tables made here (``RAW_EVENTS``, ``RAW_MESSAGES``) still have the names and shapes of the JSON lines;
``rows.py`` turns them into the tables of the schema.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pj

from dispatch_core.recording.schema import CLIENT_EVENTS, EVENTS, MESSAGES

_PAIRS: Final = pa.list_(pa.list_(pa.int64()))

#: JSON name -> column of the schema, where they differ.
RENAMED: Final = {"from": "gap_from_seq", "to": "gap_to_seq", "lost": "gap_lines"}
#: Fields whose name has another type in lines of other kinds: kind -> JSON name -> column of the schema. Before a line of
#: such a kind is parsed, these fields get names of their own (``separate_name``).
OF_KIND: Final[Mapping[str, Mapping[str, str]]] = {
    "cursor_moved": {"from": "moved_from", "to": "moved_to"},
    "limit": {"active": "limit_active"},
}
#: Fields of headers whose name is a field of another type in lines (``record-messages`` writes ``keys``).
_OF_HEADER: Final = ("keys",)

_SAMPLE_BYTES: Final = 1 << 19


def separate_name(kind: str, name: str) -> str:
    """Return the name under which a field of ``OF_KIND`` is parsed.

    >>> separate_name("limit", "active")
    'limit.active'
    """
    return f"{kind}.{name}"


_SEPARATE: Final = {
    column: separate_name(kind, name) for kind, fields in OF_KIND.items() for name, column in fields.items()
}
_NAMED: Final = {separate_name(kind, name): name for kind, fields in OF_KIND.items() for name in fields}

_NOT_IN_JSON: Final = {"source_file", "source_line", "header_json", "footer_json", "checkpoint_json"}
_KEY_SHARED: Final = {"key_shared_mode": "mode", "key_shared_allow_out_of_order": "allow_out_of_order"}


def _raw_type(field: pa.Field) -> pa.DataType:
    """The type that a column of the schema has in a JSON line."""
    if field.name == "ranges":
        return _PAIRS
    if field.name == "positions":
        return pa.list_(pa.string())
    if pa.types.is_struct(field.type):
        return pa.string()
    return pa.int64() if pa.types.is_integer(field.type) else field.type


def _raw_events() -> pa.Schema:
    back = {column: name for name, column in RENAMED.items()} | _SEPARATE
    fields = [
        pa.field(back.get(field.name, field.name), _raw_type(field))
        for field in EVENTS
        if field.name not in _NOT_IN_JSON and field.name not in _KEY_SHARED
    ]
    shared = [pa.field(name, EVENTS.field(column).type) for column, name in _KEY_SHARED.items()]
    key_shared = pa.struct([*shared, pa.field("ranges", _PAIRS)])
    return pa.schema([*fields, pa.field("key_shared", key_shared), pa.field("format", pa.string())])


def _raw_messages() -> pa.Schema:
    fields = [
        pa.field(field.name, _raw_type(field))
        for field in MESSAGES
        if field.name not in _NOT_IN_JSON and field.name not in ("ledger_id", "entry_id")
    ]
    extra = [("position", pa.string()), ("kind", pa.string()), ("format", pa.string())]
    return pa.schema([*fields, *(pa.field(name, kind) for name, kind in extra)])


RAW_EVENTS: Final = _raw_events()
RAW_MESSAGES: Final = _raw_messages()
RAW_CLIENTS: Final = pa.schema(
    [*(pa.field(field.name, _raw_type(field)) for field in CLIENT_EVENTS), pa.field("format", pa.string())]
)


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason for which a line is refused. ``line`` counts from 0 in its block; ``field``: None = the whole line."""

    line: int
    field: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class Parsed:
    """A block's rows, the line (from 0 within the block) of each row, the lines at fault, and the number of blank lines.

    ``unread``: fields that were left out of rows, by line.
    """

    rows: pa.Table
    lines: npt.NDArray[np.int64]
    faults: list[Fault]
    blank: int = 0
    unread: Mapping[int, Sequence[Fault]] = field(default_factory=dict)


class BlockParser:
    """A parser for the blocks of one file that learns which fields occur: each possible field costs time in every line.

    Several threads may parse blocks of the file at once. The learned fields change the speed of a thread, never its result.
    """

    def __init__(self, schema: pa.Schema, spared: frozenset[str] = frozenset()) -> None:
        """Begin before the first block.

        Args:
            schema: names and types of the fields that are read.
            spared: fields that are left out of a line whose value for them is at fault; the line is kept.
        """
        self._schema = schema
        self._spared = spared
        self._seen: frozenset[str] = frozenset()  # in any block
        self._recent: frozenset[str] = frozenset()  # in a block just before
        self._narrow = True

    def parse(self, data: bytes, *, line_by_line: bool = False) -> Parsed:
        """Rows of a block of whole lines. ``line_by_line`` skips the attempt in bulk; the result is the same."""
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        body = separated(data[:-1] if data.endswith(b"\n") else data)
        if not line_by_line and (lines := _objects(body)) and is_utf8(body):
            rows = self._bulk(body, lines)
            if rows is not None:
                return Parsed(rows, np.arange(len(rows), dtype=np.int64), [])
        return self._divided(body)

    def _bulk(self, body: bytes, count: int) -> pa.Table | None:
        """All lines at once; None if the parser refuses any, or if the number of values is not the number of lines."""
        recent, seen = self._recent, self._seen
        if not recent and len(body) > _SAMPLE_BYTES:
            recent = self._sampled(body)
        for names in dict.fromkeys((recent, seen)) if self._narrow else ():
            if not names:
                continue
            schema = pa.schema([field for field in self._schema if field.name in names])
            rows = _read_json(body, schema, "error")
            if rows is not None and len(rows) == count:
                return self._learned(rows)
        rows = _read_json(body, self._schema, "ignore")
        if rows is None or len(rows) != count:
            return None
        rows = self._learned(rows)
        if self._narrow and seen and seen.issuperset(rows.column_names):
            self._narrow = False  # the lines carry fields of their own: the narrow attempt would always fail
        return rows

    def _sampled(self, body: bytes) -> frozenset[str]:
        """The fields at a large block's beginning: searching all of it for every field takes three times as long."""
        # By the schema, not inferred: a type as deep as a hostile line overflows the stack.
        end = body.rfind(b"\n", 0, _SAMPLE_BYTES)
        rows = _read_json(body[:end], self._schema, "ignore") if end > 0 else None
        return frozenset() if rows is None else _filled(rows)

    def _learned(self, rows: pa.Table) -> pa.Table:
        """The columns that have values; the next block will probably have no others."""
        found = _filled(rows)
        self._recent = found
        self._seen |= found
        # Never no column at all: a table without columns forgets how many rows it has, and the lines would be lost.
        return rows.select([name for name in rows.column_names if name in found] or rows.column_names[:1])

    def _divided(self, body: bytes) -> Parsed:
        lines = [line.strip(b" \t\r") for line in body.split(b"\n")]
        faults: list[Fault] = []
        left: list[int] = []
        unread: dict[int, list[Fault]] = {}
        blank = 0
        for number, line in enumerate(lines):
            if not line:
                blank += 1
                continue
            lines[number], left_out, why = without_spared(line, self._schema, self._spared)
            if why is not None:
                faults.append(Fault(number, _NAMED.get(why[0] or "", why[0]), why[1]))
                continue
            left.append(number)
            if left_out:
                unread[number] = [Fault(number, name, reason) for name, reason in left_out]
        tables: list[pa.Table] = []
        good: list[int] = []
        spans = [left] if left else []
        while spans:
            span = spans.pop()
            rows = self._bulk(b"\n".join(lines[number] for number in span), len(span))
            if rows is not None:
                tables.append(rows)
                good.extend(span)
            elif len(span) == 1:
                faults.append(Fault(span[0], None, _refusal(lines[span[0]], self._schema)))
            else:
                middle = len(span) // 2
                spans += [span[middle:], span[:middle]]
        rows = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
        return Parsed(rows, np.array(good, dtype=np.int64), faults, blank, unread)


def _filled(rows: pa.Table) -> frozenset[str]:
    return frozenset(name for name in rows.column_names if rows[name].null_count < len(rows))


def _objects(body: bytes) -> int:
    """The number of lines where each begins and ends an object, so that none can span two; 0 where one does not."""
    if body[:1] != b"{" or body[-1:] != b"}":
        return 0
    text = np.frombuffer(body, dtype=np.uint8)
    breaks = np.flatnonzero(text == ord("\n"))  # none is first or last: a brace is
    whole = (text[breaks - 1] == ord("}")).all() and (text[breaks + 1] == ord("{")).all()
    return len(breaks) + 1 if whole else 0


def is_utf8(data: bytes) -> bool:
    """True if the bytes are UTF-8 throughout."""
    if data.isascii():
        return True
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _read_json(body: bytes, schema: pa.Schema, unexpected: str) -> pa.Table | None:
    try:
        return pj.read_json(
            pa.BufferReader(body),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(body) + 1),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
        )
    except pa.ArrowInvalid:
        return None


def loaded(text: str) -> Any:
    """The value of a JSON text. Raises ``ValueError`` for invalid JSON and for values that Python cannot hold."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refusal(line: bytes, schema: pa.Schema) -> str:
    """Arrow's message for a single line that it refused and Python's parser accepts."""
    try:
        rows = pj.read_json(
            pa.BufferReader(line),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(line) + 1),
            parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowInvalid as error:
        return str(error).replace(" in row 0", "")
    return f"{len(rows)} JSON values in one line, expected one"


# ---- names with two types ----

_MARKS: Final = tuple(f'"{kind}"'.encode() for kind in OF_KIND)
_KIND_IN_TEXT: Final = re.compile(rb'"kind"\s*:\s*"(%s)"' % "|".join(OF_KIND).encode())
_HEADER_MARKS: Final = tuple(f'"{name}"'.encode() for name in _OF_HEADER)


def separated(body: bytes) -> bytes:
    """Give the fields of ``OF_KIND`` and ``_OF_HEADER`` names of their own; lines without them stay as they are."""
    in_header = b'"format"' in body and any(mark in body for mark in _HEADER_MARKS)
    if not in_header and not any(mark in body for mark in _MARKS):
        return body
    lines = body.split(b"\n")
    for number, line in enumerate(lines):
        if any(mark in line for mark in _MARKS) or (
            in_header and b'"format"' in line and any(mark in line for mark in _HEADER_MARKS)
        ):
            lines[number] = _separated_line(line)
    return b"\n".join(lines)


def _separated_line(line: bytes) -> bytes:
    try:
        values = json.loads(line.decode("utf-8"), object_pairs_hook=_object)
    except ValueError:
        return line  # refused as it is
    except RecursionError:
        return _separated_text(line)  # only a field that is not read may be nested so deeply
    if not isinstance(values, _Object):
        return line
    if values.twice:
        return _separated_text(line)  # refused, for the field that is given twice
    kind = values.get("kind")
    if values.get("format") is not None:
        names = {name: separate_name("header", name) for name in _OF_HEADER}
    elif isinstance(kind, str) and kind in OF_KIND:
        names = {name: separate_name(kind, name) for name in OF_KIND[kind]}
    else:
        return line
    renamed = {names.get(name, name): value for name, value in values.items()}
    return json.dumps(renamed, separators=(",", ":")).encode()


def _separated_text(line: bytes) -> bytes:
    """Rename the fields in the text of a line that no dictionary can hold."""
    found = _KIND_IN_TEXT.search(line)
    if found is None:
        return line
    kind = found[1].decode()
    for name in OF_KIND[kind]:
        line = re.sub(rb'"%s"(?=\s*:)' % name.encode(), f'"{separate_name(kind, name)}"'.encode(), line)
    return line


# ---- why a line is refused ----


class _Object(dict[str, Any]):
    """A JSON object that remembers which names it was given twice."""

    twice: frozenset[str] = frozenset()


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) < len(pairs):
        made.twice = frozenset(
            name for name, times in Counter(name for name, _ in pairs).items() if times > 1
        )
    return made


def _integer(text: str) -> int:
    # A number this long is out of any range; int() itself refuses very long texts.
    return int(text) if len(text) <= 20 else (1 << 64)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer)


def without_spared(
    line: bytes, schema: pa.Schema, spared: frozenset[str]
) -> tuple[bytes, list[tuple[str, str]], tuple[str | None, str] | None]:
    """Leave out the fields ``spared`` of a line whose values are at fault.

    Returns the line (unchanged if nothing is left out), name and reason for each field that is left out, and field (None:
    the line itself) and reason if the line cannot be a row of ``schema`` all the same. Arrow's parser refuses a line with
    such a fault too, or it was refused before that parser.
    """
    value, why = _object_of(line)
    left_out: list[tuple[str, str]] = []
    while value is not None and (wrong := _mismatch(value, schema, "")) is not None:
        if wrong[0] not in spared:
            # What a field has to be depends on the kind of the line.
            is_event = "t_us" in schema.names and "format" not in value
            is_without_kind = is_event and value.get("kind") is None
            return line, [], ("kind", "missing") if is_without_kind else wrong
        left_out.append(wrong)
        value.pop(wrong[0])
        value.twice -= {wrong[0]}
    if value is not None and left_out:
        line = json.dumps({name: value[name] for name in schema.names if name in value}).encode()
    return line, left_out, why


def _object_of(line: bytes) -> tuple[_Object | None, tuple[None, str] | None]:
    """The object of a line, or the reason for which it has none; neither if the object is nested too deeply to tell."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        return None, (None, f"not UTF-8: byte {line[error.start]:#04x} at column {error.start + 1}")
    if not text.startswith("{"):
        return None, (None, "not a JSON object")
    try:
        value, end = _DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        return None, (None, f"not valid JSON: {error.msg} at column {error.colno}")
    except RecursionError:
        return None, None if text.endswith("}") else (None, "not a JSON object")
    if end < len(text):
        return None, (None, f"more than one JSON value in the line (the first ends at column {end})")
    return value, None


def _mismatch(value: _Object, fields: Any, prefix: str) -> tuple[str, str] | None:
    for wanted in fields:
        name = prefix + wanted.name
        if wanted.name in value.twice:
            return name, "given twice"
        if (wrong := _wrong(value.get(wanted.name), wanted.type, name)) is not None:
            return wrong
    return None


def _wrong(value: Any, kind: pa.DataType, name: str) -> tuple[str, str] | None:
    if value is None:
        return None
    if pa.types.is_list(kind) and isinstance(value, list):
        return next((wrong for item in value if (wrong := _wrong(item, kind.value_type, name))), None)
    if pa.types.is_struct(kind) and isinstance(value, dict):
        return _mismatch(value, kind, f"{name}.") if isinstance(value, _Object) else None
    wanted, fits = _expected(kind)
    if not fits(value):
        return name, f"expected {wanted}, found {_shown(value)}"
    if pa.types.is_int64(kind) and not -(1 << 63) <= value < 1 << 63:
        return name, f"{_shown(value)} is out of range for a 64-bit integer"
    return None


def _expected(kind: pa.DataType) -> tuple[str, Callable[[Any], bool]]:
    if pa.types.is_int64(kind):
        return "an integer", lambda value: isinstance(value, int) and not isinstance(value, bool)
    if pa.types.is_boolean(kind):
        return "true or false", lambda value: isinstance(value, bool)
    if pa.types.is_string(kind):
        return "a text", lambda value: isinstance(value, str)
    return ("a list" if pa.types.is_list(kind) else "an object"), lambda _: False


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 64:
        return "a very long number"
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 60 else text[:57] + "..."
