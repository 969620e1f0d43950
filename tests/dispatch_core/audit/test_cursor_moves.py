"""Moves of the cursor that the log has lines of: what they explain, and what they don't."""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from dispatch_core.errors import NotStreamableError
from tests.dispatch_core.audit.batches import in_batches, same
from tests.dispatch_core.audit.cursor_moves import (
    LATEST,
    RECORDS,
    faults,
    judged,
    level_e,
    lines_of,
    name_of,
    write,
)
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    ack,
    added,
    audited,
    flow,
    kinds,
    message,
    numbered,
    of_kind,
    read,
    removed,
    sent,
)
from tests.dispatch_core.audit.small_logs import write as write_small
from tests.sample import some

ROOT: Final = Path(__file__).resolve().parents[3]
SAMPLES: Final = sorted((ROOT / "tests" / "data" / "operations").glob("*/ops-*"))
SHARED: Final = some(sorted((ROOT.parent / "shared" / "operations").glob("*/ops-*")), 5)
#: Findings that a move leaves, and that a classic dispatcher's recently joined consumers leave behind a reconnect.
_LEGAL: Final = {"skipped", "redelivered", "unnecessary_blocking"}
#: Recordings with a fault of their own, and the kinds that prove it. 4.0.0: two replay reads in flight (#23384), before the
#: first operation. 4.2.4: 31:0 is never acknowledged, so that the classic dispatcher's recently joined consumer waits.
REAL_FAULTS: Final = {
    "4.0.0/ops-0001-clear-ch": {"redelivered", "out_of_order"},
    "4.2.4/ops-0015-seek-back-classic-ch": {"ack_hole", "never_delivered", "stuck_key", "stuck_consumer"},
}


def with_moves(folder: Path, out: Path) -> Path:
    lines = level_e(lines_of(folder / "trace.jsonl.gz"), moves=True, records=RECORDS)
    return write(out / folder.parent.name / folder.name, folder / "messages.jsonl.gz", lines)


