"""``dispatch-audit verify``: options, order of outputs, a bad recording among good ones."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.cli import recordings
from dispatch_core.cli import verify as command
from dispatch_core.cli.main import main
from dispatch_core.cli.selection import Selection
from dispatch_core.recording.log_profile import RECORDED

SAMPLE = Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4"
DRAIN = SAMPLE / "designed-drain-one-by-one-ch"
FAILOVER = SAMPLE / "designed-failover-modulo-p1"
FIELDS = {
    "recording",
    "broker_version",
    "rounds",
    "decisions",
    "exact",
    "uncertain",
    "divergent",
    "classes",
    "first_divergence",
    "uncertain_examples",
}


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def cut_in_half(folder: Path) -> None:
    whole = (folder / "trace.jsonl.gz").read_bytes()
    (folder / "trace.jsonl.gz").write_bytes(whole[: len(whole) // 2])


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Make three recordings: a good one, one with a cut trace, a good one."""
    for name, source in (("a-good", DRAIN), ("b-cut", DRAIN), ("c-good", FAILOVER)):
        shutil.copytree(source, tmp_path / "mixed" / name)
    cut_in_half(tmp_path / "mixed" / "b-cut")
    return tmp_path / "mixed"


def test_json_has_the_fields_of_the_contract_and_nothing_else_is_on_stdout(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["verify", "--json", "--jobs", "1", str(FAILOVER)]) == 0
    (item,) = objects(capsys.readouterr().out)
    assert set(item) >= FIELDS
    assert (item["recording"], item["broker_version"]) == (f"4.2.4/{FAILOVER.name}", "4.2.4")
    assert item["first_divergence"] is None
    assert "dispatcherMaxReadSizeBytes" in item["ignored_settings"]


@pytest.mark.slow
def test_many_at_a_time_print_the_same_as_one_after_the_other(
    mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes, outputs = [], []
    for jobs in ("1", "2"):
        codes.append(main(["verify", "--json", "--jobs", jobs, str(mixed)]))
        outputs.append(capsys.readouterr().out)
    assert codes[0] == codes[1]
    assert outputs[0] == outputs[1]
    assert [item["recording"] for item in objects(outputs[0])] == [
        "mixed/a-good",
        "mixed/b-cut",
        "mixed/c-good",
    ]


def test_a_cut_off_file_is_named_and_the_verdict_is_not_clean(
    mixed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--jobs", "1", str(mixed / "b-cut")]) in (1, 2)
    assert "b-cut/trace.jsonl.gz" in capsys.readouterr().err


def test_strict_stops_at_the_first_bad_recording(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--strict", "--jobs", "1", str(mixed)]) == 2
    said = capsys.readouterr()
    assert "mixed/b-cut" in said.err
    assert "trace.jsonl.gz" in said.err
    assert "a-good" in said.out
    assert "c-good" not in said.out


def test_a_release_and_settings_given_by_hand_replace_the_header_s(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["verify", "--json", "--jobs", "1", "--broker-version", "9.9.9", str(FAILOVER)]) in (0, 1)
    (item,) = objects(capsys.readouterr().out)
    assert item["broker_version"] == "9.9.9"
    assert "newer than 5.0.1" in item["warnings"][0]
    ring = "activeConsumerFailoverConsistentHashing=true"
    assert main(["verify", "--json", "--jobs", "1", "--set", ring, str(FAILOVER)]) == 1
    (item,) = objects(capsys.readouterr().out)
    assert item["divergent"] > 0


@pytest.mark.parametrize("subcommand", ["verify", "audit"])
@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--set", "maxUnackedMessagePerConsumer=3"], "the nearest is maxUnackedMessagesPerConsumer"),
        (["--set", "maxUnackedMessagesPerConsumer=three"], "expected an integer"),
        (["--set", "maxUnackedMessagesPerConsumer"], "NAME=VALUE"),
        (["--broker-version", "2.3.0"], "below 2.4.0"),
        (["--broker-version", "latest"], "not a version"),
    ],
)
def test_bad_options_are_refused_before_anything_is_read(
    subcommand: str, option: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([subcommand, *option, str(FAILOVER)]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.out == ""


def test_audit_warns_of_a_later_release_too(capsys: pytest.CaptureFixture[str]) -> None:
    main(["audit", "--json", "--broker-version", "9.9.9", str(FAILOVER)])
    verdict = objects(capsys.readouterr().out)[-1]
    assert "newer than 5.0.1" in verdict["warnings"][0]


def test_a_divergence_comes_with_both_answers_and_the_story(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import gzip

    folder = tmp_path / DRAIN.name
    shutil.copytree(DRAIN, folder)
    with gzip.open(folder / "trace.jsonl.gz", "rt", encoding="utf-8") as lines:
        trace = [json.loads(line) for line in lines]
    sent = next(line for line in trace if line.get("kind") == "sent" and len(line["positions"]) > 3)
    sent["positions"][0], sent["positions"][1] = sent["positions"][1], sent["positions"][0]
    with gzip.open(folder / "trace.jsonl.gz", "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(line) + "\n" for line in trace)
    assert main(["verify", "--jobs", "1", str(folder)]) == 1
    text = capsys.readouterr().out
    for part in (
        "first divergence at seq",
        "expected consumer",
        "recorded",
        "the lines about key",
        "sent to consumer",
    ):
        assert part in text


def fail(error: Exception) -> Callable[..., Any]:
    def failing(*_args: object, **_kwargs: object) -> None:
        raise error

    return failing


def test_what_goes_wrong_with_one_is_that_one_s_result(
    mixed: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = command._verify_source

    def one_fails(order: Any) -> Any:
        if order.source.name.endswith("a-good"):
            raise RuntimeError("no such luck")
        return real(order)

    monkeypatch.setattr(command, "_verify_source", one_fails)
    assert main(["verify", "--json", "--jobs", "1", str(mixed)]) in (1, 2)
    items = objects(capsys.readouterr().out)
    assert [item["recording"] for item in items] == ["mixed/a-good", "mixed/b-cut", "mixed/c-good"]
    assert "internal error RuntimeError in test_verify_command.one_fails" in items[0]["not_judged"]
    assert set(items[0]) >= FIELDS
    assert items[2]["exact"] == items[2]["decisions"] > 0


def die(_order: object) -> None:
    os._exit(11)


@pytest.mark.slow
def test_the_end_of_a_process_is_its_recording_s_result(monkeypatch: pytest.MonkeyPatch) -> None:
    (source,) = recordings_of(FAILOVER)
    order = command._Order(source, RECORDED, False, True, Selection([], []), recordings.LAST_LINE)
    broken: Future[Any] = Future()
    broken.set_exception(BrokenProcessPool("gone"))
    again = command._result(broken, order)
    assert again.judged == 1  # the other recording failed
    monkeypatch.setattr(command, "_verify", die)
    lost = command._result(broken, order)
    assert (lost.judged, lost.not_judged) == (0, 1)
    assert "ended without a word" in lost.results[0]


def recordings_of(folder: Path) -> list[Any]:
    from dispatch_core.recording.reader import find_recordings

    return find_recordings([str(folder)])


def test_the_bar_is_drawn_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(recordings.with_progress_bar(iter("abc"), 3, "verifying")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert list(recordings.with_progress_bar(iter("abc"), 3, "verifying")) == ["a", "b", "c"]
    said = capsys.readouterr()
    assert "verifying" in said.err
    assert said.out == ""
