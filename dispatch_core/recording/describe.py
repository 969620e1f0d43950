"""The tables of ``docs/log-format.md``, made from the schema: ``python -m dispatch_core.recording.describe FILE``."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa

from dispatch_core.recording.parse import OF_KIND, RAW_CLIENTS, RAW_EVENTS, RAW_MESSAGES, separate_name
from dispatch_core.recording.rows import CHOICES, RANGES, shown
from dispatch_core.recording.schema import CLIENT_EVENTS, CLIENT_KINDS, EVENTS, KINDS, MESSAGES, Kind

_LARGEST: Final = (1 << 63) - 1
_COMMON: Final = {
    "cluster": "default: the header's, else `standalone`",
    "topic": "default: the header's",
    "subscription": "default: the header's",
    "broker": "default: the header's, else none",
    "incarnation": "default: the header's, else 0",
    "seq": "**every line**",
    "t_us": "**every line**",
    "kind": "**every line**",
    "gap_from_seq": "of `gap`",
    "gap_to_seq": "of `gap`",
    "moved_from": "of `cursor_moved`",
    "moved_to": "of `cursor_moved`",
    "active": "of `active_notified`",
    "limit_active": "of `limit`",
    "what": "of `limit`, see below; other names are kept and mean nothing yet",
}
_MESSAGE_MEANING: Final = {
    "cluster": "default: the header's, else `standalone`",
    "topic": "required, unless a header before names it",
    "position": "**required**; columns `ledger_id`, `entry_id`",
    "key": "null = no key; text, or base64 when `key_b64`",
    "key_b64": "the key is binary and given in base64",
    "ordering_key_b64": "only when set; base64",
    "key_h31": "masked murmur3-32 of the key bytes, instead of `key`",
    "producer": "the producer's name",
    "sequence_id": "entry level; of a key-based batch the highest",
    "publish_time_ms": "milliseconds since the epoch",
    "num_messages": "messages in the entry (batch size); default 1",
    "size_bytes": "size of the entry",
    "keys": "number of distinct keys of its messages, 0 = none has a key; null = not known",
    "deliver_at_ms": "time before which it is not delivered (delayed delivery), milliseconds since the epoch",
    "txn": "published in a transaction: its id `(most,least)`, or any other text",
}


_CLIENT_MEANING: Final = {
    "cluster": "default: the header's, else `standalone`",
    "topic": "default: the header's; of a partitioned topic the partition",
    "subscription": "default: the header's",
    "seq": "number of the line in its session, from 1; a hole shows that lines were lost",
    "t_us": "**every line**; by the client's clock, microseconds since the epoch",
    "kind": "**every line**",
    "consumer": "name of the consumer; default: the header's",
    "position": "ledger and entry of the message id",
    "batch_index": "place in the batch, from 0; none = the message is no part of a batch",
    "batch_size": "messages of the batch, where the client knows it",
    "key": "the message's key; text, or base64 when `key_b64`",
    "key_b64": "the key is binary and given in base64",
    "ordering_key_b64": "only when set; base64",
    "redelivery_count": "as the client shows it",
    "ack_type": "default `Individual`",
    "error": "why an acknowledgement could not be sent",
    "disconnected_us": "when the consumer last lost its connection, 0 = never yet; needed only when it has changed",
    "connected": "false: it is without a connection at this moment",
}


def _json_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_json_type(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "object"
    return {pa.int64(): "integer", pa.bool_(): "true/false"}.get(kind, "text")


def _column_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list<{_column_type(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{field.name}: {field.type}' for field in kind)}>"
    return str(kind)


def _limits(field: str) -> str:
    if field in CHOICES:
        return " or ".join(f"`{choice}`" for choice in CHOICES[field])
    if field not in RANGES:
        return ""
    least, most = RANGES[field]
    return f"from {least:,}" if most == _LARGEST else f"{least:,} to {most:,}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(line).replace("|  |", "| |") + " |" for line in lines)


def kinds_table() -> str:
    """Every kind with level, fields and meaning."""
    return _kinds_table([kind for kind in KINDS.values() if kind.name != "header"])


def client_kinds_table() -> str:
    """Every kind of line of a client log, likewise."""
    return _kinds_table([*CLIENT_KINDS.values()])


def client_fields_table() -> str:
    """Every field of a client log's lines."""
    rows = []
    for field in CLIENT_EVENTS:
        raw = RAW_CLIENTS.field(field.name).type
        rows.append((f"`{field.name}`", _json_type(raw), _limits(field.name), _CLIENT_MEANING[field.name]))
    return _table(("field", "JSON", "values", "meaning"), rows)


def _kinds_table(kinds: Sequence[Kind]) -> str:
    rows = []
    for kind in kinds:
        fields = [f"**`{shown(field)}`**" for field in kind.required if not field.endswith("_json")]
        fields += [f"`{shown(field)}`" for field in kind.optional]
        if kind.trace_only:
            fields.append("T: " + ", ".join(f"`{shown(field)}`" for field in kind.trace_only))
        rows.append((f"`{kind.name}`", kind.level, ", ".join(fields), kind.meaning))
    return _table(("kind", "level", "fields (**required**)", "meaning"), rows)


def fields_table() -> str:
    """Every field of an event line with its type in JSON, its column and its limits."""
    rows = []
    for field in EVENTS:
        if field.name.startswith("source_") or field.name.endswith("_json"):
            continue
        name = shown(field.name)
        raw = _raw_type(field.name)
        column = "" if name == field.name else f"`{field.name}` "
        common = _COMMON.get(field.name, "")
        rows.append(
            (f"`{name}`", _json_type(raw), f"{column}{_column_type(field.type)}", _limits(field.name), common)
        )
    return _table(("field", "JSON", "column (Parquet)", "values", ""), rows)


def _raw_type(column: str) -> pa.DataType:
    """The type that a column's values have in JSON lines."""
    separate = {
        of: separate_name(kind, name) for kind, names in OF_KIND.items() for name, of in names.items()
    }
    name = separate.get(column, shown(column))
    return RAW_EVENTS.field(name).type if name in RAW_EVENTS.names else EVENTS.field(column).type


def messages_table() -> str:
    """Every field of a message line."""
    rows = []
    for name, meaning in _MESSAGE_MEANING.items():
        column = _column_type(MESSAGES.field(name).type) if name in MESSAGES.names else "int64, int64"
        rows.append((f"`{name}`", _json_type(RAW_MESSAGES.field(name).type), column, _limits(name), meaning))
    return _table(("field", "JSON", "column (Parquet)", "values", "meaning"), rows)


_TABLES: Final = {
    "kinds": kinds_table,
    "fields": fields_table,
    "messages": messages_table,
    "client-kinds": client_kinds_table,
    "client-fields": client_fields_table,
}


def in_step(text: str) -> str:
    """The document with its generated tables as the schema has them now."""

    def fresh(found: re.Match[str]) -> str:
        return f"<!-- generated: {found[1]} -->\n{_TABLES[found[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- generated: ([\w-]+) -->\n.*?<!-- end -->", fresh, text, flags=re.DOTALL)


def main() -> None:
    """Rewrite the generated tables of the file named on the command line."""
    path = Path(sys.argv[1])
    path.write_text(in_step(path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
