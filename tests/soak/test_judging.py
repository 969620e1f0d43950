"""The audit finds undelivered, with certainty or possibly, all that clients never received."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.recorder.comparison import Audit, differences, settled_by_others
from tests.recorder.truth import Truth
from tests.soak.judging import Played, may_be_owed_to_nobody
from tests.soak.script import Script, script_of

#: As the audit of a 4.0.0 names a key whose hash the broker holds for ever (#24736).
WAITS: str = "key k (hash 9) waited for c3 5.09 s from 04:32:57.436: the hash drains{}; it was still waiting at 04:33:02.526"
SENT_AT_LAST: str = WAITS.split(";", maxsplit=1)[0].format("")
UNDELIVERED: str = "stored entries not delivered by then, and no finding says why: 2"


def finding(kind: str, *positions: str, uncertain: bool = False, explanation: str = "") -> dict[str, Any]:
    return {"kind": kind, "positions": list(positions), "uncertain": uncertain, "explanation": explanation}


def disagreement(unseen: set[tuple[int, int]], *findings: dict[str, Any], reason: str = "") -> list[str]:
    """Compare an audit of these findings with clients that never received these entries, of one message each."""
    promises = ("per_key_order", "duplicate_delivery", "completeness", "input_quality")
    rows = [
        {"promise": promise, "verdict": "PASS", "reason": reason if promise == "completeness" else ""}
        for promise in promises
    ]
    audit = Audit(list(findings), {"quarantined": 0, "promises": rows})
    lines = differences(Truth(unseen={(position, 0) for position in unseen}), audit)
    return [line for line in lines if line.startswith(("never received", "found undelivered"))]


ONE = finding("stuck_key", "3:4", explanation=WAITS.format(""))
TEN = finding("stuck_key", "3:4", "3:6", explanation=WAITS.format("; 1,010 messages waited, 3:4 first"))


@pytest.mark.parametrize(
    ("findings", "unseen"),
    [
        pytest.param([ONE], {(3, 4)}, id="one message of a stuck key"),
        pytest.param([ONE], set(), id="received before it had to wait"),
        pytest.param([{**ONE, "uncertain": True}], {(3, 4)}, id="possibly stuck"),
        pytest.param([{**ONE, "uncertain": True}], set(), id="possibly stuck, received"),
        pytest.param([TEN], {(3, entry) for entry in range(1010)}, id="more than the finding names"),
        pytest.param([finding("never_delivered", "3:4")], {(3, 4)}, id="never delivered"),
        pytest.param(
            [finding("never_delivered", "3:4", uncertain=True)], {(3, 4)}, id="possibly never delivered"
        ),
        pytest.param([finding("never_delivered", "3:4", uncertain=True)], set(), id="possibly, received"),
        pytest.param([finding("never_delivered", "3:4"), ONE], {(3, 4)}, id="in two findings"),
    ],
)
def test_they_agree(findings: list[dict[str, Any]], unseen: set[tuple[int, int]]) -> None:
    assert disagreement(unseen, *findings) == []


@pytest.mark.parametrize(
    ("findings", "unseen", "said"),
    [
        pytest.param([], {(3, 4)}, 0, id="not found"),
        pytest.param([ONE], {(3, 5)}, 0, id="not that of the stuck key"),
        pytest.param([ONE], {(3, 4), (3, 6)}, 1, id="more than a stuck key's"),
        pytest.param([{**ONE, "uncertain": True}], {(3, 5)}, 0, id="not that of the possibly stuck key"),
        pytest.param([TEN], {(3, entry) for entry in range(1011)}, 1010, id="more than waited"),
        pytest.param([{**ONE, "explanation": SENT_AT_LAST}], {(3, 4)}, 0, id="not stuck at the end"),
    ],
)
def test_they_differ(findings: list[dict[str, Any]], unseen: set[tuple[int, int]], said: int) -> None:
    assert disagreement(unseen, *findings) == [
        f"never received: the audit says {said}, the clients saw {len(unseen)}"
    ]


@pytest.mark.parametrize("unseen", [set(), {(3, 5)}])
def test_an_entry_that_was_received_is_not_undelivered(unseen: set[tuple[int, int]]) -> None:
    lines = disagreement(unseen, finding("never_delivered", "3:4"))
    assert "found undelivered, not seen: the audit says {(3, 4)}, the clients saw set()" in lines


def test_what_the_audit_only_counts() -> None:
    assert disagreement({(3, 4), (3, 5)}, reason=UNDELIVERED) == []
    assert disagreement({(3, 4), (3, 5), (3, 6)}, reason=UNDELIVERED) != []


def recorded(folder: Path, *lines: dict[str, Any]) -> Path:
    text = "".join(
        json.dumps(line | {"incarnation": 1, "seq": seq}) + "\n" for seq, line in enumerate(lines, 1)
    )
    (folder / "trace-b-1.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    return folder


def sends(consumer: int, *positions: str) -> dict[str, Any]:
    return {"kind": "sent", "consumer": consumer, "positions": positions}


def acks(consumer: int, position: str, ack_type: str = "Cumulative") -> dict[str, Any]:
    return {"kind": "ack", "consumer": consumer, "positions": [position], "ack_type": ack_type}


@pytest.mark.parametrize(
    ("lines", "settled"),
    [
        pytest.param([sends(1, "3:4"), sends(2, "3:10"), acks(2, "3:10")], {(3, 4)}, id="of another"),
        pytest.param(
            [sends(1, "3:4"), sends(2, "3:10"), acks(2, "3:10", "Individual")], set(), id="one alone"
        ),
        pytest.param([sends(1, "3:4"), sends(2, "3:4"), acks(2, "3:4")], set(), id="sent to both"),
        pytest.param(
            [sends(1, "3:4", "3:12"), sends(2, "3:10"), acks(2, "3:10")], {(3, 4)}, id="later entry"
        ),
        pytest.param([acks(2, "3:10"), sends(1, "3:4")], set(), id="sent after it"),
    ],
)
def test_what_a_cumulative_acknowledgement_settles_for_others(
    lines: list[dict[str, Any]], settled: set[tuple[int, int]], tmp_path: Path
) -> None:
    assert settled_by_others(recorded(tmp_path, *lines)) == settled


DELAYED, PLAIN = script_of(87084), script_of(86855)


@pytest.mark.parametrize(
    ("script", "conformance", "owed_to_nobody"),
    [
        pytest.param(DELAYED, "UNKNOWN", {(3, 4)}, id="not compared"),
        pytest.param(DELAYED, "PASS", set(), id="compared"),
        pytest.param(PLAIN, "UNKNOWN", set(), id="no delays"),
    ],
)
def test_what_was_sent_may_be_owed_to_nobody_where_delays_end_the_comparison(
    script: Script, conformance: str, owed_to_nobody: set[tuple[int, int]], tmp_path: Path
) -> None:
    joined = {"kind": "consumer_added", "consumer": 1, "name": "c1"}
    (tmp_path / "recording").mkdir()
    recorded(tmp_path / "recording", joined, sends(1, "3:4"))
    audit = Audit([], {"promises": [{"promise": "conformance", "verdict": conformance}]})
    assert may_be_owed_to_nobody(Played(1, script, tmp_path, {}), audit) == owed_to_nobody
