"""Rows of a table's data files, row group by row group: only those groups that may hold some of the wanted topics.

Tables hold whole logs one behind the other, so the least and the greatest topic of a row group say whether it need be read.
No table format here: tasks read with it, too.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from dispatch_core.arrays.columns import marked
from dispatch_core.recording.shared_groups import Group, about

_ROWS_AT_ONCE: Final = 1 << 17


def file_rows(
    files: Sequence[str],
    columns: Sequence[str],
    *,
    topics: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """Some rows at a time, never none, texts dictionary encoded.

    ``topics`` (sorted), ``kinds``: rows with others are left out.
    """
    for path in files:
        known = about(path)
        groups = [at for at, group in enumerate(known.groups) if _may_hold(group, topics)]
        # Texts repeat: what is filtered and told apart by them stays as few texts and many numbers.
        texts = [one.name for one in known.metadata.schema.to_arrow_schema() if pa.types.is_string(one.type)]
        with pq.ParquetFile(path, metadata=known.metadata, read_dictionary=texts) as file:
            for batch in file.iter_batches(_ROWS_AT_ONCE, groups, list(columns), use_threads=False):
                rows = pa.Table.from_batches([batch])
                for column, values in (("topic", topics), ("kind", kinds)):
                    if values is not None:
                        rows = rows.filter(pa.array(marked(rows[column], *values)))
                if rows.num_rows:
                    yield rows


def _may_hold(group: Group, topics: Sequence[str] | None) -> bool:
    """Tell if a row group may hold one of these topics (sorted); without statistics, it may."""
    between = group.between.get("topic")
    if topics is None or between is None:
        return True
    first = bisect_left(topics, between[0])
    return first < len(topics) and topics[first] <= between[1]
