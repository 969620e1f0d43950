"""Do the work of a small stage in this process: as much of a Spark session as the stages use, without Spark.

Starting Spark takes several seconds, which an hour of a few small dispatchers would pay again in every stage. Tasks read and
write files themselves, with Arrow, so they run here as they run in Spark's workers. Rows are sorted as Spark sorts them:
missing values first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Batches = Iterator[pa.RecordBatch]


def one_process() -> SparkSession:
    """Return a stand-in for a Spark session."""
    return cast("SparkSession", _Session())


class _Rows:
    """Rows of Python, as an RDD has them."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self.rows = list(rows)

    def map(self, function: Callable[[Any], Any]) -> _Rows:
        return _Rows(map(function, self.rows))

    def flatMap(self, function: Callable[[Any], Iterable[Any]]) -> _Rows:  # noqa: N802 - Spark's name
        return _Rows(made for row in self.rows for made in function(row))

    def collect(self) -> list[Any]:
        return self.rows


class _Frame:
    """A table of Arrow, as a data frame."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def mapInArrow(self, function: Callable[[_Batches], _Batches], schema: Any) -> _Frame:  # noqa: N802 - as above
        made = list(function(iter(self._table.to_batches())))
        wanted = _arrow(schema)
        return _Frame(
            pa.concat_tables([wanted.empty_table(), *(pa.Table.from_batches([b]).cast(wanted) for b in made)])
        )

    def transform(self, function: Callable[..., _Frame], *arguments: Any) -> _Frame:
        return function(self, *arguments)

    def repartition(self, _partitions: int, *_columns: str) -> _Frame:
        return self

    def sortWithinPartitions(self, *columns: str) -> _Frame:  # noqa: N802 - as above
        order = pc.sort_indices(self._table, [(name, "ascending", "at_start") for name in columns])
        return _Frame(self._table.take(order))

    def toArrow(self) -> pa.Table:  # noqa: N802 - as above
        return self._table


class _Tracker:
    """Reports no jobs: the work is done before anybody could look."""

    def getActiveJobsIds(self) -> list[int]:  # noqa: N802 - as above
        return []


class _Context:
    defaultParallelism = 1  # noqa: N815 - as above

    def parallelize(self, rows: Sequence[Any], _tasks: int) -> _Rows:
        return _Rows(rows)

    def statusTracker(self) -> _Tracker:  # noqa: N802 - as above
        return _Tracker()


class _Session:
    sparkContext = _Context()  # noqa: N815 - as above

    def createDataFrame(self, rows: _Rows, schema: Any) -> _Frame:  # noqa: N802 - as above
        return _Frame(pa.Table.from_pylist(rows.rows, schema=_arrow(schema)))


def _arrow(schema: Any) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema)
