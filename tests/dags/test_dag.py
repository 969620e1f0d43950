"""The DAG files: import cleanly and fast, say what a person needs, refuse wrong values, run their tasks in order."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from functools import cache
from importlib import reload
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from dispatch_airflow.dags import dispatch_audit
from dispatch_airflow.home import ParameterError, StepError
from dispatch_airflow.sources import Source
from dispatch_core.errors import DispatchAuditError
from tests.checkout import PYTHONPATH

ROOT = Path(__file__).resolve().parents[2]
DAGS = ROOT / "dags"
NAMES = (
    "dispatch_audit",
    "dispatch_audit_alerts",
    "dispatch_audit_maintenance",
    "dispatch_audit_watch",
    "dispatch_hunt",
    "dispatch_what_if",
    "upgrade_risk",
)

# What Airflow itself imports is its own affair: the time and the modules counted are those of one DAG file. Each file, or
# folder of them, has a process of its own, which is forked from one that has imported Airflow.
_PARSE = """
import json, os, sys, time
import airflow.sdk, airflow.sdk.exceptions
from airflow.dag_processing.dagbag import DagBag
folder, *places = sys.argv[1:]
for place in places:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        continue
    before, began = set(sys.modules), time.process_time()
    bag = DagBag(place, bundle_name="dags-folder", bundle_path=folder)
    took_s = time.process_time() - began
    print(json.dumps({
        "dags": sorted(bag.dags), "errors": bag.import_errors, "took_s": took_s,
        "files": sorted(stat.file for stat in bag.dagbag_stats),
        "loaded": sorted({name.split(".")[0] for name in set(sys.modules) - before}),
    }), flush=True)
    os._exit(0)
"""


def parse(*places: Path, home: Path, **more: str) -> list[dict]:
    """Import DAG files, or folders of them, each in a new process; return what each finds."""
    env = {**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": PYTHONPATH, **more}
    done = subprocess.run(
        [sys.executable, "-c", _PARSE, str(DAGS), *map(str, places)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"dags"')]
    assert len(found) == len(places), done.stderr
    return found


@pytest.fixture(scope="module")
def all_parsed(tmp_path_factory) -> dict[str, dict]:
    """Import each DAG file; return what it finds, by the DAG's name."""
    found = parse(*(DAGS / f"{name}.py" for name in NAMES), home=tmp_path_factory.mktemp("airflow"))
    return dict(zip(NAMES, found, strict=True))


@pytest.fixture(params=NAMES)
def parsed(request, all_parsed) -> dict:
    """Return what one DAG file has, with the DAG's name under ``name``."""
    return {**all_parsed[request.param], "name": request.param}


