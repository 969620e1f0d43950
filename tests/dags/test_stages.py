"""Starting stages: the command lines, what exit codes mean, what a person sees of them."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest

from dispatch_airflow import stages
from dispatch_airflow.home import Home, ParameterError, StepError
from dispatch_core.errors import DispatchAuditError
from tests.checkout import ROOT

CHOSEN = {
    "interval_start": "2026-11-21T00:00:00+00:00",
    "interval_end": "2026-11-22T00:00:00+00:00",
    "source": "/logs",
}
HOME = Home(Path("/srv/audit"))


#: What the stages answer, one after the other: exit code, lines of stdout, lines of stderr.
Answer = tuple[int, list[str], list[str]]
WELL: Answer = (0, ['{"stale": [], "recomputed": []}'], [])


@pytest.fixture
def answers() -> list[Answer]:
    """The answers of the next stages; without any, all goes well."""
    return []


@pytest.fixture
def asked(monkeypatch, answers) -> list[list[str]]:
    """The command lines that were started, none of them really."""
    commands: list[list[str]] = []

    def stream(command, *, env, on_error_line, on_output_line):
        commands.append(list(command))
        code, lines, said = answers.pop(0) if answers else WELL
        for line in said:
            on_error_line(line)
        for line in lines:
            if on_output_line is not None:
                on_output_line(line)
        return code, lines

    monkeypatch.setattr(stages, "stream", stream)
    monkeypatch.delenv(stages.CONNECTION_VARIABLE, raising=False)
    return commands


def values(command: list[str], option: str) -> list[str]:
    return [command[at + 1] for at, word in enumerate(command) if word == option]


def test_the_stages_of_a_run_name_its_interval_its_folders_and_its_staging(asked):
    stages.ingest(CHOSEN, HOME)
    stages.plan(CHOSEN, HOME, "scheduled__1", 3)
    stages.replay_group(CHOSEN, HOME, "scheduled__1", 2)
    stages.publish_tables(CHOSEN, HOME, "scheduled__1")
    stages.discard(CHOSEN, HOME, "scheduled__1")
    stages.aggregate(CHOSEN, HOME)
    assert [command[1:4] for command in asked] == [
        ["-m", "spark_jobs.ingest", "--interval-start"],
        *(["-m", "spark_jobs.replay", step] for step in ("plan", "group", "publish", "discard")),
        ["-m", "spark_jobs.aggregates", "--interval-start"],
    ]
    for command in asked:
        assert values(command, "--interval-start") == [CHOSEN["interval_start"]]
        assert values(command, "--interval-end") == [CHOSEN["interval_end"]]
        assert values(command, "--warehouse") == ["/srv/audit/warehouse"]
    assert values(asked[0], "--landing") == ["/srv/audit/landing"]
    assert [values(command, "--run-id") for command in asked[1:5]] == [["scheduled__1"]] * 4
    assert values(asked[1], "--groups") == ["3"]
    assert values(asked[2], "--group") == ["2"]
    assert [bool(values(command, "--limits")) for command in asked] == [
        False,
        True,
        False,
        False,
        False,
        True,
    ]


def test_what_replays_is_given_the_settings_of_the_run(asked, answers):
    chosen = CHOSEN | {"overrides": '{"broker_version": null, "settings": {}}'}
    stages.plan(chosen, HOME, "r", 3)
    stages.replay_group(chosen, HOME, "r", 2)
    answers.append((75, [], ["error: other rows were ingested since the plan"]))
    stages.publish_tables(chosen, HOME, "r")
    given = [bool(values(command, "--overrides")) for command in asked]
    assert given == [True, False, False, True]  # a plan keeps it for its groups


def test_stale_intervals_are_recomputed_as_they_were_found(asked, answers):
    found = [{"interval_start": "2026-11-20T00:00:00+00:00", "interval_end": "2026-11-21T00:00:00+00:00"}]
    answers.append((0, [json.dumps({"stage": "stale", "stale": found})], []))
    answers.append((0, [json.dumps({"stage": "recompute", "recomputed": found})], []))
    chosen = CHOSEN | {"overrides": "{}"}
    assert stages.recompute(stages.find_stale(HOME), HOME, chosen) == found
    assert asked[0][2:4] == ["spark_jobs.stale_intervals", "list"]
    assert values(asked[1], "--overrides") == ["{}"]
    assert values(asked[1], "--interval") == ["2026-11-20T00:00:00+00:00/2026-11-21T00:00:00+00:00"]


def test_what_was_planned_and_is_no_longer_so_is_replayed_from_the_beginning(asked, answers, caplog):
    caplog.set_level(logging.INFO)
    answers += [(75, [], ["error: other rows were ingested since the plan"]), (0, ['{"dispatchers": 4}'], [])]
    assert stages.publish_tables(CHOSEN, HOME, "r") == {"dispatchers": 4}
    assert asked[1][2:4] == ["spark_jobs.replay", "--interval-start"]
    assert "other rows were ingested since the plan" in caplog.text
    assert "replaying the whole interval" in caplog.text


@pytest.mark.parametrize(("code", "again"), [(2, False), (1, True), (-9, True), (75, True)])
def test_only_what_another_attempt_may_cure_is_tried_again(asked, answers, code, again):
    answers.append((code, [], ["error: it was so"]))
    with pytest.raises(DispatchAuditError, match=rf"(?s)exit code {code};.*error: it was so") as failure:
        stages.ingest(CHOSEN, HOME)
    assert isinstance(failure.value, StepError) == again


def test_a_stage_without_a_summary_is_an_error(asked, answers):
    answers.append((0, ["not JSON"], []))
    with pytest.raises(StepError, match=r"not a JSON summary.*run the task again"):
        stages.ingest(CHOSEN, HOME)


def line(message: str, level: str = "INFO", logger: str = "dispatch_audit.progress", **more: str) -> str:
    """A line as stages write it."""
    return json.dumps({"message": message, "level": level, "logger": logger, **more})


def test_lines_of_a_stage_keep_their_level_and_what_is_progress_is_marked(asked, answers, caplog):
    caplog.set_level(logging.INFO)
    answers.append(
        (0, ['{"rows_in": 1234567, "stage": "ingest", "inputs_digest": "d"}'], [
            line("ingest 2026-11-21: files done: 3 of 7", stage="ingest"),
            line("out of memory", "ERROR", "org.apache.spark.SparkContext", exception="java.lang.X\n at Y"),
            line("a library complains", "WARNING", "dispatch_audit.output"),
            "Killed",
        ])
    )  # fmt: skip
    stages.ingest(CHOSEN, HOME)
    lines = [record.getMessage() for record in caplog.records if record.name == "dispatch_audit.progress"]
    kept = [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name == "dispatch_audit.output"
    ]
    assert lines[0] == "ingest 2026-11-21: files done: 3 of 7"
    assert lines[1].startswith("ingest: rows_in=1,234,567 seconds=")
    assert kept == [
        ("ERROR", "out of memory\njava.lang.X\n at Y"),
        ("WARNING", "a library complains"),
        ("INFO", "Killed"),
    ]


def test_a_line_behind_the_summary_is_not_taken_for_it(asked, answers):
    late = line("the connection was closed", "ERROR", "org.apache.spark.Netty")
    answers.append((0, ['{"rows_in": 7}', late], []))  # spark-submit writes both outputs to one
    assert stages.ingest(CHOSEN, HOME) == {"rows_in": 7}


def test_a_stage_is_asked_for_lines_that_have_a_level():
    assert stages._environment()["DISPATCH_AUDIT_LOG_FORMAT"] == "json"


def test_the_error_of_a_stage_is_its_words_and_not_json(asked, answers):
    answers.append((2, [], [line("error: nothing was landed", "ERROR", "dispatch_audit.output")]))
    with pytest.raises(DispatchAuditError) as failure:
        stages.ingest(CHOSEN, HOME)
    assert str(failure.value).splitlines()[-1] == "error: nothing was landed"


@pytest.mark.airflow
def test_a_connection_makes_it_a_submission_to_a_cluster(asked, monkeypatch):
    monkeypatch.setenv(stages.CONNECTION_VARIABLE, "spark_default")
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT",
        '{"conn_type": "spark", "host": "spark://master", "port": 7077, "extra": {"deploy-mode": "client",'
        ' "queue": "audits", "principal": "audit@EXAMPLE.ORG"}}',
    )
    monkeypatch.setenv("DISPATCH_AUDIT_SPARK_JARS", "/a.jar,/b.jar")
    stages.ingest(CHOSEN, HOME)
    stages.publish_tables(CHOSEN, HOME, "r")
    submitted, published = asked
    assert Path(submitted[0]).name == "spark-submit"
    assert values(submitted, "--master") == ["spark://master:7077"]
    assert values(submitted, "--jars") == ["/a.jar,/b.jar"]
    assert values(submitted, "--queue") == ["audits"]
    assert values(submitted, "--principal") == ["audit@EXAMPLE.ORG"]
    [java] = [text for text in values(submitted, "--conf") if "extraJavaOptions" in text]
    assert Path(java.partition("file://")[2]).is_file(), "Spark says as little as without spark-submit"
    assert {"-XX:+DisplayVMOutputToStderr", "-Xlog:all=warning:stderr"} < set(java.split()), (
        "stdout has the summary"
    )
    launch = submitted.index(str(ROOT / "spark_jobs" / "run_stage.py"))
    assert submitted[launch + 1 : launch + 3] == ["spark_jobs.ingest", "--interval-start"]
    assert published[:3] == [sys.executable, "-m", "spark_jobs.replay"], "it needs no Spark"


@pytest.mark.airflow
def test_both_outputs_of_a_submitted_stage_are_logged(asked, answers, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv(stages.CONNECTION_VARIABLE, "here")
    monkeypatch.setenv("AIRFLOW_CONN_HERE", '{"conn_type": "spark", "host": "local[2]"}')
    answers.append((2, [line("ingest 2026-11-21: 3 files"), "error: it was so"], ["WARN of the JVM"]))
    with pytest.raises(DispatchAuditError, match="error: it was so"):
        stages.ingest(CHOSEN, HOME)
    lines = [record.getMessage() for record in caplog.records if record.name == "dispatch_audit.progress"]
    assert lines == ["ingest 2026-11-21: 3 files"]


@pytest.mark.airflow
@pytest.mark.parametrize(
    ("connection", "says"),
    [
        (None, "which Airflow does not have"),
        ('{"conn_type": "spark"}', "names no master"),
        ('{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}', "client"),
    ],
)
def test_a_connection_that_cannot_be_used_starts_nothing(asked, monkeypatch, connection, says):
    monkeypatch.setenv(stages.CONNECTION_VARIABLE, "elsewhere")
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_ELSEWHERE", connection)
    with pytest.raises(DispatchAuditError, match=says) as failure:
        stages.ingest(CHOSEN, HOME)
    assert not isinstance(failure.value, StepError)
    assert "nothing was started" in str(failure.value)
    assert asked == []


def test_what_is_submitted_runs_the_module_with_its_arguments(tmp_path):
    launch = ROOT / "spark_jobs" / "run_stage.py"
    done = subprocess.run(
        [sys.executable, str(launch), "spark_jobs.maintenance", "verify", "--home", str(tmp_path)],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, json.loads(done.stdout)["stage"]) == (0, "verify"), done.stderr
    refused = subprocess.run(
        [sys.executable, str(launch), "spark_jobs.maintenance", "retain", "--home", ".", "--keep-pages", "1"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert refused.returncode == 2, "the exit code of the stage"


def test_advice_is_written_beside_the_reports_of_the_interval_and_bounded(asked, monkeypatch):
    stages.advise(CHOSEN, HOME)
    monkeypatch.setenv(stages.ADVICE_VARIABLE, "0")
    stages.advise(CHOSEN, HOME)
    for command, lines in zip(asked, ("100000", "0"), strict=True):
        assert command[1:3] == ["-m", "spark_jobs.what_if.advice"]
        assert values(command, "--interval-end") == [CHOSEN["interval_end"]]
        assert values(command, "--out") == [f"{HOME.reports}/2026-11-21"]
        assert values(command, "--most-events") == [lines]
    monkeypatch.setenv(stages.ADVICE_VARIABLE, "some")
    with pytest.raises(ParameterError, match="DISPATCH_AUDIT_ADVICE_EVENTS is 'some'"):
        stages.advise(CHOSEN, HOME)