# The logs last a few seconds, so what was lost is found as of a complete log.
def check_moves(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = with_moves(folder, tmp_path)
    moves = [line for line in lines_of(log / "events.jsonl.gz") if line.get("kind") == "cursor_moved"]
    verdict, findings = judged(log, capsys, "--complete")
    faulty = {finding["kind"] for finding in findings} - _LEGAL
    if name_of(folder) in REAL_FAULTS:
        assert verdict == "FAIL"
        assert faulty <= REAL_FAULTS[name_of(folder)]
        return
    assert (verdict, faulty) == ("PASS", set())
    named = {finding.get("cause") for finding in findings}
    assert {move["by"] for move in moves} & named or "cursor_moved" in named


@pytest.mark.parametrize("folder", SAMPLES, ids=name_of)
def test_a_move_that_is_logged_breaks_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_moves(folder, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("folder", SHARED, ids=name_of)
def test_every_recorded_operation_that_is_logged_breaks_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_moves(folder, tmp_path, capsys)


def check_faults(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int) -> int:
    lines = level_e(lines_of(folder / "trace.jsonl.gz"), moves=True, records=RECORDS)
    messages = folder / "messages.jsonl.gz"
    keys = {line["position"]: line.get("key") for line in lines_of(messages) if "position" in line}
    shared = "-shared" in folder.name
    count = 0
    for fault in faults(lines, keys, Random(seed)):
        if shared and fault.name == "reordered":
            continue  # nothing was promised
        log = write(tmp_path / fault.name / folder.parent.name / folder.name, messages, fault.lines)
        verdict, findings = judged(log, capsys, "--complete")
        if shared and fault.name == "lost":
            assert verdict == "UNKNOWN"  # no rule says why an entry of Shared waits: a limit may have held it
            continue
        found = {finding["kind"] for finding in findings if not finding["uncertain"]}
        assert verdict == "FAIL", fault.name
        # Of Failover a late change of the active consumer could explain the pair, but not that it went to the wrong one.
        late = ("divergence",) if fault.name == "split" and "-failover" in folder.name else ()
        assert found.intersection((*fault.kinds, *late)), (fault.name, fault.position, found)
        count += 1
    return count


@pytest.mark.sampled(4)
@pytest.mark.parametrize("folder", SAMPLES, ids=name_of)
def test_a_fault_beside_a_move_is_found_and_certain(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_faults(folder, tmp_path, capsys, seed=7) >= 2


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("folder", SHARED, ids=name_of)
def test_a_fault_beside_every_recorded_operation_is_found(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_faults(folder, tmp_path, capsys, seed=11) >= 1


# without lines -----------------------------------------------------------------------------------------------------------


def without_moves(folder: Path, out: Path, lines: list[dict[str, Any]] | None = None) -> Path:
    """The log of format 1.0, or of the given lines, without lines for moves."""
    trace = folder / "trace.jsonl.gz"
    made = level_e(lines_of(trace), moves=False, records=None) if lines is None else lines
    kept = [line for line in made if line.get("kind") != "cursor_moved"]
    for seq, line in enumerate(kept[1:], 1):
        line["seq"] = seq
    return write(out / folder.parent.name / folder.name, folder / "messages.jsonl.gz", kept)


def check_unlogged(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = without_moves(folder, tmp_path / "plain")
    if name_of(folder) != "4.0.0/ops-0001-clear-ch":  # its fault does not need the log's end
        assert judged(plain, capsys)[0] in (
            "PASS",
            "UNKNOWN",
        )  # however short what was passed has waited by now
    verdict, findings = judged(plain, capsys, "--complete")
    if name_of(folder) in REAL_FAULTS:
        assert verdict == "FAIL"
        return
    assert verdict in ("PASS", "UNKNOWN")
    doubted = {finding["reason"] for finding in findings if finding["uncertain"]}
    assert verdict == "PASS" or "cursor_may_have_moved" in doubted or "-shared" in folder.name
    lines = level_e(lines_of(folder / "trace.jsonl.gz"), moves=True, records=None)
    messages = lines_of(folder / "messages.jsonl.gz")
    keys = {line["position"]: line.get("key") for line in messages if "position" in line}
    for fault in faults(lines, keys, Random(3)):
        if "-shared" in folder.name and fault.name == "reordered":
            continue  # nothing was promised
        log = without_moves(folder, tmp_path / fault.name, fault.lines)
        assert judged(log, capsys, "--complete")[0] != "PASS", (fault.name, fault.position)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("folder", SAMPLES, ids=name_of)
def test_a_move_without_a_line_proves_nothing_and_hides_no_fault(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_unlogged(folder, tmp_path, capsys)


@pytest.mark.slow
@pytest.mark.conformance
@pytest.mark.parametrize("folder", SHARED, ids=name_of)
def test_every_recorded_operation_without_a_line_proves_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_unlogged(folder, tmp_path, capsys)


# small logs --------------------------------------------------------------------------------------------------------------


def moved(by: str, to: str | None, **fields: Any) -> dict[str, Any]:
    return {"kind": "cursor_moved", "by": by} | ({} if to is None else {"to": to}) | fields


MESSAGES = [message(entry, "k", publish_time_ms=1_795_219_200_000 + 1000 * entry) for entry in range(12)]


@pytest.fixture
def audit(tmp_path: Path) -> Any:
    def run(*events: dict[str, Any], **header: Any) -> Any:
        log = read(
            write_small(
                tmp_path / "a" / "b", MESSAGES, numbered(events), **{"records": ["cursor_moved"]} | header
            )
        )
        whole = audited(log)
        for cut in range(1, log.events.num_rows):
            with contextlib.suppress(NotStreamableError):
                same(in_batches(log, [cut], trim_above=0, keep_behind=0), whole)
        return whole

    return run


def test_what_comes_again_after_a_seek_is_redelivered_by_it(audit: Any) -> None:
    result = audit(
        *(added(1), sent(1, 0, 1, 2, 3), ack(1, 0, 1, 2), removed(1), moved("seek", "5:0")),
        *(added(2), sent(2, 1, 2, 3), ack(2, 1, 2, 3)),
    )
    assert kinds(result) == {"redelivered": ["5:1", "5:2", "5:3"]}
    assert {row["cause"] for row in result.anomalies.to_pylist()} == {"cursor_moved"}


def test_consumers_may_leave_after_the_line_of_the_seek(audit: Any) -> None:
    result = audit(
        *(added(1), sent(1, 0, 1, 2), ack(1, 0, 1), moved("reset_cursor", "-1:-1"), removed(1)),
        *(added(2), sent(2, 0, 1, 2)),
    )
    assert kinds(result) == {"redelivered": ["5:0", "5:1", "5:2"]}
    assert {row["cause"] for row in result.anomalies.to_pylist()} == {"cursor_moved"}


def test_an_acknowledgement_after_the_move_counts(audit: Any) -> None:
    result = audit(
        *(added(1), sent(1, 0, 1), ack(1, 0, 1), removed(1), moved("seek", "-1:-1")),
        *(added(2), sent(2, 0, 1), ack(2, 0, 1), sent(2, 0)),
    )
    assert kinds(result) == {
        "redelivered": ["5:0", "5:1"],
        "out_of_order": ["5:0"],
        "duplicate_after_ack": ["5:0"],
    }


def test_order_is_judged_from_the_new_position_on(audit: Any) -> None:
    result = audit(
        *(added(1), sent(1, 0, 1, 2, 3), ack(1, 0, 1, 2, 3), removed(1), moved("seek", "-1:-1")),
        *(added(2), added(3), sent(2, 0), ack(2, 0), sent(2, 2), ack(2, 2), sent(3, 1)),
    )
    assert kinds(result)["out_of_order"] == ["5:1"]


def test_what_a_skip_passed_is_settled(audit: Any) -> None:
    result = audit(
        *(added(1), added(2), sent(1, 0, 1), moved("skip", "5:3"), sent(2, 4), ack(1, 0), ack(2, 4)),
    )
    assert kinds(result) == {}


@pytest.mark.parametrize("by", ["skip", "expiry", "clear_backlog", "seek", "unknown"])
def test_what_was_passed_must_not_come_but_for_the_position_itself(audit: Any, by: str) -> None:
    result = audit(added(1), sent(1, 0), ack(1, 0), moved(by, "5:3"), added(2), sent(2, 3, 4), sent(2, 2))
    assert of_kind(result, "duplicate_after_ack")[0]["positions"] == ["5:2"]
    assert "the cursor had passed it" in of_kind(result, "duplicate_after_ack")[0]["explanation"]
    assert "5:3" not in [row["positions"][0] for row in result.anomalies.to_pylist()]


@pytest.mark.parametrize("by", ["skip", "seek"])
def test_an_acknowledgement_settles_the_position_of_a_move(audit: Any, by: str) -> None:
    result = audit(added(1), sent(1, 0, 1, 2, 3), moved(by, "5:3"), ack(1, 3), sent(1, 3))
    assert of_kind(result, "duplicate_after_ack")[0]["positions"] == ["5:3"]


@pytest.mark.parametrize("by", ["seek", "clear_backlog"])
def test_latest_is_the_last_entry_stored_by_then(audit: Any, by: str) -> None:
    # 5:6 is published at second 6, the move is line 6
    events = [
        added(1),
        sent(1, 0, 1),
        ack(1, 0),
        removed(1),
        added(2),
        moved(by, LATEST),
        sent(2, 7),
        sent(2, 5),
    ]
    result = audit(*events)
    assert [row["positions"] for row in of_kind(result, "duplicate_after_ack")] == []
    result = audit(*events[:-1], sent(2, 8), sent(2, 1))
    assert [row["positions"] for row in of_kind(result, "duplicate_after_ack")] == [["5:1"]]


def test_a_move_to_nowhere_said_leaves_open_what_comes_again(audit: Any) -> None:
    result = audit(added(1), sent(1, 0), ack(1, 0), moved("unknown", None), sent(1, 0), ack(1, 0))
    (row,) = result.anomalies.to_pylist()
    assert (row["kind"], row["uncertain"], row["reason"]) == (
        "duplicate_after_ack", True, "cursor_may_have_moved",
    )  # fmt: skip


@pytest.mark.parametrize("version", ["4.0.0", "4.2.4"])
def test_an_entry_behind_a_passed_one_of_its_key_may_be_sent(
    version: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """5:1 waits in the replay set when a skip passes it. The broker goes on to count its hash, because 5:2 waits, too.

    5:4 has the same key. Its normal read puts it into the replay set, from where it is sent: the log does not show that.
    """
    keys = ["a", "b", "c", "a", "b"]
    messages = [
        message(entry, key, publish_time_ms=1_795_219_200_000 + 10 * entry) for entry, key in enumerate(keys)
    ]
    lines = [added(1), flow(1), sent(1, 0), sent(1, 3), moved("skip", "5:1"), ack(1, 0, 3), sent(1, 4)]
    events = numbered([*lines, ack(1, 4), sent(1, 2), ack(1, 2)])
    folder = tmp_path / "a" / "b"
    write_small(folder, messages, events, broker_version=version, records=["cursor_moved"])
    _verdict, findings = judged(folder, capsys)
    assert "divergence" not in {finding["kind"] for finding in findings}


PASSED_WHILE_PENDING = [
    *(added(1), flow(1), sent(1, *range(10)), ack(1, 0, 1), removed(1)),
    *(added(2), flow(2), sent(2, *range(5, 10)), ack(2, 9, cumulative=True)),
]
PASSED_WHILE_IT_WAITED = [
    *(added(1), flow(1, 2), sent(1, 0, 1), ack(1, 0, 1), removed(1)),
    *(added(2), flow(2), sent(2, 8, 9), ack(2, 8, 9)),
]


@pytest.mark.parametrize(
    ("subscription_type", "lines"),
    [("Failover", PASSED_WHILE_PENDING), ("Key_Shared", PASSED_WHILE_IT_WAITED)],
)
def test_a_reset_while_nobody_was_connected_may_explain_what_did_not_come(
    subscription_type: str, lines: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing up to the new position comes again, also where a cumulative acknowledgement settles it later."""
    messages = [message(entry, f"k{entry % 2}", publish_time_ms=T0_US // 1000) for entry in range(10)]
    for records, expected in ((None, "UNKNOWN"), (RECORDS, "FAIL")):
        folder = tmp_path / expected / "b"
        header = {"subscription_type": subscription_type} | (
            {} if records is None else {"records": list(records)}
        )
        write_small(folder, messages, numbered(lines), **header)
        verdict, findings = judged(folder, capsys, "--complete")
        assert verdict == expected, findings
