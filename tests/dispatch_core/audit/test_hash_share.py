"""Fair parts against plain counting, message by message."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.audit.hash_share import fair_parts

_SPAN = st.fixed_dictionaries(
    {
        "log": st.integers(0, 2),
        "name": st.sampled_from(["a", "b", "c"]),
        "consumer": st.integers(0, 4),
        "from_seq": st.integers(0, 12),
        "until_seq": st.one_of(st.none(), st.integers(0, 14)),
        "hashes": st.integers(0, 50),
    }
)
_SENT = st.fixed_dictionaries(
    {"log": st.integers(0, 2), "seq": st.integers(0, 14), "messages": st.integers(0, 9)}
)
_TYPES = {"log": pa.int64(), "name": pa.string()}


def table(rows: list[dict[str, Any]], *names: str) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema([(one, _TYPES.get(one, pa.int64())) for one in names]))


def counted(owned: list[dict[str, Any]], sent: list[dict[str, Any]]) -> dict[tuple[int, str], list[float]]:
    """``by_hashes`` and ``by_number`` as their definitions say."""
    parts: dict[tuple[int, str], list[float]] = {(one["log"], one["name"]): [0.0, 0.0] for one in owned}
    for line in sent:
        mine = [one for one in owned if one["log"] == line["log"]]
        stays = defaultdict(list)
        for one in mine:
            until = 99 if one["until_seq"] is None else one["until_seq"]
            if one["from_seq"] <= line["seq"] < until:
                parts[one["log"], one["name"]][0] += one["hashes"] * line["messages"]
            stays[one["name"], one["consumer"]].append((one["from_seq"], max(until, one["from_seq"])))
        there = [
            name
            for (name, _), spans in stays.items()
            if min(start for start, _ in spans) <= line["seq"] < max(end for _, end in spans)
        ]
        for name in there:
            parts[line["log"], name][1] += line["messages"] / len(there)
    for log in {log for log, _ in parts}:
        total = sum(line["messages"] for line in sent if line["log"] == log)
        for at in (0, 1):
            whole = sum(part[at] for (where, _), part in parts.items() if where == log)
            for (where, _), part in parts.items():
                if where == log:
                    part[at] = part[at] * total / whole if whole else 0.0
    return parts


def one_name_per_connection(owned: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A connection has one name; a span ends behind its beginning."""
    names: dict[tuple[int, int], str] = {}
    spans = []
    for one in owned:
        name = names.setdefault((one["log"], one["consumer"]), one["name"])
        until = one["until_seq"]
        spans.append(
            one | {"name": name, "until_seq": until if until is None else max(until, one["from_seq"])}
        )
    return spans


@settings(max_examples=200, deadline=None)
@given(st.lists(_SPAN, max_size=8), st.lists(_SENT, max_size=12))
def test_parts_are_as_counted_message_by_message(
    owned: list[dict[str, Any]], sent: list[dict[str, Any]]
) -> None:
    owned = one_name_per_connection(owned)
    found = fair_parts(
        table(owned, "log", "name", "consumer", "from_seq", "until_seq", "hashes"),
        table(sent, "log", "seq", "messages"),
        ["log"],
    )
    rows = {(row["log"], row["name"]): row for row in found.to_pylist()}
    expected = counted(owned, sent)
    assert rows.keys() == expected.keys()
    for who, (by_hashes, by_number) in expected.items():
        assert rows[who]["by_hashes"] == pytest.approx(by_hashes), who
        assert rows[who]["by_number"] == pytest.approx(by_number), who


def test_lines_may_be_numbered_as_high_as_64_bits_hold() -> None:
    top = 2**63 - 2
    owned = [
        {"log": 0, "name": "a", "consumer": 1, "from_seq": 1, "until_seq": top, "hashes": 3},
        {"log": 0, "name": "b", "consumer": 2, "from_seq": top, "until_seq": None, "hashes": 3},
    ]
    sent = [{"log": 0, "seq": seq, "messages": 2} for seq in (1, top - 1, top)]
    found = fair_parts(
        table(owned, "log", "name", "consumer", "from_seq", "until_seq", "hashes"),
        table(sent, "log", "seq", "messages"),
        ["log"],
    )
    assert dict(zip(found["name"].to_pylist(), found["by_hashes"].to_pylist(), strict=True)) == {
        "a": 4,
        "b": 2,
    }
