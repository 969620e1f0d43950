"""Small files that unpack to much: reading ends at the limit, and their rows are counted as in all other files.

The runner of the cases checks that the process does not grow.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from random import Random
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from dispatch_core.recording.files import Limits
from dispatch_core.recording.reader import read_file
from dispatch_core.recording.schema import EVENTS
from tests.dispatch_core.recording.reading import read
from tests.fuzz.lines import Content, good
from tests.fuzz.reading import check_quarantine

Made = tuple[bytes, Callable[[], int]]

_BEYOND: Final = "bytes after decompression: the rest was not read"


def lines(rng: Random) -> Made:
    """Make a compressed file of some kilobytes with megabytes of lines or of one line, at or above the limits."""
    content: Content = rng.choice(("events", "messages"))
    part = rng.choice(
        (b"x\n", b"{}\n", b"\n", b"x", b"\0", b"[", b'{"a":', good(rng, content, 1).data + b"\n")
    )
    text = part * (rng.choice((30_000, 300_000)) // len(part))
    if rng.random() < 0.3:
        text = good(rng, content, 1).data + b"\n" + text
    limits = Limits(
        line_bytes=rng.choice((1000, 1 << 20)),
        file_bytes=rng.choice((1000, 20_000, len(text) - 1, len(text), 1 << 40)),
    )
    ending = rng.choice(("gz", "zst"))
    data = gzip.compress(text) if ending == "gz" else zstandard.compress(text)
    name = f"{content}.jsonl.{ending}"

    def check() -> int:
        result = read(data, name, limits=limits, threads=1)
        check_quarantine(result, name)
        beyond = len(text) > limits.file_bytes
        assert result.counts.file_problems == beyond, (result.counts, len(text), limits)
        if beyond:
            assert _BEYOND in result.refused[-1][2]
        kept = text[: limits.file_bytes]
        assert result.counts.lines + result.counts.blank <= kept.count(b"\n") + 1
        return 1

    return data, check


def columns(rng: Random) -> Made:
    """Make a Parquet file in which all rows share one long text or list."""
    rows = rng.choice((1, 100, 2000))
    size = rng.choice((10, 5000, 100_000))
    limits = Limits(line_bytes=rng.choice((4000, 16 << 20)))
    key = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["k" * size])
    if rng.random() < 0.5:
        table = pa.table(
            {"topic": ["t"] * rows, "ledger_id": [1] * rows, "entry_id": list(range(rows)), "key": key}
        )
        name, long = "messages.parquet", size > limits.line_bytes
    else:
        base = {"topic": ["t"] * rows, "subscription": ["s"] * rows, "seq": list(range(1, rows + 1))}
        items = min(size, 10**6 // rows)
        hashes = pa.array([[7] * items] * rows, EVENTS.field("hashes").type)
        table = pa.table(base | {"t_us": [1] * rows, "kind": ["end"] * rows, "hashes": hashes, "note": key})
        name, long = "events.parquet", size > limits.line_bytes
    stream = io.BytesIO()
    pq.write_table(table, stream, compression=rng.choice(("zstd", "none")), store_schema=rng.random() < 0.5)
    data = stream.getvalue()

    def check() -> int:
        reading = read_file(io.BytesIO(data), name=name, limits=limits, threads=1)
        for _ in reading:  # keep no batch: together they would be the bomb
            pass
        assert reading.counts.lines == rows, reading.counts
        assert reading.counts.quarantined == (rows if long else 0), reading.counts
        return 1

    return data, check


READERS: Final[dict[str, Callable[[Random], Made]]] = {"bombs": lines, "bombs_parquet": columns}
