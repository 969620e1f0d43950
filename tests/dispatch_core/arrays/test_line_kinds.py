"""Lines by their kind: as the kinds say, and kept no longer than the table."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from dispatch_core.arrays import line_kinds
from dispatch_core.arrays.line_kinds import has_kind, of_kinds, rows_of_kind

KINDS = ["sent", None, "ack", "sent", "flow"]
PLAIN = pa.chunked_array([KINDS], pa.string())
#: The words of two files, with one that both have.
TWICE = pa.chunked_array(
    [
        pa.DictionaryArray.from_arrays(
            pa.array([0, None, 1, 2, 3], pa.int32()), pa.array(["sent", "ack", "sent", "flow"])
        )
    ]
)


@pytest.mark.parametrize(
    "column", [PLAIN, PLAIN.dictionary_encode(), TWICE], ids=["plain", "encoded", "twice"]
)
def test_lines_of_some_kinds(column: pa.ChunkedArray) -> None:
    events = pa.table({"kind": column})
    for _ in range(2):  # looked up, and known
        assert of_kinds(events, "sent").tolist() == [True, False, False, True, False]
        assert rows_of_kind(events, "ack", "flow").tolist() == [2, 4]
        assert has_kind(events, "nack", "flow")
        assert not has_kind(events, "nack")
        assert not of_kinds(events.slice(0, 0), "sent").any()


def test_another_table_has_its_own_kinds() -> None:
    events = pa.table({"kind": PLAIN})
    assert rows_of_kind(events, "sent").tolist() == [0, 3]
    assert rows_of_kind(events.slice(1), "sent").tolist() == [2]


def test_a_slice_has_only_the_kinds_of_its_rows() -> None:
    events = pa.table({"kind": PLAIN.dictionary_encode()}).slice(0, 2)
    assert has_kind(events, "sent")
    assert not has_kind(events, "flow", "ack")
    assert not len(rows_of_kind(events, "flow"))


def test_kinds_are_forgotten_with_their_table() -> None:
    gc.collect()
    before = len(line_kinds._KNOWN)
    events = pa.table({"kind": PLAIN})
    assert has_kind(events, "sent")
    assert len(line_kinds._KNOWN) == before + 1
    del events
    gc.collect()
    assert len(line_kinds._KNOWN) == before


def test_of_a_large_table_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_kinds, "_MOST_ROWS", 4)
    events = pa.table({"kind": PLAIN})
    assert of_kinds(events, "sent").tolist() == [True, False, False, True, False]
    assert id(events) not in line_kinds._KNOWN
