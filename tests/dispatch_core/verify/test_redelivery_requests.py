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
- ``soak-21582-classic-shared-quiet``: the request of line 903 clears the block of consumer 3. Its parked permits reach the
  dispatcher at 916, behind a round that has not seen them.
- ``soak-42734-shared-quiet``: the request of line 661 has unblocked the subscription before the attempt of 651. Its
  consumer's counter falls later: 653 and 660 show it as before.
- ``soak-44211-classic-shared-racing``: a policy's limit ends at 167, between a request and its parked permits. They reach
  the dispatcher at 170, and the attempt of 168 has not seen them.

Where hashes drain, each entry that is taken has a release: in ``soak-81421-ch-racing`` the request of line 35 has none. It
came before the send of line 32, whose entry stays.

And of a request that names entries: in ``random-40017-ch-racing`` the request of line 242 takes them from line 230 to 237,
within a round. It lowers the counter before the round asks for the usable permits, so that the send of line 239 has 24
entries and not 23.

In ``shared-60073-racing`` the request of line 687 has lowered the counter before the send of 682, which blocks the consumer.
It clears no block behind that: the attempts of 688 and 691 read nothing.

And one of 4.0.0, where a request for everything has lines: in ``soak-30035-range-racing`` it takes what is pending from line
187 to 198, within a round. What the round sends to its consumer at 199 stays. In ``soak-81727-classic-range-racing`` the
request of line 2436 has cleared the counter before the send of line 2427, so that its message counts for good (line 2438).

In ``soak-82941-ch-racing`` the request of line 1587 removes five pending acks from line 1575 to 1583, within a read attempt.
The scan comes behind all of them: it finds none of the three hashes draining, and the attempt reads 17 entries.

In ``soak-85505-classic-ch-racing`` the request of line 79 has lowered the counter at line 61 by 14 messages. It removes
them from line 62 on. What the round sends in line 76 stays.

In ``soak-84721-classic-ch-racing`` the request of line 448 takes 4:80, which was acknowledged before. Whether it was sent
before the request cleared the counter or after makes no difference to the counter.

In ``soak-87117-sticky-racing`` the request of line 236 clears the counter of consumer 2 before 4:75 is sent at line 216, and
lets go of this entry, too, behind it (line 235). So the counter stays at 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RACES: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4"
STAYS, LOWERED, SHOWN, CONTESTED, BETWEEN = (
    RACES / "soak-7565-third-shared-racing",
    RACES / "soak-7594-shared-quiet",
    RACES / "soak-10173-shared-racing",
    RACES / "soak-8645-shared-racing",
    RACES / "soak-12537-classic-shared-racing",
)

TOTAL_FIRST: Final = RACES / "soak-42734-shared-quiet"
PARKED: Final = RACES / "soak-21582-classic-shared-quiet"
PARKED_WHILE_A_LIMIT_ENDS: Final = RACES / "soak-44211-classic-shared-racing"
NAMED_WITHIN: Final = RACES / "random-40017-ch-racing"
WITHIN: Final = RACES.parent / "4.0.0" / "soak-30035-range-racing"


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        (STAYS, (441, 438)),
        (LOWERED, (170, 173)),
        (SHOWN, (319, 327)),
        (CONTESTED, (1130, 888)),
        (BETWEEN, (256, 257)),
        (TOTAL_FIRST, (653, 661)),
        (NAMED_WITHIN, (239, 242)),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else "",
)
def test_the_race_is_named(folder: Path, found: tuple[int, int]) -> None:
    tally = t.verified(folder).tally
    assert tally.total("divergent") == 0
    assert found in {(finding.seq, finding.racing_seq) for finding in tally.findings}


def test_a_request_lowers_no_counter_before_its_last_removal(tmp_path: Path) -> None:
    """The last removal comes behind the round: so the counter falls behind it, too."""
    trace = t.moved(t.raw(NAMED_WITHIN), 237, 241)
    assert 239 in {finding.seq for finding in t.divergent(NAMED_WITHIN, trace, tmp_path)}


