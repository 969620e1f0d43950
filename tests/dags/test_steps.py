"""Steps of the DAG, called without Airflow."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta, timezone

import pytest

from dispatch_airflow import stages, steps
from dispatch_airflow.home import HOME_VARIABLE, Home, ParameterError, StepError
from dispatch_airflow.schedule import last_interval
from dispatch_airflow.sources import Source
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log_profile import Overrides
from dispatch_core.recording.stored_files import VARIABLES
from spark_jobs.intervals import Interval
from spark_jobs.location import HomeError
from spark_jobs.pull.segments import LandedInterval, write_interval

DAY = datetime(2026, 11, 21, tzinfo=UTC)
NEXT = datetime(2026, 11, 22, tzinfo=UTC)


HOME = Home("/home-of-the-audit")


def chosen_of(params: dict | None = None, **more) -> dict:
    """Choose what a run of the day does."""
    return steps.choose_interval({"source": "/logs"} | (params or {}), (DAY, NEXT), HOME, **more)


def test_a_run_audits_its_data_interval_of_its_source():
    assert chosen_of(known=[Source("", "/logs/")]) == {
        "source": "/logs",
        "namespace": "",
        "interval_start": "2026-11-21T00:00:00+00:00",
        "interval_end": "2026-11-22T00:00:00+00:00",
    }


def test_a_data_interval_is_taken_to_utc():
    zone = timezone(timedelta(hours=2))
    span = datetime(2026, 11, 21, 2, tzinfo=zone), datetime(2026, 11, 22, 2, tzinfo=zone)
    chosen = steps.choose_interval({"source": "/logs"}, span, HOME)
    assert (chosen["interval_start"], chosen["interval_end"]) == (DAY.isoformat(), NEXT.isoformat())


@pytest.mark.parametrize(
    ("data_interval", "schedule", "start", "end"),
    [
        ((None, None), "0 0 * * *", "2026-11-21T00:00", "2026-11-22T00:00"),
        ((NEXT, NEXT), "0 0 * * *", "2026-11-21T00:00", "2026-11-22T00:00"),
        ((NEXT - timedelta(seconds=1),) * 2, "0 0 * * *", "2026-11-20T00:00", "2026-11-21T00:00"),
        ((None, None), "0 * * * *", "2026-11-22T08:00", "2026-11-22T09:00"),
    ],
)
def test_a_run_without_a_data_interval_takes_the_last_one_that_has_ended(data_interval, schedule, start, end):
    moment = NEXT + timedelta(hours=9, minutes=30)
    chosen = steps.choose_interval({"source": "/logs"}, data_interval, HOME, moment=moment, schedule=schedule)
    assert (chosen["interval_start"][:16], chosen["interval_end"][:16]) == (start, end)


@pytest.mark.airflow
@pytest.mark.parametrize("schedule", ["0 0 * * *", "0 * * * *", "0 8-18 * * *"])
def test_the_last_interval_is_the_one_that_airflow_gives_a_run_by_hand(schedule):
    from airflow.timetables.interval import CronDataIntervalTimetable
    from pendulum import instance

    for minutes in (0, 1, 29, 60, 8 * 60, 24 * 60 - 1):
        moment = DAY + timedelta(minutes=minutes)
        given = CronDataIntervalTimetable(schedule, timezone="UTC").infer_manual_data_interval(
            run_after=instance(moment)
        )
        assert last_interval(schedule, moment) == (given.start, given.end), moment


def test_the_data_interval_leaves_out_what_another_schedule_has_audited(tmp_path):
    home, hour = Home(tmp_path), timedelta(hours=1)
    known = [Source("", "/logs")]
    for start, role in ((DAY, "run"), (DAY + hour, "run"), (DAY + 2 * hour, "history")):
        write_interval(home.landing, LandedInterval(Interval(start, start + hour), role, ("/logs",)))

    def start(run_type: str, source: str = "/logs", until: datetime = NEXT) -> str:
        chosen = steps.choose_interval({"source": source}, (DAY, until), home, run_type=run_type, known=known)
        return chosen["interval_start"]

    assert start("scheduled") == start("backfill") == "2026-11-21T02:00:00+00:00"
    assert start("manual") == DAY.isoformat(), "what a person asks for is not changed"
    assert start("scheduled", until=DAY + hour) == DAY.isoformat(), "the same interval again"
    assert start("scheduled", "/other") == DAY.isoformat(), "another source"


@pytest.mark.parametrize(
    ("run_type", "minutes_after", "waits"),
    [
        ("scheduled", 0, True),
        ("scheduled", 10.9, True),
        ("scheduled", 11, False),
        ("scheduled", 10_000, False),
        ("manual", 0, False),
        ("backfill", 0, False),
    ],
)
def test_a_scheduled_run_waits_for_the_last_logs_of_its_interval(run_type, minutes_after, waits):
    chosen = chosen_of()
    now = NEXT + timedelta(minutes=minutes_after)
    assert steps.must_wait(chosen, run_type, 11, now) is waits


def test_a_file_of_settings_is_read_once_for_all_stages(tmp_path):
    path = tmp_path / "audit.conf"
    path.write_text("dispatcherMaxReadBatchSize=16\n")
    params = {"settings_file": str(path)}
    chosen = chosen_of(params)
    overrides = Overrides.of_json(chosen["overrides"])
    assert overrides == Overrides(None, {"dispatcherMaxReadBatchSize": 16})
    for text, says in (
        ("noSuchSetting=1\n", r"audit\.conf:1: 'noSuchSetting' is no setting"),
        (None, "cannot be read"),
    ):
        path.unlink() if text is None else path.write_text(text)
        with pytest.raises(DispatchAuditError, match=says):
            chosen_of(params)


@pytest.mark.parametrize(
    ("source", "data_interval", "says"),
    [
        ("  ", (DAY, NEXT), "source is empty"),
        (None, (DAY, NEXT), "source is empty"),
        ("/logs", (NEXT, DAY), "not after its start"),
    ],
)
def test_what_names_nothing_is_refused(source, data_interval, says):
    with pytest.raises(DispatchAuditError, match=says):
        steps.choose_interval({"source": source}, data_interval, HOME)


@pytest.mark.airflow
def test_pull_reads_a_folder_with_odd_characters_through_object_storage(tmp_path):
    source = tmp_path / "logs of 100% #1?"
    (source / "a").mkdir(parents=True)
    (source / "a" / "messages.jsonl").write_text('{"x": 1}\n')
    chosen = chosen_of({"source": str(source)})
    summary = steps.pull(chosen, Home(tmp_path / "home"))
    assert summary["files"] == 1
    landed = list((tmp_path / "home" / "landing").rglob("messages.jsonl"))
    assert [path.read_text() for path in landed] == ['{"x": 1}\n']


@pytest.mark.airflow
def test_pull_names_a_source_that_is_not_there(tmp_path):
    chosen = chosen_of({"source": str(tmp_path / "gone")})
    with pytest.raises(DispatchAuditError, match=r"gone.*no such file or folder"):
        steps.pull(chosen, Home(tmp_path))


@pytest.mark.spark
def test_a_stage_without_its_input_fails_for_good_with_its_own_words(tmp_path):
    chosen = chosen_of()
    with pytest.raises(DispatchAuditError, match="nothing was landed for 2026-11-21") as failure:
        stages.ingest(chosen, Home(tmp_path))
    assert not isinstance(failure.value, StepError), "another attempt would not help"
    assert "exit code 2" in str(failure.value)


def _row(topic: str, verdict: str, cluster: str = "standalone") -> dict:
    return {
        "cluster": cluster,
        "topic": topic,
        "subscription": "s",
        "verdict": verdict,
        "reason": f"why {topic}",
    }


def test_one_fail_does_not_keep_the_others_from_being_published():
    verdicts = [_row("a", "FAIL"), _row("b", "PASS")]
    assert steps.publish(verdicts) == {"a / s": "FAIL", "b / s": "PASS"}
    assert steps.counts(verdicts) == {"PASS": 1, "FAIL": 1, "UNKNOWN": 0}
    assert steps.broken(verdicts) == ["a / s: FAIL - why a"]
    assert steps.broken(verdicts[1:]) == []


def test_an_error_names_a_hundred_subscriptions_and_counts_the_others():
    lines = steps.broken([_row(f"t{number}", "FAIL") for number in range(1_234)])
    assert (len(lines), lines[-1]) == (101, "... and 1,134 more")


def test_the_same_topic_of_two_clusters_has_two_verdicts():
    verdicts = [_row("a", "FAIL"), _row("a", "PASS", "eu")]
    assert steps.publish(verdicts) == {"a / s": "FAIL", "a / s in eu": "PASS"}


def test_an_asset_event_counts_verdicts_and_names_those_that_are_not_pass():
    published = {f"t{number} / s": "FAIL" for number in range(150)} | {"a / s": "PASS", "u / s": "UNKNOWN"}
    chosen = chosen_of()
    event = steps.verdict(chosen, published)
    assert event["counts"] == {"PASS": 1, "FAIL": 150, "UNKNOWN": 1}
    assert len(event["FAIL"]) == 100, "it is kept in Airflow's database"
    assert event["UNKNOWN"] == ["u / s"]
    assert (event["interval_start"], event["interval_end"]) == (
        "2026-11-21T00:00:00+00:00",
        "2026-11-22T00:00:00+00:00",
    )


@pytest.mark.parametrize(
    ("run_type", "asked", "wanted"),
    [
        ("scheduled", False, True),
        ("manual", False, False),
        ("manual", True, True),
        ("backfill", False, False),
        ("backfill", True, True),
        ("asset_triggered", False, False),
    ],
)
def test_runs_of_the_schedule_recompute_what_is_stale_and_others_if_asked(run_type, asked, wanted):
    assert steps.stale_wanted(run_type, {"recompute_stale": asked}) is wanted


def test_home_is_the_environments_or_beside_the_caller(monkeypatch, tmp_path):
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "h"))
    assert Home.current().warehouse.local == tmp_path / "h" / "warehouse"
    monkeypatch.delenv(HOME_VARIABLE)
    monkeypatch.chdir(tmp_path)
    assert Home.current().root == str(tmp_path / ".dispatch-audit")
    monkeypatch.setenv(HOME_VARIABLE, "s3://bucket/audit/")
    assert Home.current().warehouse.url == "s3://bucket/audit/warehouse"


@pytest.mark.airflow
def test_the_homes_connection_is_put_into_the_environment_and_into_no_text(monkeypatch, caplog):
    for name in (*VARIABLES, "_DISPATCH_AUDIT_HOME_CONNECTION_USED"):
        monkeypatch.setenv(name, "")
    connection = {
        "conn_type": "aws",
        "login": "the-key-id",
        "password": "the-secret",
        "extra": {"endpoint_url": "http://127.0.0.1:1", "region_name": "eu-west-1"},
    }
    monkeypatch.setenv("AIRFLOW_CONN_HOME_STORE", json.dumps(connection))
    monkeypatch.setenv(HOME_VARIABLE, "s3://bucket/audit")
    monkeypatch.setenv("DISPATCH_AUDIT_HOME_CONNECTION", "home_store")
    home = Home.current()
    assert {name: os.environ[name] for name in VARIABLES if os.environ[name]} == {
        "AWS_ACCESS_KEY_ID": "the-key-id",
        "AWS_SECRET_ACCESS_KEY": "the-secret",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_REGION": "eu-west-1",
    }
    with pytest.raises(
        HomeError, match=r"bucket bucket, endpoint http://127.0.0.1:1.*cannot be reached"
    ) as refused:
        steps.check_home(home)
    for text in (str(refused.value), str(home), str(home.warehouse.storage_options), caplog.text):
        assert "the-key-id" not in text
        assert "the-secret" not in text


@pytest.mark.airflow
def test_a_connection_of_the_home_that_airflow_does_not_have_is_named(monkeypatch):
    monkeypatch.setenv("DISPATCH_AUDIT_HOME_CONNECTION", "no_such_connection")
    with pytest.raises(
        ParameterError, match="'no_such_connection', which Airflow does not have; nothing was done"
    ):
        Home.current()