@cache
def dag_file(name: str):
    """A DAG file, run as Airflow runs it: by its path, for no package holds it."""
    spec = spec_from_file_location(f"dag_file_{name}", DAGS / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(name: str):
    """Make one of the DAGs."""
    found = getattr(dag_file(name), name)()
    return found[0] if isinstance(found, list) else found


@pytest.mark.parametrize("name", NAMES)
def test_a_task_is_given_by_name_what_its_template_of_the_index_reads(name: str) -> None:
    """Airflow fails the task, after its work, if an argument that the template reads was given by place."""
    for task in made(name).tasks:
        template = getattr(task, "map_index_template", None) or ""
        read = set(re.findall(r"op_kwargs\['(\w+)'\]", template))
        expanded = getattr(task, "op_kwargs_expand_input", None)
        given = set(expanded.value) if expanded else set(getattr(task, "op_kwargs", ()))
        assert read <= given, task.task_id
        assert bool(read) == bool(template), task.task_id


@pytest.fixture(scope="module")
def dag():
    return made("dispatch_audit")


@pytest.mark.airflow
def test_one_dag_in_a_file_without_import_errors_in_less_than_a_second(parsed):
    assert parsed["errors"] == {}
    assert parsed["dags"] == [parsed["name"]]
    assert parsed["took_s"] < 1.0


@pytest.mark.airflow
def test_parsing_imports_nothing_heavy(parsed):
    heavy = {"pyspark", "numba", "great_expectations", "pandas", "numpy", "pyarrow", "deltalake", "mmh3"}
    assert not heavy & set(parsed["loaded"])


@pytest.mark.airflow
def test_airflow_parses_the_dag_files_of_the_folder_and_no_helper(tmp_path):
    (found,) = parse(DAGS, home=tmp_path)
    assert found["dags"] == list(NAMES)
    assert [Path(name).name for name in found["files"]] == [f"{name}.py" for name in NAMES], (
        "packages must be in .airflowignore"
    )


@pytest.mark.airflow
def test_without_a_schedule_nothing_runs_by_itself_and_nothing_is_late(tmp_path):
    schedules = ("SCHEDULE", "MAINTENANCE_SCHEDULE", "ALERTS_SCHEDULE", "WATCH_SCHEDULE")
    nothing = {f"DISPATCH_AUDIT_{name}": "none" for name in schedules}
    (found,) = parse(DAGS, home=tmp_path, **nothing)
    assert found["errors"] == {}


@pytest.mark.airflow
def test_each_source_of_the_environment_has_a_dag(tmp_path):
    more = {"orders": "s3://logs/orders", "eu": {"source": "/mnt/eu", "connection": "eu"}}
    (found,) = parse(DAGS / "dispatch_audit.py", home=tmp_path, DISPATCH_AUDIT_SOURCES=json.dumps(more))
    assert found["errors"] == {}
    assert found["dags"] == ["dispatch_audit", "dispatch_audit_eu", "dispatch_audit_orders"]


@pytest.mark.airflow
def test_the_dag_of_a_source_reads_it_by_default():
    source = Source("eu", "/mnt/eu", "eu_store", "/etc/eu.conf", True)
    params = dispatch_audit.audit_dag(source).params
    names = ("source", "source_connection", "settings_file", "follow_links")
    assert [params[name] for name in names] == ["/mnt/eu", "eu_store", "/etc/eu.conf", True]


@pytest.mark.sampled(4)
@pytest.mark.airflow
@pytest.mark.parametrize(
    "wrong",
    [
        ("DISPATCH_AUDIT_DEADLINE_HOURS", "soon"),
        ("DISPATCH_AUDIT_REPLAY_GROUPS", "0"),
        ("DISPATCH_AUDIT_START_DATE", "21st"),
        ("DISPATCH_AUDIT_TASK_HOURS", "0"),
    ],
    ids=lambda pair: pair[0],
)
def test_a_wrong_setting_is_named_where_airflow_shows_import_errors(tmp_path, wrong):
    (found,) = parse(DAGS / "dispatch_audit.py", home=tmp_path, **dict([wrong]))
    [error] = found["errors"].values()
    assert f"{wrong[0]} is {wrong[1]!r}" in error


@pytest.mark.airflow
def test_schedule_gives_real_data_intervals_one_run_at_a_time(dag):
    from datetime import UTC, datetime

    from airflow.sdk import CronDataIntervalTimetable

    assert isinstance(dag.timetable, CronDataIntervalTimetable)
    assert dag.catchup is False
    assert dag.max_active_runs == 1
    assert dag.start_date <= datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.airflow
def test_what_if_and_hunts_are_started_by_hand_only_and_maintenance_weekly():
    assert made("dispatch_what_if").schedule is None
    assert made("dispatch_hunt").schedule is None
    assert made("upgrade_risk").schedule is None
    maintenance = made("dispatch_audit_maintenance")
    assert maintenance.catchup is False
    assert maintenance.timetable.expression == "0 3 * * 0"


@pytest.mark.airflow
def test_statistics_are_watched_hourly_where_there_are_any(monkeypatch):
    from dispatch_airflow.dags import dispatch_audit_watch

    assert dispatch_audit_watch.SCHEDULE == "none"
    monkeypatch.setenv("DISPATCH_AUDIT_STATISTICS", "/statistics")
    watched = reload(dispatch_audit_watch)
    assert (watched.SCHEDULE, watched.PARAMS["statistics"].value) == ("0 * * * *", "/statistics")
    found = watched.dispatch_audit_watch()
    assert (found.timetable.expression, found.catchup, found.max_active_runs) == ("0 * * * *", False, 1)
    monkeypatch.undo()
    reload(dispatch_audit_watch)


@pytest.mark.airflow
@pytest.mark.parametrize("name", NAMES)
def test_every_parameter_is_typed_titled_described_and_in_a_section(name):
    found = made(name)
    assert found.params
    for param_name in found.params:
        param = found.params.get_param(param_name)
        assert param.schema["type"], param_name
        assert param.schema["title"], param_name
        assert param.schema["section"], param_name
        assert param.description or param.schema.get("description_md"), param_name
        if "interval_start" not in param_name:
            param.resolve()


@pytest.mark.airflow
@pytest.mark.parametrize(
    ("name", "param", "value"),
    [
        ("dispatch_audit", "source", ""),
        ("dispatch_audit", "source", None),
        ("dispatch_audit", "fail_on_findings", "perhaps"),
        ("dispatch_audit", "source_connection", "a b; rm"),
        ("dispatch_audit", "replay_groups", 0),
        ("dispatch_audit", "replay_groups", 2.5),
        ("dispatch_audit", "recompute_stale", "scheduled"),
        ("dispatch_what_if", "interval_start", None),
        ("dispatch_what_if", "rules", []),
        ("dispatch_what_if", "rules", ["rnage"]),
        ("dispatch_what_if", "rules", "ch"),
        ("dispatch_what_if", "broker_version", "newest"),
        ("dispatch_what_if", "seeds", 0),
        ("dispatch_what_if", "namespace", 7),
        ("dispatch_what_if", "subscriptions", ""),
        ("upgrade_risk", "interval_start", None),
        ("upgrade_risk", "interval_end", "tomorrow"),
        ("upgrade_risk", "broker_version", None),
        ("upgrade_risk", "against", "newest"),
        ("upgrade_risk", "seeds", 0),
        ("upgrade_risk", "most_events", 0),
        ("dispatch_hunt", "releases", []),
        ("dispatch_hunt", "releases", ["newest"]),
        ("dispatch_hunt", "subscription_type", "Exclusive"),
        ("dispatch_hunt", "promises", ["peace"]),
        ("dispatch_hunt", "also", "races"),
        ("dispatch_hunt", "schedules", 0),
        ("dispatch_hunt", "seeds", 1_001),
        ("dispatch_hunt", "tasks", 2.5),
        ("dispatch_audit_maintenance", "keep_pages_days", 1),
        ("dispatch_audit_maintenance", "keep_versions_days", "month"),
        ("dispatch_audit_maintenance", "dry_run", None),
        ("dispatch_audit_alerts", "try_at_once", "now"),
        ("dispatch_audit_alerts", "discard", "a b"),
        ("dispatch_audit_watch", "statistics", 7),
    ],
)
def test_the_form_refuses_a_wrong_value(name, param, value):
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError):
        made(name).params.get_param(param).resolve(value)


