"""A request for redelivery takes its entries and lowers the counter some time before its line.

Recordings of 4.2.4 (tests/data/races), where a request for everything takes what is pending at once, without a line:

- ``soak-7565-third-shared-racing``: the request of line 438 came before three entries were sent at 430. They stay pending,
  so that the attempt of line 440 reads nothing.
- ``soak-7594-shared-quiet``: the subscription is blocked by 121 unacknowledged messages. The request of line 173 has lowered
  the counter before the attempt of line 169, which reads.
- ``soak-10173-shared-racing``: line 319 shows the counter that the request of line 327 has lowered. What is sent at 322
  stays.
- ``soak-12537-classic-shared-racing``: line 256 shows the counter of a consumer whose request, of line 257, has taken two
  entries and not the one that was sent at 249.
- ``soak-8645-shared-racing``: messages of a batch are acknowledged one by one, 889 to 898, between two sends of a round. So
  the second send does not block consumer 10, as line 1130 shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from dispatch_core.verify.tally import Finding
from tests.dispatch_core.verify import tampering as t

RACES: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4"
STAYS, LOWERED, SHOWN, CONTESTED, BETWEEN = (
    RACES / "soak-7565-third-shared-racing",
    RACES / "soak-7594-shared-quiet",
    RACES / "soak-10173-shared-racing",
    RACES / "soak-8645-shared-racing",
    RACES / "soak-12537-classic-shared-racing",
)


def line_of(trace: list[dict[str, Any]], seq: int) -> dict[str, Any]:
    (line,) = [line for line in trace if line.get("seq") == seq]
    return line


def divergent(folder: Path, trace: list[dict[str, Any]], where: Path) -> list[Finding]:
    """Verify a changed copy of a recording; return its divergent decisions."""
    findings = t.verified(t.copy_with(folder, trace, where)).tally.findings
    return [finding for finding in findings if finding.status == "divergent"]


def moved(trace: list[dict[str, Any]], seq: int, behind: int) -> list[dict[str, Any]]:
    """Move a line right behind another one."""
    line = line_of(trace, seq)
    trace.remove(line)
    at = next(at for at, other in enumerate(trace) if other.get("seq") == behind)
    trace.insert(at + 1, line | {"t_us": trace[at]["t_us"]})
    first = next(at for at, other in enumerate(trace) if other.get("seq") == 1)
    for number, other in enumerate(trace[first:], 1):
        other["seq"] = number
    return trace


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        (STAYS, (441, 438)),
        (LOWERED, (170, 173)),
        (SHOWN, (319, 327)),
        (CONTESTED, (1130, 888)),
        (BETWEEN, (256, 257)),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_the_race_is_named(folder: Path, found: tuple[int, int]) -> None:
    tally = t.verified(folder).tally
    assert tally.total("divergent") == 0
    assert found in {(finding.seq, finding.racing_seq) for finding in tally.findings}


def test_what_was_sent_before_the_last_line_of_the_connection_is_taken(tmp_path: Path) -> None:
    """An acknowledgement behind the send: the request comes after it, and so after the send."""
    trace = moved(t.raw(STAYS), 427, 433)
    assert divergent(STAYS, trace, tmp_path)


@pytest.mark.parametrize("unacked", [0, 2, 4])
def test_only_entries_of_the_last_sends_stay(unacked: int, tmp_path: Path) -> None:
    """Line 441 shows that three messages are unacknowledged; the replay read that is not issued says the same."""
    trace = t.raw(STAYS)
    line_of(trace, 441)["usable"][1][3] = unacked
    assert 441 in {finding.seq for finding in divergent(STAYS, trace, tmp_path)}


def test_a_request_that_comes_much_later_has_not_lowered_the_counter(tmp_path: Path) -> None:
    trace = t.raw(LOWERED)
    for line in trace:
        if line.get("seq", 0) >= 173:
            line["t_us"] += 1_000_000
    assert 170 in {finding.seq for finding in divergent(LOWERED, trace, tmp_path)}


@pytest.mark.parametrize(("seq", "unacked"), [(319, 3), (326, 0), (326, 9)])
def test_a_counter_between_two_steps_diverges(seq: int, unacked: int, tmp_path: Path) -> None:
    trace = t.raw(SHOWN)
    line_of(trace, seq)["usable"][0][3] = unacked
    assert seq in {finding.seq for finding in divergent(SHOWN, trace, tmp_path)}


@pytest.mark.parametrize("unacked", [2, 4])
def test_a_request_between_two_sends_takes_all_of_the_first(unacked: int, tmp_path: Path) -> None:
    """Three are unacknowledged with the last send, one without what was sent before; 0 = the request came after it."""
    trace = t.raw(BETWEEN)
    line_of(trace, 256)["usable"][0][3] = unacked
    assert 256 in {finding.seq for finding in divergent(BETWEEN, trace, tmp_path)}


def test_too_few_acknowledgements_do_not_avoid_a_block(tmp_path: Path) -> None:
    """With the last three messages acknowledged after the round, 40 of at most 39 are unacknowledged: it blocks."""
    trace = t.raw(CONTESTED)
    for _ in range(4):
        trace = moved(trace, 895, 901)
    assert divergent(CONTESTED, trace, tmp_path)
