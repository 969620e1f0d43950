"""The command: the recordings searched, exit codes, and the format of --json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dispatch_core.cli.main import main
from tests.dispatch_core.audit.small_logs import added, message, numbered, sent, write
from tests.dispatch_core.explain.explanations import CLASSIC, DRAIN, SAMPLES, flow

FIELDS = {
    *(
        "recording",
        "topic",
        "subscription",
        "incarnation",
        "seq",
        "t_us",
        "what",
        "kind",
        "consumer",
        "consumer_name",
    ),
    *("positions", "hash", "reason", "holder", "held_by_positions", "for_ms", "text"),
}


def test_a_key_is_explained_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(SAMPLES / DRAIN), "--key", "key-7"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"4.2.4/{DRAIN}  persistent://public/default/")
    assert "draining hashes (PIP-379)" in out
    assert err == ""


def test_a_finding_that_touches_it_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(SAMPLES / CLASSIC), "--key", "key-32"]) == 1
    assert "out_of_order" in capsys.readouterr().out


def test_json_has_one_object_per_moment_and_one_per_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(SAMPLES), "--key", "key-7", "--json"]) in (0, 1)
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    moments = [line for line in lines if "explained" not in line]
    ends = [line for line in lines if "explained" in line]
    assert all(set(moment) == FIELDS for moment in moments)
    assert {line["explained"] for line in ends} == {moment["recording"] for moment in moments}
    for end in ends:
        assert end["entries"] == sum(moment["recording"] == end["explained"] for moment in moments)
    drain = [moment for moment in moments if moment["recording"] == f"4.2.4/{DRAIN}"]
    waits = [moment for moment in drain if moment["what"] == "held"]
    assert [(wait["reason"], wait["holder"], wait["held_by_positions"]) for wait in waits] == [
        ("draining_hash", 1, ["3:7", "3:17", "3:27", "3:37"])
    ]
    assert 2600 < waits[0]["for_ms"] < 2800
    assert {moment["consumer_name"] for moment in drain} == {None, "c1", "c2"}
    assert err == ""


@pytest.mark.parametrize(
    ("whom", "near"),
    [
        (["--key", "kee-7"], "key-7"),
        (["--position", "3:80"], "3:79"),
        (["--consumer", "c3"], "c1"),
        (["--key", "base64:!"], "no base64"),
    ],
)
def test_what_nothing_matches_is_exit_code_2_with_what_is_near(
    whom: list[str], near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(SAMPLES / DRAIN), *whom]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert near in err


def test_a_moment_may_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(SAMPLES / DRAIN), "--key", "key-7", "--at", "08:20:20"]) == 0
    assert "At 08:20:20.000: c1 held" in capsys.readouterr().out
    assert main(["explain", str(SAMPLES / DRAIN), "--key", "key-7", "--at", "soon"]) == 2
    assert "08:20:18.69" in capsys.readouterr().err


def test_two_subjects_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for whom in (["--key", "a", "--consumer", "b"], ["--position", "3:7", "--key", "a"]):
        with pytest.raises(SystemExit) as raised:
            main(["explain", str(SAMPLES / DRAIN), *whom])
        assert raised.value.code == 2


def test_a_log_with_quarantined_or_lost_rows_is_explained_and_not_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path / "set-aside", [message(0, "k")], numbered([added(1, "a"), flow(1), sent(1, 0)]))
    (folder / "messages-2.jsonl").write_text("not json\n", encoding="utf-8")
    assert main(["explain", str(folder), "--key", "k"]) == 2
    out, err = capsys.readouterr()
    assert "sent to a" in out
    assert "rows set aside" in err
    events = numbered([added(1, "a"), flow(1), sent(1, 0)])
    events[2]["seq"] = 9
    folder = write(tmp_path / "lost", [message(0, "k")], events)
    assert main(["explain", str(folder), "--key", "k"]) in (1, 2)
    assert "log_gap" in capsys.readouterr().out


def test_other_rules_can_be_asked_for_and_a_wrong_release_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = str(SAMPLES / DRAIN)
    assert main(["explain", folder, "--key", "key-7", "--broker-version", "4.0.0"]) in (0, 1)
    assert "Pulsar 4.0.0" in capsys.readouterr().out
    assert main(["explain", folder, "--key", "key-7", "--broker-version", "two"]) == 2
    assert main(["explain", folder, "--key", "key-7", "--set", "noSuchSetting=1"]) == 2


def test_a_topic_cannot_reach_the_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\u202e\nt"
    events = numbered([added(1, evil), flow(1), sent(1, 0)])
    folder = write(tmp_path / "log", [message(0, evil, topic=evil)], events, topic=evil, subscription=evil)
    assert main(["explain", str(folder), "--key", evil]) == 0
    out, _ = capsys.readouterr()
    assert "sent to" in out
    assert all(line.isprintable() for line in out.split("\n"))
    assert main(["explain", str(folder), "--consumer", evil, "--json"]) == 0
    out, _ = capsys.readouterr()
    assert all(line.isprintable() for line in out.split("\n"))