@pytest.mark.airflow
@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("interval_start", "2026-11-21T00:00:00Z"),
        ("rules", ["as recorded", "matrix", "ch", "4.0.0-classic-range", "ring"]),
        ("broker_version", "4.0.0-preview.1"),
        ("settings", "dispatcherMaxReadBatchSize=16\n"),
    ],
)
def test_the_what_if_form_takes_what_it_should(param, value):
    assert made("dispatch_what_if").params.get_param(param).resolve(value) == value


@pytest.mark.airflow
def test_every_rule_that_the_form_offers_is_understood():
    from dispatch_airflow.dags.dispatch_what_if import RULES
    from spark_jobs.what_if.request import request

    param = made("dispatch_what_if").params.get_param("rules")
    assert param.schema["examples"] == list(RULES) == list(param.schema["values_display"])
    param.resolve(list(RULES))
    assert len(request(list(RULES)).rules) == len(RULES) - 1, "matrix depends on the log"


@pytest.mark.airflow
def test_every_release_that_the_form_of_a_hunt_offers_is_known():
    from dispatch_airflow.dags.dispatch_hunt import RELEASES
    from dispatch_core.hunt.zoo import RELEASES as KNOWN

    param = made("dispatch_hunt").params.get_param("releases")
    assert param.schema["examples"] == list(RELEASES)
    param.resolve(list(RELEASES))
    assert set(RELEASES) <= set(KNOWN)
    assert KNOWN[-1] in RELEASES, "the newest"


@pytest.mark.airflow
def test_the_releases_that_the_form_of_upgrade_risk_offers_are_known():
    from dispatch_airflow.dags.upgrade_risk import RELEASES
    from dispatch_core.hunt.zoo import RELEASES as KNOWN

    risk = made("upgrade_risk")
    assert set(RELEASES) <= set(KNOWN)
    assert risk.params["broker_version"] == KNOWN[-1], "the newest"
    assert risk.get_task("compare").downstream_task_ids == {"conclude"}


