"""Logs of non-persistent topics: order, second deliveries and owners are judged; what nobody was sent is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.broker.hashing import h31
from dispatch_core.broker.non_persistent import dispatcher
from dispatch_core.broker.profiles import resolve
from dispatch_core.cli.main import main
from dispatch_core.replay.replay_log import replay
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    Event,
    ack,
    added,
    flow,
    numbered,
    read,
    redeliver,
    removed,
)

TOPIC = "non-persistent://public/default/t"
Result = tuple[int, list[dict[str, Any]], dict[str, Any]]


def sent(consumer: int, *entries: int) -> Event:
    return {
        "kind": "sent",
        "consumer": consumer,
        "positions": [f"5:{entry}" for entry in entries],
        "batch_sizes": [1] * len(entries),
    }


def published(entry: int, second: float, key: str = "order-17", **fields: Any) -> Event:
    """Make the line of an entry that was published so many seconds after midnight; events are one second apart."""
    return {
        "position": f"5:{entry}",
        "key": key,
        "producer": "p",
        "sequence_id": entry,
        "publish_time_ms": T0_US // 1000 + round(1000 * second),
        "num_messages": 1,
        "size_bytes": 10,
    } | fields


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(
        messages: list[Event], events: list[Event], kind: str = "Key_Shared", topic: str = TOPIC
    ) -> Path:
        folder = tmp_path / "logs" / "recording"
        folder.mkdir(parents=True)
        header = {
            "format": "pulsar-consumer-events",
            "format_version": "1.1",
            "broker_version": "4.2.4",
            "topic": topic,
            "subscription": "s",
            "subscription_type": kind,
            "config": {},
        }
        lines = {"messages": [{"topic": topic} | m for m in messages], "events": [header, *numbered(events)]}
        for name, rows in lines.items():
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return folder

    return write


@pytest.fixture
def audit(write: Callable[..., Path], capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def run(messages: list[Event], *events: Event, kind: str = "Key_Shared", topic: str = TOPIC) -> Result:
        code = main(["audit", "--json", str(write(messages, list(events), kind, topic))])
        *found, verdict = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return code, found, verdict

    return run


def owner_of(key: str, *consumers: int) -> int:
    """Return who owns a key when these consumers have joined in turn."""
    profile = resolve("4.2.4", non_persistent=True)
    core = dispatcher(profile)
    for consumer in consumers:
        core.join(consumer, f"worker-{consumer}")
    owner = core.owner(profile.hash_space.sticky(h31(key.encode())))
    assert owner is not None
    return owner


def key_of(consumer: int, *consumers: int) -> str:
    """Return a key that ``consumer`` owns when these have joined in turn."""
    return next(key for key in map("key-{}".format, range(1000)) if owner_of(key, *consumers) == consumer)


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover", "Shared"])
def test_a_key_that_moves_is_no_finding(audit: Callable[..., Result], kind: str) -> None:
    """Nothing is acknowledged: on a persistent topic the key would be at two consumers at once."""
    messages = [published(0, 2.5), published(1, 5.5)]
    events = (added(1), flow(1), sent(1, 0), added(2), flow(2), removed(1), sent(2, 1))
    code, found, verdict = audit(messages, *events, kind=kind)
    assert (code, found, verdict["verdict"]) == (0, [], "PASS")


def test_consumers_stay_and_the_key_moves(audit: Callable[..., Result]) -> None:
    key = key_of(2, 1, 2)
    messages = [published(0, 2.5, key), published(1, 5.5, key)]
    code, found, _ = audit(messages, added(1), flow(1), sent(1, 0), added(2), flow(2), sent(2, 1))
    assert (code, found) == (0, [])


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover", "Shared"])
@pytest.mark.parametrize(
    "between",
    [
        (),
        (ack(1, 0),),
        (redeliver(1, 0),),
        (redeliver(1),),
        ({"kind": "active_notified", "consumer": 1, "active": 1},),
        ({"kind": "cursor_moved", "by": "seek", "from": "5:0", "to": "5:-1"},),
    ],
    ids=["nothing", "ack", "nack", "nack all", "notice", "seek"],
)
def test_a_second_delivery_is_certain_whatever_came_before(
    audit: Callable[..., Result], kind: str, between: tuple[Event, ...]
) -> None:
    messages = [published(0, 2.5), published(1, 3.5)]
    code, found, verdict = audit(
        messages, added(1), flow(1), sent(1, 0), *between, sent(1, 1), sent(1, 1), kind=kind
    )
    assert (code, verdict["verdict"]) == (1, "FAIL")
    (twice,) = found
    assert (twice["kind"], twice["reason"], twice["severity"]) == ("redelivered", "sent_twice", "major")
    assert (twice["positions"], twice["consumers"], twice["uncertain"]) == (["5:1"], [1], False)
    last = 5 + len(between)
    assert twice["seqs"] == [last - 1, last]
    assert twice["explanation"].endswith("the broker sends an entry of a non-persistent topic once")


def test_a_second_delivery_to_another_consumer_after_the_first_has_left(
    audit: Callable[..., Result],
) -> None:
    """On a persistent topic the disconnect would explain it."""
    code, found, _ = audit(
        [published(0, 2.5)], added(1), flow(1), sent(1, 0), removed(1), added(2), flow(2), sent(2, 0)
    )
    assert code == 1
    assert [(row["kind"], row["reason"], row["consumers"]) for row in found] == [
        ("redelivered", "sent_twice", [2, 1])
    ]


@pytest.mark.parametrize(
    ("producers", "uncertain"), [(("p", "p"), False), (("p", "q"), True), ((None, None), True)]
)
def test_order_is_that_of_one_producer(
    audit: Callable[..., Result], producers: tuple[str | None, str | None], uncertain: bool
) -> None:
    messages = [published(entry, 2.5, producer=producer) for entry, producer in enumerate(producers)]
    code, found, verdict = audit(messages, added(1), flow(1), sent(1, 1), sent(1, 0))
    (finding,) = found
    assert (finding["kind"], finding["uncertain"]) == ("out_of_order", uncertain)
    assert finding.get("reason") == ("several_producers" if uncertain else None)
    assert (code, verdict["verdict"]) == ((2, "UNKNOWN") if uncertain else (1, "FAIL"))


def test_a_shared_subscription_promises_no_order(audit: Callable[..., Result]) -> None:
    messages = [published(0, 2.5), published(1, 2.6)]
    code, found, _ = audit(messages, added(1), flow(1), sent(1, 1), sent(1, 0), kind="Shared")
    assert (code, found) == (0, [])


def test_another_consumer_than_the_owner(audit: Callable[..., Result]) -> None:
    key = key_of(2, 1, 2)
    code, found, _ = audit([published(0, 4.5, key)], added(1), flow(1), added(2), flow(2), sent(1, 0))
    assert code == 1
    (finding,) = found
    assert (finding["kind"], finding["uncertain"], finding["seqs"]) == ("divergence", False, [5])
    assert "another consumer owns the key's hash" in finding["explanation"]


def test_a_join_that_races_may_explain_the_owner(audit: Callable[..., Result]) -> None:
    key = key_of(2, 1, 2)
    joins = added(2) | {"t_us": T0_US + 4_980_000}
    code, found, verdict = audit([published(0, 4.5, key)], added(1), flow(1), flow(1), joins, sent(1, 0))
    assert not [row for row in found if not row["uncertain"]]
    assert (code, verdict["counts"].get("divergence", 0)) == (0, 0)


def test_another_consumer_than_the_active_one(audit: Callable[..., Result]) -> None:
    events = (added(1), flow(1), added(2), flow(2), sent(2, 0))
    code, found, _ = audit([published(0, 4.5)], *events, kind="Failover")
    assert (code, [row["kind"] for row in found]) == (1, ["divergence"])


def test_a_delivery_without_permits(audit: Callable[..., Result]) -> None:
    messages = [published(0, 2.5), published(1, 3.5)]
    code, found, _ = audit(messages, added(1), flow(1, 1), sent(1, 0), sent(1, 1))
    assert (code, [row["kind"] for row in found]) == (1, ["divergence"])
    assert "no permits left" in found[0]["explanation"]


# --- drops ---------------------------------------------------------------------------------------------------------

DROPS = [
    published(0, -5),  # before the subscription
    published(1, 1.5),  # nobody has permits yet
    published(2, 2.5),
    published(3, 3.5, num_messages=4),  # one permit was granted, and it is used
    published(4, 3.6),
    published(5, 6.5),  # nobody is connected
    published(6, 8.5),
    published(7, 9.5),  # not sent although there are permits
    published(8, 9.6),
]
EVENTS = (
    *(added(1), flow(1, 1), sent(1, 2), flow(1, 1), flow(1, 1)),
    *(removed(1), added(2), flow(2, 10), sent(2, 6), sent(2, 8), flow(2), flow(2)),
)


def drops(found: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {row["reason"]: row["positions"] for row in found if row["kind"] == "dropped"}


@pytest.mark.parametrize("kind", ["Key_Shared", "Failover", "Exclusive", "Shared"])
def test_drops_are_counted_by_reason_and_are_no_loss(audit: Callable[..., Result], kind: str) -> None:
    code, found, verdict = audit(DROPS, *EVENTS, kind=kind)
    assert drops(found) == {
        "no_consumer": ["5:5"],
        "no_permits": ["5:1", "5:3", "5:4"],
        "not_writable": ["5:7"],
    }
    assert {row["kind"] for row in found} == {"dropped"}
    assert {row["severity"] for row in found} == {"info"}
    assert (code, verdict["verdict"], verdict["counts"]) == (0, "PASS", {"dropped": 3})
    (completeness,) = [row for row in verdict["promises"] if row["promise"] == "completeness"]
    assert (completeness["verdict"], completeness["tolerated"]) == ("PASS", 3)
    by_reason = {row["reason"]: row for row in found}
    whose = "nobody had permits" if kind == "Shared" else "worker-1 had no permits"
    assert by_reason["no_permits"]["explanation"] == (
        f"3 entries (6 messages) were dropped, the first 5:1: {whose}. A non-persistent topic keeps nothing"
    )


def test_the_same_log_of_a_persistent_topic_is_a_loss(audit: Callable[..., Result]) -> None:
    code, found, _ = audit(DROPS, *EVENTS, topic="persistent://public/default/t")
    assert code != 0
    assert not drops(found)


def test_an_entry_that_is_sent_after_its_successor_is_no_drop(audit: Callable[..., Result]) -> None:
    """Two producers, whose publishes run side by side."""
    messages = [published(0, 2.5, "a", producer="p"), published(1, 2.5, "b", producer="q")]
    code, found, _ = audit(messages, added(1), flow(1), sent(1, 1), sent(1, 0))
    assert (code, found) == (0, [])


def test_what_comes_behind_the_last_delivery_is_dropped_too(audit: Callable[..., Result]) -> None:
    messages = [published(0, 2.5), published(1, 4.5), published(2, 5.5), published(3, 60)]
    code, found, _ = audit(
        messages, added(1), flow(1, 1), sent(1, 0), redeliver(1), redeliver(1), redeliver(1), removed(1)
    )
    assert drops(found) == {"no_permits": ["5:1", "5:2"]}  # the last one was published when the log had ended
    assert code == 0


def test_a_subscription_that_is_made_again_owes_nothing_of_before(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """The last consumer's leave deletes the subscription; the next one begins a new incarnation of the same load."""
    loads = {
        1: (0, [added(1), flow(1, 1), sent(1, 0), removed(1), {"kind": "subscription_deleted"}]),
        2: (20, [added(1), flow(1, 1), sent(1, 4), flow(1, 1), flow(1, 1), flow(1, 1)]),
    }
    events = [
        {**event, "incarnation": load, "t_us": event["t_us"] + 1_000_000 * second}
        for load, (second, lines) in loads.items()
        for event in numbered([{"kind": "checkpoint", "consumers": []}, *lines])
    ]
    messages = [
        published(0, 3.5),
        published(1, 4.5),
        published(2, 10),
        published(3, 22.5),
        published(4, 23.5),
    ]
    assert main(["audit", "--json", str(write(messages, events))]) == 0
    *found, verdict = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["incarnation"], row["kind"], row["positions"]) for row in found] == [
        (1, "dropped", ["5:1"]),
        (2, "dropped", ["5:3"]),
    ]
    assert verdict["verdict"] == "PASS"


