"""Fair parts against plain counting, message by message."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch_core.arrays.columns import Ints
from dispatch_core.audit.hash_share import FairPart, MessagesByOwnership, fair_parts
from dispatch_core.audit.sentences.names import connections_in
from dispatch_core.replay.interval_totals import changes_in
from dispatch_core.tables import OWNERSHIP
from tests.dispatch_core.audit.table_rows import table

_SPAN = st.fixed_dictionaries(
    {
        "consumer_name": st.sampled_from(["a", "b", "c"]),
        "consumer": st.integers(0, 4),
        "from_seq": st.integers(0, 12),
        "until_seq": st.one_of(st.none(), st.integers(0, 14)),
        "range_end": st.integers(-1, 50),
    }
)
_DELIVERY = st.tuples(st.integers(0, 14), st.integers(0, 9))

Rows = list[dict[str, Any]]


def counted(owned: Rows, sent: list[tuple[int, int]]) -> dict[str, list[float]]:
    """``by_hashes`` and ``by_number`` as their definitions say."""
    parts: dict[str, list[float]] = {span["consumer_name"]: [0.0, 0.0] for span in owned}
    for seq, messages in sent:
        stays = defaultdict(list)
        for span in owned:
            until = 99 if span["until_seq"] is None else span["until_seq"]
            if span["from_seq"] <= seq < until:
                parts[span["consumer_name"]][0] += (span["range_end"] + 1) * messages
            stays[span["consumer_name"], span["consumer"]].append(
                (span["from_seq"], max(until, span["from_seq"]))
            )
        connected = [
            name
            for (name, _), spans in stays.items()
            if min(start for start, _ in spans) <= seq < max(end for _, end in spans)
        ]
        for name in connected:
            parts[name][1] += messages / len(connected)
    total = sum(messages for _, messages in sent)
    for at in (0, 1):
        whole = sum(part[at] for part in parts.values())
        for part in parts.values():
            part[at] = part[at] * total / whole if whole else 0.0
    return parts


def one_name_per_connection(owned: Rows) -> Rows:
    """A connection has one name; a span ends behind its beginning."""
    names: dict[int, str] = {}
    spans = []
    for span in owned:
        name, until = names.setdefault(span["consumer"], span["consumer_name"]), span["until_seq"]
        ends = until if until is None else max(until, span["from_seq"])
        spans.append(span | {"consumer_name": name, "until_seq": ends})
    return spans


def columns(sent: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    return np.array([seq for seq, _ in sent], np.int64), np.array([n for _, n in sent], np.int64)


def parts_of(ownership: pa.Table, seq: Ints, messages: Ints) -> dict[str, FairPart]:
    return fair_parts(ownership, connections_in(ownership), seq, messages)


@settings(max_examples=200, deadline=None)
@given(st.lists(_SPAN, max_size=8), st.lists(_DELIVERY, max_size=12), st.integers(0, 12))
def test_parts_are_as_counted_message_by_message(owned: Rows, sent: list[tuple[int, int]], cut: int) -> None:
    owned = one_name_per_connection(owned)
    ownership = table(OWNERSHIP, owned)
    expected = counted(owned, sent)
    sums = MessagesByOwnership()
    for batch in (sent[:cut], sent[cut:]):
        sums.add(*columns(batch), changes_in(ownership))
    for found in (parts_of(ownership, *columns(sent)), parts_of(ownership, *sums.columns())):
        assert found.keys() == expected.keys()
        for name, parts in expected.items():
            assert found[name] == pytest.approx(tuple(parts)), name


def test_lines_may_be_numbered_as_high_as_64_bits_hold() -> None:
    top = 2**63 - 2
    owned = [
        {"consumer_name": "a", "consumer": 1, "from_seq": 1, "until_seq": top, "range_end": 2},
        {"consumer_name": "b", "consumer": 2, "from_seq": top, "until_seq": None, "range_end": 2},
    ]
    found = parts_of(table(OWNERSHIP, owned), *columns([(seq, 2) for seq in (1, top - 1, top)]))
    assert {name: part.by_hashes for name, part in found.items()} == {"a": 4, "b": 2}


def test_a_change_in_front_of_what_was_counted_is_refused() -> None:
    sums = MessagesByOwnership()
    sums.add(*columns([(5, 1)]), np.array([3]))
    with pytest.raises(ValueError, match="in front of deliveries"):
        sums.add(*columns([(6, 1)]), np.array([2, 3]))


def test_nobody_has_a_part_of_what_nobody_owned() -> None:
    assert parts_of(pa.Table.from_pylist([], schema=OWNERSHIP), *columns([(1, 1)])) == {}
