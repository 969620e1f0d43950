"""A consumer that joins while a normal read is in flight: its remembered position is in front of the read, or behind it.

``4.0.0/ops-2031-seek-back-classic-ch`` (tests/data/races) is the beginning of a real run in which it is behind:
consumer 8 joins between the lines ``read_issued`` and ``read_done``, and is held back from the entry behind the read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from dispatch_core.verify.trace.races import Command, Difference, search
from dispatch_core.verify.trace.runner import Verification
from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "ops-2031-seek-back-classic-ch"
)
#: Seq of the read, of its end, of the two lines of the join, and of the first round that shows the position.
READ_ISSUED, READ_DONE, JOIN, ROUND_END = 623, 634, 632, 671

Trace = list[dict[str, Any]]


def result_of(trace: Trace, where: Path) -> Verification:
    """Verify a changed copy of the recording."""
    for seq, line in enumerate(trace[1:], 1):
        line["seq"] = seq
    return t.verified(t.copy_with(RECORDING, trace, where))


def test_the_end_of_the_read_names_the_race() -> None:
    result = t.verified(RECORDING)
    assert result.tally.total("divergent") == 0
    assert {(finding.seq, finding.racing_seq) for finding in t.decided(result)} == {(ROUND_END, READ_DONE)}


@pytest.mark.parametrize(("further", "status"), [(0, "uncertain"), (-1, "uncertain"), (1, "divergent")])
def test_a_log_that_ends_before_the_read_may_show_what_the_read_could_take(
    further: int, status: str, tmp_path: Path
) -> None:
    """Line 623 asks for five entries, so the read position is at most right behind the fifth."""
    trace = t.raw(RECORDING)[:READ_DONE]
    read, join = trace[READ_ISSUED], trace[JOIN]
    assert (read["kind"], join["kind"]) == ("read_issued", "consumer_added")
    ledger, entry = map(int, read["read_position"].split(":"))
    join["read_position"] = f"{ledger}:{entry + read['max_entries'] + further}"
    found = [finding for finding in result_of(trace, tmp_path).tally.findings if finding.seq == JOIN]
    assert [finding.status for finding in found] == [status]


def test_a_consumer_that_joined_before_the_read_remembers_the_position_in_front(tmp_path: Path) -> None:
    """No read is in flight then, so nothing explains that the consumer is held back."""
    trace = t.raw(RECORDING)
    join = trace[JOIN : JOIN + 2]
    del trace[JOIN : JOIN + 2]
    trace[READ_ISSUED - 1 : READ_ISSUED - 1] = join
    assert result_of(trace, tmp_path).tally.counts["dispatch"]["divergent"] > 0


def test_a_consumer_that_joined_after_the_read_remembers_the_position_behind(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    join = trace[JOIN : JOIN + 2]
    trace[READ_DONE + 1 : READ_DONE + 1] = join
    del trace[JOIN : JOIN + 2]
    for line in join[:1]:
        line["read_position"] = trace[READ_DONE - 2]["read_position"]
    result = result_of(trace, tmp_path)
    assert result.tally.total("divergent") == 0
    assert t.decided(result) == []


def test_a_consumer_is_held_back_from_all_behind_the_read_or_from_nothing(tmp_path: Path) -> None:
    """The round gives consumer 8 some entries behind the read, and holds others back: no position explains that."""
    trace = t.raw(RECORDING)
    end = trace[ROUND_END]
    sent = {**trace[ROUND_END - 3], "consumer": 8, "permits_before": 18}
    sent |= {"positions": ["63:33", "63:35"], "batch_sizes": [1, 1]}
    trace.insert(ROUND_END, sent)
    end["in_replay"] -= 2
    assert result_of(trace, tmp_path).tally.counts["dispatch"]["divergent"] > 0


def test_a_cancelled_read_does_not_move_the_position(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    cancelled = {**trace[JOIN - 1], "kind": "read_cancelled", "cancelled": True}
    for name in ("consumer", "selector"):
        cancelled.pop(name, None)
    trace.insert(JOIN + 2, cancelled)
    assert result_of(trace, tmp_path).tally.total("divergent") > 0


# --- the search ------------------------------------------------------------------------------------------------------


@dataclass
class _Stage:
    """A core that answers with the position that holds a consumer back; 22 unless a fact says otherwise."""

    position: int = 22
    applied: list[Command] = field(default_factory=list)

    def restore(self) -> None:
        self.position = 22

    def apply_early(self, command: Command) -> None:
        self.position = command.held_from or 0

    def apply_late(self, command: Command) -> None:
        raise AssertionError("no late commands here")


def _decided(recorded: int, shows: Callable[[int], int]) -> tuple[list[Command], list[Command]]:
    """Decide once with one open fact; returns the facts that were applied, and those refuted."""
    stage, fact = _Stage(), Command(634, 8, "the read", held_from=27)

    def decide(between: Callable[[int], None]) -> int:
        between(0)
        return shows(stage.position)

    def differences(answer: int) -> list[Difference]:
        return [] if answer == recorded else [Difference("dispatch", str(answer), str(recorded))]

    outcome = search(stage, {-100: [fact]}, {}, 3, decide, differences)
    assert shows(stage.position) == outcome.answer
    return outcome.early, outcome.refuted


def test_a_decision_shows_a_fact_or_refutes_it_or_leaves_it_open() -> None:
    shown, refuted = _decided(27, lambda position: position)
    assert (len(shown), len(refuted)) == (1, 0)
    shown, refuted = _decided(22, lambda position: position)
    assert (len(shown), len(refuted)) == (0, 1)
    assert _decided(0, lambda _position: 0) == ([], [])
    assert _decided(5, lambda position: position) == ([], [])


# --- a read of several parts -------------------------------------------------------------------------------------

PARTS: Final = RECORDING.parents[1] / "4.2.4" / "soak-5188-third-classic-ch-quiet"
#: The line that shows the read position when consumer 4 joins, and its position there: behind the first part of the read.
JOINS_BETWEEN, BEHIND_A_PART = 25, "48:17"
#: The end of that read, and the first rounds that show what consumers 4 and 5 remember.
PARTS_DONE, SHOWN = 39, {45, 53, 78}


def test_a_consumer_remembers_the_position_between_two_parts_of_a_read_that_its_line_shows() -> None:
    """The read goes around acknowledged entries, and moves the read position after each of its parts."""
    result = t.verified(PARTS)
    assert result.tally.total("divergent") == 0
    assert not [found for found in t.decided(result) if found.seq in SHOWN]


def test_without_the_position_that_was_shown_nothing_explains_it(tmp_path: Path) -> None:
    trace = t.raw(PARTS)
    assert trace[JOINS_BETWEEN]["read_position"] == BEHIND_A_PART
    for line in trace[1:]:
        if line["kind"] == "consumer_added":
            line["read_position"] = trace[3]["read_position"] if line["seq"] <= PARTS_DONE else "51:61"
    result = t.verified(t.copy_with(PARTS, trace, tmp_path))
    assert result.tally.counts["dispatch"]["divergent"] + result.tally.counts["replay_set"]["divergent"] > 0


BOUNDED: Final = PARTS.with_name("soak-81180-third-classic-ch-quiet")
#: The join of consumer 3, the first round that tells who is held back, and a read of what consumer 3 gets.
NEXT_JOIN, STUCK, READ = 13, 41, 127


def test_nobody_remembers_a_position_behind_that_of_a_later_consumer(tmp_path: Path) -> None:
    """Consumer 3 shows 18:67 when it joins, so consumer 2 does not remember the end of the read, 18:127."""
    result = t.verified(BOUNDED)
    assert result.tally.total("divergent") == 0
    assert not [found for found in t.decided(result) if found.seq == STUCK]


def test_a_later_consumer_that_shows_a_later_position_remembers_it(tmp_path: Path) -> None:
    """Then consumer 3 is held back from 18:71, which it got."""
    trace = t.raw(BOUNDED)
    t.line_of(trace, NEXT_JOIN)["read_position"] = "18:127"
    found = t.divergent(BOUNDED, trace, tmp_path)
    assert READ in {other.seq for other in found if other.expected == "no read"}


#: Consumers 2 and 3 join while a read of two ledgers is in flight. Consumer 3 shows the position between the two, and is
#: held back from it: the round of line 48 gives it nothing, though it has permits.
TWO_LEDGERS: Final = PARTS.with_name("soak-85652-third-classic-range-quiet")
TURN = 49


def test_a_consumer_is_held_back_from_the_position_between_two_ledgers_that_it_shows() -> None:
    """A round in which nobody is sent anything, 35, could be explained by consumer 2 as well, which is free."""
    result = t.verified(TWO_LEDGERS)
    assert result.tally.total("divergent") == 0
    assert t.decided(result) == []


def test_such_a_consumer_gets_nothing_behind_it(tmp_path: Path) -> None:
    trace = t.raw(TWO_LEDGERS)
    turn, end = t.line_of(trace, TURN), t.line_of(trace, TURN + 1)
    sent = {**turn, "kind": "sent", "positions": ["80:0"], "batch_sizes": [1], "permits_before": 200}
    trace.insert(trace.index(end), sent)
    end |= {"in_replay": end["in_replay"] - 1, "retry": False}
    found = t.divergent(TWO_LEDGERS, t.numbered(trace), tmp_path)
    assert (TURN + 1, "dispatch") in {(other.seq, other.decision_class) for other in found}