def test_what_was_sent_before_the_last_line_of_the_connection_is_taken(tmp_path: Path) -> None:
    """An acknowledgement behind the send: the request comes after it, and so after the send."""
    trace = t.moved(t.raw(STAYS), 427, 433)
    assert t.divergent(STAYS, trace, tmp_path)


@pytest.mark.parametrize("unacked", [0, 2, 4])
def test_only_entries_of_the_last_sends_stay(unacked: int, tmp_path: Path) -> None:
    """Line 441 shows that three messages are unacknowledged; the replay read that is not issued says the same."""
    trace = t.raw(STAYS)
    t.line_of(trace, 441)["usable"][1][3] = unacked
    assert 441 in {finding.seq for finding in t.divergent(STAYS, trace, tmp_path)}


def test_a_request_that_comes_much_later_has_not_lowered_the_counter(tmp_path: Path) -> None:
    trace = t.raw(LOWERED)
    for line in trace:
        if line.get("seq", 0) >= 173:
            line["t_us"] += 1_000_000
    assert 170 in {finding.seq for finding in t.divergent(LOWERED, trace, tmp_path)}


@pytest.mark.parametrize(("seq", "unacked"), [(319, 3), (326, 0), (326, 9)])
def test_a_counter_between_two_steps_diverges(seq: int, unacked: int, tmp_path: Path) -> None:
    trace = t.raw(SHOWN)
    t.line_of(trace, seq)["usable"][0][3] = unacked
    assert seq in {finding.seq for finding in t.divergent(SHOWN, trace, tmp_path)}


@pytest.mark.parametrize("unacked", [2, 4])
def test_a_request_between_two_sends_takes_all_of_the_first(unacked: int, tmp_path: Path) -> None:
    """Three are unacknowledged with the last send, one without what was sent before; 0 = the request came after it."""
    trace = t.raw(BETWEEN)
    t.line_of(trace, 256)["usable"][0][3] = unacked
    assert 256 in {finding.seq for finding in t.divergent(BETWEEN, trace, tmp_path)}


@pytest.mark.parametrize(("seq", "unacked"), [(653, 47), (653, 96), (660, 48), (663, 65)])
def test_a_counter_falls_by_all_of_the_request(seq: int, unacked: int, tmp_path: Path) -> None:
    """It is higher by the 48 messages that the request takes, and no more behind its line."""
    trace = t.raw(TOTAL_FIRST)
    t.line_of(trace, seq)["usable"][0][3] = unacked
    assert seq in {finding.seq for finding in t.divergent(TOTAL_FIRST, trace, tmp_path)}


def test_too_few_acknowledgements_do_not_avoid_a_block(tmp_path: Path) -> None:
    """With the last three messages acknowledged after the round, 40 of at most 39 are unacknowledged: it blocks."""
    trace = t.raw(CONTESTED)
    for _ in range(4):
        trace = t.moved(trace, 895, 901)
    assert t.divergent(CONTESTED, trace, tmp_path)


@pytest.mark.parametrize(
    "folder", [PARKED, PARKED_WHILE_A_LIMIT_ENDS, WITHIN], ids=lambda folder: folder.name
)
def test_nothing_is_open_where_lines_show_the_order(folder: Path) -> None:
    tally = t.verified(folder).tally
    assert tally.total("exact") == tally.total("decisions") > 250


def test_parked_permits_that_have_reached_the_dispatcher_count(tmp_path: Path) -> None:
    """Their line is moved in front of the round."""
    found = t.divergent(PARKED, t.moved(t.raw(PARKED), 916, 907), tmp_path)
    assert "consumer 3: 9" in {finding.expected for finding in found}


def test_a_consumer_that_joins_does_not_count_the_permits_of_another(tmp_path: Path) -> None:
    """The line of a join is moved in front of the attempt, which does not wait for the parked permits, either."""
    trace = t.moved(t.raw(PARKED_WHILE_A_LIMIT_ENDS), 183, 166)
    for end in (170, 174, 183):
        t.line_of(trace, end)["usable"].append([6, 0, 0, 0])
    assert t.divergent(PARKED_WHILE_A_LIMIT_ENDS, trace, tmp_path) == []


