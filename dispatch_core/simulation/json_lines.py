"""Rows of simulated logs as JSON lines, in the shape that recordings have."""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa

#: Column → name in a JSON line.
_SHOWN: Final = {"key_shared_mode": "mode", "key_shared_allow_out_of_order": "allow_out_of_order"}
_POLICY: Final = ("key_shared_mode", "key_shared_allow_out_of_order", "ranges")
#: Said by the header.
_OF_HEADER: Final = ("cluster", "incarnation")
_FIRST: Final = ("seq", "t_us", "kind")


def json_lines(table: pa.Table, *, names_dispatcher: bool) -> bytes:
    """The rows, a line each. ``names_dispatcher``: lines carry topic and subscription."""
    left_out = {*_OF_HEADER, *(() if names_dispatcher else ("topic", "subscription"))}
    names = [name for name in table.column_names if name not in left_out]
    lines = []
    for batch in table.select(names).to_batches():
        for row in batch.to_pylist():
            if row.get("kind") == "header":
                lines.append(row["header_json"])
                continue
            given = {name: value for name, value in row.items() if value is not None}
            lines.append(json.dumps(_shaped(given), separators=(",", ":"), ensure_ascii=False))
    return "".join(line + "\n" for line in lines).encode()


def _shaped(row: dict[str, Any]) -> dict[str, Any]:
    """A row as the recordings write it: positions as texts, a message's position in one, the policy as an object."""
    made: dict[str, Any] = {}
    if "ledger_id" in row:
        made = {"topic": row.pop("topic"), "position": f"{row.pop('ledger_id')}:{row.pop('entry_id')}"}
    policy = {
        _SHOWN.get(name, name): row.pop(name)
        for name in _POLICY
        if name in row and row["kind"] == "consumer_added"
    }
    for name in (*(name for name in _FIRST if name in row), *(name for name in row if name not in _FIRST)):
        value = row[name]
        if name == "positions":
            value = [f"{p['ledger_id']}:{p['entry_id']}" for p in value]
        elif name in ("read_position", "mark_delete"):
            value = f"{value['ledger_id']}:{value['entry_id']}"
        made[name] = value
    if policy:
        policy["ranges"] = [[r["start"], r["end"]] for r in policy.get("ranges", ())]
        made["key_shared"] = policy
    return made
