"""Find the messages of an interval that have a publish time behind its end.

A publish time is the producer's clock, and that may be ahead of the broker's. So an entry that was sent before an interval's
end may have a publish time behind it. Its row belongs to the next interval, where the table ``messages`` has it. The replay
of this interval needs it as well: a copy goes into the table ``messages_ahead``.

An entry is copied if its publish time is at most ``CLOCKS_AHEAD_US`` behind the end, and if an event of the interval names
it or a later entry of its topic: then it was stored before the end. Entries that were stored later are not copied.

Example: an interval ends at 12:00:00. 3:4 and 3:5 have the publish times 12:00:00.002 and 12:00:00.003, and a line of
11:59:59.999 says that 3:4 was sent. 3:4 is copied, 3:5 is not.

Uses Arrow, not Spark.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import codes_with_null, has, ints
from dispatch_core.recording.checkpoint import Position, read
from dispatch_core.recording.stored_files import parquet_file
from dispatch_core.recording.stream import moved_to
from spark_jobs.intervals import Interval
from spark_jobs.location import Location
from spark_jobs.warehouse.contracts import StagedFile
from spark_jobs.warehouse.staging import Sink

TABLE: Final = "messages_ahead"

#: Cluster and topic.
Topic = tuple[str, str]


def published_ahead(messages: pa.Table, span: Interval) -> pa.Table:
    """Return the messages with a publish time shortly behind the interval's end."""
    first_ms, until_ms = -(-span.end_us // 1000), -(-span.messages_until_us // 1000)
    published = messages["publish_time_ms"]
    latest_ms = pc.max(published).as_py()
    if latest_ms is None or latest_ms < first_ms:
        return messages.slice(0, 0)
    inside = pc.and_(pc.greater_equal(published, first_ms), pc.less(published, until_ms))
    return messages.filter(pc.fill_null(inside, False))


class HighestNamed:
    """The highest position of each topic that the events of an interval name."""

    def __init__(self) -> None:
        self._highest: dict[Topic, Position] = {}

    def add(self, events: pa.Table) -> None:
        """Take the next events, of any dispatchers."""
        clusters, cluster_names = codes_with_null(events["cluster"])
        topics, topic_names = codes_with_null(events["topic"])
        codes = clusters * len(topic_names) + topics
        present, codes = np.unique(codes, return_inverse=True)
        lists = events["positions"].combine_chunks()
        flat = pc.list_flatten(lists)
        of_topic = codes[ints(pc.list_parent_indices(lists))]
        ledgers, entries = (ints(pc.struct_field(flat, name)) for name in ("ledger_id", "entry_id"))
        highest = np.full((2, len(present)), -1, np.int64)
        np.maximum.at(highest[0], of_topic, ledgers)
        in_last_ledger = ledgers == highest[0][of_topic]
        np.maximum.at(highest[1], of_topic[in_last_ledger], entries[in_last_ledger])
        for code, *position in zip(present.tolist(), *highest.tolist(), strict=True):
            cluster, topic = divmod(code, len(topic_names))
            self._note((cluster_names[cluster], topic_names[topic]), (position[0], position[1]))
        for name in ("moved_to", "checkpoint_json"):
            if has(events, name) and events[name].null_count < events.num_rows:
                self._add_rare(events.filter(pc.is_valid(events[name])))

    def _add_rare(self, events: pa.Table) -> None:
        for row in range(events.num_rows):
            line = events.slice(row, 1)
            topic = line["cluster"][0].as_py(), line["topic"][0].as_py()
            self._note(topic, moved_to(line))
            text = line["checkpoint_json"][0].as_py()
            state = read(text) if text else None
            if state is not None:
                self._note(topic, max([*state.named, state.mark_delete or (-1, -1)]))

    def _note(self, topic: Topic, position: Position) -> None:
        if position > self._highest.get(topic, (-1, -1)):
            self._highest[topic] = position

    def rows(self) -> list[dict[str, Any]]:
        """Return the positions as rows: ``cluster``, ``topic``, ``ledger_id``, ``entry_id``."""
        return [
            {"cluster": cluster, "topic": topic, "ledger_id": ledger, "entry_id": entry}
            for (cluster, topic), (ledger, entry) in self._highest.items()
        ]


def highest_of(rows: Iterable[Mapping[str, Any]]) -> dict[Topic, Position]:
    """Join the rows that several tasks made (``HighestNamed.rows``)."""
    highest: dict[Topic, Position] = {}
    for row in rows:
        topic, position = (row["cluster"], row["topic"]), (row["ledger_id"], row["entry_id"])
        highest[topic] = max(position, highest.get(topic, position))
    return highest


def stage_named(
    files: Sequence[StagedFile], highest: Mapping[Topic, Position], warehouse: Location, span: Interval
) -> list[StagedFile]:
    """Stage those of the messages in ``files`` that lie up to the highest position of their topic, sorted by topic."""
    found = [rows for rows in _up_to(files, highest) if rows.num_rows]
    if not found:
        return []
    columns = ["cluster", "topic", "ledger_id", "entry_id"]
    rows = pa.concat_tables(found).sort_by([(name, "ascending") for name in columns])
    with Sink(warehouse, span, "named", undo=False) as sink:
        sink.write(TABLE, rows)
        return sink.close()


def digest_of(files: Sequence[StagedFile]) -> str:
    """Compute the digest of the rows of files, "" for none."""
    digest = hashlib.sha256()
    for rows in _rows_of(files):
        digest.update(json.dumps(rows, default=str).encode())
    return digest.hexdigest()[:32] if files else ""


def digests_by_topic(files: Sequence[StagedFile]) -> dict[tuple[str, ...], str]:
    """Compute the digest of the rows of each topic in files."""
    digests: dict[Topic, Any] = {}
    for rows in _rows_of(files):
        for row in rows:
            digest = digests.setdefault((row["cluster"], row["topic"]), hashlib.sha256())
            digest.update(json.dumps(row, default=str).encode())
    return {topic: digest.hexdigest()[:32] for topic, digest in digests.items()}


def _rows_of(files: Sequence[StagedFile]) -> Iterator[list[dict[str, Any]]]:
    for staged in files:
        with parquet_file(staged.path.url) as file:
            for batch in file.iter_batches():
                yield batch.to_pylist()


def _up_to(files: Sequence[StagedFile], highest: Mapping[Topic, Position]) -> Iterator[pa.Table]:
    for staged in files:
        with parquet_file(staged.path.url) as file:
            for batch in file.iter_batches():
                rows = pa.Table.from_batches([batch])
                clusters, cluster_names = codes_with_null(rows["cluster"])
                topics, topic_names = codes_with_null(rows["topic"])
                present, codes = np.unique(clusters * len(topic_names) + topics, return_inverse=True)
                names = [divmod(code, len(topic_names)) for code in present.tolist()]
                limits = [
                    highest.get((cluster_names[cluster], topic_names[topic]), (-1, -1))
                    for cluster, topic in names
                ]
                ledger_limit, entry_limit = np.array(limits, np.int64).reshape(-1, 2)[codes].T
                ledgers, entries = ints(rows["ledger_id"]), ints(rows["entry_id"])
                named = (ledgers < ledger_limit) | ((ledgers == ledger_limit) & (entries <= entry_limit))
                yield rows.filter(pa.array(named))