@pytest.mark.airflow
def test_a_hunt_is_tried_again_and_its_conclusion_is_not():
    hunt = made("dispatch_hunt")
    assert hunt.get_task("hunt").downstream_task_ids == {"conclude"}
    assert {task.task_id: task.retries for task in hunt.tasks} == {"check": 0, "hunt": 2, "conclude": 0}


@pytest.mark.airflow
@pytest.mark.parametrize("name", NAMES)
def test_documentation_names_every_task(name):
    found = made(name)
    assert found.tags
    assert found.description
    assert all(task.owner == "dispatch-audit" for task in found.tasks)
    for task in found.tasks:
        assert f"`{task.task_id}`" in found.doc_md


@pytest.mark.airflow
@pytest.mark.parametrize("name", NAMES)
def test_a_summary_is_one_xcom_whatever_names_from_logs_are_in_it(name):
    assert [task.task_id for task in made(name).tasks if task.multiple_outputs] == []


@pytest.mark.airflow
def test_a_fail_reaches_publish_and_alert_and_still_makes_the_run_red(dag):
    order = [
        "choose_interval", "pull", "ingest", "plan", "replay", "publish_tables", "aggregate", "validate",
    ]  # fmt: skip
    for before, after in itertools.pairwise(order):
        assert after in dag.get_task(before).downstream_task_ids
    for task_id in ("publish", "advise", "report", "alert"):
        assert task_id in dag.get_task("validate").downstream_task_ids
        assert dag.get_task(task_id).trigger_rule == "all_done"
    assert "alert" in dag.get_task("report").downstream_task_ids, "an alert points to the report"
    assert "report" in dag.get_task("advise").downstream_task_ids, "a report shows the advice"
    # The last tasks decide a run's state: one of them must not run when validate is red.
    last = {task.task_id for task in dag.tasks if not task.downstream_task_ids and not task.is_teardown}
    assert last == {"alert", "alert_stale", "conclude"}
    assert dag.get_task("conclude").trigger_rule == "none_failed"
    assert {"validate", "judge_stale"} <= dag.get_task("conclude").upstream_task_ids


@pytest.mark.airflow
def test_replay_is_mapped_over_the_groups_of_the_plan_and_its_staging_is_torn_down(dag):
    assert dag.get_task("replay").is_mapped
    assert dag.get_task("plan").is_setup
    discard = dag.get_task("discard_staging")
    assert discard.is_teardown
    assert "plan" in discard.upstream_task_ids
    assert not discard.on_failure_fail_dagrun, "what could not be cleared away does not make a verdict red"


@pytest.mark.airflow
def test_stale_intervals_are_recomputed_whether_or_not_the_verdict_is_red(dag):
    assert dag.get_task("find_stale").upstream_task_ids == {"aggregate", "choose_interval"}
    for task_id in ("judge_stale", "alert_stale"):
        assert dag.get_task(task_id).is_mapped
        assert "recompute_stale" in dag.get_task(task_id).upstream_task_ids
    # None of them runs where nothing was recomputed, all of them do where a judged interval is FAIL.
    assert dag.get_task("alert_stale").trigger_rule == "all_done_min_one_success"


@pytest.mark.airflow
def test_assets_tell_what_is_landed_audited_and_judged(dag):
    outlets = {
        task.task_id: sorted(asset.name for asset in task.outlets) for task in dag.tasks if task.outlets
    }
    audited, landed, verdict = (f"dispatch_audit/{name}" for name in ("audited", "landed", "verdict"))
    by_interval = "dispatch_audit/verdict_of_interval"
    assert outlets == {
        "pull": [landed],
        "aggregate": [audited],
        "publish": [verdict, by_interval],
        "judge_stale": [audited, verdict, by_interval],
    }


@pytest.mark.airflow
def test_drivers_of_spark_share_a_pool_and_no_task_or_run_lasts_for_ever(dag, monkeypatch):
    from datetime import timedelta

    with_spark = {"ingest", "plan", "replay", "publish_tables", "aggregate", "recompute_stale"}
    with_spark |= {"advise", "judge_stale"}  # these simulate
    monkeypatch.setenv("DISPATCH_AUDIT_SPARK_POOL", "spark")
    reload(dispatch_audit)
    pooled = {task.task_id: task.pool for task in made("dispatch_audit").tasks}
    monkeypatch.undo()
    reload(dispatch_audit)
    assert {name for name, pool in pooled.items() if pool == "spark"} == with_spark
    assert {task.pool for task in dag.tasks} == {"default_pool"}
    assert {task.execution_timeout for task in dag.tasks} == {timedelta(hours=12)}
    assert dag.dagrun_timeout == timedelta(hours=48)


