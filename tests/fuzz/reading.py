"""Checks for every file given to the reader of the log format, whatever its contents."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from dispatch_core.recording.files import Limits
from tests.dispatch_core.recording.reading import Read, read
from tests.fuzz.documents import BOM, Document

_LEFT = ("the rest of the file was not read", "the rest of it was not read")


def check_document(rng: Random, document: Document) -> int:
    """Read a file of lines in several ways and compare; return the number of reads."""
    usual = read(document.data, document.name, limits=document.limits, threads=1)
    check_quarantine(usual, document.name)
    reads = 1
    if document.whole:
        check_lines(document, usual)
        if document.data is not document.text:
            plain = read(document.text, _plain(document.name), limits=document.limits, threads=1)
            reads += 1
            assert outcomes(plain) == outcomes(usual), "packing changed what was read"
    elif document.cut:
        check_cut(document, usual)
        reads += 1
    limits = Limits(
        document.limits.line_bytes,
        raw_bytes=document.limits.raw_bytes,
        block_bytes=rng.choice((1, 50, 400, 3000)),
    )
    other = read(document.data, document.name, limits=limits, threads=2 if rng.random() < 0.02 else 1)
    assert other.same_as(usual), f"blocks of {limits.block_bytes} bytes changed what was read"
    slow = read(document.data, document.name, limits=document.limits, line_by_line=True, threads=1)
    assert slow.same_as(usual), "line by line something else was read"
    return reads + 2


def check_quarantine(result: Read, name: str) -> None:
    """Check that each quarantined row has the file, the line if there is one, and a reason."""
    for row in result.quarantine.to_pylist():
        assert row["source_file"] == name
        assert row["reason"].strip(), row
        assert len(row["reason"]) < 1000, row
        if row["source_line"] is None:
            assert row["raw"] is None, row
            assert row["field"] is None, row
        else:
            assert 1 <= row["source_line"] <= result.counts.lines + result.counts.blank, row
            assert row["raw"] is not None, row
            assert row["field"] is None or row["field"], row


def check_lines(document: Document, result: Read) -> None:
    """Check that each line was accepted or refused as expected, once, and that the quarantine has its bytes."""
    stop = _stop(result)
    if stop == 0:
        return  # another encoding: no line was looked at
    parts = document.text.split(b"\n")
    lines = {
        number: part
        for number, part in enumerate(parts, start=1)
        if (number <= stop if stop else True) and _without_mark(number, part).strip(b" \t\r")
    }
    rows = _rows(result)
    accepted = [row["source_line"] for row in rows]
    refused = {row["source_line"]: row for row in result.quarantine.to_pylist() if row["source_line"]}
    assert len(set(accepted)) == len(accepted), "a line gave two rows"
    assert not set(accepted) & set(refused), "a line was accepted and quarantined"
    assert set(accepted) | set(refused) <= set(lines), "a row of no line"
    assert result.counts.lines == len(lines), (result.counts, len(lines))
    for number, row in refused.items():
        line = lines[number]
        whole = (
            line
            if line[: len(row["raw"])] == row["raw"] and row["raw_truncated"]
            else line.removesuffix(b"\r")
        )
        assert row["raw"] == whole[: document.limits.raw_bytes], (number, row["raw"][:100], whole[:100])
        assert row["raw_truncated"] == (len(whole) > len(row["raw"])), (number, row)
    of_line = {row["source_line"]: row for row in rows}
    for number, line in enumerate(document.lines, start=1):
        if number not in lines:
            continue
        if line.fate in ("good", "kept"):
            assert number in of_line, (number, line.data[:500], refused.get(number))
            check_values(of_line[number], line.values)
        elif line.fate == "bad":
            assert number in refused, (number, line.data[:500], of_line.get(number))
            if line.field_known:
                assert refused[number]["field"] == line.field, (number, line.data[:500], refused[number])
    fates = {line.fate for number, line in enumerate(document.lines, start=1) if number in lines}
    kept = {
        number: line.field
        for number, line in enumerate(document.lines, start=1)
        if number in lines and line.fate == "kept" and line.field
    }
    check_unknown(result, kept, exactly=bool(document.lines) and "any" not in fates)


def check_unknown(result: Read, kept: dict[int, str], *, exactly: bool) -> None:
    """Check that each field left out of a line is counted, and that the first line of each is named.

    ``kept``: the field by line. ``exactly``: no other line has such a field.
    """
    expected = Counter(kept.values())
    counted = result.counts.unknown_fields
    assert counted == expected if exactly else counted >= expected, (counted, expected)
    for field in expected:
        first = min(number for number, name in kept.items() if name == field)
        named = int(result.counts.first_unknown[field].split(":")[1])
        assert named == first if exactly else named <= first, (field, result.counts.first_unknown, first)


def check_values(row: dict[str, Any], values: dict[str, Any]) -> None:
    """The row says what its line said, and has nothing where the value is None."""
    for name, value in values.items():
        if name in ("cluster", "broker") and not value:
            continue
        assert row.get(name) == value, (name, row.get(name), value)


def check_cut(document: Document, result: Read) -> None:
    """Check that a cut file is reported and that the lines before the cut are read."""
    whole = read(document.text, _plain(document.name), limits=document.limits, threads=1)
    assert result.counts.file_problems == 1 or _stop(whole) is not None, "the cut was not reported"
    kept, expected = outcomes(result), outcomes(whole)
    # All but the last line: the cut may have made another of it.
    last = max((number for number, _ in kept), default=0)
    assert [row for row in kept if row[0] < last] == [row for row in expected if row[0] < last]


def outcomes(result: Read) -> list[tuple[int, str]]:
    """Return line and content of all rows and refusals, by line, without the file's name."""
    rows = [(row["source_line"], repr(sorted(row.items(), key=str))) for row in _rows(result)]
    for row in result.quarantine.to_pylist():
        if row["source_line"] is not None:
            rows.append((row["source_line"], repr({**row, "source_file": None})))
    return sorted(rows)


def _rows(result: Read) -> list[dict[str, Any]]:
    """Accepted rows as objects, without headers and file names."""
    rows = [*result.messages.to_pylist(), *result.events.to_pylist()]
    return [
        {name: value for name, value in row.items() if value is not None and name != "source_file"}
        for row in rows
        if row.get("kind") != "header"
    ]


def _stop(result: Read) -> int | None:
    """The line after which the reader stopped of its own accord; 0 = it did not begin."""
    for row in result.quarantine.to_pylist():
        if row["reason"].endswith(_LEFT):
            return int(row["source_line"])
        if row["reason"].startswith("the text is UTF-16"):
            return 0
    return None


def _plain(name: str) -> str:
    return name.removesuffix(".gz").removesuffix(".zst")


def _without_mark(number: int, part: bytes) -> bytes:
    return part.removeprefix(BOM) if number == 1 else part
