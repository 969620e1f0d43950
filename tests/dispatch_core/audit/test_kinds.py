"""Every kind of finding on a log of a few lines: found where its definition says so, and only there."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.catalogue import KINDS, PROMISES
from dispatch_core.audit.deliveries.rows import Audit
from tests.dispatch_core.audit.small_logs import (
    Event,
    ack,
    added,
    audited,
    kinds,
    message,
    numbered,
    of_kind,
    read,
    redeliver,
    removed,
    sent,
    write,
)

KEYS = [message(entry, "order-17") for entry in range(5)] + [message(5, None), message(6, "other")]


@pytest.fixture
def audit(tmp_path: Path) -> Any:
    def run(*events: Event, messages: list[Event] | None = None, **header: Any) -> Audit:
        folder = write(tmp_path / "a" / "b", messages or KEYS, numbered(events), **header)
        return audited(read(folder))

    return run


def test_a_quiet_log_has_no_finding(audit: Any) -> None:
    result = audit(added(1), sent(1, 0, 1, 2), ack(1, 0, 1, 2), added(2), sent(2, 3), ack(2, 3), removed(1))
    assert kinds(result) == {}
    deliveries = result.deliveries.to_pylist()
    assert [(d["seq"], d["index_in_send"], d["entry_id"], d["delivery_number"]) for d in deliveries] == [
        (2, 0, 0, 1),
        (2, 1, 1, 1),
        (2, 2, 2, 1),
        (5, 0, 3, 1),
    ]
    assert {(d["key"], d["consumer_name"], d["cause"], d["judgement"]) for d in deliveries} == {
        ("order-17", "worker-1", None, "not_judged"),
        ("order-17", "worker-2", None, "not_judged"),
    }
    assert len({d["hash"] for d in deliveries}) == 1


def test_out_of_order_backwards_at_one_connection_tells_the_whole_story(audit: Any) -> None:
    result = audit(
        added(1), sent(1, 0), added(2), sent(2, 3), ack(2, 3), removed(1), sent(2, 0), broker_version="3.0.1"
    )
    (finding,) = of_kind(result, "out_of_order")
    assert finding["key"] == "order-17"
    assert finding["positions"] == ["5:0", "5:3"]
    assert finding["consumers"] == [2]
    assert finding["seqs"] == [2, 4, 7]
    assert finding["cause"] == "disconnect"
    assert finding["severity"] == "critical"
    assert finding["explanation"] == (
        "key order-17 went backwards at worker-2: it got 5:3 at 00:00:04.000 and then 5:0 at 00:00:07.000, "
        "which worker-1 still held when it disconnected; the read-position rule (3.x and classic) lets this happen, "
        "draining hashes (PIP-379) would not"
    )
    assert kinds(result) == {"split_key": ["5:3"], "out_of_order": ["5:0"], "redelivered": ["5:0"]}


@pytest.mark.parametrize(
    ("release", "said"),
    [
        ("4.0.0", "before 4.0.3 two replay reads can be under way at once (#23384)"),
        ("4.0.3", "keep the log, a broker that does it has a bug"),
        ("4.2.4", "keep the log, a broker that does it has a bug"),
    ],
)
def test_disorder_under_draining_hashes_says_what_it_means(audit: Any, release: str, said: str) -> None:
    (finding,) = of_kind(audit(added(1), sent(1, 3, 0), broker_version=release), "out_of_order")
    assert finding["explanation"].endswith(f"(PIP-379) are there to prevent this; {said}")


def test_a_split_key_may_follow_an_expiry_that_has_no_line(audit: Any) -> None:
    (finding,) = of_kind(
        audit(added(1), sent(1, 0), added(2), sent(2, 3), broker_version="4.2.4"), "split_key"
    )
    assert finding["explanation"].endswith(
        "; keep the log: unless entries were skipped or expired without a line, the broker has a bug"
    )


def test_disorder_of_sticky_consumers_blames_no_draining_and_no_consumer(audit: Any) -> None:
    sticky = {"mode": "STICKY", "allow_out_of_order": False, "ranges": [[0, 65535]]}
    joins = added(1) | {"key_shared": sticky}
    (finding,) = of_kind(audit(joins, sent(1, 3, 0), broker_version="4.2.4"), "out_of_order")
    assert finding["explanation"].endswith(
        "; no rule keeps the order of keys that move between sticky ranges"
    )


def test_out_of_order_first_sent_after_a_later_entry_to_anyone(audit: Any) -> None:
    result = audit(added(1), added(2), sent(1, 3), ack(1, 3), sent(2, 1))
    (finding,) = of_kind(result, "out_of_order")
    assert finding["positions"] == ["5:1", "5:3"]
    assert finding["consumers"] == [2, 1]
    assert "for the first time" in finding["explanation"]
    assert kinds(result) == {"out_of_order": ["5:1"]}


def test_out_of_order_within_one_line(audit: Any) -> None:
    assert kinds(audit(added(1), sent(1, 2, 1))) == {"out_of_order": ["5:1"]}


def test_order_of_different_keys_and_of_keyless_entries_is_free(audit: Any) -> None:
    assert kinds(audit(added(1), sent(1, 6, 5, 0))) == {}


@pytest.mark.parametrize("request_for", [(0,), ()], ids=["named", "all unacked"])
def test_a_request_between_the_two_explains_it(audit: Any, request_for: tuple[int, ...]) -> None:
    result = audit(added(1), sent(1, 0, 1), redeliver(1, *request_for), sent(1, 0))
    (finding,) = of_kind(result, "overtaken_redelivery")
    assert finding["positions"] == ["5:0", "5:1"]
    assert finding["seqs"] == [2, 3, 4]
    assert kinds(result) == {"overtaken_redelivery": ["5:0"], "redelivered": ["5:0"]}
    assert of_kind(result, "redelivered")[0]["cause"] == "nack"


def test_requests_that_do_not_lie_between_or_do_not_cover_it_explain_nothing(audit: Any) -> None:
    earlier = audit(added(1), sent(1, 0), redeliver(1, 0), sent(1, 1), sent(1, 0))
    assert kinds(earlier)["out_of_order"] == ["5:0"]
    other_entry = audit(added(1), sent(1, 0, 1), redeliver(1, 1), sent(1, 0))
    assert kinds(other_entry)["out_of_order"] == ["5:0"]
    other_connection = audit(added(1), added(2), sent(2, 0, 1), redeliver(1, 0), sent(2, 0))
    assert kinds(other_connection)["out_of_order"] == ["5:0"]
    acked_before = audit(added(1), sent(1, 0, 1), ack(1, 0), redeliver(1), sent(1, 0))
    assert kinds(acked_before) == {"out_of_order": ["5:0"], "duplicate_after_ack": ["5:0"]}


@pytest.mark.parametrize("request_for", [(0,), ()], ids=["named", "all unacked"])
@pytest.mark.parametrize(("lag_us", "uncertain"), [(2_500, True), (19_999, True), (20_000, False)])
def test_a_request_that_has_just_arrived_may_take_effect_later(
    audit: Any, request_for: tuple[int, ...], lag_us: int, uncertain: bool
) -> None:
    """Seen with 4.2.4: while a round was sending, a request arrived, and took effect when the round was over."""
    at = 1_795_219_200_000_000 + 3_000_000
    result = audit(
        added(1),
        sent(1, 0),
        redeliver(1, *request_for) | {"t_us": at},
        sent(1, 1) | {"t_us": at + lag_us},
        sent(1, 2),  # a later one that is sent long after the request changes nothing
        sent(1, 0),
    )
    (finding,) = of_kind(result, "out_of_order")
    assert (finding["uncertain"], finding["reason"]) == (
        (True, "request_racing") if uncertain else (False, None)
    )
    assert finding["positions"] == (["5:0", "5:1"] if uncertain else ["5:0", "5:2"])
    assert finding["seqs"] == ([2, 3, 4, 6] if uncertain else [2, 5, 6])
    assert ("which arrived only" in finding["explanation"]) is uncertain


def test_a_trace_shows_a_request_where_it_took_effect(audit: Any) -> None:
    at = 1_795_219_200_000_000 + 4_000_000
    result = audit(
        *(added(1), sent(1, 0), {"kind": "pending_ack_removed", "consumer": 1, "positions": ["5:0"]}),
        *(redeliver(1, 0) | {"t_us": at}, sent(1, 1) | {"t_us": at + 1_000}, sent(1, 0)),
    )
    (finding,) = of_kind(result, "out_of_order")
    assert (finding["uncertain"], finding["reason"]) == (False, None)


def test_a_request_on_its_way_explains_no_other_entry_and_no_first_delivery(audit: Any) -> None:
    at = 1_795_219_200_000_000 + 3_000_000
    request_of_all = redeliver(1) | {"t_us": at}
    soon = {"t_us": at + 1_000}
    other_entry = audit(added(1), sent(1, 0), redeliver(1, 3) | {"t_us": at}, sent(1, 1) | soon, sent(1, 0))
    first_delivery = audit(added(1), redeliver(1, 0) | {"t_us": at}, sent(1, 1) | soon, sent(1, 0))
    other_connection = audit(
        *(added(1), added(2), sent(1, 0), redeliver(2, 0) | {"t_us": at}),
        *(sent(1, 1) | soon, sent(1, 0)),
    )
    after_its_ack = audit(
        *(added(1), sent(1, 0), ack(1, 0) | {"t_us": at - 1}, request_of_all),
        *(sent(1, 1) | soon, sent(1, 0)),
    )
    for result in (other_entry, first_delivery, other_connection, after_its_ack):
        (finding,) = of_kind(result, "out_of_order")
        assert not finding["uncertain"], finding


def test_split_key_needs_an_earlier_or_equal_entry_outstanding_elsewhere(audit: Any) -> None:
    assert kinds(audit(added(1), added(2), sent(1, 0), sent(2, 1))) == {"split_key": ["5:1"]}
    assert kinds(audit(added(1), added(2), sent(1, 0), ack(1, 0), sent(2, 1))) == {}
    assert kinds(audit(added(1), added(2), sent(1, 0), redeliver(1, 0), sent(2, 1))) == {}
    assert kinds(audit(added(1), added(2), sent(1, 0), removed(1), sent(2, 1))) == {}
    later_elsewhere = audit(added(1), added(2), sent(1, 0, 1), redeliver(1, 0), sent(2, 0))
    assert kinds(later_elsewhere) == {"redelivered": ["5:0"]}


def test_split_key_after_the_key_was_at_many_consumers(audit: Any) -> None:
    """Once the key is back at one connection, nothing is split any more."""
    result = audit(
        added(1),
        added(2),
        sent(1, 0),
        sent(2, 1),
        ack(1, 0),
        sent(2, 2),
        ack(2, 1, 2),
        sent(1, 3),
        sent(2, 4),
    )
    assert kinds(result) == {"split_key": ["5:1", "5:4"]}


def test_double_outstanding_is_also_a_split_of_its_key(audit: Any) -> None:
    result = audit(added(1), added(2), sent(1, 0, 5), sent(2, 0, 5))
    assert kinds(result) == {"split_key": ["5:0"], "double_outstanding": ["5:0", "5:5"]}
    (keyed, keyless) = of_kind(result, "double_outstanding")
    assert keyed["consumers"] == [2, 1]
    assert keyed["seqs"] == [3, 4]
    assert (keyless["key"], keyless["key_b64"]) == (None, False)
    assert "worker-1 still held it" in keyless["explanation"]


def test_duplicate_after_ack_whoever_acked(audit: Any) -> None:
    result = audit(added(1), added(2), sent(1, 0), ack(2, 0), sent(1, 0))
    (finding,) = of_kind(result, "duplicate_after_ack")
    assert finding["seqs"] == [3, 4, 5]
    assert not finding["uncertain"]
    assert "worker-2 had acknowledged it at 00:00:04.000" in finding["explanation"]
    assert kinds(result) == {"duplicate_after_ack": ["5:0"]}


def test_a_delivery_right_behind_an_ack_is_uncertain_unless_a_trace_shows_its_effect(audit: Any) -> None:
    at = 1_795_219_200_000_000

    def deliver_after_ack(*between: Event) -> Audit:
        ack_then_send = [
            ack(1, 0) | {"t_us": at + 3_000_000},
            *between,
            sent(1, 0) | {"t_us": at + 3_001_000},
        ]
        return audit(added(1), sent(1, 0), *ack_then_send)  # type: ignore[no-any-return]

    (alone,) = of_kind(deliver_after_ack(), "duplicate_after_ack")
    assert (alone["uncertain"], alone["reason"]) == (True, "ack_racing")
    effect = {"kind": "pending_ack_removed", "consumer": 1, "positions": ["5:0"], "t_us": at + 3_000_500}
    (applied,) = of_kind(deliver_after_ack(effect), "duplicate_after_ack")
    assert (applied["uncertain"], applied["reason"]) == (False, None)
    (other,) = of_kind(deliver_after_ack(effect | {"positions": ["5:1"]}), "duplicate_after_ack")
    assert (other["uncertain"], other["reason"]) == (True, "ack_racing")


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        ((added(1), added(2), sent(1, 0), removed(1), sent(2, 0)), "disconnect"),
        ((added(1), sent(1, 0), removed(1), added(2), sent(2, 0)), "all_left"),
        ((added(1), sent(1, 0), redeliver(1, 0), sent(1, 0)), "nack"),
        ((added(1), sent(1, 0), redeliver(1), sent(1, 0)), "nack"),
        ((added(1), sent(1, 0), sent(1, 0)), None),
    ],
)
def test_redelivered_and_its_cause(audit: Any, events: tuple[Event, ...], cause: str | None) -> None:
    result = audit(*events)
    (finding,) = of_kind(result, "redelivered")
    assert kinds(result) == {"redelivered": ["5:0"]}
    assert finding["cause"] == cause
    assert finding["reason"] == (None if cause else "unexplained")
    assert result.deliveries["cause"].to_pylist() == [None, cause]
    assert result.deliveries["delivery_number"].to_pylist() == [1, 2]


def test_failover_hand_over_excuses_order_and_explains_double_delivery(audit: Any) -> None:
    result = audit(
        added(1), sent(1, 0, 1), added(2), sent(2, 0, 1), subscription_type="Failover", partition_index=0
    )
    assert kinds(result) == {"split_key": ["5:0", "5:1"], "double_outstanding": ["5:0", "5:1"]}
    assert {(row["cause"], row["reason"]) for row in result.anomalies.to_pylist()} == {("rewind", "handover")}
    assert result.deliveries["hash"].null_count == 4


def test_failover_rewind_after_entries_went_out_from_the_old_read_position(audit: Any) -> None:
    """The new active consumer may get later entries before the rewind of its change shows (failover delay)."""
    events = (added(1), added(2), sent(1, 0, 1), removed(1), sent(2, 2), sent(2, 0, 1, 2))
    result = audit(*events, subscription_type="Failover", partition_index=0)
    assert set(kinds(result)) == {"redelivered"}
    again = audit(*events, sent(2, 1), subscription_type="Failover", partition_index=0)
    assert set(kinds(again)) == {"redelivered"}, (
        "going back over the entries of one change is one rewind's work"
    )


def test_failover_going_back_without_any_hand_over_is_out_of_order(audit: Any) -> None:
    result = audit(added(1), sent(1, 0, 1), sent(1, 0), subscription_type="Exclusive")
    assert kinds(result) == {"out_of_order": ["5:0"], "redelivered": ["5:0"]}
    assert of_kind(result, "redelivered")[0]["cause"] is None


def test_cumulative_acks_count_where_one_consumer_gets_everything_only(audit: Any) -> None:
    events = (added(1), sent(1, 0, 1, 2), ack(1, 1, cumulative=True), removed(1), added(2), sent(2, 1, 2))
    assert kinds(audit(*events, subscription_type="Failover")) == {
        "duplicate_after_ack": ["5:1"],
        "redelivered": ["5:2"],
    }
    assert kinds(audit(*events)) == {"redelivered": ["5:1", "5:2"]}


def test_a_batch_is_acked_when_all_its_messages_are(audit: Any) -> None:
    part_one, part_two = ack(1, 0, sets=[[2]]), ack(1, 0, sets=[[1]])
    assert kinds(audit(added(1), added(2), sent(1, 0), part_one, sent(2, 1))) == {"split_key": ["5:1"]}
    assert kinds(audit(added(1), added(2), sent(1, 0), part_one, part_two, sent(2, 1))) == {}
    whole = ack(1, 0, 1, sets=[[], [2]])
    assert kinds(audit(added(1), added(2), sent(1, 0, 1), whole, sent(2, 2))) == {"split_key": ["5:2"]}


def test_a_cumulative_ack_inside_a_batch_takes_single_indexes_back(audit: Any) -> None:
    """Index 3 of four was acknowledged alone, then 0 to 2 cumulatively: index 3 is unacknowledged again."""
    events = (added(1), sent(1, 0), ack(1, 0, sets=[[0b0111]]), ack(1, 0, cumulative=True, sets=[[0b1000]]))
    again = audit(*events, removed(1), added(2), sent(2, 0), subscription_type="Failover", partition_index=0)
    assert kinds(again) == {"redelivered": ["5:0"]}


def test_a_shared_subscription_keeps_no_order_but_counts_duplicates(audit: Any) -> None:
    events = (added(1), added(2), sent(1, 1), sent(2, 0), sent(2, 1), ack(1, 0), sent(1, 0))
    found = kinds(audit(*events, subscription_type="Shared"))
    assert found == {"double_outstanding": ["5:1"], "duplicate_after_ack": ["5:0"]}


def test_consumers_that_allowed_disorder_are_not_held_to_it(audit: Any) -> None:
    result = audit(added(1, allow_out_of_order=True), sent(1, 1), sent(1, 0))
    (finding,) = of_kind(result, "out_of_order")
    assert (finding["severity"], finding["reason"]) == ("info", "out_of_order_allowed")


def test_one_key_whatever_way_it_is_written(audit: Any) -> None:
    """Ordering key before key; text and base64 of the same bytes are the same key."""
    same = base64.b64encode(b"order-17").decode()
    messages = [
        message(0, "order-17"),
        message(1, same, key_b64=True),
        message(2, "ignored", ordering_key_b64=same),
        message(3, same),
    ]
    result = audit(added(1), sent(1, 2), sent(1, 1), sent(1, 0), sent(1, 3), messages=messages)
    assert kinds(result) == {"out_of_order": ["5:1", "5:0"]}
    assert len(set(result.deliveries["hash"].to_pylist()[:3])) == 1


def test_masked_keys_do_as_well(audit: Any) -> None:
    messages = [{k: v for k, v in message(e, None).items() if k != "key"} | {"key_h31": 77} for e in range(2)]
    result = audit(added(1), sent(1, 1, 0), messages=messages)
    (finding,) = of_kind(result, "out_of_order")
    assert finding["key"] == "h31:77"


def test_an_earlier_load_of_the_topic_explains_what_comes_again(tmp_path: Path) -> None:
    before = read(write(tmp_path / "a" / "1", KEYS, numbered([added(1), sent(1, 0, 1), ack(1, 1)])))
    lines = [
        event | {"t_us": event["t_us"] + 10_000_000}
        for event in numbered([added(1), sent(1, 0, 1), sent(1, 2)])
    ]
    after = replace(read(write(tmp_path / "a" / "2", KEYS, lines)), incarnation=1)
    alone = audited(after)
    assert kinds(alone) == {}
    together = audited(after, earlier=[before])
    assert kinds(together) == {"redelivered": ["5:0", "5:1"]}
    assert {row["cause"] for row in of_kind(together, "redelivered")} == {"topic_reload"}
    assert [row["seqs"] for row in of_kind(together, "redelivered")] == [[2], [2]]
    assert together.deliveries["delivery_number"].to_pylist() == [2, 2, 1]
    assert set(together.anomalies["incarnation"].to_pylist()) == {1}


def test_names_and_keys_are_shown_without_what_could_act(audit: Any) -> None:
    messages = [
        message(0, "a\x1b[2Jb"),
        message(1, "a\x1b[2Jb"),
        message(2, "k" * 5000),
        message(3, "k" * 5000),
    ]
    result = audit(added(1, "n\nme"), sent(1, 1, 0, 3, 2), messages=messages)
    first, second = of_kind(result, "out_of_order")
    assert first["key"] == "a\x1b[2Jb"
    assert "\x1b" not in first["explanation"]
    assert "\n" not in first["explanation"]
    assert len(second["explanation"]) < 1000


def test_an_interval_without_a_time_zone_is_refused(tmp_path: Path) -> None:
    from datetime import datetime

    from dispatch_core.audit.deliveries.whole_log import audit_log

    log = read(write(tmp_path / "a" / "b", KEYS, numbered([added(1)])))
    with pytest.raises(ValueError, match="time zone"):
        audit_log(log, interval_start=datetime(2026, 11, 21))


def test_every_kind_of_the_contract_is_in_the_catalogue() -> None:
    assert list(KINDS) == [
        "out_of_order", "overtaken_redelivery", "split_key", "mixed_key_entry",
        "double_outstanding", "duplicate_after_ack", "redelivered",
        "never_delivered", "skipped", "dropped", "ack_hole", "stuck_key", "stuck_consumer", "stuck_subscription",
        "permit_leak", "permit_drift", "imbalance",
        "failover_imbalance", "hot_key", "hot_consumer", "unnecessary_blocking", "divergence", "log_gap",
        "repeated_lines", "clock_step", "unknown_consumer", "unknown_position", "unknown_key",
        "unknown_batch_size", "overlapping_incarnations",
    ]  # fmt: skip
    assert {kind.promise for kind in KINDS.values()} == set(PROMISES)
    document = (Path(__file__).resolve().parents[3] / "docs" / "anomalies.md").read_text(encoding="utf-8")
    assert [kind for kind in KINDS if f"\n## {kind}\n" not in document] == []
    assert [kind for kind in KINDS if f"\n| [`{kind}`](#{kind}) |" not in document] == []