def test_an_attempt_behind_parked_permits_reads(tmp_path: Path) -> None:
    """Their line is moved in front of the attempt, which issues no read."""
    trace = t.moved(t.raw(PARKED_WHILE_A_LIMIT_ENDS), 170, 167)
    found = t.divergent(PARKED_WHILE_A_LIMIT_ENDS, trace, tmp_path)
    assert (170, "no read") in {(finding.seq, finding.recorded) for finding in found}


def test_a_request_does_not_take_what_is_sent_later(tmp_path: Path) -> None:
    """The first removal names an entry that the round sends at 199."""
    trace = t.raw(WITHIN)
    t.line_of(trace, 187)["positions"] = ["68:0"]
    found = t.divergent(WITHIN, trace, tmp_path)
    assert (187, "pending ack removed: [68:49] (1)") in {(finding.seq, finding.expected) for finding in found}


BEFORE_SENDS: Final = RACES / "soak-81421-ch-racing"
REQUEST, READ_ISSUED = 35, 38


def test_a_request_that_releases_nothing_came_before_the_send() -> None:
    tally = t.verified(BEFORE_SENDS).tally
    assert tally.total("divergent") == 0
    assert not [finding for finding in tally.findings if REQUEST <= finding.seq <= READ_ISSUED]


def test_a_request_that_comes_behind_another_command_takes_what_was_sent(tmp_path: Path) -> None:
    """Its connection has granted permits behind the send, so the request has found the entry."""
    trace = t.raw(BEFORE_SENDS)
    at = trace.index(t.line_of(trace, REQUEST))
    flow = {**t.line_of(trace, 21), "t_us": trace[at]["t_us"], "permits": 0}
    counted = {**t.line_of(trace, 22), "t_us": trace[at]["t_us"], "permits_after": 49}
    for line in trace[at:]:
        line["seq"] += 2
    trace[at:at] = [flow | {"seq": REQUEST}, counted | {"seq": REQUEST + 1}]
    found = t.divergent(BEFORE_SENDS, trace, tmp_path)
    assert ("replay read of [19:0] (1)", READ_ISSUED + 2) in {(f.expected, f.seq) for f in found}


COUNTS: Final = RACES.parent / "4.0.0" / "soak-81727-classic-range-racing"
CLEARED, COUNTED = 2436, 2438


@pytest.mark.parametrize(
    ("unacked", "status"), [(0, None), (1, "uncertain"), (2, "divergent"), (4, "divergent")]
)
def test_what_is_sent_behind_the_clear_of_the_counter_counts(
    unacked: int, status: str | None, tmp_path: Path
) -> None:
    trace = t.raw(COUNTS)
    assert t.line_of(trace, COUNTED)["usable"] == [[3, 0, 0, 1], [4, 0, 0, 30]]
    t.line_of(trace, COUNTED)["usable"][0][3] = unacked
    found = t.found_at(COUNTS, trace, tmp_path, COUNTED)
    assert {f.status for f in found} == ({status} if status else set())
    if status == "uncertain":
        assert {f.racing_seq for f in found if f.seq == COUNTED} == {CLEARED}


BLOCKED_AFTER: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "shared-60073-racing"
)


def test_a_request_that_came_before_a_send_does_not_clear_its_block(tmp_path: Path) -> None:
    found = t.verified(BLOCKED_AFTER).tally.findings
    assert [(finding.seq, finding.status, finding.racing_seq) for finding in found] == [
        (682, "uncertain", 687),
        (684, "uncertain", 687),
    ]
    trace = t.raw(BLOCKED_AFTER)
    t.line_of(trace, 692)["pending_replay"] = True
    assert 692 in {finding.seq for finding in t.divergent(BLOCKED_AFTER, trace, tmp_path)}


