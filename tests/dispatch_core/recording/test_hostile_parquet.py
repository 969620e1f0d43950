"""Parquet files whose parts contradict each other: Arrow uses the smaller number of rows, or none, without an error."""

import io
import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.dispatch_core.recording.reading import read

ROWS = 1000
#: 1000 as Thrift's compact protocol writes it: zigzag, seven bits a byte.
WRITTEN = b"\xd0\x0f"


def zigzag(number: int) -> bytes:
    return bytes([2 * number & 0x7F | 0x80, 2 * number >> 7])


@pytest.fixture(scope="module")
def whole() -> bytes:
    table = pa.table(
        {
            "topic": ["t"] * ROWS,
            "ledger_id": pa.array([1] * ROWS, pa.int64()),
            "entry_id": pa.array(range(ROWS), pa.int64()),
            "key": [f"k{row}" for row in range(ROWS)],
        }
    )
    stream = io.BytesIO()
    pq.write_table(table, stream, compression="none", write_statistics=False, store_schema=False)
    return stream.getvalue()


def places(data: bytes) -> list[int]:
    """Find the bytes of 1000: in the footer, in page headers, and by chance elsewhere."""
    return [at for at in range(4, len(data) - 8) if data[at : at + 2] == WRITTEN]


def footer_begins(data: bytes) -> int:
    return len(data) - 8 - int(struct.unpack("<I", data[-8:-4])[0])


@pytest.mark.parametrize("lie", [0, 500, 999, 1001, 8000])
def test_a_number_of_rows_that_others_contradict_loses_no_row_silently(whole, lie):
    found = places(whole)
    assert sum(at >= footer_begins(whole) for at in found) > 5
    for at in found:
        result = read(whole[:at] + zigzag(lie) + whole[at + 2 :], "messages.parquet", threads=1)
        assert result.counts.file_problems == 1 or result.counts.lines == ROWS, at


def test_a_row_group_that_says_fewer_rows_than_its_columns_is_refused(whole):
    last = places(whole)[-1]  # the row group's own number stands behind its columns
    result = read(whole[:last] + zigzag(999) + whole[last + 2 :], "messages.parquet", threads=1)
    ((line, field, reason),) = result.refused
    assert (line, field) == (None, None)
    assert reason.startswith(
        "no readable Parquet file: its footer says 999 rows of a row group and 1000 of column"
    )


def test_all_rows_are_read_of_the_file_as_it_was(whole):
    result = read(whole, "messages.parquet", threads=1)
    assert (result.counts.lines, result.counts.accepted, result.refused) == (ROWS, ROWS, [])
