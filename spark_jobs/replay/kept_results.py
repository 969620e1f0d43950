"""Keep the results of dispatchers whose rows are unchanged when a stale interval is replayed again.

An interval is stale when rows of any dispatcher up to its end have changed since it was replayed. The results of a
dispatcher depend on its own rows, and on its topic's messages, alone. So those of all others stand already in the tables:
their data files stay, and a file that also has rows of dispatchers that are replayed again is written without these.

Example: 1,000 dispatchers were replayed, and then a file of one more comes late. It is replayed, and its rows are added in
files of their own. Of the tables nothing else is read or written.

This is done if the tables hold what the earlier replay published, that was made by the same code with the same limits and
settings, and is judged as of the same moments. Otherwise all dispatchers are replayed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording.schema import DISPATCHER_KEY
from dispatch_core.recording.stored_files import parquet_file
from dispatch_core.tables import REPLAY_TABLES
from spark_jobs.location import Location
from spark_jobs.replay.dispatcher_files import groups_in
from spark_jobs.replay.earlier_snapshots import Files
from spark_jobs.replay.snapshot_files import TABLE as SNAPSHOTS
from spark_jobs.replay.snapshot_files import Group, core_digest, digest_of_ends
from spark_jobs.warehouse.balance_window import added_kinds
from spark_jobs.warehouse.contracts import StagedFile, conform, file_schema, joined_file
from spark_jobs.warehouse.delta_tables import Publication, rows_of_files
from spark_jobs.warehouse.run_ledger import Ledger, without_end
from spark_jobs.warehouse.staging import write_file

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: A table that a later stage adds rows of some kinds to.
_ADDED_TO: Final = "anomalies"


@dataclass(frozen=True, slots=True)
class KeptResults:
    """The part of an earlier replay of an interval that stays.

    Attributes:
        dispatchers: number of those whose results stay.
        files: by table, the data files that stay as they are.
        rewritten: by table, files that take the place of others: without the rows that do not stay.
        rows: by table, the number of rows in the files that stay.
    """

    dispatchers: int = 0
    files: dict[str, list[str]] = field(default_factory=dict)
    rewritten: dict[str, list[StagedFile]] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)


NOTHING_KEPT: Final = KeptResults()


def made_by(settings: str) -> dict[str, str]:
    """Return what results depend on beside the rows and the moment, as the summary of a replay names it."""
    return {"settings_digest": settings, "code_digest": core_digest()}


def kept_results(
    spark: SparkSession, run: Publication, ledger: Ledger, settings: str, found: Sequence[dict[str, Any]]
) -> tuple[KeptResults, list[dict[str, Any]]]:
    """Return what stays of the interval's results, and which of the dispatchers ``found`` are to be replayed.

    ``settings``: digest of the limits and of what holds in place of the logs' headers.
    """
    published = _published(run, ledger, settings)
    if published is None:
        return NOTHING_KEPT, list(found)
    snapshots = Files(run.warehouse, run.span).rows_of(run.span, ledger, settings)
    again, staying = [], set[Group]()
    for dispatcher in found:
        group = tuple(dispatcher[name] for name in DISPATCHER_KEY)
        row = snapshots.usable.get(group)
        if row is not None and row.ends_lost == digest_of_ends(dispatcher["ends_lost"]):
            staying.add(group)
        else:
            again.append(dispatcher)
    replayed = sum(not dispatcher["idle"] for dispatcher in again)
    kept = sum(not dispatcher["idle"] for dispatcher in found) - replayed
    if not kept:
        return NOTHING_KEPT, list(found)
    results = KeptResults(kept, {name: list(files) for name, files in published.files.items()})
    listed = snapshots.usable.keys() | snapshots.unfit
    if kept < published.dispatchers or published.added_to or not listed <= staying:
        _leave_out_others(spark, run, published, staying, results)
    for name, files in results.files.items():
        results.rows[name] = sum(published.files[name][path] for path in files)
    return results, again


@dataclass(frozen=True, slots=True)
class _Published:
    """An earlier replay in the tables: how many dispatchers, and by table the data files with the number of their rows.

    ``added_to``: another stage has added rows since.
    """

    dispatchers: int
    files: dict[str, dict[str, int]]
    added_to: bool


def _published(run: Publication, ledger: Ledger, settings: str) -> _Published | None:
    """Return what stands in the tables if it is what the interval's last replay published, and may stay in part."""
    last = ledger.newest("replay").get(run.span.start_us, {})
    history, now = last.get("history_digest", ""), ledger.history_of(run.span)
    is_stale = history != now and without_end(history)[1] == without_end(now)[1]
    if not is_stale or any(last.get(name) != value for name, value in made_by(settings).items()):
        return None
    added = ledger.newest("aggregates").get(run.span.start_us, {})
    added_to = _ADDED_TO in added.get("rows", {}) and ledger.is_later("aggregates", "replay", run.span)
    files = {name: rows_of_files(run.warehouse, name, run.span) for name in (*REPLAY_TABLES, SNAPSHOTS)}
    for name, of_table in files.items():
        by = added if added_to and name == _ADDED_TO else last
        rows, expected = sum(of_table.values()), {"snapshots": last.get("snapshots"), **by["rows"]}[name]
        if rows != expected or (rows and run.before[name] != by.get("publication")):
            return None
    return _Published(last["dispatchers"], files, added_to)


