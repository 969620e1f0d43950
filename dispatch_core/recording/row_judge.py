"""Judge the rows of one log file: accept, count, or put into quarantine.

The readers of text (``reader``) and of Parquet (``parquet``) pass rows as columns. Because every row is judged here, both
forms of a log give the same rows and the same counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.batches import to_batch
from dispatch_core.recording import rows as rules
from dispatch_core.recording.batch_sizes import UNREAD
from dispatch_core.recording.files import Content, Limits
from dispatch_core.recording.identity import IDENTITY, HeaderRow, Headers
from dispatch_core.recording.schema import EVENTS, KINDS, MESSAGES, QUARANTINE

TableName = Literal["messages", "events", "quarantine"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows for one of the three tables, in the order of the file."""

    table: TableName
    rows: pa.RecordBatch


@dataclass(slots=True)
class FileCounts:
    """Counts of a file's lines (Parquet: rows) by outcome; complete when the file has been read to its end.

    ``lines`` = ``about_file`` + ``accepted`` + ``quarantined``, always. Blank lines are counted apart.
    ``about_file`` are headers, and footers that name no dispatcher. ``file_problems`` are quarantine rows
    about the file as a whole. ``unknown_kinds`` counts accepted lines of kinds that this release does not
    know, ``unknown_fields`` accepted message lines with a field that cannot be read; ``first_unknown`` has
    place and reason of the first one for each field.
    """

    lines: int = 0
    about_file: int = 0
    accepted: int = 0
    quarantined: int = 0
    blank: int = 0
    file_problems: int = 0
    unknown_kinds: Counter[str] = field(default_factory=Counter)
    unknown_fields: Counter[str] = field(default_factory=Counter)
    first_unknown: dict[str, str] = field(default_factory=dict)

    def add(self, other: FileCounts) -> None:
        """Add another file's counts."""
        self.lines += other.lines
        self.about_file += other.about_file
        self.accepted += other.accepted
        self.quarantined += other.quarantined
        self.blank += other.blank
        self.file_problems += other.file_problems
        self.unknown_kinds.update(other.unknown_kinds)
        self.unknown_fields.update(other.unknown_fields)
        self.first_unknown = {**other.first_unknown, **self.first_unknown}


class Refusals:
    """The refused lines of one file, and the counts of all of its lines."""

    def __init__(self, name: str, limits: Limits) -> None:
        """Begin before the first row; ``name`` stands in ``source_file`` of every row."""
        self.name = name
        self.limits = limits
        self.counts = FileCounts()
        self._refused: list[dict[str, Any]] = []

    def refuse(self, line: int, column: str | None, reason: str, raw: bytes, *, cut: bool = False) -> None:
        """Put a line into quarantine."""
        self.counts.quarantined += 1
        limit = self.limits.raw_bytes
        self._refused.append(
            {
                "source_file": self.name,
                "source_line": line,
                "field": column,
                "reason": reason,
                "raw": raw[:limit],
                "raw_truncated": cut or len(raw) > limit,
            }
        )

    def refuse_file(self, reason: str) -> None:
        """Put a problem of the file as a whole into quarantine."""
        self.counts.file_problems += 1
        self._refused.append({"source_file": self.name, "reason": reason, "raw_truncated": False})

    def quarantined(self) -> Iterator[Batch]:
        """The quarantine rows gathered since the last call, in the order of the lines."""
        if self._refused:
            refused, self._refused = self._refused, []
            refused.sort(key=lambda row: row.get("source_line") or 1 << 62)
            yield Batch("quarantine", pa.RecordBatch.from_pylist(refused, schema=QUARANTINE))


