"""Spans of hash ownership, compared hash by hash with a table of owners."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.broker.ownership import OPEN, OwnershipSpans

_HASHES = 24

owners = st.lists(st.sampled_from([None, 1, 2, 3]), min_size=_HASHES, max_size=_HASHES)


def _report(by_hash: list[int | None]) -> list[tuple[int, int, int]]:
    return [(at, at, owner) for at, owner in enumerate(by_hash) if owner is not None]


@given(st.lists(owners, max_size=8))
def test_spans_say_who_owned_each_hash_after_each_change(changes: list[list[int | None]]) -> None:
    """At any moment at most one open span covers a hash, and it is that of its owner."""
    spans = OwnershipSpans()
    for number, by_hash in enumerate(changes, 1):
        spans.reported(number * 10, number * 1000, _report(by_hash))
    rows = [
        dict(zip(spans.columns(), values, strict=True))
        for values in zip(*(column.tolist() for column in spans.columns().values()), strict=True)
    ]
    assert rows == sorted(rows, key=lambda row: (row["epoch"], row["start"]))
    for row in rows:
        assert row["from_t_us"] == row["from_seq"] * 100
        assert row["until_t_us"] == (OPEN if row["until_seq"] == OPEN else row["until_seq"] * 100)
    for number, by_hash in enumerate(changes, 1):
        seq = number * 10
        for value, owner in enumerate(by_hash):
            found = [
                row["owner"]
                for row in rows
                if row["start"] <= value <= row["end"]
                and row["from_seq"] <= seq
                and (row["until_seq"] == OPEN or seq < row["until_seq"])
            ]
            assert found == ([] if owner is None else [owner])


@given(st.lists(owners, min_size=1, max_size=6))
def test_a_span_ends_only_when_a_change_cuts_it(changes: list[list[int | None]]) -> None:
    spans = OwnershipSpans()
    for number, by_hash in enumerate(changes, 1):
        spans.reported(number, number, _report(by_hash))
    columns = spans.columns()
    for start, end, owner, first, last in zip(
        *(columns[name].tolist() for name in ("start", "end", "owner", "from_seq", "until_seq")), strict=True
    ):
        for number in range(first, last if last != OPEN else len(changes) + 1):
            assert all(changes[number - 1][value] == owner for value in range(start, end + 1))
        if last != OPEN:
            assert any(changes[last - 1][value] != owner for value in range(start, end + 1))
