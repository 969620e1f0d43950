"""Helpers of these tests: read bytes or lines with the product's reader and return tables."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording.identity import IDENTITY
from dispatch_core.recording.reader import FileCounts, Limits, read_file
from dispatch_core.recording.schema import EVENTS, MESSAGES, QUARANTINE

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings"
SAMPLES = sorted(folder.parent for folder in RECORDINGS.rglob("trace.jsonl.gz"))

TOPIC = "persistent://public/default/t"
HEADER = {"format": "pulsar-consumer-events", "format_version": 1, "topic": TOPIC, "subscription": "s"}


@dataclass
class Read:
    messages: pa.Table
    events: pa.Table
    quarantine: pa.Table
    counts: FileCounts

    @property
    def refused(self) -> list[tuple[int | None, str | None, str]]:
        """List line, field and reason of each quarantined line."""
        return [(row["source_line"], row["field"], row["reason"]) for row in self.quarantine.to_pylist()]

    def same_as(self, other: Read) -> bool:
        counts = [self.counts.lines, self.counts.about_file, self.counts.accepted, self.counts.quarantined]
        others = [
            other.counts.lines,
            other.counts.about_file,
            other.counts.accepted,
            other.counts.quarantined,
        ]
        return counts == others and all(
            ours.combine_chunks().equals(theirs.combine_chunks())
            for ours, theirs in zip(self._tables(), other._tables(), strict=True)
        )

    def _tables(self) -> list[pa.Table]:
        # A header row is somewhere before its dispatcher's events; its exact place is not defined.
        is_header = pc.equal(self.events["kind"], "header")
        headers = self.events.filter(is_header).sort_by([(name, "ascending") for name in IDENTITY])
        return [self.messages, headers, self.events.filter(pc.invert(is_header)), self.quarantine]


def read(
    source: Any,
    name: str = "events.jsonl",
    *,
    limits: Limits | None = None,
    line_by_line: bool = False,
    threads: int | None = None,
) -> Read:
    """Read bytes, a list of lines (objects become JSON) or a path, and check that the counts add up."""
    if isinstance(source, list):
        source = b"".join(line_of(line) + b"\n" for line in source)
    if isinstance(source, bytes):
        source = io.BytesIO(source)
    reading = read_file(
        source, name=name, limits=limits or Limits(), line_by_line=line_by_line, threads=threads
    )
    batches: dict[str, list[pa.RecordBatch]] = {"messages": [], "events": [], "quarantine": []}
    for batch in reading:
        batches[batch.table].append(batch.rows)
    counts = reading.counts
    made = Read(
        pa.Table.from_batches(batches["messages"], schema=MESSAGES),
        pa.Table.from_batches(batches["events"], schema=EVENTS),
        pa.Table.from_batches(batches["quarantine"], schema=QUARANTINE),
        counts,
    )
    assert counts.lines == counts.about_file + counts.accepted + counts.quarantined
    assert counts.quarantined + counts.file_problems == len(made.quarantine)
    headers = made.events["kind"].to_pylist().count("header")
    assert counts.accepted == len(made.messages) + len(made.events) - headers
    return made


def line_of(line: Any) -> bytes:
    return line if isinstance(line, bytes) else json.dumps(line).encode()


def flow(seq: int, **fields: Any) -> dict[str, Any]:
    return {"seq": seq, "t_us": 1_000_000 + seq, "kind": "flow", "consumer": 1, "permits": 10} | fields


def sent(seq: int, **fields: Any) -> dict[str, Any]:
    line = {"seq": seq, "t_us": 1_000_000 + seq, "kind": "sent", "consumer": 1}
    return line | {"positions": ["3:0", "3:1"], "batch_sizes": [1, 2]} | fields


def message(entry: int, **fields: Any) -> dict[str, Any]:
    line = {
        "topic": TOPIC,
        "position": f"3:{entry}",
        "key": f"k{entry}",
        "producer": "p",
        "sequence_id": entry,
    }
    return line | {"publish_time_ms": 1000, "num_messages": 1, "size_bytes": 5} | fields
