"""Lines of message logs and event logs, good and hostile, each with the fate that the format gives it.

A *good* line names its topic and subscription, so nothing that stands around it may change that it is accepted. A *bad*
line has one known fault and must be refused. A *kept* line is a message with one known fault in a field without which its
entry can be judged: it must be accepted, and nothing but this field is unknown. Of all others only that they are accounted
for is known.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Literal

import pyarrow as pa

from dispatch_core.recording.parse import OF_KIND, RENAMED
from dispatch_core.recording.rows import CHOICES, RANGES, shown
from dispatch_core.recording.schema import EVENTS, KINDS, MESSAGES

Fate = Literal["good", "kept", "bad", "any"]
Content = Literal["events", "messages"]

INT64: Final = (-(1 << 63), (1 << 63) - 1)
_OF_ONE_KIND: Final = {column: name for fields in OF_KIND.values() for name, column in fields.items()}
_NAME_OF: Final = {column: name for name, column in RENAMED.items()} | _OF_ONE_KIND
_IN_KEY_SHARED: Final = {"key_shared_mode": "mode", "key_shared_allow_out_of_order": "allow_out_of_order"}
_APART: Final = {"source_file", "source_line", "header_json", "footer_json", "checkpoint_json"}
_IDENTITY: Final = ("cluster", "topic", "subscription", "broker", "incarnation", "seq", "t_us", "kind")
_PAYLOAD: Final = tuple(name for name in EVENTS.names if name not in {*_APART, *_IDENTITY})
_WITH_POSITIONS: Final = ("batch_sizes", "hashes", "ack_sets")
_PLAIN_KINDS: Final = tuple(name for name in KINDS if name not in ("header", "footer", "checkpoint", "gap"))
#: Fields of a message that name neither its entry nor its topic.
OPTIONAL: Final = frozenset(
    (
        *("key", "key_b64", "ordering_key_b64", "key_h31", "producer", "sequence_id"),
        *("publish_time_ms", "num_messages", "size_bytes"),
    )
)
_TOPICS: Final = ("persistent://public/default/a", "persistent://public/default/b", "t", "tépic \U0001f600")


@dataclass(frozen=True)
class Line:
    """A line with its expected result.

    ``values``: the row of a good or kept line, as far as it is known; None = null. ``field``: the bad field of others, if
    known.
    """

    data: bytes
    fate: Fate = "any"
    values: dict[str, Any] = field(default_factory=dict)
    field: str | None = None
    field_known: bool = False


# ---- values ----


def text(rng: Random) -> str:
    """Make a text, mostly short, with any characters that JSON allows."""
    pick = rng.random()
    if pick < 0.6:
        return f"w{rng.randrange(30)}"
    if pick < 0.9:
        return "".join(
            rng.choice('ab"\\/\x00\x1f\x7f é€\U0001f600\u2028\ufeff{}[]:,') for _ in range(rng.randrange(8))
        )
    return rng.choice(("x" * 5000, "", " ", "null", "\r\n", "5:0", "{}"))


def number(rng: Random, least: int = INT64[0], most: int = INT64[1]) -> int:
    """Make an integer within bounds, often a bound itself."""
    pick = rng.random()
    if pick < 0.8:
        made = rng.randrange(1, 50) if pick < 0.5 else rng.choice((least, most, least + 1, most - 1))
        return min(max(made, least), most)
    return rng.randint(least, most)


def position(rng: Random, least: int = -1) -> str:
    """Make a position as in JSON."""
    pick = rng.random()
    if pick < 0.8:
        return f"{rng.randrange(9)}:{rng.randrange(100)}"
    return ":".join(str(number(rng, least)) for _ in range(2))


def value(rng: Random, column: str, kind: pa.DataType, *, items: int = 2) -> Any:
    """Make a valid value of a column as in JSON."""
    if column == "positions":
        return [position(rng) for _ in range(items)]
    if column == "ranges":
        return [sorted(rng.randrange(65536) for _ in range(2)) for _ in range(rng.randrange(3))]
    if pa.types.is_struct(kind):
        return position(rng)
    if pa.types.is_list(kind):
        count = items if column in _WITH_POSITIONS else rng.randrange(4)
        return [value(rng, column, kind.value_type) for _ in range(count)]
    if pa.types.is_integer(kind):
        return number(rng, *RANGES.get(column, INT64))
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    return rng.choice(CHOICES[column]) if column in CHOICES else text(rng)


def written(rng: Random, line: dict[str, Any]) -> bytes:
    """Write a line of JSON, in one of the possible ways."""
    items = list(line.items())
    if rng.random() < 0.3:
        rng.shuffle(items)
    separators = rng.choice(((",", ":"), (", ", ": "), (" ,\t", " :\r ")))
    made = json.dumps(dict(items), ensure_ascii=rng.random() < 0.7, separators=separators)
    return made.encode()


def _event(rng: Random, seq: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a valid event as JSON, and those values of its row that are the same."""
    kind = rng.choice(_PLAIN_KINDS) if rng.random() < 0.9 else rng.choice(("gap", "of_the_future"))
    values: dict[str, Any] = {
        "topic": rng.choice(_TOPICS),
        "subscription": "s",
        "seq": seq if rng.random() < 0.8 else rng.choice((1, INT64[1])),
        "t_us": number(rng, *RANGES["t_us"]),
        "kind": kind,
    }
    for name in ("cluster", "broker", "incarnation"):
        if rng.random() < 0.1:
            values[name] = number(rng, 0) if name == "incarnation" else text(rng) or "c"
    known = KINDS.get(kind)
    columns = [] if known is None else [*known.required]
    if known is not None:
        columns += [name for name in (*known.optional, *known.trace_only) if rng.random() < 0.5]
    if rng.random() < 0.1:
        columns.append(
            rng.choice([name for name in _PAYLOAD if not name.startswith("gap") and name not in _OF_ONE_KIND])
        )
    items = rng.choice((0, 1, 2, 2, 5)) if "positions" in columns else 0
    line = dict(values)
    for column in dict.fromkeys(columns):
        made = value(rng, column, EVENTS.field(column).type, items=items)
        if column == "permits" and kind == "flow":
            made = number(rng, 1)
        _put(rng, line, column, made)
        if pa.types.is_integer(EVENTS.field(column).type) or column == "note":
            values[column] = made
    if kind == "gap":
        first = line["from"] = number(rng, 1)
        line["to"] = number(rng, first)
        line.pop("lost", None)
        values |= {"gap_from_seq": first, "gap_to_seq": line["to"], "gap_lines": line["to"] - first + 1}
    return line, values


