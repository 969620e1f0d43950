"""Findings in client logs: what the clients prove, and what their clocks and connections leave open."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dispatch_core.audit.client_log import CLOCK_DIFFERENCE_US, judged, summary
from dispatch_core.recording.client_files import find_client_logs, read_client_logs
from dispatch_core.recording.client_log import merged
from dispatch_core.replay.whole_log import audit_whole
from tests.dispatch_core.client_lines import T_US, acked, closed, header, nacked, received, write

Lines = list[dict[str, Any]]
#: What clients write that know less than all: no lost connections.
BLIND: dict[str, Any] = {"records": ["client_nacked"]}
#: What clients write that know of their lost connections.
KNOWING: dict[str, Any] = {"records": ["client_nacked", "disconnected_us"]}
#: A client that stays all the time: while nobody is connected, the cursor may be moved.
BYSTANDER: Lines = [header("w9"), received(0, "9:1", key="z"), acked(100, "9:1")]


class Found(NamedTuple):
    kind: str
    reason: str | None
    uncertain: bool
    explanation: str


def found(folder: Path, *clients: Lines, clock_us: int = CLOCK_DIFFERENCE_US) -> list[Found]:
    """Audit client logs; returns their findings."""
    logs = read_client_logs(find_client_logs([write(folder, *clients)]))
    [made] = merged(logs.sessions, logs.name)
    audit = audit_whole(made.log, rules=False)
    rows = judged(audit.anomalies, made, clock_us).to_pylist()
    return [Found(*(row[name] for name in Found._fields)) for row in rows]


def named(findings: list[Found]) -> list[tuple[str, str | None, bool]]:
    return [finding[:3] for finding in findings]


def test_a_quiet_log_has_no_findings(tmp_path: Path) -> None:
    first = [
        header("w1"),
        received(0, "3:1"),
        acked(1, "3:1"),
        received(2, "3:2"),
        acked(3, "3:2"),
        closed(4),
    ]
    second = [header("w2"), received(10, "3:3"), acked(11, "3:3"), closed(12)]
    assert found(tmp_path, first, second) == []


def test_a_key_that_goes_backwards_at_one_consumer_is_certain(tmp_path: Path) -> None:
    [finding] = found(tmp_path, [header(), received(0, "3:2"), received(0, "3:1")])
    assert finding[:3] == ("out_of_order", None, False)
    assert "key k went backwards: 3:1 was sent for the first time, to w1" in finding.explanation


def test_other_keys_do_not_matter(tmp_path: Path) -> None:
    assert found(tmp_path, [header(), received(0, "3:2", key="a"), received(0, "3:1", key="b")]) == []


@pytest.mark.parametrize(("apart_s", "uncertain"), [(0.4, True), (1.0, True), (1.1, False)])
def test_order_across_hosts_needs_times_that_are_far_apart(
    tmp_path: Path, apart_s: float, uncertain: bool
) -> None:
    first = [header("w1"), received(0, "3:2"), acked(20, "3:2")]
    second = [header("w2"), received(apart_s, "3:1"), acked(21, "3:1")]
    [finding] = found(tmp_path, first, second)
    assert finding[:3] == ("out_of_order", "clocks_differ" if uncertain else None, uncertain)
    if uncertain:
        assert "the clocks of w1 and w2 may differ by up to 1.00 s" in finding.explanation


def test_consumers_of_one_host_have_one_clock(tmp_path: Path) -> None:
    first = [header("w1", host="a"), received(0, "3:2"), acked(20, "3:2")]
    second = [header("w2", host="a"), received(0.001, "3:1"), acked(21, "3:1")]
    assert named(found(tmp_path, first, second)) == [("out_of_order", None, False)]


def test_clocks_that_were_set_back_prove_nothing_across_hosts(tmp_path: Path) -> None:
    first = [header("w1"), received(5, "3:9", key="z"), received(0, "3:2"), acked(20, "3:2")]
    second = [header("w2"), received(9, "3:1"), acked(21, "3:1")]
    assert ("out_of_order", "clocks_differ", True) in named(found(tmp_path, first, second))


def test_a_split_key_is_certain_while_its_holder_shows_that_it_holds(tmp_path: Path) -> None:
    first = [header("w1", **BLIND), received(0, "3:1"), acked(10, "3:1")]
    second = [header("w2", **BLIND), received(5, "3:2"), acked(6, "3:2")]
    assert named(found(tmp_path, first, second)) == [("split_key", None, False)]


@pytest.mark.parametrize("ack_s", [5.2, 5.9])
def test_a_split_key_is_uncertain_if_it_ends_within_the_clocks(tmp_path: Path, ack_s: float) -> None:
    first = [header("w1"), received(0, "3:1"), acked(ack_s, "3:1"), received(20, "3:9", key="z")]
    second = [header("w2"), received(5, "3:2"), acked(6, "3:2")]
    assert named(found(tmp_path, first, second)) == [("split_key", "clocks_differ", True)]


def test_a_cumulative_acknowledgement_ends_a_split(tmp_path: Path) -> None:
    first = [
        header("w1"),
        received(0, "3:1"),
        acked(5.5, "3:4", ack_type="Cumulative"),
        received(20, "3:9", key="z"),
    ]
    second = [header("w2"), received(5, "3:2"), acked(6, "3:2")]
    assert named(found(tmp_path, first, second)) == [("split_key", "clocks_differ", True)]


def test_a_holder_whose_log_ends_may_be_gone(tmp_path: Path) -> None:
    first = [header("w1"), received(0, "3:1")]
    second = [header("w2"), received(5, "3:2"), acked(6, "3:2")]
    [finding] = found(tmp_path, first, second)
    assert finding[:3] == ("split_key", "client_log_ends", True)


def test_a_consumer_that_was_closed_holds_nothing(tmp_path: Path) -> None:
    first = [header("w1"), received(0, "3:1"), closed(2)]
    second = [header("w2"), received(5, "3:1"), received(5, "3:2"), acked(6, "3:1"), acked(6, "3:2")]
    findings = found(tmp_path, first, second, BYSTANDER)
    assert [(finding.kind, finding.uncertain) for finding in findings] == [("redelivered", False)]
    assert "which w1 still held when it disconnected" in findings[0].explanation


def test_an_entry_at_two_consumers(tmp_path: Path) -> None:
    def clients(**values: Any) -> tuple[Lines, Lines]:
        first = [header("w1", **values), received(0, "3:1"), acked(20, "3:1")]
        return first, [header("w2", **values), received(5, "3:1"), acked(6, "3:1")]

    kinds = ["split_key", "double_outstanding"]
    assert named(found(tmp_path / "a", *clients(**KNOWING))) == [(kind, None, False) for kind in kinds]
    assert named(found(tmp_path / "b", *clients())) == [(kind, None, False) for kind in kinds]
    # A connection that was lost unseen explains it.
    unseen = [(kind, "connection_may_be_lost", True) for kind in kinds]
    assert named(found(tmp_path / "c", *clients(**BLIND))) == unseen


def test_a_duplicate_at_the_same_client(tmp_path: Path) -> None:
    lines = [received(0, "3:1"), acked(1, "3:1"), received(2, "3:1")]
    kind = "duplicate_after_ack"
    assert named(found(tmp_path / "a", [header(), *lines])) == [(kind, None, False)]
    assert named(found(tmp_path / "b", [header(**KNOWING), *lines])) == [(kind, None, False)]
    assert named(found(tmp_path / "c", [header(**BLIND), *lines])) == [(kind, "connection_may_be_lost", True)]


@pytest.mark.parametrize(("again_s", "uncertain"), [(1.5, True), (3, False)])
def test_a_duplicate_at_another_client(tmp_path: Path, again_s: float, uncertain: bool) -> None:
    first = [header("w1"), received(0, "3:1"), acked(1, "3:1")]
    second = [header("w2"), received(again_s, "3:1")]
    expected = ("duplicate_after_ack", "clocks_differ" if uncertain else None, uncertain)
    assert named(found(tmp_path, first, second)) == [expected]


def test_a_duplicate_that_a_request_explains(tmp_path: Path) -> None:
    lines = [received(0, "3:1"), nacked(1, "3:1"), acked(2, "3:1"), received(3, "3:1")]
    assert named(found(tmp_path, [header(), *lines])) == [
        ("duplicate_after_ack", "redelivery_on_its_way", True)
    ]


@pytest.mark.parametrize(("lost_s", "uncertain"), [(2, True), (60, False)])
def test_an_acknowledgement_that_may_be_lost_with_its_connection(
    tmp_path: Path, lost_s: float, uncertain: bool
) -> None:
    lost = {"disconnected_us": T_US + round(lost_s * 1_000_000)}
    lines = [received(0, "3:1", disconnected_us=0), acked(1, "3:1"), received(90, "3:1", **lost)]
    expected = ("duplicate_after_ack", "connection_lost" if uncertain else None, uncertain)
    assert named(found(tmp_path, [header(**KNOWING), *lines], BYSTANDER)) == [expected]


@pytest.mark.parametrize(("closed_s", "uncertain"), [(2, True), (60, False)])
def test_an_acknowledgement_that_may_be_lost_with_its_consumer(
    tmp_path: Path, closed_s: float, uncertain: bool
) -> None:
    first = [header("w1", **KNOWING), received(0, "3:1"), acked(1, "3:1"), closed(closed_s)]
    second = [header("w2", **KNOWING), received(90, "3:1")]
    expected = ("duplicate_after_ack", "redelivery_on_its_way" if uncertain else None, uncertain)
    assert named(found(tmp_path, first, second, BYSTANDER)) == [expected]


def test_what_a_client_still_had_when_it_lost_its_connection(tmp_path: Path) -> None:
    # The connection is lost after 5 s. What waits at the client is handed out and acknowledged, then all of it comes again.
    lost = {"disconnected_us": T_US + 5_000_000}
    lines = [received(0, "3:0"), received(6, "3:1", **lost), received(40, "3:2", connected=False)]
    lines += [acked(40, "3:2"), received(60, "3:2")]
    kind = "duplicate_after_ack"
    again = found(tmp_path / "a", [header(**KNOWING), *lines], BYSTANDER)
    assert named(again) == [(kind, "connection_lost", True)]
    assert (
        "it may have got an entry that was sent before, or an acknowledgement did not arrive" in again[0][3]
    )
    # A client that was connected again after 10 s at most.
    lines[2].pop("connected")
    assert named(found(tmp_path / "b", [header(**KNOWING), *lines], BYSTANDER)) == [(kind, None, False)]


def test_a_batch_of_which_a_message_was_refused_comes_again_as_a_whole(tmp_path: Path) -> None:
    def of(line: dict[str, Any], index: int) -> dict[str, Any]:
        return line | {"batch_index": index, "batch_size": 2}

    def delivery(at: int, *answers: dict[str, Any]) -> list[dict[str, Any]]:
        """Receive the messages of the batch, each with its answer."""
        return [
            of(line, index) for index, answer in enumerate(answers) for line in (received(at, "3:1"), answer)
        ]

    first = delivery(0, acked(0, "3:1"), nacked(1, "3:1"))
    second = delivery(2, nacked(2, "3:1"), acked(2, "3:1"))
    third = delivery(4, acked(4, "3:1"), nacked(5, "3:1"))
    last = delivery(6, acked(6, "3:1"), acked(6, "3:1"))
    findings = found(tmp_path / "a", [header(**BLIND), *first, *second, *third, *last])
    assert named(findings) == [("redelivered", None, False)] * 3
    # After the third delivery began, each message had been acknowledged once.
    assert "so the entry was not acknowledged as a whole" in findings[2].explanation
    again = of(received(30, "3:1"), 0)
    findings = found(tmp_path / "b", [header(**KNOWING), *first, *second, *third, *last, again])
    assert named(findings)[3:] == [("duplicate_after_ack", None, False)]


def test_a_message_that_comes_again_unasked(tmp_path: Path) -> None:
    lines = [received(0, "3:1"), received(2, "3:1")]
    assert named(found(tmp_path / "a", [header(), *lines])) == [("redelivered", "unexplained", False)]
    assert named(found(tmp_path / "b", [header(**KNOWING), *lines])) == [
        ("redelivered", "unexplained", False)
    ]
    assert named(found(tmp_path / "c", [header(**BLIND), *lines])) == [
        ("redelivered", "connection_may_be_lost", True)
    ]


def test_a_reconnect_that_sends_all_again_is_no_disorder(tmp_path: Path) -> None:
    lines = [received(0, "3:1"), received(0, "3:2"), received(5, "3:1"), received(5, "3:2")]
    findings = named(found(tmp_path / "a", [header(**BLIND), *lines]))
    assert {(reason, uncertain) for _, reason, uncertain in findings} == {("connection_may_be_lost", True)}
    lost = {"disconnected_us": T_US + 2_000_000}
    lines[0] |= {"disconnected_us": 0}
    lines[2] |= lost
    [first, second] = found(tmp_path / "b", [header(**KNOWING), *lines], BYSTANDER)
    assert (first.kind, second.kind, first.uncertain) == ("redelivered", "redelivered", False)
    assert "still held when it disconnected" in first.explanation


def test_a_message_that_was_delivered_before_the_log(tmp_path: Path) -> None:
    [finding] = found(tmp_path, [header(), received(0, "3:2"), received(1, "3:1", redelivery_count=2)])
    assert finding[:3] == ("out_of_order", "delivered_before", True)


def test_order_of_a_subscription_of_unknown_type_is_not_proven(tmp_path: Path) -> None:
    lines = [header(subscription_type=None), received(0, "3:2"), received(1, "3:1")]
    assert named(found(tmp_path, lines)) == [("out_of_order", "subscription_type_not_known", True)]


def test_lost_lines_leave_findings_open(tmp_path: Path) -> None:
    numbered = [received(0, "3:1"), received(1, "3:1")]
    lines = [line | {"seq": seq} for line, seq in zip(numbered, (1, 3), strict=True)]
    gap, again = found(tmp_path, [header(), *lines])
    assert gap.kind == "log_gap"
    assert (
        gap.explanation == "lines are missing before client-1.jsonl:3: what this client saw there is unknown"
    )
    assert again[:3] == ("redelivered", "unexplained", True)


def test_whose_logs_they_are(tmp_path: Path) -> None:
    first, second = [header("w1"), received(0, "3:1")], [header("w2"), received(9, "3:2", key="b")]
    logs = read_client_logs(find_client_logs([write(tmp_path, first, second)]))
    [made] = merged(logs.sessions, logs.name)
    assert (
        summary(made, 250_000) == "2 client logs of 2 hosts; clocks of two hosts may differ by up to 250 ms"
    )