SCANNED: Final = Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "soak-82941-ch-racing"
FIRST_REMOVAL, LAST_REMOVAL, LAST_RELEASE, REPLAY_READ = 1575, 1583, 1584, 1585


def test_a_scan_may_come_behind_the_removals_for_a_request() -> None:
    tally = t.verified(SCANNED).tally
    assert tally.total("divergent") == 0
    found = [finding for finding in tally.findings if finding.seq == REPLAY_READ]
    assert {(finding.status, finding.racing_seq) for finding in found} == {("uncertain", LAST_REMOVAL)}


def test_a_scan_behind_the_removals_reads_nothing_else(tmp_path: Path) -> None:
    trace = t.raw(SCANNED)
    del t.line_of(trace, REPLAY_READ)["positions"][0]
    assert REPLAY_READ in {finding.seq for finding in t.divergent(SCANNED, trace, tmp_path)}


def test_removals_behind_the_read_come_too_late_for_the_scan(tmp_path: Path) -> None:
    trace = t.raw(SCANNED)
    for _line in range(LAST_RELEASE - FIRST_REMOVAL + 1):
        t.moved(trace, FIRST_REMOVAL, REPLAY_READ)
    assert t.divergent(SCANNED, trace, tmp_path)


def test_a_removal_that_a_scan_has_seen_has_its_release(tmp_path: Path) -> None:
    trace = t.raw(SCANNED)
    t.line_of(trace, LAST_RELEASE)["ref_count_before"] += 1
    assert LAST_RELEASE in {finding.seq for finding in t.divergent(SCANNED, trace, tmp_path)}


ACKNOWLEDGED: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "soak-84721-classic-ch-racing"
)


def test_an_acknowledged_entry_counts_nothing_behind_a_request() -> None:
    tally = t.verified(ACKNOWLEDGED).tally
    assert tally.total("divergent") == 0
    assert {finding.seq for finding in tally.findings} == {
        444,
        565,
        717,
    }  # none behind a decision that it changes


def test_a_later_round_with_another_entry_is_divergent(tmp_path: Path) -> None:
    trace = t.raw(ACKNOWLEDGED)
    t.line_of(trace, 714)["positions"][-1] = "4:225"
    assert 714 in {finding.seq for finding in t.divergent(ACKNOWLEDGED, trace, tmp_path)}


WITHIN_ROUND: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "soak-85505-classic-ch-racing"
)


@pytest.mark.parametrize(("value", "differs"), [(49, False), (35, False), (48, True), (50, True), (62, True)])
def test_a_request_within_a_round_lowers_the_counter_by_what_was_sent_before(
    value: int, differs: bool, tmp_path: Path
) -> None:
    """The 14 entries of before, or none; not the 13 that the round sends behind the removals."""
    trace = t.raw(WITHIN_ROUND)
    assert t.line_of(trace, 61)["value"] == 49
    t.line_of(trace, 61)["value"] = value
    found = {finding.seq for finding in t.divergent(WITHIN_ROUND, trace, tmp_path)}
    assert found == ({61} if differs else set())


SENT_BEHIND: Final = WITHIN_ROUND.with_name("soak-87117-sticky-racing")
COUNTER_AT, ASKED_AT = 224, 236


@pytest.mark.parametrize(
    ("unacked", "status"),
    [(0, "uncertain"), (1, "uncertain"), (2, "divergent"), (13, "divergent"), (15, "divergent")],
)
def test_a_request_may_clear_the_counter_before_a_send_and_let_go_behind_it(
    unacked: int, status: str, tmp_path: Path
) -> None:
    """Consumer 2 has 14 messages; it was sent the last one at line 216."""
    trace = t.raw(SENT_BEHIND)
    t.line_of(trace, COUNTER_AT)["usable"][1][3] = unacked
    found = t.found_at(SENT_BEHIND, trace, tmp_path, COUNTER_AT)
    racing = ASKED_AT if status == "uncertain" else None
    assert {(f.status, f.racing_seq) for f in found} == {(status, racing)}