class RowJudge(Refusals):
    """The judgement of one file's rows; ``counts`` is complete when all of them have been accepted or refused."""

    def __init__(self, name: str, content: Content, limits: Limits) -> None:
        """Begin before the first row.

        Args:
            name: stands in ``source_file`` of every row.
            content: messages or events.
            limits: bounds on the size of lines, files and quarantined bytes.
        """
        super().__init__(name, limits)
        self.content: Content = content
        self.headers = Headers(content)
        self._schema = MESSAGES if content == "messages" else EVENTS

    def faults(self, rows: int) -> rules.Faults:
        """No faults yet, for a block of rows of this file."""
        return rules.Faults(rows, rules.SPARED if self.content == "messages" else frozenset())

    def accept(
        self,
        columns: rules.Columns,
        count: int,
        faults: rules.Faults,
        about_file: npt.NDArray[np.bool_],
        raw: Callable[[int], bytes],
    ) -> Iterator[Batch]:
        """Judge rows, quarantine those at fault, yield the others. ``raw(row)`` gives a row's bytes."""
        if about_file.any():
            # Lines about the file belong to no dispatcher, so the rules for rows do not apply to them.
            for row in np.flatnonzero(about_file & faults.mask).tolist():
                self.refuse(int(columns["source_line"][row].as_py()), *faults.found[row], raw(row))
            self.counts.about_file += int((about_file & ~faults.mask).sum())
            left = np.flatnonzero(~about_file)
            index = pa.array(left)
            columns = {name: values.take(index) for name, values in columns.items()}
            faults, all_raw, count = faults.taken(left), raw, len(left)

            def raw(row: int) -> bytes:
                return all_raw(int(left[row]))

        if not count:
            return
        if self.content == "messages":
            rules.judge_messages(columns, count, faults)
            if "num_messages" not in columns or columns["num_messages"].null_count:
                ones = pa.repeat(pa.scalar(1, pa.int64()), count)
                columns["num_messages"] = (
                    pc.fill_null(columns["num_messages"], 1) if "num_messages" in columns else ones
                )
            unread = [row for row, name in faults.unknown if name == "num_messages"]
            if unread:
                mask = np.zeros(count, np.bool_)
                mask[unread] = True
                columns["num_messages"] = pc.if_else(pa.array(mask), UNREAD, columns["num_messages"])
        else:
            _gap_defaults(columns, count)
            rules.judge_events(columns, count, faults)
        identity, begun = self.headers.resolve(columns, count, faults)
        for (row, name), reason in sorted(faults.unknown.items()):
            if not faults.mask[row]:
                self.counts.unknown_fields[name] += 1
                self.counts.first_unknown.setdefault(
                    name, f"{self.name}:{columns['source_line'][row].as_py()}: {reason}"
                )
        columns.update(identity)
        yield from self.header_batch(begun)
        for row in np.flatnonzero(faults.mask).tolist():
            self.refuse(int(columns["source_line"][row].as_py()), *faults.found[row], raw(row))
        kept = count
        if faults.mask.any():
            keep = pa.array(~faults.mask)
            columns = {name: values.filter(keep) for name, values in columns.items()}
            kept = int((~faults.mask).sum())
        self.counts.accepted += kept
        if kept:
            if self.content == "events":
                self._count_unknown_kinds(columns["kind"])
            yield Batch(self.content, to_batch(columns, kept, self._schema))

    def begin(self, text: str | None, row: int, identity: rules.Columns) -> Iterator[Batch]:
        """Yield the header in a Parquet row, for the dispatcher that the row names. Raises ``HeaderError``."""
        yield from self.header_batch(self.headers.begin(text, row, identity))

    def _count_unknown_kinds(self, kinds: pa.Array) -> None:
        for pair in pc.value_counts(kinds).to_pylist():
            if pair["values"] not in KINDS:
                self.counts.unknown_kinds[pair["values"]] += pair["counts"]

    def header_batch(self, begun: list[HeaderRow]) -> Iterator[Batch]:
        """Yield headers as rows of events."""
        if begun:
            count = len(begun)
            identities = zip(*(header.identity for header in begun), strict=True)
            columns = {
                **{
                    name: pa.array(values, EVENTS.field(name).type)
                    for name, values in zip(IDENTITY, identities, strict=True)
                },
                "seq": pa.array([0] * count),
                "kind": pa.array(["header"] * count),
                "header_json": pa.array([header.text for header in begun], pa.string()),
                "source_file": pa.array([self.name] * count),
                "source_line": pa.array([header.line for header in begun], pa.int64()),
            }
            yield Batch("events", to_batch(columns, count, EVENTS))


def _gap_defaults(columns: rules.Columns, count: int) -> None:
    """A gap line may leave out ``seq`` (then ``from``) and ``lost`` (then all from ``from`` to ``to``)."""
    if "gap_from_seq" not in columns or "gap_to_seq" not in columns:
        return
    is_gap = pc.fill_null(pc.equal(columns.get("kind", pa.nulls(count, pa.string())), "gap"), False)
    missing = pa.nulls(count, pa.int64())
    seq = columns.get("seq", missing)
    columns["seq"] = pc.if_else(is_gap, pc.coalesce(seq, columns["gap_from_seq"]), seq)
    # Unchecked arithmetic: bounds are judged on from and to themselves.
    all_of_it = pc.add(pc.subtract(columns["gap_to_seq"], columns["gap_from_seq"]), 1)
    lost = columns.get("gap_lines", missing)
    columns["gap_lines"] = pc.if_else(is_gap, pc.coalesce(lost, all_of_it), lost)
