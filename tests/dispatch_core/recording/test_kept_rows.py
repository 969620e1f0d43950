"""Rows as bytes come back as they were, in the columns that are asked for."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from dispatch_core.recording import kept_rows


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    rows = pa.table({"seq": range(100_000), "kind": pa.array(["sent", "ack"] * 50_000).dictionary_encode()})
    path = tmp_path / f"rows{kept_rows.SUFFIX}"
    path.write_bytes(kept_rows.as_bytes(rows))
    file = kept_rows.KeptRows(str(path))
    parts = list(file.rows(0, ["kind", "seq", "not there"]))
    assert len(parts) > 1
    assert pa.concat_tables(parts).select(rows.column_names).equals(rows)
    assert file.shared_rows(0, {}, lambda table: table).equals(rows)
