"""``dispatch-audit pipeline``: all stages in one process, from a source to verdicts."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dispatch_core.audit.sentences.names import printable
from dispatch_core.cli.main import main
from dispatch_expectations import pipeline_command
from spark_jobs.location import Location
from spark_jobs.warehouse.advice_file import read_advice
from spark_jobs.warehouse.run_ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CLASSIC = "subscriptionKeySharedUseClassicPersistentImplementation"
SAMPLE = Path(__file__).parents[1] / "data" / "recordings" / "4.2.4"
EXPECTED = json.loads((SAMPLE.parent / "expected-verdicts.json").read_text())


def command(*words: str) -> int:
    parser = argparse.ArgumentParser()
    pipeline_command.add_arguments(parser)
    return pipeline_command.run(parser.parse_args(words))


@pytest.mark.spark
def test_from_source_to_verdicts(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ["designed-rolling-restart-ch", "designed-rolling-restart-classic-ch"]
    capfd.readouterr()
    home, metrics = ("--home", str(tmp_path / "my home")), ("--prometheus-file", str(tmp_path / "audit.prom"))
    code = command(*(str(SAMPLE / name) for name in names), *home, *metrics, "--json")
    out, err = capfd.readouterr()
    verdicts = [json.loads(line) for line in out.splitlines()]
    for name in names:
        expected = EXPECTED["recordings"][f"4.2.4/{name}"]
        by_promise = {row["promise"]: row["verdict"] for row in verdicts if row["topic"] == expected["topic"]}
        assert by_promise.pop("all") == expected["all"], name
        assert by_promise["per_key_order"] == expected["promises"]["per_key_order"], name
    assert code == 1
    assert err == "", "quiet on a pipe"
    assert (tmp_path / "my home" / "data-docs").is_dir()
    reports = tmp_path / "my home" / "reports" / "2026-11-21"
    assert len(list(reports.glob("*.html"))) == len(names) + 1
    (shown,) = read_advice(Location.of(reports)).values()
    assert "would have prevented these" in shown.sentence
    assert any(shown.effects.split(";")[0] in page.read_text("utf-8") for page in reports.glob("*.html"))
    index = (reports / "index.html").read_text("utf-8")
    assert index.index(">FAIL<") < index.index(">PASS<")
    assert 'dispatch_audit_verdicts{verdict="FAIL"} 1.0' in (tmp_path / "audit.prom").read_text("utf-8")
    assert spark.range(1).count() == 1, "a session that was there before stays"


def test_a_file_of_metrics_that_cannot_be_written_is_an_error_behind_the_verdicts(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_command, "_audit", lambda _args, _home: [])
    assert command("logs", "--home", str(tmp_path), "--prometheus-file", "audit.txt") == 2
    out, err = capfd.readouterr()
    assert "nothing judged" in out
    assert "audit.txt: the file of metrics must end in .prom" in err


@pytest.mark.slow
@pytest.mark.spark
def test_settings_hold_in_place_of_the_headers_as_they_do_for_audit(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The classic dispatcher's log by the rules of 4.2.4's own: ``--set`` goes before the file, which says otherwise."""
    sample = str(SAMPLE / "designed-rolling-restart-classic-ch")
    settings = tmp_path / "audit.conf"
    settings.write_text(f"{CLASSIC}=true\ndispatcherMaxReadBatchSize=99\n")
    given = ("--settings", str(settings), "--set", f"{CLASSIC}=false")
    capfd.readouterr()
    given_home = ("--home", str(tmp_path / "home"))
    assert command(sample, *given_home, "--json", "--advice-events", "0", *given) == 1
    (shown,) = read_advice(Location.of(tmp_path / "home" / "reports" / "2026-11-21")).values()
    assert "more than 0" in shown.sentence
    rules = [
        verdict
        for line in capfd.readouterr().out.splitlines()
        if (verdict := json.loads(line))["promise"] == "conformance"
    ]
    assert [verdict["verdict"] for verdict in rules] == ["FAIL"]
    assert main(["audit", sample, "--json", *given]) == 1
    assert '"divergence"' in capfd.readouterr().out
    summary = Ledger(tmp_path / "home" / "warehouse").newest("replay")
    settings = ["dispatcherMaxReadBatchSize=99", f"{CLASSIC}=false"]
    assert [run["overrides"] for run in summary.values()] == [settings]
    (page,) = [path for path in (tmp_path / "home" / "reports").rglob("*.html") if path.name != "index.html"]
    assert ", ".join(settings) in page.read_text("utf-8")


def test_settings_that_cannot_be_are_refused_before_anything_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sample = str(SAMPLE / "designed-rolling-restart-classic-ch")
    assert command(sample, "--home", str(tmp_path / "home"), "--set", "dispatcherMaxReadBatchSize=many") == 2
    assert "dispatcherMaxReadBatchSize = 'many': expected an integer" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


def test_topics_are_not_chosen_and_a_policy_with_mistakes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        command(str(SAMPLE), "--topic", "orders")
    assert "--topic means nothing for this command: an interval is judged with all" in capsys.readouterr().err
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\ndefaults: {per_key_ordr: {}}\n")
    assert command(str(SAMPLE), "--home", str(tmp_path / "home"), "--policy", str(policy)) == 2
    assert "policy.yaml:2: defaults.per_key_ordr: is unknown" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


def test_without_an_event_there_is_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(SAMPLE / "designed-drain-one-by-one-ch", tmp_path / "run")
    (tmp_path / "run" / "trace.jsonl.gz").write_bytes(b"")
    assert command(str(tmp_path / "run"), "--home", str(tmp_path / "home")) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "no readable event in 2 files" in err
    assert not (tmp_path / "home" / "warehouse").exists()


def test_a_missing_source_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(str(tmp_path / "nowhere"), "--home", str(tmp_path / "home")) == 2
    assert f"{tmp_path / 'nowhere'}: no such file or folder" in capsys.readouterr().err


def test_control_characters_of_a_log_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[2Jb") == r"a\x1b[2Jb"
