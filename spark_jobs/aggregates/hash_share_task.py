"""Task that computes each consumer's fair share of messages from its logs' rows of ``ownership`` and ``deliveries``.

Runs in Spark's Python workers (and in any process); knows files and Arrow, not Spark. Rows never pass through the JVM: only
a row per log and consumer name goes back. Memory is bounded by the spans of hashes of the task's logs: deliveries, however
many, are summed up row group by row group.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import Ints, encoded, ints
from dispatch_core.audit.hash_share import fair_parts, messages_of
from dispatch_core.audit.sentences.names import names_in
from dispatch_core.recording.shared_groups import run_starts
from spark_jobs.warehouse.contracts import LOG, in_one
from spark_jobs.warehouse.file_rows import file_rows
from spark_jobs.worker_memory import take_little_memory

LOGS: Final = pa.schema([*((name, pa.string()) for name in LOG[:3]), ("incarnation", pa.int64())])
#: ``fair.fair_parts`` of each log; ``owned_by``: the connections of that name that owned anything.
FAIR: Final = pa.schema(
    [
        *LOGS,
        pa.field("name", pa.string()),
        pa.field("by_hashes", pa.float64()),
        pa.field("by_number", pa.float64()),
        pa.field("owned_by", pa.list_(pa.int64())),
    ]
)
_RANGES: Final = ("consumer", "consumer_name", "from_seq", "until_seq", "range_start", "range_end")
#: ``log`` and ``word`` (a consumer's name) are numbers within a task.
_SPANS: Final = pa.schema(
    [pa.field(name, pa.int64()) for name in ("log", "consumer", "word", "from_seq", "until_seq", "hashes")]
)

Log = tuple[str, str, str, int]


def fair_of_logs(
    batches: Iterator[pa.RecordBatch], *, ownership: Sequence[str], deliveries: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """``mapInArrow`` over ``LOGS`` → ``FAIR``; the files are those of the interval."""
    take_little_memory()
    logs = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    if logs:
        yield from fair_of(logs, ownership, deliveries).to_batches()


def fair_of(logs: Sequence[Log], ownership: Sequence[str], deliveries: Sequence[str]) -> pa.Table:
    """``FAIR`` of these logs, from the data files of ``ownership`` and ``deliveries``; rows of other logs are left out."""
    numbers = {log: number for number, log in enumerate(logs)}
    owned = _owned(numbers, ownership)
    in_order = [("log", "ascending"), ("name", "ascending")]
    parts = fair_parts(owned, _sent(numbers, owned, deliveries), ["log"]).sort_by(in_order)
    # The same pairs of log and name, in the same order.
    by = owned.group_by(["log", "name"], use_threads=False).aggregate([("consumer", "distinct")])
    whose = parts["log"].to_pylist()
    columns = [pa.array([logs[one][at] for one in whose], FAIR.types[at]) for at in range(len(LOG))]
    columns += [parts[name] for name in ("name", "by_hashes", "by_number")]
    return pa.table([*columns, by.sort_by(in_order)["consumer_distinct"]], schema=FAIR).combine_chunks()


def _owned(numbers: dict[Log, int], files: Sequence[str]) -> pa.Table:
    """Sum up the hashes that each consumer of a log owned at each time: rows of ``fair_parts``."""
    words: dict[str | None, int] = {}
    summed = []
    for rows, log in _rows_of_logs(numbers, files, _RANGES):
        codes, names = encoded(rows["consumer_name"])
        known = np.array([words.setdefault(one, len(words)) for one in names.to_pylist()], np.int64)
        absent = np.asarray(pc.is_null(rows["consumer_name"]))
        word = np.where(absent, words.setdefault(None, len(words)), known[codes] if len(known) else 0)
        spans = rows.select(["consumer", "from_seq", "until_seq"])
        spans = spans.append_column("log", pa.array(log)).append_column("word", pa.array(word))
        hashes = ints(rows["range_end"]) - ints(rows["range_start"]) + 1
        summed.append(_summed(spans.append_column("hashes", pa.array(hashes))))
    # The ranges of one time may stand in two row groups.
    spans = _summed(pa.concat_tables([_SPANS.empty_table(), *summed]))
    named = pa.array(list(words), pa.string()).take(spans["word"].combine_chunks())
    spans = spans.append_column("consumer_name", pa.chunked_array([named]))
    return spans.append_column("name", names_in(spans))


def _summed(spans: pa.Table) -> pa.Table:
    found = spans.group_by(_SPANS.names[:-1], use_threads=False).aggregate([("hashes", "sum")])
    return found.rename_columns({"hashes_sum": "hashes"}).select(_SPANS.names).cast(_SPANS)


def _sent(numbers: dict[Log, int], owned: pa.Table, files: Sequence[str]) -> pa.Table:
    """Messages sent, summed over the stretches of each log in which nothing changed hands: rows of ``fair_parts``."""
    changes = _changes(len(numbers), owned)
    sums = [np.zeros(len(mine) + 1) for mine in changes]
    for rows, log in _rows_of_logs(numbers, files, ("seq", "num_messages")):
        seq, messages = ints(rows["seq"]), ints(messages_of(rows))
        borders = [0, *(np.flatnonzero(np.diff(log)) + 1).tolist(), len(log)]
        for low, high in pairwise(borders):
            mine = int(log[low])
            # A change holds from its own line on.
            stretch = np.searchsorted(changes[mine], seq[low:high], "right")
            sums[mine] += np.bincount(stretch, messages[low:high], len(sums[mine]))
    # A stretch is known by the change at its beginning; what is sent before the first one by a line before that.
    seqs = [np.concatenate([mine[:1] - 1, mine]) if len(mine) else np.zeros(1, np.int64) for mine in changes]
    log = np.repeat(np.arange(len(numbers)), [len(one) for one in seqs])
    table = pa.table({"log": log, "seq": np.concatenate(seqs), "messages": np.concatenate(sums)})
    return table.filter(pc.greater(table["messages"], 0)).cast(
        pa.schema([(name, pa.int64()) for name in table.column_names])
    )


def _changes(logs: int, owned: pa.Table) -> list[Ints]:
    """The lines of each log at which hashes changed hands, in order."""
    ended = owned.filter(pc.is_valid(owned["until_seq"]))
    log = np.concatenate([ints(owned["log"]), ints(ended["log"])])
    seq = np.concatenate([ints(owned["from_seq"]), ints(ended["until_seq"])])
    order = np.lexsort((seq, log))
    log, seq = log[order], seq[order]
    new = np.ones(len(log), bool)
    new[1:] = (log[1:] != log[:-1]) | (seq[1:] != seq[:-1])
    log, seq = log[new], seq[new]
    return np.split(seq, np.searchsorted(log, np.arange(1, logs)))


def _rows_of_logs(
    numbers: dict[Log, int], files: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[pa.Table, Ints]]:
    """Rows of the wanted logs, row group by row group, each with the number of its log."""
    topics = sorted({log[1] for log in numbers})
    for rows in file_rows(files, [*LOG, *columns], topics=topics):
        starts = run_starts([in_one(rows[name]) for name in LOG])
        first = rows.select(LOG).take(pa.array(starts)).to_pylist()
        known = np.array([numbers.get(tuple(row.values()), -1) for row in first], np.int64)
        log = np.repeat(known, np.diff([*starts, rows.num_rows]))
        wanted = log >= 0
        if wanted.any():
            yield (rows, log) if wanted.all() else (rows.filter(pa.array(wanted)), log[wanted])
