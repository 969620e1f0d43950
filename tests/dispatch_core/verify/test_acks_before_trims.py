"""Acks that take effect right before the trim of their consumer: the lines of both stand in the order of their effects.

``4.0.0/ops-2017-clear-ch`` (tests/data/races) is such a race in a read attempt of a real broker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from dispatch_core.broker.multiple_consumers import Released
from dispatch_core.verify.inputs import Line
from dispatch_core.verify.trace.acks_before_trims import lines_before_trim
from dispatch_core.verify.trace.runner import Verification
from tests.dispatch_core.verify import tampering as t

DATA: Final = Path(__file__).resolve().parents[2] / "data"
IN_AN_ATTEMPT: Final = DATA / "races" / "4.0.0" / "ops-2017-clear-ch"
AFTER_A_MOVE: Final = DATA / "operations" / "4.2.4" / "ops-0003-expire-to-ch"

#: Seq of the attempt that trims, of its first ack, and of the first release of the trim.
ATTEMPT, FIRST_ACK, FIRST_OF_TRIM = 334, 335, 347

Trace = list[dict[str, Any]]


def result_of(folder: Path, trace: Trace, where: Path) -> Verification:
    """Verify a changed copy of a recording."""
    for seq, line in enumerate(trace[1:], 1):
        line["seq"] = seq
    return t.verified(t.copy_with(folder, trace, where))


def test_acks_within_an_attempt_that_trims_come_first() -> None:
    result = t.verified(IN_AN_ATTEMPT)
    assert result.tally.total("divergent") == 0
    assert t.decided(result) == []


def test_an_ack_that_lost_its_lines_leaves_its_entry_to_the_trim(tmp_path: Path) -> None:
    """Then the trim has a release more; the log has not."""
    trace = t.raw(IN_AN_ATTEMPT)
    del trace[FIRST_ACK : FIRST_ACK + 3]
    assert result_of(IN_AN_ATTEMPT, trace, tmp_path).tally.counts["draining"]["divergent"] > 0


def test_an_entry_is_not_removed_by_an_ack_once_the_trim_has_begun(tmp_path: Path) -> None:
    trace = t.raw(IN_AN_ATTEMPT)
    ack = trace[FIRST_ACK : FIRST_ACK + 3]
    trace[FIRST_OF_TRIM + 1 : FIRST_OF_TRIM + 1] = ack
    del trace[FIRST_ACK : FIRST_ACK + 3]
    assert result_of(IN_AN_ATTEMPT, trace, tmp_path).tally.counts["draining"]["divergent"] > 0


def test_an_entry_is_not_removed_by_an_ack_after_the_attempt(tmp_path: Path) -> None:
    trace = t.raw(IN_AN_ATTEMPT)
    ack = trace[FIRST_ACK : FIRST_ACK + 3]
    end = next(at for at in t.places(trace, "read_attempt_end") if at > FIRST_OF_TRIM)
    trace[end + 1 : end + 1] = ack
    del trace[FIRST_ACK : FIRST_ACK + 3]
    assert result_of(IN_AN_ATTEMPT, trace, tmp_path).tally.counts["draining"]["divergent"] > 0


def test_a_release_that_the_trim_did_not_make_diverges(tmp_path: Path) -> None:
    trace = t.raw(IN_AN_ATTEMPT)
    del trace[FIRST_OF_TRIM + 5]
    assert result_of(IN_AN_ATTEMPT, trace, tmp_path).tally.counts["draining"]["divergent"] > 0


# --- after a move of the cursor (4.0.11+, 4.2.2+) --------------------------------------------------------------------


def trim_of(trace: Trace, consumer: int) -> int:
    """Return the index of the first release of a consumer behind the first move of the cursor."""
    move = next(at for at in t.places(trace, "cursor_op") if trace[at]["op"] == "mark_delete")
    return next(
        at for at in t.places(trace, "draining_release") if at > move and trace[at]["consumer"] == consumer
    )


def acknowledge(trace: Trace, consumer: int, number: int, before: int) -> None:
    """Let a client acknowledge the entry of a release of its trim, counted from 0, before the line with an index."""
    first = trim_of(trace, consumer)
    sent, removed = (
        {
            position
            for line in trace[1:first]
            if line["kind"] == kind and line["consumer"] == consumer
            for position in line["positions"]
        }
        for kind in ("sent", "pending_ack_removed")
    )
    pending = sorted(sent - removed, key=lambda position: int(position.split(":")[1]))
    release = trace.pop(first + number)
    ack = {**release, "kind": "ack", "ack_type": "Individual", "positions": [pending[number]]}
    removal = {**release, "kind": "pending_ack_removed", "positions": [pending[number]]}
    trace[before:before] = [ack, removal, release]


@pytest.mark.parametrize(("consumer", "number"), [(1, 0), (1, 3), (2, 0), (2, 2)])
def test_an_ack_between_a_move_and_its_trim_comes_first(consumer: int, number: int, tmp_path: Path) -> None:
    trace = t.raw(AFTER_A_MOVE)
    acknowledge(trace, consumer, number, trim_of(trace, 1))
    result = result_of(AFTER_A_MOVE, trace, tmp_path)
    assert result.tally.total("divergent") == 0
    assert result.tally.total("uncertain") == t.verified(AFTER_A_MOVE).tally.total("uncertain")


@pytest.mark.parametrize("number", [0, 3])
def test_an_ack_to_another_consumer_than_the_one_being_trimmed_comes_first(
    number: int, tmp_path: Path
) -> None:
    trace = t.raw(AFTER_A_MOVE)
    acknowledge(trace, 2, number, trim_of(trace, 1) + 5)
    assert result_of(AFTER_A_MOVE, trace, tmp_path).tally.total("divergent") == 0


def test_an_ack_behind_the_beginning_of_its_trim_diverges(tmp_path: Path) -> None:
    trace = t.raw(AFTER_A_MOVE)
    acknowledge(trace, 1, 9, trim_of(trace, 1) + 3)
    assert result_of(AFTER_A_MOVE, trace, tmp_path).tally.counts["draining"]["divergent"] > 0


# --- which lines come first ------------------------------------------------------------------------------------------


def lines(*kinds: tuple[str, int, int]) -> list[tuple[int, Line]]:
    """Make lines of (kind, consumer, entry); the hash of an entry is ten times its number."""
    made = []
    for at, (kind, consumer, entry) in enumerate(kinds):
        recorded = {"positions": [entry], "hash": 10 * entry, "closing": False}
        made.append((at, Line(at, 0, kind, consumer, {"positions": [entry]}, recorded)))
    return made


def hash_of(entry: int) -> int:
    return 10 * entry


def test_nothing_comes_first_without_a_removal_of_a_passed_entry() -> None:
    trim = lines(("ack", 1, 1), ("draining_release", 1, 1), ("draining_release", 1, 2))
    assert lines_before_trim(trim, 5, hash_of, []) == []
    later = lines(("ack", 1, 8), ("pending_ack_removed", 1, 8), ("draining_release", 1, 8))
    assert lines_before_trim(later, 5, hash_of, []) == []


def test_a_release_of_an_ack_in_front_is_not_taken_for_the_trim() -> None:
    trim = lines(
        ("draining_release", 1, 1),
        ("ack", 1, 2),
        ("pending_ack_removed", 1, 2),
        ("draining_release", 1, 2),
    )
    assert lines_before_trim(trim, 5, hash_of, [Released(1, 10, 0)]) == [0, 1, 2, 3]
    assert lines_before_trim(trim, 5, hash_of, []) == []


def test_the_dispatcher_goes_on_when_the_trim_is_over() -> None:
    trim = lines(
        ("usable_seen", 1, 0),
        ("ack", 1, 2),
        ("pending_ack_removed", 1, 2),
        ("draining_release", 1, 2),
    )
    assert lines_before_trim(trim, 5, hash_of, []) == []
