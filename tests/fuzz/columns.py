"""Parquet files: rows good and bad, columns of the wrong types, damaged bytes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from dispatch_core.recording.parse import OF_KIND, RENAMED
from dispatch_core.recording.rows import RANGES, SINGLE_POSITIONS, shown
from dispatch_core.recording.schema import EVENTS, MESSAGES
from tests.dispatch_core.recording.reading import Read, read
from tests.fuzz.lines import OPTIONAL, Content, row, values_without
from tests.fuzz.reading import check_quarantine, check_unknown, check_values

_TYPES: Final = (
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.int32(),
    pa.uint64(),
    pa.float64(),
    pa.bool_(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("ns"),
    pa.decimal128(20, 0),
    pa.null(),
    pa.list_(pa.int64()),
    pa.struct([("a", pa.int64())]),
    pa.map_(pa.string(), pa.int64()),
)
_NOT_TEXT: Final = (b"\xff", b"a\xc0\x80", b"\xed\xa0\x80", b"\x80")
_GZIP: Final = ("none", "snappy", "zstd", "gzip")


@dataclass(frozen=True)
class Kept:
    """A message with one bad field that is kept without it: this field, and the values of its row; None = null."""

    field: str
    values: dict[str, Any]


Fate = dict[str, Any] | Kept | str | None


@dataclass(frozen=True)
class Columns:
    """A Parquet file.

    ``fates``: for each row its values if it is good, ``Kept`` if one field of it is unknown, the bad field (a text) if it
    must be refused, or ``None`` if its result is not known.
    ``fates`` is ``None`` if no row is known. ``rows``: number of rows before any byte was changed.
    """

    name: str
    content: Content
    data: bytes
    fates: tuple[Fate, ...] | None
    rows: int


def columns(rng: Random, content: Content) -> Columns:
    """Make a Parquet file of the log format, mostly with faults."""
    schema = EVENTS if content == "events" else MESSAGES
    fates: list[Fate] = []
    rows = []
    for at in range(rng.choice((0, 1, 4, 15))):
        made, values = row(rng, content, at + 1)
        if content == "messages" and (made.get("key_b64") or "ordering_key_b64" in made):
            values = dict(values)
        if content == "events" and made["kind"] == "gap":
            values.setdefault("gap_lines", None)
        rows.append(_as_row(made, schema))
        fates.append(values)
    not_text: dict[tuple[str, int], bytes] = {}
    if content == "events" and rng.random() < 0.2:
        rows.insert(0, _header(rng))
        fates.insert(0, None)
    for at, fields in enumerate(rows):
        if fates[at] is None or rng.random() > 0.3:
            continue
        wrong = _spoil(rng, fields, content, at, not_text)
        if content == "messages" and wrong in OPTIONAL:
            line = fields | {"position": f"{fields['ledger_id']}:{fields['entry_id']}"}
            fates[at] = Kept(wrong, values_without(line, wrong))
        else:
            fates[at] = wrong
    table = pa.Table.from_pylist(rows, schema=pa.schema([field.with_nullable(True) for field in schema]))
    for (name, at), text in not_text.items():
        place = table.column_names.index(name)
        values = table[name].cast(pa.binary()).to_pylist()
        values[at] = text
        table = table.set_column(place, name, pa.array(values, pa.binary()).view(pa.string()))
    known: tuple[Fate, ...] | None = tuple(fates)
    pick = rng.random()
    if pick < 0.2:
        table, known = _retyped(rng, table), None
    elif pick < 0.4:
        keep = [
            name for name in table.column_names if rng.random() < 0.9 or table[name].null_count < len(table)
        ]
        rng.shuffle(keep)
        table = table.select(keep)
    data = _written(rng, table)
    prefix = "messages" if content == "messages" else rng.choice(("events", "trace"))
    return Columns(f"{prefix}.parquet", content, data, known, len(table))


def _as_row(line: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    own = OF_KIND.get(line.get("kind", ""), {})
    made = {
        own.get(name) or RENAMED.get(name, name): value
        for name, value in line.items()
        if name not in ("position", "key_shared")
    }
    if "position" in line:
        made |= _pair(line["position"])
    policy = line.get("key_shared", {})
    for name in ("mode", "allow_out_of_order"):
        if name in policy:
            made[f"key_shared_{name}"] = policy[name]
    if "ranges" in policy:
        made.setdefault("ranges", policy["ranges"])
    if made.get("ranges") is not None:
        made["ranges"] = [{"start": start, "end": end} for start, end in made["ranges"]]
    for name in SINGLE_POSITIONS:
        if name in made:
            made[name] = _pair(made[name])
    if "positions" in made:
        made["positions"] = [_pair(text) for text in made["positions"]]
    if "kind" in schema.names:
        made["cluster"] = made.get("cluster") or "c"
    return made


def _pair(text: str) -> dict[str, int]:
    return dict(zip(("ledger_id", "entry_id"), map(int, text.split(":")), strict=True))


def _header(rng: Random) -> dict[str, Any]:
    text = rng.choice(
        (
            '{"format":"pulsar-consumer-events","format_version":1}',
            '{"format":["x"]}',
            '{"format":"pulsar-consumer-events","format_version":3}',
            "[" * 5000,
            "x",
            None,
            '{"format":{}}',
            "9" * 5000,
            '{"format":"pulsar-consumer-events","format_version":1,"topic":"\\ud800"}',
        )
    )
    return {"topic": "t", "subscription": "s", "seq": 0, "kind": "header", "header_json": text}


def _spoil(
    rng: Random, fields: dict[str, Any], content: Content, at: int, not_text: dict[tuple[str, int], bytes]
) -> str | None:
    """Put a fault into a row; return the field that the quarantine must name, or ``None`` if that is not certain."""
    pick = rng.random()
    if pick < 0.4:
        name = rng.choice(
            [x for x in ("topic", "kind", "note", "broker", "name", "key", "producer") if x in fields]
        )
        fields[name] = "x"
        not_text[name, at] = rng.choice(_NOT_TEXT)
        return shown(name)
    names = [name for name in fields if name in RANGES and not isinstance(fields[name], list)]
    if pick < 0.7 and names:
        name = rng.choice(names)
        least, most = RANGES[name]
        fits = (
            (-(1 << 31), (1 << 31) - 1)
            if name in ("priority_level", "num_messages")
            else (-(1 << 63), (1 << 63) - 1)
        )
        beyond = [x for x in (least - 1, most + 1) if fits[0] <= x <= fits[1]]
        if not beyond:
            return None
        fields[name] = rng.choice(beyond)
        return None if name.startswith("gap") else shown(name)
    name = rng.choice(
        ("topic", "ledger_id", "entry_id") if content == "messages" else ("topic", "t_us", "seq", "kind")
    )
    fields[name] = None
    if name == "seq" and fields.get("kind") == "gap":
        return None
    return "position" if name in ("ledger_id", "entry_id") else name


def _retyped(rng: Random, table: pa.Table) -> pa.Table:
    """Change the type of a column, repeat it, or leave it out."""
    at = rng.randrange(table.num_columns)
    name = table.column_names[at]
    pick = rng.random()
    if pick < 0.15:
        return table.append_column(name, table[name])
    if pick < 0.3:
        return table.remove_column(at)
    kind = rng.choice(_TYPES)
    try:
        column = table[name].cast(kind)
    except (pa.ArrowException, ValueError):
        column = pa.chunked_array([pa.nulls(len(table), kind)])
    if pick < 0.45 and pa.types.is_string(table[name].type):
        try:
            column = table[name].dictionary_encode()
        except pa.ArrowException:
            return table
    return table.set_column(at, name, column)


def _written(rng: Random, table: pa.Table) -> bytes:
    stream = io.BytesIO()
    nanoseconds = pa.timestamp("ns") in table.schema.types
    pq.write_table(
        table,
        stream,
        compression=rng.choice(_GZIP),
        use_dictionary=rng.random() < 0.5,
        row_group_size=rng.choice((1, 5, 1000)),
        version="2.6" if nanoseconds else rng.choice(("1.0", "2.6")),
        data_page_version=rng.choice(("1.0", "2.0")),
        write_statistics=rng.random() < 0.7,
        store_schema=rng.random() < 0.5,
    )
    return stream.getvalue()


def damaged(rng: Random, data: bytes) -> bytes:
    pick = rng.random()
    if pick < 0.3:
        return data[: rng.randrange(len(data))]
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 4, 30))):
        at = rng.randrange(len(made))
        if rng.random() < 0.5:  # in the footer, at the end of the file
            at = max(0, len(made) - 1 - rng.randrange(600))
        made[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, made[at] ^ (1 << rng.randrange(8))))
    return bytes(made)


def check_columns(made: Columns) -> int:
    """Read a Parquet file; return the number of reads."""
    result = read(made.data, made.name, threads=1)
    check_quarantine(result, made.name)
    if made.fates is not None:
        _check_rows(made, result, made.fates)
    stopped = any("rest of" in refusal["reason"] for refusal in result.quarantine.to_pylist())
    assert result.counts.file_problems or stopped or result.counts.lines == made.rows, (
        "rows were lost silently"
    )
    return 1


def _check_rows(made: Columns, result: Read, fates: tuple[Fate, ...]) -> None:
    refused = {refusal["source_line"]: refusal for refusal in result.quarantine.to_pylist()}
    table = result.events if made.content == "events" else result.messages
    of_row = {values["source_line"]: values for values in table.to_pylist() if values.get("kind") != "header"}
    assert not refused.keys() & of_row.keys(), "a row was accepted and quarantined"
    if result.counts.file_problems:
        return  # a required column is missing: no row was read
    stop = next((at for at, refusal in refused.items() if "rest of" in refusal["reason"]), len(fates))
    assert result.counts.lines == stop, (result.counts, len(fates), refused)
    for number, fate in enumerate(fates[:stop], start=1):
        if isinstance(fate, dict):
            assert number in of_row, (number, fate, refused.get(number))
            check_values(of_row[number], {name: value for name, value in fate.items() if value is not None})
        elif isinstance(fate, Kept):
            assert number in of_row, (number, fate, refused.get(number))
            check_values(of_row[number], fate.values)
        elif isinstance(fate, str):
            assert number in refused, (number, fate, of_row.get(number))
            assert refused[number]["field"] == fate, (number, fate, refused[number])
    kept = {at: fate.field for at, fate in enumerate(fates[:stop], start=1) if isinstance(fate, Kept)}
    check_unknown(result, kept, exactly=None not in fates)
