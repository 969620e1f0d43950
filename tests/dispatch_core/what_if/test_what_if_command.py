"""``dispatch-audit what-if``: its output, files and exit codes."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from tests.dispatch_core.audit.small_logs import flow, message, numbered, write

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"
CLASSIC = SAMPLES / "designed-rolling-restart-classic-ch"
ROLLING = SAMPLES / "designed-rolling-restart-ch"
DRAIN = SAMPLES / "designed-drain-one-by-one-ch"
FAILOVER = SAMPLES / "designed-failover-modulo-p1"
MEASURED = {
    *(
        "out_of_order",
        "split_key",
        "double_outstanding",
        "duplicates",
        "redelivered",
        "wait_ms",
        "key_wait_ms_max",
    ),
    *(
        "blocked_message_s",
        "needless_message_s",
        "balance",
        "active_topics",
        "throughput_per_s",
        "never_sent",
    ),
}


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
def test_json_sets_recorded_and_simulated_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--set", "subscriptionKeySharedUseClassicPersistentImplementation=false", "--seeds", "2"]
    assert main(["what-if", "--json", *arguments, str(CLASSIC)]) == 0
    (found,) = lines(capsys)
    assert found["recording"] == "4.2.4/designed-rolling-restart-classic-ch"
    assert found["rules"] == {
        "name": "subscriptionKeySharedUseClassicPersistentImplementation=false",
        "broker_version": None,
        "settings": {"subscriptionKeySharedUseClassicPersistentImplementation": False},
        "clients": {},
        "priority_levels": {},
        "profile": "4.2.4 sticky key, draining hashes, consistent hashing",
        "proposal": None,
    }
    assert set(found["recorded"]) >= MEASURED
    assert set(found["simulated"]) >= MEASURED
    assert (found["recorded"]["out_of_order"], found["recorded"]["split_key"]) == (23, 40)
    assert (found["simulated"]["out_of_order"], found["simulated"]["split_key"]) == (0, 0)
    assert (found["verdict"], found["problem"]) == ("PASS", None)
    assert found["confidence"]["seeds"] == 2
    assert found["confidence"]["control"]["recorded_order_violations"] == 63
    assert any("join, leave and crash when they did" in text for text in found["assumptions"])
    assert found["over_seeds"]["order_violations"] == [0, 0]


@pytest.mark.slow
def test_from_leaves_out_what_happened_before(capsys: pytest.CaptureFixture[str]) -> None:
    """The restarts of this recording are over in its last half second."""
    main(["what-if", "--json", "--seeds", "1", "--from", "2026-11-21T08:24:24.400Z", str(CLASSIC)])
    (found,) = lines(capsys)
    assert 0 < found["recorded"]["messages"] < 720
    assert found["recorded"]["never_sent"] == 0
    assert main(["what-if", "--from", "2026-11-22", "--to", "2026-11-21", str(CLASSIC)]) == 2
    assert "--from is later than --to" in capsys.readouterr().err


@pytest.mark.slow
def test_people_see_the_recorded_rules_and_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--rules", "ch", "--seeds", "1", str(CLASSIC)]) == 0
    title, about, *_ = capsys.readouterr().out.splitlines()
    assert title.endswith("720 messages to 3 consumers")
    assert about.startswith(
        "  Pulsar 4.2.4 sticky key, classic, read position, consistent hashing, 2026-11-21 08:24:21.936 to"
    )


@pytest.mark.slow
def test_people_see_the_worst_dispatcher_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of three dispatchers two fail, the second of them worse."""
    for name, source in (("a", ROLLING), ("b", DRAIN), ("c", CLASSIC)):
        shutil.copytree(source, tmp_path / "all" / name)
    assert main(["what-if", "--rules", "classic-ch", "--seeds", "1", str(tmp_path / "all")]) == 1
    out = capsys.readouterr().out
    listed = out[out.index("worst first:\n") :].splitlines()
    assert {line.split()[0] for line in listed[1:3]} == {"all/c", "all/a"}
    counts = [int(line.split(": ")[-1].split()[0]) for line in listed[1:3]]
    assert counts[0] > counts[1] > 0
    assert listed[3] == ""


def test_predicted_violations_exit_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--json", "--rules", "classic-ch", "--seeds", "1", str(ROLLING)]) == 1
    (found,) = lines(capsys)
    assert found["recorded"]["out_of_order"] + found["recorded"]["split_key"] == 0
    assert found["simulated"]["out_of_order"] + found["simulated"]["split_key"] > 0
    assert found["verdict"] == "FAIL"


def test_the_same_arguments_print_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for _ in range(2):
        main(["what-if", "--broker-version", "3.0.17", "--seeds", "2", "--seed", "5", str(CLASSIC)])
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_the_matrix_is_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--matrix", "--seeds", "1", str(CLASSIC)]) == 1
    out = capsys.readouterr().out
    names = [row.split()[0] for row in out.splitlines()[3:14]]
    assert names[:6] == [
        "recorded",
        "4.2.4-ch",
        "4.2.4-range",
        "4.2.4-classic-ch",
        "4.2.4-classic-range",
        "3.0.17-ch",
    ]
    assert "assumed:" in out
    widths = {len(row) for row in out.splitlines()[2:14] if row.endswith(("high", "sure"))}
    assert len(widths) == 1


