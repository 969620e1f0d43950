"""Documents of ``topics stats`` and ``stats-internal``: fields read for each release, and documents refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.importers.topic_stats.documents import Document, Snapshot, TopicStatsError, snapshot_of

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "stats"


def documents(folder: str) -> list[Document]:
    return [Document.of(file.name, file.read_bytes()) for file in sorted((SAMPLES / folder).glob("*.json"))]


def test_both_documents_of_4_2_say_who_is_connected_what_drains_and_what_is_acknowledged() -> None:
    found = snapshot_of(documents("4.2.4-key-shared"), "audit/1")  # its cursor is called audit%2F1
    assert (found.subscription_type, found.mode, found.has_recently_joined) == (
        "Key_Shared",
        "AUTO_SPLIT",
        False,
    )
    assert [(consumer.name, consumer.permits, consumer.unacked) for consumer in found.consumers] == [
        ("c1", 23, 17),
        ("c2", 15, 25),
        ("c3", 27, 3),
    ]
    assert found.consumers[0].draining == {22295: 5, 23544: 5}
    assert (found.consumers[0].ranges or ())[0] == (1, 1031)
    assert found.last_us == 1795372180198000
    assert found.cursor is not None
    assert (found.cursor.mark_delete, found.cursor.read_position, found.cursor.last_confirmed) == (
        (3, -1),
        (3, 90),
        (3, 89),
    )
    assert found.cursor.acked[:2] == (((3, 1), (3, 5)), ((3, 7), (3, 11)))
    active = snapshot_of(documents("4.2.4-failover"), "audit")
    assert (active.subscription_type, active.active, active.mode) == ("Failover", "c2", None)


def test_stats_of_3_0_have_text_ranges_recently_joined_consumers_and_ranges_over_ledgers() -> None:
    found = snapshot_of(documents("3.0"), "audit")
    assert [consumer.name for consumer in found.consumers] == ["early", "late"]  # as they connected
    assert found.consumers[1].ranges == ((0, 16384), (32769, 49152))
    assert (found.has_recently_joined, found.consumers[0].permits) == (True, -3)
    assert found.cursor is not None
    assert found.cursor.acked == (((5, 1), (5, 2)), ((5, 6), (6, 0)))


def test_one_document_says_what_it_can() -> None:
    (stats,) = [document for document in documents("3.0") if document.kind == "topics stats"]
    assert snapshot_of([stats], "audit").cursor is None


STATS: dict[str, Any] = {
    "subscriptions": {"audit": {"type": "Key_Shared", "consumers": [{"consumerName": "a"}]}}
}
CURSOR = {"markDeletePosition": "5:0", "readPosition": "5:1", "individuallyDeletedMessages": "[]"}
INTERNAL = {"lastConfirmedEntry": "5:9", "cursors": {"audit": CURSOR}}


def read(*found: Any, subscription: str = "audit") -> Snapshot:
    return snapshot_of(
        [Document.of(f"{at}.json", json.dumps(document).encode()) for at, document in enumerate(found)],
        subscription,
    )


def consumer(**fields: Any) -> dict[str, Any]:
    return {"subscriptions": {"audit": {"type": "Key_Shared", "consumers": [fields]}}}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([[1]], "0.json: a JSON list, not an object; give the output of `pulsar-admin topics stats TOPIC`"),
        ([{"a": 1}], "0.json: neither has it `subscriptions`"),
        ([STATS | {"partitions": {}}], "give those of one partition"),
        (
            [INTERNAL],
            "does not name the connected consumers; add the output of `pulsar-admin topics stats TOPIC`",
        ),
        ([STATS, STATS], "0.json and 1.json are both of `topics stats`"),
        ([{"subscriptions": {"b": {}}}], "0.json: it has no subscription audit; those it has: b"),
        (
            [STATS, INTERNAL | {"cursors": {"b": CURSOR}}],
            "1.json: it has no cursor of the subscription audit",
        ),
        ([consumer(availablePermits="3")], 'consumers[0].availablePermits: expected an integer, found "3"'),
        ([consumer(unackedMessages=1 << 40)], "unackedMessages: 1099511627776 is out of range"),
        ([consumer(keyHashRangeArrays=[[5, 3]])], "keyHashRangeArrays: expected ranges of hashes"),
        ([consumer(keyHashRanges=["0-3"])], "keyHashRanges: expected ranges of hashes"),
        ([consumer(connectedSince="yesterday")], "connectedSince: expected a time"),
        ([{"subscriptions": {"audit": {"consumers": [3]}}}], "consumers[0]: expected an object, found 3"),
        (
            [STATS, INTERNAL | {"cursors": {"audit": CURSOR | {"readPosition": "5"}}}],
            'cursors.audit.readPosition: expected a position ledger:entry, found "5"',
        ),
        (
            [STATS, INTERNAL | {"cursors": {"audit": {"markDeletePosition": "5:0"}}}],
            "cursors.audit.readPosition: missing",
        ),
        (
            [STATS, INTERNAL | {"cursors": {"audit": CURSOR | {"individuallyDeletedMessages": "[(5:1]"}}}],
            "individuallyDeletedMessages: expected ranges of positions",
        ),
        ([STATS, INTERNAL | {"lastConfirmedEntry": "99999999999999999999:1"}], "lastConfirmedEntry"),
        ([STATS, INTERNAL | {"lastConfirmedEntry": "9999999999999999999:1"}], "is out of range"),
    ],
)
def test_what_is_wrong_is_refused_by_file_and_field(given: list[Any], said: str) -> None:
    with pytest.raises(TopicStatsError) as error:
        read(*given)
    assert said in str(error.value)


def test_what_is_no_json_is_refused() -> None:
    for data in (b"Topic not found", b"\xff\xfe{", b"[" * 100_000):
        with pytest.raises(TopicStatsError, match=r"s\.json: not valid JSON"):
            Document.of("s.json", data)