def test_each_drop_is_in_one_interval(write: Callable[..., Path]) -> None:
    log = read(write(DROPS, list(EVENTS)))
    edges = [datetime.fromtimestamp(T0_US // 1_000_000 + second, UTC) for second in (-60, 3, 5, 8, 600)]
    whole = replay(log, interval_start=edges[0], interval_end=edges[-1])["anomalies"].to_pylist()
    of_each = [
        row
        for start, end in pairwise(edges)
        for row in replay(log, interval_start=start, interval_end=end)["anomalies"].to_pylist()
    ]
    for rows in (whole, of_each):
        assert {row["kind"] for row in rows} == {"dropped"}
        assert sum(row["unsent"] for row in rows) == 5
    assert sorted(p for row in of_each for p in row["positions"]) == ["5:1", "5:3", "5:4", "5:5", "5:7"]


def test_nothing_waits_and_nothing_is_owed(write: Callable[..., Path]) -> None:
    log = read(write(DROPS, list(EVENTS)))
    start, end = (datetime.fromtimestamp(T0_US // 1_000_000 + second, UTC) for second in (-60, 600))
    found = replay(log, interval_start=start, interval_end=end, closed=True)
    assert found["blocked"].num_rows == 0
    assert found["waits"]["never_delivered"].to_pylist() == [0]
    (state,) = found["dispatcher_state"].to_pylist()
    assert state["profile"] == "4.2.4 non-persistent, sticky key, consistent hashing"
    assert (state["decisions"], state["exact"], state["mark_delete"]) == (3, 3, None)
    assert [row["consumer_name"] for row in found["ownership"].to_pylist()] == ["worker-1", "worker-2"]


# --- other commands ------------------------------------------------------------------------------------------------


def test_explain_says_what_was_dropped(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(DROPS, list(EVENTS))
    assert main(["explain", str(folder), "--position", "5:3"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "1 entry, 5:3: 0 sent, 1 to nobody." in text
    assert "Dropped (no_permits): 3 entries (6 messages) were dropped" in text
    assert "waited" not in text
    assert main(["explain", str(folder), "--key", "order-17"]) == 0
    assert "9 entries, 5:0 to 5:8: 3 sent, 6 to nobody." in capsys.readouterr().out


def test_commands_that_need_a_store_refuse(
    write: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(write(DROPS, list(EVENTS)))
    assert main(["what-if", folder, "--broker-version", "4.0.0"]) == 2
    assert "a non-persistent topic is not simulated" in capsys.readouterr().out
    assert main(["verify", folder]) == 2
    assert "the topic is non-persistent" in capsys.readouterr().out
    assert main(["stats", folder]) == 2
    assert "the statistics of a non-persistent topic are not computed" in capsys.readouterr().err
