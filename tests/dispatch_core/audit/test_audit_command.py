"""``dispatch-audit audit``: what it prints, where, and with which exit code."""

from __future__ import annotations

import gzip
import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.catalogue import PROMISES
from dispatch_core.cli.main import main
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.replay_log import replay
from tests.dispatch_core.audit.small_logs import (
    T0_US,
    Event,
    ack,
    added,
    flow,
    message,
    numbered,
    sent,
    write,
)

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "recordings"
CLASSIC = SAMPLES / "4.2.4" / "designed-rolling-restart-classic-ch"
ROLLING = SAMPLES / "4.2.4" / "designed-rolling-restart-ch"


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_json_lists_every_anomaly_and_then_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--json", str(CLASSIC)]) == 1
    *anomalies, verdict = lines(capsys)
    assert verdict["verdict"] == "FAIL"
    assert verdict["recording"] == "4.2.4/designed-rolling-restart-classic-ch"
    assert verdict["counts"] == {
        "out_of_order": 23,
        "split_key": 40,
        "redelivered": 238,
        "unnecessary_blocking": 9,
    }
    assert verdict["levels"] == ["T"]
    assert [promise["promise"] for promise in verdict["promises"]] == list(PROMISES)
    assert len(anomalies) == sum(verdict["counts"].values())
    for name in ("recording", "kind", "severity", "topic", "subscription", "key", "hash", "positions"):
        assert all(name in anomaly for anomaly in anomalies)
    first = next(a for a in anomalies if a["kind"] == "out_of_order")
    assert first["positions"] == ["21:55", "21:123"]
    assert first["consumer_names"] == ["w2"]
    assert first["cause"] == "disconnect"
    assert first["explanation"].startswith("key key-32 went backwards at w2")


def test_a_clean_recording_exits_with_zero(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(ROLLING)]) == 0
    out = capsys.readouterr()
    assert "4.2.4/designed-rolling-restart-ch  PASS" in out.out
    assert "redelivered" in out.out
    assert out.err == ""


def test_people_get_verdicts_reasons_and_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--top", "2", str(CLASSIC), str(ROLLING)]) == 1
    out = capsys.readouterr().out
    assert "FAIL     entries sent after a later entry of their key: 23; entries sent to one consumer" in out
    assert out.count("    - ") == 2
    assert (
        "    - 10 out_of_order, 18 split_key at w2 (connection 6), from 08:24:22.944 to 08:24:23.371: " in out
    )
    assert "and 30 more" in out
    assert out.rstrip().endswith("1 PASS, 1 FAIL")


