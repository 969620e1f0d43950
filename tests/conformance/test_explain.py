"""``explain`` over recordings with known events, and over every kind of finding in all recordings."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path

import pytest

from dispatch_core.explain.explanation import explanation_of, tick_for
from dispatch_core.explain.record import Record
from dispatch_core.explain.subject import subject_of
from dispatch_core.explain.tell import headline, tell
from dispatch_core.replay.whole_log import audit_whole
from tests.conformance.test_audit import RECORDINGS, folders
from tests.dispatch_core.audit.small_logs import read, without_trace
from tests.sample import some

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]

#: Recording, subject of the question, and expected words of the answer.
STORIES = [
    (
        "4.2.4/designed-drain-one-by-one-ch",
        {"key": "key-7"},
        ("c1 still held 3:7", "PIP-379", "acknowledges 3:37"),
    ),
    (
        "4.2.4/designed-rolling-restart-classic-ch",
        {"key": "key-32"},
        ("went backwards at w2", "which was w1 (connection 5)'s", "still holds 21:55", "read-position rule"),
    ),
    (
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        {"consumer": "c3"},
        ("c3 had joined recently", "PIP-282", "unacknowledged"),
    ),
    (
        "4.2.4/designed-zero-permits-lookahead-ch",
        {"key": "key-3"},
        ("waited 33.", "look-ahead limit", "waiting for c1 (no_permits)", "PerConsumer = 20"),
    ),
    (
        "4.2.4/designed-zero-permits-lookahead-ch",
        {"consumer": "c1"},
        ("waited 39.4 s", "no permits left", "c1 asks for"),
    ),
    ("4.2.4/designed-negative-acks-ch", {"key": "key-2"}, ("Allowed, and counted: 2 overtaken_redelivery",)),
    (
        "4.2.4/designed-failover-modulo-p1",
        {"key": "key-1"},
        ("Allowed, and counted: 12 split_key, 4 double_outstanding, 10 redelivered", "failover_delay"),
    ),
    (
        "4.0.0/designed-away-and-back-ch",
        {"key": "key-0"},
        ("c1 still held 5:0 and 5:20", "held nothing of it any more", "#24736", "1 never sent"),
    ),
    (
        "4.0.0/random-0019-range-racing",
        {"key": "key-1"},
        ("held nothing of it any more", "#24736", "51 never sent"),
    ),
    (
        "4.2.4/designed-max-unacked-ch",
        {"consumer": "c1"},
        ("maxUnackedMessagesPerConsumer = 10", "down to half", "unacknowledged"),
    ),
    (
        "4.2.4/designed-subscription-unacked-ch",
        {"key": "key-1"},
        ("maxUnackedMessagesPerSubscription = 30", "c1 acknowledges 19:71"),
    ),
    ("4.2.4/random-0037-sticky-racing", {"key": "key-0"}, ("nobody's range covers it", "never sent")),
    (
        "4.0.0/designed-same-name-batches-ch",
        {"key": "key-1"},
        ("out_of_order", "went backwards", "worker (connection 3)"),
    ),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "whom", "words"), STORIES, ids=lambda value: str(value)[:60])
@pytest.mark.parametrize("level", ["T", "E"])
def test_known_stories_are_explained(
    name: str, whom: dict[str, str], words: tuple[str, ...], level: str
) -> None:
    log = read(RECORDINGS / name)
    log = log if level == "T" else without_trace(log)
    record = Record.of(log)
    explanation = explanation_of(record, subject_of(record, **whom), audit_whole(log, tick_us=tick_for(log)))
    said = " ".join(headline(explanation))
    for word in words:
        assert word in said, said


@functools.cache
def small_ones() -> tuple[Path, ...]:
    return tuple(folder for folder in folders() if not folder.name.startswith("large-"))


@pytest.mark.parametrize("tenth", some(range(10), 10))
def test_findings_of_all_recordings_can_be_explained(tenth: int) -> None:
    """Explain, in the log without a trace, the first three findings of each kind by key, entry and consumer."""
    asked = 0
    for folder in small_ones()[tenth::10]:
        log = without_trace(read(folder))
        record, audit = Record.of(log), audit_whole(log, tick_us=tick_for(log))
        met: Counter[str] = Counter()
        for row in audit.anomalies.to_pylist():
            met[row["kind"]] += 1
            if met[row["kind"]] > 3:
                continue
            whom = [{"position": position} for position in row["positions"][:1]]
            whom += [{"consumer": str(number)} for number in row["consumers"][:1]]
            if row["key"] is not None:
                whom.append({"key": f"base64:{row['key']}" if row["key_b64"] else row["key"]})
            for subject in whom:
                explanation = explanation_of(record, subject_of(record, **subject), audit)
                assert row["kind"] in {found["kind"] for found in explanation.anomalies}, (
                    folder.name,
                    subject,
                    row,
                )
                assert all(line.isprintable() for line in tell(explanation)), (folder.name, subject)
                asked += 1
    assert asked > 100
