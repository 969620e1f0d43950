"""What the subcommands that read recordings share: the rules asked for, and the logs of each dispatcher together."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli.main import main
from dispatch_core.cli.recordings import Overrides, add_recording_arguments, dispatchers, read_all
from dispatch_core.errors import DispatchAuditError

SAMPLES = Path(__file__).resolve().parents[1] / "data" / "recordings" / "4.2.4"


def given(*arguments: str) -> Overrides:
    parser = argparse.ArgumentParser()
    add_recording_arguments(parser, "")
    return Overrides.given(parser.parse_args(["PATH", *arguments]))


def test_recordings_come_one_by_one_with_their_dispatchers_incarnations_together() -> None:
    (drain, failover) = read_all(
        [str(SAMPLES / "designed-drain-one-by-one-ch"), str(SAMPLES / "designed-failover-modulo-p1")]
    )
    (one,), (other,) = drain.logs, failover.logs
    mixed = replace(drain, logs=[one, other, replace(one, incarnation=1)])
    found = dispatchers(mixed, given())
    assert [[(log.topic, log.incarnation) for log in logs] for logs in found] == [
        [(one.topic, 0), (one.topic, 1)],
        [(other.topic, 0)],
    ]
    elsewhere = replace(drain, logs=[one, replace(one, cluster="another")])
    assert [len(logs) for logs in dispatchers(elsewhere, given())] == [1, 1]


def test_every_log_is_read_under_the_rules_asked_for() -> None:
    (recording,) = read_all([str(SAMPLES / "designed-drain-one-by-one-ch")])
    asked = given(
        "--broker-version", "4.0.0", "--set", "subscriptionKeySharedConsistentHashingReplicaPoints=7"
    )
    header: dict[str, Any] = dispatchers(recording, asked)[0][0].header
    assert header["broker_version"] == "4.0.0"
    assert header != recording.logs[0].header
    assert dispatchers(recording, given())[0][0].header == recording.logs[0].header


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
