"""A trace that shows every operation on the cursor (``cursor_op``) is judged as a log of level E with every move.

``tests/data/operations`` are traces of real brokers. Each is reduced to level E with a ``cursor_moved`` line per operation:
what a move explains there, it explains in the trace, and nothing is doubted for want of such lines.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch_core.audit.deliveries.operations import CursorOperations, Lines, resets_shown_until
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording.schema import EVENTS
from tests.dispatch_core.audit.cursor_moves import RECORDS, judged, level_e, lines_of, name_of, write

DATA: Final = Path(__file__).resolve().parents[2] / "data"
SAMPLES: Final = sorted((DATA / "operations").glob("*/ops-*"))
BEHIND_THE_END: Final = DATA / "races" / "4.2.4" / "soak-13046-classic-shared-quiet"
CLEARED: Final = DATA / "operations" / "4.2.4" / "ops-0010-clear-classic-ch"
BY_ACK: Final = DATA / "races" / "4.0.0" / "failover-batches-0000-modulo-quiet"

Line = dict[str, Any]


def with_trace(folder: Path, out: Path, lines: list[Line]) -> Path:
    """Write a copy of a recording with another trace, whose lines are numbered anew."""
    for seq, line in enumerate(lines[1:], 1):
        line["seq"] = seq
    made = write(out / folder.name, folder / "messages.jsonl.gz", ())
    (made / "events.jsonl.gz").unlink()
    with gzip.open(made / "trace.jsonl.gz", "wt", encoding="utf-8") as trace:
        trace.writelines(json.dumps(line) + "\n" for line in lines)
    return made


def left_by_moves(findings: list[Line]) -> Counter[tuple[str, str]]:
    """Count what moves passed, and what comes again for them, by position."""
    return Counter(
        (finding["kind"], position)
        for finding in findings
        if finding["kind"] == "skipped" or finding.get("cause") == "cursor_moved"
        for position in finding["positions"]
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize("folder", SAMPLES, ids=name_of)
def test_a_trace_is_judged_as_a_log_with_its_moves(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moves = level_e(lines_of(folder / "trace.jsonl.gz"), moves=True, records=RECORDS)
    log = write(tmp_path / folder.name, folder / "messages.jsonl.gz", moves)
    expected = left_by_moves(judged(log, capsys, "--complete")[1])
    verdict, findings = judged(folder, capsys, "--complete")
    assert verdict == "PASS"
    assert expected or "-skip-" in folder.name  # the skipped entries had been sent
    assert left_by_moves(findings) == expected


def test_without_its_operations_a_trace_is_doubted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [line for line in lines_of(CLEARED / "trace.jsonl.gz") if line.get("kind") != "cursor_op"]
    verdict, findings = judged(with_trace(CLEARED, tmp_path, lines), capsys, "--complete")
    assert verdict != "PASS"
    assert "cursor_may_have_moved" in {finding["reason"] for finding in findings}


def test_what_comes_again_behind_a_move_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An entry that the administrator cleared is sent right behind the last send."""
    lines = lines_of(CLEARED / "trace.jsonl.gz")
    again = next(line["target"] for line in lines if line.get("op") == "mark_delete")
    *_, last = [line for line in lines if line.get("kind") == "sent"]
    lines.insert(lines.index(last) + 1, last | {"positions": [again], "batch_sizes": [1]})
    verdict, findings = judged(with_trace(CLEARED, tmp_path, lines), capsys)
    assert verdict == "FAIL"
    certain = [finding for finding in findings if again in finding["positions"] and not finding["uncertain"]]
    assert "duplicate_after_ack" in {finding["kind"] for finding in certain}


def test_a_reset_behind_the_end_of_the_topic_ends_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Entries that are published later are no duplicates, although the reset named a position behind them."""
    verdict, findings = judged(BEHIND_THE_END, capsys)
    assert verdict == "PASS"
    assert "duplicate_after_ack" not in {finding["kind"] for finding in findings}


def test_a_cumulative_acknowledgement_of_a_part_of_a_batch_passes_no_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    verdict, findings = judged(BY_ACK, capsys)
    assert verdict == "PASS"
    assert not left_by_moves(findings)


AT: Final = {"ledger_id": 3, "entry_id": 7}
#: Lines of a trace as far as moves of the cursor are concerned.
LINES: Final = (
    {"kind": "cursor_op", "op": "reset", "target": AT},
    {"kind": "cursor_op", "op": "skip"},
    {"kind": "cursor_op", "op": "mark_delete", "target": AT},
    {"kind": "consumer_added", "consumer": 1, "mark_delete": AT},
    {"kind": "consumer_added", "consumer": 1},
    {"kind": "sent", "consumer": 1, "positions": [AT]},
    {"kind": "round_end"},
)
SHOW: Final = ("cursor_op", "consumer_added")
Operation = tuple[int, int, object, object]


def operations_of(batches: list[pa.Table]) -> list[Operation]:
    """Return code, ``seq``, position and cause of each operation of a log in batches."""
    cursor_ops = CursorOperations(resets_shown_until(pa.concat_tables(batches)))
    found: list[Operation] = []
    for batch in batches:
        lines = Lines.of(batch, flows=False, cursor_ops=cursor_ops)
        rows = enumerate(zip(lines.code.tolist(), lines.seq.tolist(), strict=True))
        found += [(code, seq, lines.moved_to.get(row), lines.by.get(row)) for row, (code, seq) in rows]
    return found


@given(st.lists(st.sampled_from(LINES), min_size=1, max_size=12), st.sets(st.integers(1, 11)))
def test_batches_have_the_moves_of_the_whole_trace(lines: list[Line], cuts: set[int]) -> None:
    rows = [{"seq": seq, "t_us": seq} | line for seq, line in enumerate(lines)]
    events = pa.Table.from_pylist(rows, schema=EVENTS)
    whole = operations_of([events])
    places = [0, *sorted(cut for cut in cuts if cut < len(lines)), len(lines)]
    batches = [lines[begin:end] for begin, end in pairwise(places)]
    try:
        in_batches = operations_of([events.slice(begin, end - begin) for begin, end in pairwise(places)])
    except NotStreamableError:
        # A later batch ends a reset, and has no line in front that could stand for it, or does not show where it ended.
        fronts = [list(takewhile(lambda line: line["kind"] not in SHOW, batch)) for batch in batches[1:]]
        full = any(all(line["kind"] == "sent" for line in front) for front in fronts)
        shown = [line.get("mark_delete") is not None for line in lines if line["kind"] in SHOW]
        assert full or not all(shown)
        return
    assert in_batches == whole


def test_a_reset_whose_consumer_joins_in_a_later_batch_comes_before_that_consumer() -> None:
    reset, sent, joined, free = LINES[0], LINES[5], LINES[3], LINES[6]
    rows = [{"seq": seq, "t_us": seq} | line for seq, line in enumerate([reset, sent, sent, free, joined])]
    events = pa.Table.from_pylist(rows, schema=EVENTS)
    moved = [operation for operation in operations_of([events.slice(0, 2), events.slice(2)]) if operation[3]]
    assert [(seq, to, by) for _code, seq, to, by in moved] == [(3, (3, 7), "reset_cursor")]