def test_without_other_rules_the_recorded_ones_are_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--json", "--seeds", "1", str(ROLLING)]) == 0
    captured = capsys.readouterr()
    assert "no other rules were given" in captured.err
    found = json.loads(captured.out)
    assert found["rules"]["name"] == "as recorded"
    assert found["same_first_consumer"] >= 0.95


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rules", "chh"], "the nearest is ch"),
        (
            ["--set", "subscriptionKeySharedUseConsistentHashin=true"],
            "the nearest is subscriptionKeySharedUseConsistentHashing",
        ),
        (["--broker-version", "2.3.0"], "below 2.4.0"),
        (["--priority-level", "c1"], "--priority-level c1: give NAME=N"),
        (["--priority-level", "c1=-1"], "--priority-level c1=-1: give NAME=N"),
        (["--seeds", "0"], "--seeds 0: give a number from 1"),
        (["--seed", "-1"], "--seed -1: give a number from 0"),
    ],
)
def test_what_cannot_be_asked_for_is_said_and_exits_with_two(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what-if", "--json", *arguments, str(ROLLING)]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""


def test_nothing_found_and_nothing_simulable_exit_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["what-if", str(tmp_path / "none")]) == 2
    capsys.readouterr()
    nobody = write(tmp_path / "a" / "b", [message(0, "k")], numbered([flow(1, 5)]))
    for options in (["--rules", "ch"], ["--matrix"]):
        assert main(["what-if", "--json", *options, str(nobody)]) == 2
        captured = capsys.readouterr()
        assert all(json.loads(line)["verdict"] == "UNKNOWN" for line in captured.out.splitlines())
        assert "the log holds no consumer" in captured.err


def test_a_damaged_line_is_named_and_the_rest_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "a" / "b"
    shutil.copytree(ROLLING, folder)
    with gzip.open(folder / "messages.jsonl.gz", "at", encoding="utf-8") as out:
        out.write('{"position": "no position"}\n')
    assert main(["what-if", "--json", "--rules", "ch", "--seeds", "1", str(folder)]) == 2
    captured = capsys.readouterr()
    assert "1 rows set aside" in captured.err
    assert json.loads(captured.out)["verdict"] == "PASS"


def test_failover_goes_to_the_ring(capsys: pytest.CaptureFixture[str]) -> None:
    main(["what-if", "--json", "--rules", "ring", "--rules", "modulo", "--seeds", "1", str(FAILOVER)])
    ring, modulo = lines(capsys)
    assert modulo["simulated"]["active_topics"] == modulo["recorded"]["active_topics"]
    assert sum(ring["simulated"]["active_topics"].values()) == 1
    assert ring["rules"]["profile"].endswith("ring")


def test_failover_follows_priorities(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Three consumers of one level: consumer-0 is active. With a lower level, and with only one at the top, another is."""
    made = ["--subscription-type", "Failover", "--consumers", "3", "--messages", "300", "--rate", "300"]
    assert main(["generate", str(tmp_path / "logs"), *made, "--keys", "10"]) == 0
    capsys.readouterr()

    def active(*options: str) -> tuple[dict[str, Any], str]:
        assert main(["what-if", "--json", "--seeds", "1", *options, str(tmp_path / "logs")]) in (0, 1)
        (found,) = lines(capsys)
        assert found["rules"]["priority_levels"] == {
            name: int(level) for name, level in (text.split("=") for text in options[1::2])
        }
        topics = found["simulated"]["active_topics"]
        return found["recorded"]["active_topics"], max(topics, key=lambda name: topics[name])

    recorded, same = active()
    assert recorded["consumer-0"] == 1
    assert same == "consumer-0"
    assert active("--priority-level", "consumer-0=1")[1] == "consumer-1"
    assert active("--priority-level", "*=3", "--priority-level", "consumer-2=0")[1] == "consumer-2"


def test_a_consumer_that_is_not_there_has_no_priority(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["what-if", "--json", "--seeds", "1", "--priority-level", "other=1", str(FAILOVER)]) == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out)["verdict"] == "UNKNOWN"
    assert "no consumer is called 'other'" in printed.err


def test_priorities_of_key_shared_change_no_decision_and_this_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["what-if", "--json", "--seeds", "1", "--priority-level", "*=2", str(ROLLING)])
    (found,) = lines(capsys)
    assert found["rules"]["name"] == "priority:*=2"
    assert any("Key_Shared lists its consumers" in text for text in found["warnings"])


@pytest.mark.slow
def test_pip_392_a_hundred_topics_of_one_partition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Modulo makes the first of ten consumers active for all topics; on a ring each gets about ten."""
    out = tmp_path / "topics"
    shape = ["--dispatchers", "100", "--partitions", "1", "--consumers", "10", "--messages", "1000"]
    where = ["--dispatchers-per-file", "100", "--format", "jsonl"]
    assert main(["generate", str(out), "--subscription-type", "Failover", *shape, *where]) == 0
    capsys.readouterr()
    ring = ["--set", "activeConsumerFailoverConsistentHashing=true"]
    main(["what-if", "--json", *ring, "--seeds", "1", str(out)])
    *topics, group = lines(capsys)
    assert len(topics) == 100
    assert group["group"] == {"cluster": "generated", "subscription": "audit"}
    recorded, simulated = (group[name]["active_topics"] for name in ("recorded", "simulated"))
    assert sorted(recorded.values()) == [0] * 9 + [100]
    assert len(simulated) == 10
    assert sum(simulated.values()) == 100
    assert min(simulated.values()) >= 4
    assert max(simulated.values()) <= 20
    assert group["recorded"]["balance"]["max_share_ratio"] == 10.0
    assert group["simulated"]["balance"]["max_share_ratio"] <= 2.0
    assert (group["simulated"]["messages"], group["simulated"]["never_sent"]) == (1000, 0)
    assert group["confidence"]["control"]["same_first_consumer"] == 1.0