def test_a_damaged_line_fails_input_quality(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(
        tmp_path / "a" / "b", [message(0, "k")], numbered([added(1), flow(1), sent(1, 0), ack(1, 0)])
    )
    with gzip.open(folder / "messages.jsonl.gz", "at", encoding="utf-8") as out:
        out.write('{"position": "no position"}\n')
    assert main(["audit", "--json", str(folder)]) == 1
    captured = capsys.readouterr()
    verdict = json.loads(captured.out.splitlines()[-1])
    assert (verdict["verdict"], verdict["quarantined"]) == ("FAIL", 1)
    promises = {row["promise"]: row["verdict"] for row in verdict["promises"] if row["verdict"] != "PASS"}
    assert promises == {"completeness": "UNKNOWN", "input_quality": "FAIL"}
    assert "messages.jsonl.gz:2" in captured.err


def test_a_missing_line_leaves_the_verdict_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = numbered([added(1), flow(1), flow(1), sent(1, 0), ack(1, 0), sent(1, 1), ack(1, 1)])
    del events[2]
    folder = write(tmp_path / "a" / "b", [message(0, "k"), message(1, "k")], events)
    assert main(["audit", "--json", str(folder)]) == 2
    assert lines(capsys)[-1]["counts"] == {"log_gap": 1}


def test_a_broker_version_that_makes_no_sense(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(
        tmp_path / "a" / "b",
        [message(0, "k")],
        numbered([added(1), flow(1), sent(1, 0), ack(1, 0)]),
        broker_version="2.3.2",
    )
    assert main(["audit", "--json", str(folder)]) == 2
    assert "below 2.4.0" in capsys.readouterr().err
    assert main(["audit", "--json", str(folder), "--broker-version", "3.3.2"]) == 0


def test_nothing_to_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(tmp_path / "nowhere")]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_a_setting_must_have_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--set", "x", str(ROLLING)]) == 2
    assert "NAME=VALUE" in capsys.readouterr().err


def test_limits_decide_what_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    drain = SAMPLES / "4.2.4" / "designed-drain-one-by-one-ch"
    assert main(["audit", "--json", str(drain)]) == 0
    assert lines(capsys)[-1]["counts"] == {}
    assert main(["audit", "--json", "--limit", "stuck_key_ms=1000", str(drain)]) == 1
    *found, verdict = lines(capsys)
    assert verdict["counts"] == {"stuck_key": 6}
    assert {row["reason"] for row in found} == {"draining_hash"}
    assert (
        "draining hashes (PIP-379) give c2 nothing of it until c1 has acknowledged that"
        in found[0]["explanation"]
    )


@pytest.mark.parametrize(
    ("limit", "said"), [("stuck_key_ms", "NAME=VALUE"), ("stuk_key_ms=1", "the nearest name is stuck_key_ms")]
)
def test_a_limit_must_be_one(limit: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--limit", limit, str(ROLLING)]) == 2
    assert said in capsys.readouterr().err


def test_without_rules_only_order_duplicates_and_the_log_are_judged(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["audit", "--json", "--no-rules", str(CLASSIC)]) == 1
    verdict = lines(capsys)[-1]
    assert verdict["counts"] == {"out_of_order": 23, "split_key": 40, "redelivered": 238}
    assert [promise["promise"] for promise in verdict["promises"]] == [
        "per_key_order",
        "duplicate_delivery",
        "input_quality",
    ]


@pytest.mark.slow
def test_failover_is_judged_over_all_recordings_of_a_call(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """PIP-392's scenario: 100 topics of one partition are all active at one of four consumers."""
    for number in range(100):
        topic = f"persistent://public/default/t-{number}-partition-0"
        events = [*(added(n, f"c{n}") for n in (1, 2, 3, 4)), flow(1), sent(1, 0)]
        events.append(ack(1, 0) | {"t_us": T0_US + 3_600_000_000})
        write(
            tmp_path / "a" / f"r{number}",
            [message(0, "k", topic=topic)],
            numbered(events),
            topic=topic,
            partition_index=0,
            format="pulsar-consumer-events",
            subscription_type="Failover",
        )
    assert main(["audit", "--json", str(tmp_path)]) == 1
    *each, found, verdict = lines(capsys)
    assert {line["verdict"] for line in each if "verdict" in line} == {"PASS"}
    assert (found["recording"], found["kind"]) == ("*", "failover_imbalance")
    assert found["explanation"].startswith("c1 is active for 100 of 100 topics of subscription s")
    assert verdict == {"verdict": "FAIL", "recording": "*", "counts": {"failover_imbalance": 1}}
    assert main(["audit", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "100 PASS; over all topics FAIL"
    assert main(["audit", str(tmp_path / "a" / "r1")]) == 0, "one topic says nothing"
    assert main(["audit", str(tmp_path), "--limit", "min_topics=101"]) == 0
    assert "over all topics" not in capsys.readouterr().out


@pytest.mark.parametrize("options", [[], ["--no-rules"]])
@pytest.mark.parametrize("stored", [[], [message(0, "k")]])
def test_a_log_with_a_header_alone_is_unknown_and_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], stored: list[Event], options: list[str]
) -> None:
    folder = write(tmp_path / "a" / "b", stored, [])
    assert main(["audit", *options, str(folder)]) == 2
    out = capsys.readouterr().out
    assert "a/b  UNKNOWN" in out
    assert "no event: there was nothing to judge; see that the recorder ran" in out
    (log,) = read_recording(find_recordings([str(folder)])[0]).logs
    day = datetime(2026, 11, 21, tzinfo=UTC)
    (state,) = replay(log, interval_start=day, interval_end=day + timedelta(days=1))[
        "dispatcher_state"
    ].to_pylist()
    assert (state["last_seq"], state["last_t_us"]) == (0, None), "by which the pipeline knows it"


def test_a_log_in_which_consumers_came_and_nothing_was_sent_is_clean(tmp_path: Path) -> None:
    assert main(["audit", str(write(tmp_path / "a" / "b", [], numbered([added(1), flow(1)])))]) == 0


def test_a_copied_segment_is_named_once_and_changes_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "4.2.4/designed-drain-one-by-one-ch"
    shutil.copytree(SAMPLES / name, tmp_path / "p" / "r")
    main(["audit", "--json", str(tmp_path)])
    *_, alone = map(json.loads, capsys.readouterr().out.splitlines())
    for kind in ("messages", "trace"):
        shutil.copy(tmp_path / "p" / "r" / f"{kind}.jsonl.gz", tmp_path / "p" / "r" / f"{kind}-copy.jsonl.gz")
    main(["audit", "--json", str(tmp_path)])
    *found, result = map(json.loads, capsys.readouterr().out.splitlines())
    named = [row for row in found if row["kind"] == "repeated_lines"]
    assert [row["explanation"].partition(":")[0] for row in named] == [
        "segment p/r/messages.jsonl.gz repeats lines 1 to 80 of segment p/r/messages-copy.jsonl.gz",
        "segment p/r/trace.jsonl.gz repeats lines 2 to 523 of segment p/r/trace-copy.jsonl.gz",
    ]
    assert result["warnings"] == [row["explanation"] for row in named]
    assert (result["verdict"], result["counts"]) == (
        alone["verdict"],
        alone["counts"] | {"repeated_lines": 2},
    )


def test_the_loads_of_a_topic_have_one_verdict_on_each_promise(capsys: pytest.CaptureFixture[str]) -> None:
    case = Path(__file__).parents[2] / "data" / "cases" / "78-plain-unload-no-checkpoint"
    main(["audit", "--json", str(case)])
    verdict = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [promise["promise"] for promise in verdict["promises"]] == list(PROMISES)
    main(["audit", str(case)])
    assert capsys.readouterr().out.count("per_key_order") == 1
