"""The rules under which a log was recorded, derived in one place."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.deliveries.whole_log import audit_log
from dispatch_core.broker.profiles import Dispatcher, FailoverRule, OrderingRule
from dispatch_core.errors import ProfileError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import (
    Policy,
    profile_of,
    rebuilt_at,
    subscription_type,
    with_overrides,
)
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.replay_log import replay
from dispatch_core.verify.trace.runner import verify

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"
DRAIN = "designed-drain-one-by-one-ch"
FAILOVER = "designed-failover-modulo-p1"
DAY = datetime(2026, 11, 21, tzinfo=UTC)


def sample(name: str) -> DispatcherLog:
    (source,) = find_recordings([str(SAMPLE / name)])
    (log,) = read_recording(source).logs
    return log


def with_header(log: DispatcherLog, **changes: Any) -> DispatcherLog:
    header = {**log.header, **changes}
    return replace(log, header={name: value for name, value in header.items() if value is not None})


def joined(tmp_path: Path, *dispatchers: list[dict[str, Any]]) -> DispatcherLog:
    """Make a log in which consumers with these policies join, dispatcher after dispatcher, and then all leave."""
    lines: list[dict[str, Any]] = [
        {"format": "pulsar-dispatch-trace", "format_version": 1, "broker_version": "4.2.4"}
        | {"topic": "persistent://public/default/t", "subscription": "s", "subscription_type": "Key_Shared"}
    ]
    number = 0
    for policies in dispatchers:
        first = number + 1
        for policy in policies:
            number += 1
            who = {"consumer": number, "name": f"c{number}", "consumer_id": 0, "address": "/127.0.0.1:1"}
            lines.append({"kind": "consumer_added", "priority_level": 0, "key_shared": policy, **who})
        lines += [{"kind": "consumer_removed", "consumer": n} for n in range(first, number + 1)]
    for seq, line in enumerate(lines[1:], start=1):
        line |= {"seq": seq, "t_us": 1_795_249_000_000_000 + seq}
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "messages.jsonl.gz").write_bytes((SAMPLE / DRAIN / "messages.jsonl.gz").read_bytes())
    (folder / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (source,) = find_recordings([str(folder)])
    logs = read_recording(source).logs
    return next(log for log in logs if log.events.num_rows)


SPLIT = {"mode": "AUTO_SPLIT", "allow_out_of_order": False}
LOOSE = {"mode": "AUTO_SPLIT", "allow_out_of_order": True}
STICKY = {"mode": "STICKY", "allow_out_of_order": False, "ranges": [[0, 65535]]}


def test_the_first_consumer_brings_the_policy(tmp_path: Path) -> None:
    assert profile_of(joined(tmp_path, [STICKY, STICKY])).key_shared_mode == "STICKY"


def test_no_policy_means_auto_split_in_order(tmp_path: Path) -> None:
    profile = profile_of(joined(tmp_path, [None]))  # type: ignore[list-item]
    assert (profile.key_shared_mode, profile.ordering) == ("AUTO_SPLIT", OrderingRule.DRAINING_HASHES)


@pytest.mark.parametrize(
    ("dispatchers", "rebuilt"),
    [
        ([[SPLIT, SPLIT], [SPLIT]], None),
        ([[SPLIT, SPLIT], [LOOSE]], (5, Policy("AUTO_SPLIT", True))),
        ([[SPLIT], [SPLIT], [STICKY]], (5, Policy("STICKY", False))),
        ([[SPLIT], [None]], None),
    ],
)
def test_another_policy_after_all_left_is_another_dispatcher(
    tmp_path: Path, dispatchers: list[list[dict[str, Any]]], rebuilt: tuple[int, Policy] | None
) -> None:
    log = joined(tmp_path, *dispatchers)
    assert rebuilt_at(log, profile_of(log)) == rebuilt


def test_failover_clients_send_a_policy_that_means_nothing() -> None:
    log = sample(FAILOVER)
    profile = profile_of(log)
    assert profile.dispatcher is Dispatcher.SINGLE_ACTIVE
    assert profile.partition_index == 1
    assert rebuilt_at(log, profile) is None


def test_a_log_that_names_no_type_says_what_was_assumed() -> None:
    shared = with_header(sample(DRAIN), subscription_type=None)
    assert subscription_type(shared) == "Key_Shared"
    assert "no subscription_type: Key_Shared was assumed" in profile_of(shared).warnings[0]
    assert subscription_type(with_header(sample(FAILOVER), subscription_type=None)) == "Failover"


def test_overrides_replace_the_header_and_leave_the_log_as_it_was() -> None:
    log = sample(FAILOVER)
    before = json.dumps(log.header)
    other = with_overrides(log, "4.0.0", {"activeConsumerFailoverDelayTimeMillis": 7})
    profile = profile_of(other)
    assert (profile.version, profile.number("activeConsumerFailoverDelayTimeMillis")) == ((4, 0, 0), 7)
    assert profile.number("dispatcherMaxReadBatchSize") == log.header["config"]["dispatcherMaxReadBatchSize"]
    assert json.dumps(log.header) == before
    ring = with_overrides(log, None, {"activeConsumerFailoverConsistentHashing": True})
    assert profile_of(ring).failover is FailoverRule.RING


def test_a_header_without_a_release_is_an_error_that_names_the_option() -> None:
    with pytest.raises(ProfileError, match="--broker-version"):
        profile_of(with_header(sample(DRAIN), broker_version=None))


def test_verify_audit_and_replay_agree_on_the_rules() -> None:
    log = with_overrides(sample(DRAIN), "3.0.7")
    profile = profile_of(log)
    assert profile.name == "3.0.7 sticky key, classic, read position, consistent hashing"
    verified = verify(log)
    assert verified.profile == profile
    state = replay(log, interval_start=DAY, interval_end=DAY + timedelta(days=1))["dispatcher_state"]
    assert state["profile"].to_pylist() == [profile.name]
    hashes = audit_log(log, interval_start=DAY).deliveries["hash"].to_pylist()
    assert max(hashes) > 65536  # 31 bit hashes of 3.x, not the 65535 of 4.x


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"broker_version": "2.3.0"}, "below 2.4.0"),
        ({"config": {"dispatcherMaxReadBatchSizes": 3}}, "the nearest is dispatcherMaxReadBatchSize"),
        ({"config": []}, "no table of settings"),
        ({"partition_index": "one"}, "partition_index"),
    ],
)
def test_a_header_no_rule_follows_from_is_not_judged_and_audited_all_the_same(
    changes: dict[str, Any], says: str
) -> None:
    log = with_header(sample(DRAIN), **changes)
    result = verify(log)
    assert says in (result.not_judged or "")
    assert result.tally.total("decisions") == 0
    assert audit_log(log, interval_start=DAY).deliveries.num_rows > 0


def test_a_later_release_is_a_warning_in_every_verdict() -> None:
    result = verify(with_overrides(sample(DRAIN), "9.9.9"))
    assert "newer than 5.0.1" in result.as_json()["warnings"][0]
    assert result.as_json()["broker_version"] == "9.9.9"


def test_the_samples_name_only_settings_that_broker_conf_knows() -> None:
    for trace in sorted(SAMPLE.glob("*/trace.jsonl.gz")):
        with gzip.open(trace, "rt", encoding="utf-8") as lines:
            header = json.loads(next(lines))
        assert profile_of(sample(trace.parent.name)).broker_version == header["broker_version"]
