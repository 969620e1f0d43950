"""A timer cancels a waiting read while the dispatcher attempts to read: it does not hold the dispatcher's lock.

``4.0.0/ops-40000-reset-back-ch`` (tests/data/races): a replay read is in flight when the attempt of line 1096 begins. At
1097 the timer cancels the normal read that waits. This release forgets the replay read with it, so that the attempt asks for
the next one at 1099.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "ops-40000-reset-back-ch"
)
CANCEL, READ, END = 1097, 1099, 1100


def found(trace: t.Trace, where: Path) -> set[int]:
    return {finding.seq for finding in t.divergent(RECORDING, trace, where)}


def test_a_cancel_before_the_read_of_an_attempt_comes_first() -> None:
    tally = t.verified(RECORDING).tally
    assert tally.total("divergent") == 0
    assert not [finding for finding in tally.findings if finding.seq > CANCEL]


def test_a_cancel_behind_the_read_does_not_cause_it(tmp_path: Path) -> None:
    assert READ - 1 in found(t.moved(t.raw(RECORDING), CANCEL, READ), tmp_path)


def test_a_cancel_behind_the_attempt_does_not_cause_its_read(tmp_path: Path) -> None:
    assert READ - 1 in found(t.moved(t.raw(RECORDING), CANCEL, END), tmp_path)


def test_an_attempt_without_a_cancel_waits_for_the_replay_read(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    t.line_of(trace, CANCEL)["cancelled"] = False
    assert READ in found(trace, tmp_path)


def test_a_release_that_keeps_the_replay_read_waits_for_it(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    trace[0]["broker_version"] = "4.0.3"
    assert READ in found(trace, tmp_path)


@pytest.mark.parametrize(("flag", "value"), [("pending_read", True), ("pending_replay", False)])
def test_the_flags_at_the_end_of_the_attempt_are_compared(flag: str, value: bool, tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    t.line_of(trace, END)[flag] = value
    assert END in found(trace, tmp_path)


#: The timer cancels the read of line 393 at 402, and clears the flag of the dispatcher behind the end of the attempt.
BEHIND: Final = RECORDING.parent / "soak-82053-ch-racing"
CANCELLED, STILL_PENDING, NEXT_READ = 402, 403, 438


def test_the_end_of_an_attempt_may_show_a_cancelled_read_as_pending() -> None:
    tally = t.verified(BEHIND).tally
    assert tally.total("divergent") == 0
    shown = [finding for finding in tally.findings if "pending_read" in finding.expected]
    assert [(finding.seq, finding.racing_seq) for finding in shown] == [(STILL_PENDING, CANCELLED)]


def test_a_read_that_was_cancelled_before_the_attempt_is_not_pending(tmp_path: Path) -> None:
    trace = t.raw(BEHIND)
    t.line_of(trace, NEXT_READ)["kind"] = "step"  # the next attempt reads nothing
    assert NEXT_READ + 1 in {finding.seq for finding in t.divergent(BEHIND, trace, tmp_path)}


#: At 1734 the timer cancels the read that waits. The attempt around it asks for a replay read at 1735. Then the timer's
#: thread clears the flags, also that of the replay read. So that is not pending at the end of the attempt, and the next one
#: asks again.
FORGOTTEN: Final = RECORDING.parent / "soak-85826-ch-quiet"
TIMER, ATTEMPT_END, AGAIN = 1734, 1736, 1738


def forgotten(trace: t.Trace, where: Path) -> set[int]:
    return {finding.seq for finding in t.divergent(FORGOTTEN, trace, where)}


def test_a_cancel_may_forget_a_replay_read_that_its_attempt_has_asked_for() -> None:
    tally = t.verified(FORGOTTEN).tally
    assert tally.total("divergent") == 0
    assert [(found.seq, found.racing_seq) for found in tally.findings if found.seq > TIMER] == [
        (ATTEMPT_END, TIMER)
    ]


def test_a_cancel_may_forget_it_behind_the_end_of_the_attempt(tmp_path: Path) -> None:
    trace = t.raw(FORGOTTEN)
    t.line_of(trace, ATTEMPT_END)["pending_replay"] = True
    tally = t.verified(t.copy_with(FORGOTTEN, trace, tmp_path)).tally
    assert tally.total("divergent") == 0
    assert [(found.seq, found.racing_seq) for found in tally.findings if found.seq > TIMER] == [
        (AGAIN, TIMER)
    ]


def test_a_cancel_forgets_a_replay_read_once(tmp_path: Path) -> None:
    """Line 1739 shows the second one as pending, so nothing explains a third."""
    trace = t.raw(FORGOTTEN)
    attempt = [t.line_of(trace, seq) for seq in range(AGAIN - 1, AGAIN + 2)]
    at = trace.index(attempt[-1]) + 1
    trace[at:at] = [dict(line) for line in attempt]
    assert AGAIN + 3 in forgotten(t.numbered(trace), tmp_path)


@pytest.mark.parametrize("shown", [False, True])
def test_without_the_cancel_the_replay_read_is_pending(shown: bool, tmp_path: Path) -> None:
    trace = t.raw(FORGOTTEN)
    t.line_of(trace, TIMER)["cancelled"] = False
    t.line_of(trace, ATTEMPT_END)["pending_replay"] = shown
    assert (AGAIN if shown else ATTEMPT_END) in forgotten(trace, tmp_path)


def test_a_release_whose_cancels_leave_replay_reads_alone_shows_it_as_pending(tmp_path: Path) -> None:
    trace = t.raw(FORGOTTEN)
    for header in trace[:2]:
        header["broker_version"] = "4.0.3"
    assert ATTEMPT_END in forgotten(trace, tmp_path)