def _put(rng: Random, line: dict[str, Any], column: str, made: Any) -> None:
    if column in _IN_KEY_SHARED:
        line.setdefault("key_shared", {})[_IN_KEY_SHARED[column]] = made
    elif column == "ranges" and rng.random() < 0.7:
        line.setdefault("key_shared", {})["ranges"] = made
    else:
        line[_NAME_OF.get(column, column)] = made


def _message(rng: Random, entry: int) -> tuple[dict[str, Any], dict[str, Any]]:
    ledger = rng.choice((0, 3, INT64[1]))
    entry = entry if rng.random() < 0.9 else INT64[1]
    line: dict[str, Any] = {"topic": rng.choice(_TOPICS), "position": f"{ledger}:{entry}"}
    values = {"topic": line["topic"], "ledger_id": ledger, "entry_id": entry}
    for name in MESSAGES.names:
        if name in ("topic", "ledger_id", "entry_id", *_APART) or rng.random() < 0.3:
            continue
        line[name] = value(rng, name, MESSAGES.field(name).type)
    if line.get("key_b64") and line.get("key"):
        line["key"] = base64.b64encode(line["key"].encode()).decode()
    if line.get("ordering_key_b64"):
        line["ordering_key_b64"] = base64.b64encode(line["ordering_key_b64"].encode()).decode()
    if rng.random() < 0.002:
        line["key"], line["key_b64"] = "k" * rng.choice((*(70_000,) * 9, 10_000_000)), False
    for name in ("key", "sequence_id", "publish_time_ms", "size_bytes"):
        if name in line:
            values[name] = line[name]
    return line, values


