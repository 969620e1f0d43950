"""Totals by connection and key against plain sums, however the deliveries are cut into batches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.audit import key_totals
from dispatch_core.audit.key_totals import EVIDENCE, TOTALS, KeyTotals
from dispatch_core.tables import DELIVERIES
from tests.dispatch_core.audit.table_rows import table

_DELIVERY = st.fixed_dictionaries(
    {
        "consumer": st.integers(0, 2),
        "consumer_name": st.sampled_from([None, "a"]),
        "key": st.sampled_from([None, "x", "y", "eA=="]),
        "key_b64": st.booleans(),
        "num_messages": st.sampled_from([None, 1, 3]),
        "size_bytes": st.sampled_from([None, 10]),
        "hash": st.sampled_from([None, 7]),
    }
)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(_DELIVERY, max_size=30), st.lists(st.integers(0, 30), max_size=4), st.sampled_from([1, 5, 1000])
)
def test_totals_are_plain_sums(rows: list[dict[str, Any]], cuts: list[int], merge_from: int) -> None:
    rows = [
        row | {"seq": at + 5, "t_us": at * 10, "ledger_id": 3, "entry_id": at} for at, row in enumerate(rows)
    ]
    deliveries = table(DELIVERIES, rows)
    totals = KeyTotals()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_totals, "_MERGE_FROM", merge_from)
        start = 0
        for end in [*sorted(min(cut, len(rows)) for cut in cuts), len(rows)]:
            totals.add(deliveries.slice(start, end - start))
            start = end
        found = totals.table()
    expected: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, row in enumerate(rows):
        pair = tuple(row[name] for name in ("consumer", "consumer_name", "key", "key_b64"))
        evidence = {"number": number} | {name: row[name] for name in EVIDENCE[1:]}
        first = {f"first_{name}": value for name, value in evidence.items()}
        total = expected.setdefault(pair, {"entries": 0, "messages": 0, "size_bytes": 0} | first)
        total["entries"] += 1
        total["messages"] += 1 if row["num_messages"] is None else row["num_messages"]
        total["size_bytes"] += row["size_bytes"] or 0
        total |= {f"last_{name}": value for name, value in evidence.items()}
    assert found.schema == TOTALS
    group = TOTALS.names[:4]
    assert found.to_pylist() == [
        dict(zip(group, pair, strict=True)) | total for pair, total in expected.items()
    ]
