"""Shared parts of subcommands that read recordings: the chosen rules, and the logs of each dispatcher together."""

from __future__ import annotations

import argparse
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from dispatch_core.cli.recordings import add_recording_arguments, dispatchers, overrides_given, read_all
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log_profile import RECORDED, Overrides
from tests.dispatch_core.audit.small_logs import T0_US, Event, added, message, numbered, removed, sent, write

SAMPLES = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"


def given(*arguments: str) -> Overrides:
    parser = argparse.ArgumentParser()
    add_recording_arguments(parser, "")
    return overrides_given(parser.parse_args(["PATH", *arguments]))


def test_recordings_come_one_by_one_with_their_dispatchers_incarnations_together() -> None:
    (drain, failover) = read_all(
        [str(SAMPLES / "designed-drain-one-by-one-ch"), str(SAMPLES / "designed-failover-modulo-p1")]
    )
    (first,), (second,) = drain.logs, failover.logs
    mixed = replace(drain, logs=[first, replace(first, incarnation=1), second])
    found = dispatchers(mixed, given())
    assert [[(log.topic, log.incarnation) for log in logs] for logs in found] == [
        [(first.topic, 0), (first.topic, 1)],
        [(second.topic, 0)],
    ]
    elsewhere = replace(drain, logs=[first, replace(first, cluster="another")])
    assert [len(logs) for logs in dispatchers(elsewhere, given())] == [1, 1]


def test_every_log_is_read_under_the_rules_asked_for() -> None:
    (recording,) = read_all([str(SAMPLES / "designed-drain-one-by-one-ch")])
    asked = given(
        "--broker-version", "4.0.0", "--set", "subscriptionKeySharedConsistentHashingReplicaPoints=7"
    )
    header: dict[str, Any] = next(dispatchers(recording, asked))[0].header
    assert header["broker_version"] == "4.0.0"
    assert header != recording.logs[0].header
    assert next(dispatchers(recording, given()))[0].header == recording.logs[0].header


@pytest.mark.parametrize(
    "wrong", [["--broker-version", "4.x.?"], ["--set", "noSuchSetting=1"], ["--set", "x"]]
)
def test_what_cannot_be_asked_for_is_refused_before_anything_is_read(wrong: list[str]) -> None:
    with pytest.raises(DispatchAuditError):
        given(*wrong)