def row(rng: Random, content: Content, number_in_file: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make a valid line as an object, and the values of its row."""
    return _event(rng, number_in_file) if content == "events" else _message(rng, number_in_file)


# ---- lines with a fate ----


def with_a_fault(
    content: Content, data: bytes, line: dict[str, Any], name: str, *, field_known: bool = True
) -> Line:
    """Make a line that is ``line`` but for a fault in the field ``name``."""
    if content == "messages" and name in OPTIONAL:
        return Line(data, "kept", values_without(line, name), field=name, field_known=True)
    return Line(data, "bad", field=name, field_known=field_known)


def values_without(line: dict[str, Any], name: str) -> dict[str, Any]:
    """The row of a message line whose field ``name`` cannot be read.

    The broker dispatches by the ordering key or else by the key; ``key_h31`` is the hash of the one that it used. If what it
    used is unknown, the row has no key but the flag ``key_b64``.
    """
    ledger, _, entry = line["position"].partition(":")
    usual = {"topic": line["topic"], "ledger_id": int(ledger), "entry_id": int(entry), "num_messages": 1}
    values = usual | {field: line.get(field) for field in OPTIONAL if line.get(field) is not None}
    unread = usual | {"num_messages": 0}
    values = dict.fromkeys(OPTIONAL) | values | {name: unread.get(name)}
    if name == "key_b64":
        values["key"] = None
    if name == "ordering_key_b64":
        values["key"] = None
    if name == "key":
        values["key_b64"] = None
    has_key = values["key"] is not None or values["ordering_key_b64"] is not None
    of_key = name in ("key", "key_b64", "ordering_key_b64", "key_h31")
    if of_key and not has_key and values["key_h31"] is None:
        values["key_b64"] = True
    return values


def good(rng: Random, content: Content, at: int) -> Line:
    """Make a line that must be accepted anywhere."""
    line, values = row(rng, content, at)
    if rng.random() < 0.1:
        line[f"x_{rng.randrange(3)}"] = rng.choice(
            ([1, [2, {"a": None}]], {"deep": {"er": []}}, 1.5, "x", None, True)
        )
    data = written(rng, line)
    if rng.random() < 0.01:
        depth = rng.choice((40, 900, 1100, 3000))
        data = data[:-1] + b',"deep":' + b"[" * depth + b"]" * depth + b"}"
    if rng.random() < 0.05:
        data = rng.choice((b" ", b"\t", b"\r")) + data + rng.choice((b" ", b"\t \t", b""))
    return Line(data, "good", values)


def _columns(content: Content, line: dict[str, Any]) -> list[str]:
    schema = EVENTS if content == "events" else MESSAGES
    return [
        column
        for column in schema.names
        if _NAME_OF.get(column, column) in line and column not in ("cluster", "broker")
    ]


def _wrong_type(rng: Random, kind: pa.DataType) -> Any:
    if pa.types.is_integer(kind):
        return rng.choice(("1", 1.5, True, [], {}, 1 << 63, -(1 << 63) - 1, 10**30, 1.0, "0x1"))
    if pa.types.is_boolean(kind):
        return rng.choice((0, 1, "true", [], {}))
    if pa.types.is_list(kind):
        inner = [_wrong_type(rng, kind.value_type)] if not pa.types.is_struct(kind.value_type) else [5]
        return rng.choice((0, "5:0", {}, True, inner))
    return rng.choice((0, 1.5, True, [], {}, ["5:0"]))


def _mistyped(rng: Random, content: Content, at: int) -> Line | None:
    line, _ = row(rng, content, at)
    column = rng.choice(_columns(content, line))
    schema = EVENTS if content == "events" else MESSAGES
    line[_NAME_OF.get(column, column)] = _wrong_type(rng, schema.field(column).type)
    return with_a_fault(content, written(rng, line), line, shown(column))


def _out_of_range(rng: Random, content: Content, at: int) -> Line | None:
    line, _ = row(rng, content, at)
    columns = [name for name in _columns(content, line) if name in RANGES]
    if not columns:
        return None
    column = rng.choice(columns)
    least, most = RANGES[column]
    beyond = rng.choice([x for x in (least - 1, most + 1, INT64[0]) if x < least or x > most])
    name = _NAME_OF.get(column, column)
    if isinstance(line[name], list):
        if not line[name]:
            return None
        line[name][rng.randrange(len(line[name]))] = beyond
    else:
        line[name] = beyond
    # the two ends of a gap are also compared with each other
    return with_a_fault(
        content, written(rng, line), line, shown(column), field_known=not column.startswith("gap")
    )


def _bad_position(rng: Random, content: Content, at: int) -> Line | None:
    line, _ = row(rng, content, at)
    bad = rng.choice(
        (
            f"{1 << 63}:0",
            f"0:{1 << 63}",
            "-2:0",
            "0:-2",
            "5;0",
            "5",
            "",
            "5:0:1",
            ":",
            "0x5:1",
            "+5:1",
            " 5:1",
            "5:1 ",
            "1e3:0",
            "٣:1",
            "5:",
            ":5",
            "--5:1",
            "5:0\n",
            "9" * 400 + ":0",
            "5:0\x00",
            "0" * 30 + "5:1",
        )
    )
    if content == "messages":
        line["position"] = bad
        return Line(written(rng, line), "bad", field="position", field_known=True)
    name = rng.choice(("positions", "read_position", "mark_delete"))
    line[name] = [*line.get(name, []), bad] if name == "positions" else bad
    if name == "positions":
        for other in _WITH_POSITIONS:
            line.pop(other, None)
    return Line(written(rng, line), "bad", field=name, field_known=True)


def _missing(rng: Random, content: Content, at: int) -> Line | None:
    line, _ = row(rng, content, at)
    if content == "messages":
        line["position"] = None
        return Line(written(rng, line), "bad", field="position", field_known=True)
    known = KINDS.get(line["kind"])
    needed = ["seq", "t_us", "kind", *(known.required if known else ())]
    column = rng.choice([name for name in needed if _NAME_OF.get(name, name) in line])
    if line["kind"] == "gap" and column == "seq":
        return None
    line.pop(_NAME_OF.get(column, column))
    known_field = column in ("t_us", "kind") or line.get("kind") != "gap"
    return Line(written(rng, line), "bad", field=shown(column), field_known=known_field)


def _not_text(rng: Random, content: Content, at: int) -> Line | None:
    line, _ = row(rng, content, at)
    data = written(rng, line)
    cut = rng.randrange(1, len(data))
    bad = rng.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\x80", b"\xe2\x28"))
    return Line(data[:cut] + bad + data[cut:], "bad", field_known=True)


def _cut_short(rng: Random, content: Content, at: int) -> Line | None:
    data = written(rng, row(rng, content, at)[0])
    return Line(data[: rng.randrange(1, len(data) - 1)].rstrip(b" \t\r"), "bad", field_known=True)


def _two_in_one(rng: Random, content: Content, at: int) -> Line | None:
    parts = [written(rng, row(rng, content, at)[0]) for _ in range(2)]
    return Line(rng.choice((b"", b" ", b",", b"\x00", b"\xef\xbb\xbf")).join(parts), "bad", field_known=True)


def _given_twice(rng: Random, content: Content, at: int) -> Line | None:
    line, _ = row(rng, content, at)
    name = rng.choice([_NAME_OF.get(column, column) for column in _columns(content, line)])
    again = json.dumps({name: rng.choice((line[name], None, 1))}).encode()
    return with_a_fault(content, written(rng, line)[:-1] + b"," + again[1:], line, name)


def _no_object(rng: Random, content: Content, at: int) -> Line | None:
    choices = (
        b"[]",
        b"1",
        b"null",
        b"x",
        b'"x"',
        b"\x00",
        b"}",
        b"{",
        b"{]",
        b"//",
        b"{'a':1}",
        b"NaN",
        b"x{}",
    )
    return Line(rng.choice(choices), "bad", field_known=True)


def _unequal(rng: Random, content: Content, at: int) -> Line | None:
    if content == "messages":
        line, _ = row(rng, content, at)
        line["ordering_key_b64"] = rng.choice(("x", "AAAA=", "A===", "AA=A", "é", "AA\nAA"))
        return with_a_fault(content, written(rng, line), line, "ordering_key_b64")
    line = {"topic": "t", "subscription": "s", "seq": at, "t_us": 1, "kind": "sent", "consumer": 1}
    line |= {"positions": ["5:0"] * rng.randrange(3), "batch_sizes": [1] * 3}
    return Line(written(rng, line), "bad", field="batch_sizes", field_known=True)


def _lone_surrogate(rng: Random, content: Content, at: int) -> Line | None:
    data = written(rng, row(rng, content, at)[0])
    return Line(
        data[:-1] + b',"x":"' + rng.choice((b"\\ud800", b"\\udc00x", b"\\ud800\\u0041")) + b'"}', "bad"
    )


def _negative_permits(rng: Random, content: Content, at: int) -> Line | None:
    if content == "messages":
        return None
    line = {"topic": "t", "subscription": "s", "seq": at, "t_us": 1, "kind": "flow", "consumer": 1}
    line["permits"] = rng.choice((0, -1, INT64[0]))
    return Line(written(rng, line), "bad", field="permits", field_known=True)


_FAULTS: Final = (
    _mistyped,
    _out_of_range,
    _bad_position,
    _missing,
    _not_text,
    _cut_short,
    _two_in_one,
    _given_twice,
    _no_object,
    _unequal,
    _lone_surrogate,
    _negative_permits,
)


def bad(rng: Random, content: Content, at: int) -> Line:
    """Make a line with one fault."""
    while True:
        made = rng.choice(_FAULTS)(rng, content, at)
        if made is not None and made.data.strip(b" \t\r"):
            return made


# ---- lines whose result is not known exactly ----


def header(rng: Random, content: Content) -> Line:
    """Make a header, often with a fault."""
    formats = {"events": "pulsar-consumer-events", "messages": "pulsar-message-log"}
    line: dict[str, Any] = {"format": formats[content], "format_version": rng.choice((1, "1.0", "1.4"))}
    for name in ("topic", "subscription", "cluster", "broker", "incarnation", "config", "broker_version"):
        if rng.random() < 0.5:
            line[name] = {"incarnation": rng.randrange(3), "config": {"a": 1}}.get(
                name, rng.choice(("t", "s", ""))
            )
    if rng.random() < 0.3:
        name = rng.choice(("topic", "subscription", "cluster", "incarnation", "config", "broker_version"))
        line[name] = rng.choice((1, -1, 1 << 64, True, [], {}, "x", None, 1.5))
    if rng.random() < 0.05:
        line["format_version"] = rng.choice((2, "2.0", "0", [], {}, None, True, "1.0.0", "9" * 5000, -1, 1.0))
    if rng.random() < 0.05:
        line["format"] = rng.choice(
            ("", "pulsar-dispatch-trace", "pulsar-message-log", "pulsar-consumer-events")
        )
    return Line(_deepened(rng, written(rng, line)))


def about_the_log(rng: Random, content: Content, at: int) -> Line:
    """Make a footer or a checkpoint, often with a fault."""
    if rng.random() < 0.6:
        line: dict[str, Any] = {"kind": "footer"}
        if rng.random() < 0.5:
            line["lines"] = rng.choice((at - 1, at, -1, "x", None, [], 1 << 70, 1.0, True))
        if rng.random() < 0.5:
            line["crc32"] = rng.choice(("00000000", 0, None, "x", [], {}))
        if rng.random() < 0.2:
            line |= {"seq": rng.choice((1, 0, -1)), "topic": "t"}
    else:
        line = {"seq": at, "t_us": 1, "kind": "checkpoint", "topic": "t", "subscription": "s"}
        for name in ("consumers", "mark_delete", "ack_holes", "pending_acks", "read_position"):
            if rng.random() < 0.5:
                line[name] = rng.choice(
                    (
                        [1, 2],
                        "5:0",
                        ["5:0"],
                        {"1": ["5:0"]},
                        None,
                        1,
                        [],
                        {},
                        [{"consumer": 1, "permits": -5}],
                        [1, 1],
                    )
                )
    return Line(_deepened(rng, written(rng, line)))


def _deepened(rng: Random, data: bytes) -> bytes:
    """Sometimes add a value that plain JSON readers fail on."""
    pick = rng.random()
    if pick > 0.06:
        return data
    odd = (
        b"[" * 1200 + b"]" * 1200
        if pick < 0.03
        else rng.choice(
            (b"9" * 5000, b"-" + b"9" * 4301, b"1e9999", b"NaN", b"-Infinity", b'"\\ud800"', b"0.1")
        )
    )
    return data[:-1] + b',"odd":' + odd + b"}"


def changed(rng: Random, line: Line) -> Line:
    """Replace some bytes of a line; its result is then unknown."""
    data = bytearray(line.data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randrange(4)] = rng.choice(
            (
                b"",
                b'"',
                b"\\",
                b"\x00",
                b"{",
                b"}",
                b"1",
                b"-",
                b":",
                b",",
                b"\r",
                b"null",
                bytes([rng.randrange(256)]),
            )
        )
    return Line(bytes(data).replace(b"\n", b" "))


def line(rng: Random, content: Content, at: int) -> Line:
    """Make any line; ``at`` is its number in the file."""
    pick = rng.random()
    if pick < 0.5:
        return good(rng, content, at)
    if pick < 0.75:
        return bad(rng, content, at)
    if pick < 0.83:
        return changed(rng, good(rng, content, at))
    if pick < 0.9:
        return header(rng, content)
    if pick < 0.95:
        return about_the_log(rng, content, at)
    return Line(rng.choice((b"", b"", b" ", b"\t", b"{}", b"\r")))