@pytest.mark.airflow
@pytest.mark.parametrize("name", NAMES)
def test_a_failed_step_is_tried_again_and_wrong_input_is_not(name):
    from airflow.sdk.definitions.retry_policy import RetryAction
    from airflow.serialization.serialized_objects import DagSerialization

    found = made(name)
    for task in found.tasks:
        decided = {
            type(error): task.retry_policy.evaluate(error, 1, 2).action
            for error in (
                StepError("killed"),
                ParameterError("wrong"),
                DispatchAuditError("bad"),
                OSError("disk"),
            )
        }
        assert decided == {
            StepError: RetryAction.DEFAULT,
            ParameterError: RetryAction.FAIL,
            DispatchAuditError: RetryAction.FAIL,
            OSError: RetryAction.DEFAULT,
        }, task.task_id
    assert DagSerialization.to_dict(found)["dag"]["dag_id"] == name


@pytest.mark.airflow
def test_the_tasks_are_shown_in_groups_and_keep_their_names(dag):
    groups = {
        group: sorted(inside.children)
        for group, inside in dag.task_group.get_task_group_dict().items()
        if group
    }
    assert groups == {
        "replay_all": ["discard_staging", "plan", "publish_tables", "replay"],
        "judge": ["advise", "alert", "publish", "report", "validate"],
        "late_logs": ["alert_stale", "find_stale", "judge_stale", "recompute_stale"],
    }


@pytest.mark.airflow
def test_a_scheduled_run_has_a_deadline_that_airflow_can_store(dag):
    from datetime import timedelta

    from airflow.serialization.decoders import decode_deadline_alert
    from airflow.serialization.encoders import encode_deadline_alert

    [alert] = dag.deadline if isinstance(dag.deadline, list) else [dag.deadline]
    assert alert.interval == timedelta(hours=30)
    stored = decode_deadline_alert(json.loads(json.dumps(encode_deadline_alert(alert))))
    assert stored.callback.path == "dispatch_airflow.deadline.verdict_is_late"
    assert stored.interval == alert.interval


@pytest.mark.airflow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "dispatch_audit_alerts"])
def test_every_task_that_fails_is_reported(name):
    from dispatch_airflow.failures import report_failure

    for task in made(name).tasks:
        assert task.on_failure_callback in (report_failure, [report_failure]), task.task_id


@pytest.mark.airflow
def test_alerts_that_wait_are_sent_without_anybody_switching_the_dag_on(dag):
    alerts = made("dispatch_audit_alerts")
    assert alerts.is_paused_upon_creation is False
    assert (alerts.timetable.expression, alerts.catchup, alerts.max_active_runs) == ("*/10 * * * *", False, 1)
    # What its callback would report is that nothing can be sent, every ten minutes.
    assert not alerts.get_task("deliver").on_failure_callback


@pytest.mark.airflow
def test_the_links_of_a_run_are_on_its_tasks(dag):
    links = {
        task.task_id: [link.name for link in task.operator_extra_links]
        for task in (*dag.tasks, *made("dispatch_what_if").tasks, *made("dispatch_hunt").tasks)
        if task.operator_extra_links
    }
    assert [link.name for link in made("upgrade_risk").get_task("compare").operator_extra_links] == [
        "Upgrade risk"
    ]
    assert links == {
        "validate": ["Data Docs"],
        "report": ["Reports"],
        "alert": ["Reports", "Data Docs"],
        "compare": ["What-if comparison"],
        "hunt": ["Hunt"],
    }


@pytest.mark.airflow
def test_the_example_of_a_downstream_dag_in_the_docs_can_be_parsed(tmp_path):
    text = (ROOT / "docs" / "airflow.md").read_text(encoding="utf-8")
    [example] = re.findall(r"```py\n(.*?dispatch_audit/verdict.*?)```", text, flags=re.DOTALL)
    path = tmp_path / "after_the_audit.py"
    path.write_text(example, encoding="utf-8")
    (found,) = parse(path, home=tmp_path / "airflow")
    assert (found["errors"], found["dags"]) == ({}, ["after_the_audit"])