def _leave_out_others(
    spark: SparkSession, run: Publication, published: _Published, staying: set[Group], results: KeptResults
) -> None:
    """Write the files that have rows of other dispatchers again, without these."""
    kinds = added_kinds(run.span)
    asked = [(name, path, kinds) for name, files in published.files.items() for path in files]
    context = spark.sparkContext
    looked = context.parallelize(asked, max(1, len(asked))).map(_look).collect()
    others = {
        (name, path): sorted(groups - staying)
        for name, path, groups, has_added in looked
        if has_added or not groups <= staying
    }
    work = [(*file, groups, kinds) for file, groups in others.items()]
    written = context.parallelize(work, max(1, len(work))).map(_without).collect()
    for (name, path), row in zip(others, written, strict=True):
        file = StagedFile.of_json(row)
        run.staged([file])
        results.files[name].remove(path)
        if file.rows:
            results.rewritten.setdefault(name, []).append(file)


def _look(asked: tuple[str, str, tuple[str, ...]]) -> tuple[str, str, set[Group], bool]:
    """One data file of a table, in a Spark task: its dispatchers, and if it has rows of kinds that another stage adds."""
    name, path, kinds = asked
    has_added = False
    if name == _ADDED_TO:
        with parquet_file(path) as file:
            has_added = bool(pc.any(_added(file.read(columns=["kind"]), kinds)).as_py())
    return name, path, set(groups_in(path, DISPATCHER_KEY)), has_added


def _added(rows: pa.Table, kinds: tuple[str, ...]) -> pa.ChunkedArray:
    return pc.is_in(rows["kind"], value_set=pa.array(kinds))


def _without(asked: tuple[str, str, Collection[Group], tuple[str, ...]]) -> dict[str, Any]:
    """Write a data file again without the rows of some dispatchers and of other stages, in a Spark task."""
    name, path, groups, kinds = asked
    names = [pa.array([group[at] for group in groups], pa.string()) for at in range(len(DISPATCHER_KEY))]
    others = pa.table(names, names=list(DISPATCHER_KEY))

    def rest() -> Iterator[pa.Table]:
        with parquet_file(path) as file:
            for number in range(file.metadata.num_row_groups):
                rows = file.read_row_group(number, use_threads=False)
                numbers = pa.array(range(rows.num_rows), pa.int64())
                of_rows = rows.select(list(DISPATCHER_KEY)).append_column("row", numbers)
                left = of_rows.join(others, list(DISPATCHER_KEY), join_type="left anti", use_threads=False)
                rows = rows.take(left["row"].sort())
                if name == _ADDED_TO:
                    rows = rows.filter(pc.invert(_added(rows, kinds)))
                yield conform(rows, file_schema(name))

    return write_file(name, joined_file(Location.of(path)), rest()).as_json()
