"""Findings that one event has caused make one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.root_causes import RootCause, by_root_cause
from dispatch_core.audit.sentences.names import ConsumerNames
from dispatch_core.audit.verdict import verdicts
from dispatch_core.cli.main import main
from tests.dispatch_core.audit.judging import counts_of

CLASSIC = (
    Path(__file__).resolve().parents[2]
    / "data"
    / "recordings"
    / "4.2.4"
    / "designed-rolling-restart-classic-ch"
)


def finding(kind: str, consumer: int | None, key: str | None = "k", **fields: Any) -> dict[str, Any]:
    row = {
        "incarnation": 0,
        "kind": kind,
        "severity": "critical",
        "key": key,
        "positions": [],
        "consumers": [] if consumer is None else [consumer],
        "t_us": None,
        "cause": None,
        "reason": None,
        "uncertain": False,
        "explanation": f"{kind} of {key}",
    }
    return row | fields


def kinds_of(*rows: dict[str, Any]) -> list[list[str]]:
    return [[*cause.kinds.elements()] for cause in by_root_cause(rows)]


def test_order_and_duplicates_at_one_consumer_are_one_cause() -> None:
    rows = [finding("out_of_order", 1), finding("double_outstanding", 1), finding("split_key", 2)]
    assert kinds_of(*rows) == [["out_of_order", "double_outstanding"], ["split_key"]]


@pytest.mark.parametrize(
    "other",
    [{"consumers": [2]}, {"incarnation": 1}, {"uncertain": True}],
    ids=["consumer", "load", "uncertain"],
)
def test_what_differs_is_another_cause(other: dict[str, Any]) -> None:
    rows = [finding("split_key", 1), finding("split_key", 1) | other]
    assert len(kinds_of(*rows)) == 2


def test_waits_are_of_one_cause_if_kind_reason_and_consumer_are_the_same() -> None:
    stuck = [finding("stuck_key", 1, key, reason="draining_hash") for key in ("a", "b")]
    other = finding("stuck_key", 1, "c", reason="no_permits")
    assert kinds_of(*stuck, other) == [["stuck_key", "stuck_key"], ["stuck_key"]]


def test_a_finding_alone_is_told_as_it_is() -> None:
    (cause,) = by_root_cause([finding("split_key", 1)])
    assert cause.sentence() == "split_key of k"


def test_a_sentence_has_numbers_of_entries_keys_and_consumers_and_the_worst_three() -> None:
    rows = [
        finding("split_key", 6, f"key-{n}", consumers=[6, 5], positions=[f"1:{n}"], t_us=1_000_000 * n)
        for n in range(1, 6)
    ]
    (cause,) = by_root_cause([*rows, *[finding("out_of_order", 6, "key-1", positions=["1:1"])] * 3])
    said = cause.sentence(ConsumerNames({5: "old", 6: "new"}))
    assert said.startswith(
        "3 out_of_order, 5 split_key at new, from 00:00:01.000 to 00:00:05.000: 5 entries of 5 keys, which old held"
    )
    assert "; the worst are key-1, key-2 and key-3: split_key of key-1" in said


def test_by_rank_the_worst_is_quoted_whenever_it_comes() -> None:
    rows = [finding("split_key", 6, f"key-{n}", positions=[f"1:{n}"]) for n in range(6)]
    cause = RootCause(rows[0])
    for rank in (3, 5, 1, 4, 2):
        cause.add(rows[rank], (rank,))
    assert "; the worst are key-1, key-2 and key-3: split_key of key-1" in cause.sentence()
    assert "5 split_key at connection 6: 5 entries of 5 keys" in cause.sentence()


def test_no_finding_is_lost_in_a_verdict() -> None:
    rows = [finding("split_key", consumer, f"k{n}") for consumer in range(8) for n in range(3)]
    (order,) = [verdict for verdict in verdicts(rows, counts_of(rows)) if verdict.promise == "per_key_order"]
    assert (order.findings, len(order.top_findings), order.more) == (24, 5, 9)


def test_a_restart_of_the_samples_is_three_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(CLASSIC)]) == 1
    sentences = [line for line in capsys.readouterr().out.splitlines() if line.startswith("    - ")]
    assert [line[6:].partition(":")[0].partition(",")[0] for line in sentences] == [
        "10 out_of_order",
        "5 split_key at w0 (connection 7) at 08",
        "13 out_of_order",
    ]
    assert all("; the worst are key-" in line for line in sentences)
