"""Read rows of a table's data files, skipping row groups that have none of the wanted topics.

Tables hold logs one after the other, so the smallest and the greatest topic of a row group tell if it has to be read.
Delta is not loaded here, so that Spark tasks can import it cheaply.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from dispatch_core.arrays.columns import marked
from dispatch_core.recording.shared_groups import Group, about
from dispatch_core.recording.stored_files import parquet_file

_ROWS_AT_ONCE: Final = 1 << 17


def file_rows(
    files: Sequence[str],
    columns: Sequence[str],
    *,
    topics: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of some files in batches of at least one row, texts as dictionaries.

    ``topics`` (sorted) and ``kinds``: leave out the rows of all others.
    """
    for path in files:
        known = about(path)
        groups = [at for at, group in enumerate(known.groups) if _may_hold(group, topics)]
        # Texts repeat: as dictionaries they take less memory and are faster to filter and to group by.
        schema = known.metadata.schema.to_arrow_schema()
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        with parquet_file(path, metadata=known.metadata, read_dictionary=texts) as file:
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