@pytest.mark.parametrize(
    "command", [["audit"], ["explain", "--key", "k"], ["report", "--out", "o"], ["what-if"], ["verify"]]
)
def test_all_commands_refuse_it_alike(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, "nowhere", "--set", "noSuchSetting=1"]) == 2
    assert "noSuchSetting" in capsys.readouterr().err
    assert main([*command, "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err


def left(consumer: int) -> Event:
    """A leave, an hour after the log began."""
    return removed(consumer) | {"t_us": T0_US + 3_600_000_000 + consumer}


def topics(folder: Path, **header: Any) -> str:
    """Make a folder for each of twelve Failover topics of one partition, all with the same active consumer."""
    members = range(1, 5)
    for number in range(12):
        topic = f"persistent://public/default/t-{number}-partition-0"
        write(
            folder / "a" / f"{folder.name}-{number}",
            [message(0, "k", topic=topic, **header)],
            numbered([*(added(n, f"c{n}") for n in members), sent(1, 0), *(left(n) for n in members)]),
            topic=topic,
            partition_index=0,
            format="pulsar-consumer-events",
            subscription_type="Failover",
            **header,
        )
    return str(folder)


def imbalances(out: str) -> list[str]:
    rows = [json.loads(line) for line in out.splitlines()]
    return [row["cluster"] for row in rows if row.get("kind") == "failover_imbalance"]


def test_topics_of_two_clusters_are_not_mixed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [topics(tmp_path / name, cluster=name) for name in ("east", "west")]
    main(["audit", "--json", *paths])
    captured = capsys.readouterr()
    assert imbalances(captured.out) == ["east", "west"]
    assert "in more than one recording" not in captured.err


def test_a_dispatcher_in_two_recordings_is_judged_in_each_and_said_to_be_there_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (topics(tmp_path / name) for name in ("one", "other"))
    main(["audit", "--json", first])
    captured = capsys.readouterr()
    assert (imbalances(captured.out), captured.err) == (["standalone"], "")
    main(["audit", "--json", first, second])
    captured = capsys.readouterr()
    verdicts = [json.loads(line) for line in captured.out.splitlines() if line.startswith('{"verdict"')]
    assert len({row["recording"] for row in verdicts}) == len(verdicts) == 24
    assert imbalances(captured.out) == []
    assert captured.err.startswith("12 dispatchers stand in more than one recording: ")
    assert "t-0-partition-0 / s of cluster standalone in a/one-0, a/other-0" in captured.err
    assert "and 9 more" in captured.err
    assert "give each its own cluster in its header" in captured.err


def test_what_if_says_so_as_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "other"):
        topics(tmp_path / name)
    paths = [
        str(tmp_path / name / "a" / f"{name}-{number}") for name in ("one", "other") for number in (0, 1)
    ]
    main(["what-if", "--json", "--seeds", "1", *paths])
    captured = capsys.readouterr()
    assert "2 dispatchers stand in more than one recording" in captured.err
    assert not [row for row in map(json.loads, captured.out.splitlines()) if "group" in row]
    main(["what-if", "--json", "--seeds", "1", *paths[:2]])
    captured = capsys.readouterr()
    assert "more than one recording" not in captured.err
    assert [row for row in map(json.loads, captured.out.splitlines()) if "group" in row]


def other_cluster(folder: Path, file: str, cluster: str | None) -> Path:
    """Copy a sample, with another cluster in the header of one of its files."""
    source = SAMPLES / "designed-drain-one-by-one-ch"
    folder.mkdir()
    for path in source.glob("*.jsonl.gz"):
        header, *lines = gzip.decompress(path.read_bytes()).decode().splitlines()
        if "format" not in json.loads(header):
            header, lines = (
                json.dumps({"format": "pulsar-message-log", "format_version": 1}),
                [header, *lines],
            )
        if path.name.startswith(file):
            header = json.dumps(json.loads(header) | {"cluster": cluster})
        (folder / path.name).write_bytes(gzip.compress("\n".join([header, *lines]).encode()))
    return folder


@pytest.mark.parametrize("command", ["audit", "explain", "verify"])
@pytest.mark.parametrize(
    ("file", "messages", "trace"),
    [
        ("trace", "standalone (as it is without one in the header)", "east"),
        ("messages", "east", "standalone (as it is without one in the header)"),
    ],
)
def test_logs_of_different_clusters_are_said_not_to_belong_together(
    file: str, messages: str, trace: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = other_cluster(tmp_path / "r", file, "east")
    main([command, str(folder), *(["--key", "key-1"] if command == "explain" else [])])
    said = capsys.readouterr().err
    name = f"{tmp_path.name}/r"
    assert said.count("no key is known") == 1
    assert (
        f"{name}/messages.jsonl.gz is of cluster {messages}, {name}/trace.jsonl.gz of cluster {trace}" in said
    )
    assert 'write the same "cluster" into the headers of both' in said


def test_the_verdict_warns_of_it_and_one_finding_explains_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = other_cluster(tmp_path / "r", "trace", "east")
    main(["audit", "--json", str(folder)])
    *found, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    assert [text for text in verdict["warnings"] if "of cluster east" in text]
    unknown = [anomaly["explanation"] for anomaly in found if anomaly["kind"] == "unknown_position"]
    assert len(unknown) > 50
    assert ["holds no entry of this topic" in text for text in unknown] == [True] + [False] * (
        len(unknown) - 1
    )


def test_nothing_is_said_of_a_topic_without_entries_or_of_logs_that_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (plain,) = read_all([str(SAMPLES / "designed-drain-one-by-one-ch")])
    folder = other_cluster(tmp_path / "r", "trace", "standalone")
    (same,) = read_all([str(folder)])
    (folder / "messages.jsonl.gz").unlink()
    (folder / "messages.jsonl").write_text('{"format":"pulsar-message-log","format_version":1}\n')
    (without,) = read_all([str(folder)])
    assert plain.mismatches == same.mismatches == without.mismatches == ()


def test_overrides_go_from_stage_to_stage_as_json() -> None:
    for overrides in (RECORDED, given("--broker-version", "4.0.6", "--set", "dispatcherMaxReadBatchSize=16")):
        assert Overrides.of_json(overrides.json()) == overrides
    assert not RECORDED
    for text, said in (
        ("{", "not JSON"),
        ("[]", "an object of broker_version and settings"),
        ('{"broker_version": 4, "settings": {}}', "a text and an object"),
        ('{"broker_version": "four", "settings": {}}', "four"),
        ('{"broker_version": null, "settings": {"dispatcherMaxReadBatchSiz": 1}}', "the nearest is"),
        ('{"broker_version": null, "settings": {"dispatcherMaxReadBatchSize": "x"}}', "expected an integer"),
    ):
        with pytest.raises(DispatchAuditError, match=said):
            Overrides.of_json(text)


def test_the_first_row_that_was_set_aside_is_named_with_its_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[Event] = [added(1), sent(1, 0) | {"seq": "two"}]
    write(tmp_path / "log", [message(0, "k")], numbered(events))
    main(["audit", "--json", str(tmp_path / "log")])
    assert 'trace.jsonl.gz:3: seq: expected an integer, found "two"' in capsys.readouterr().err
