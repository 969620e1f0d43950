"""The DAG file: imports cleanly and fast, says what a person needs, and runs its tasks in the right order."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DAGS = ROOT / "dags"

# What Airflow itself imports is its own affair: the time and the modules counted are those of the DAG file.
_PARSE = """
import json, sys, time
import airflow.sdk, airflow.sdk.exceptions
from airflow.dag_processing.dagbag import DagBag
before, began = set(sys.modules), time.process_time()
bag = DagBag(sys.argv[1], bundle_name="dags-folder", bundle_path=sys.argv[1])
took_s = time.process_time() - began
print(json.dumps({
    "dags": sorted(bag.dags), "errors": bag.import_errors, "took_s": took_s,
    "files": sorted(stat.file for stat in bag.dagbag_stats),
    "loaded": sorted({name.split(".")[0] for name in set(sys.modules) - before}),
}))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory) -> dict:
    """What a fresh process finds in the DAG folder."""
    home = tmp_path_factory.mktemp("airflow")
    env = {**os.environ, "AIRFLOW_HOME": str(home), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", _PARSE, str(DAGS)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def dag():
    from dags.dispatch_audit import dispatch_audit

    return dispatch_audit()


@pytest.mark.airflow
def test_one_dag_without_import_errors_in_less_than_a_second(parsed):
    assert parsed["errors"] == {}
    assert parsed["dags"] == ["dispatch_audit"]
    assert parsed["took_s"] < 1.0
    assert [Path(name).name for name in parsed["files"]] == ["dispatch_audit.py"], (
        "helpers must be in .airflowignore"
    )


@pytest.mark.airflow
def test_parsing_imports_nothing_heavy(parsed):
    heavy = {"pyspark", "numba", "great_expectations", "pandas", "numpy", "pyarrow", "deltalake", "mmh3"}
    assert not heavy & set(parsed["loaded"])


@pytest.mark.airflow
def test_schedule_gives_real_data_intervals_one_run_at_a_time(dag):
    from datetime import UTC, datetime

    from airflow.sdk import CronDataIntervalTimetable

    assert isinstance(dag.timetable, CronDataIntervalTimetable)
    assert dag.catchup is False
    assert dag.max_active_runs == 1
    assert dag.start_date <= datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.airflow
def test_every_parameter_is_typed_titled_described_and_in_a_section(dag):
    for name in ("source", "source_connection", "interval_start", "interval_end", "fail_on_findings"):
        schema = dag.params.get_param(name).schema
        assert schema["type"], name
        assert schema["title"], name
        assert schema["section"], name
        assert dag.params.get_param(name).description or schema.get("description_md"), name
    dag.params.validate()


@pytest.mark.airflow
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("source", ""),
        ("source", None),
        ("interval_start", "yesterday"),
        ("interval_end", 7),
        ("fail_on_findings", "perhaps"),
        ("source_connection", "a b; rm"),
    ],
)
def test_the_form_refuses_a_wrong_value(dag, name, value):
    from airflow.sdk.exceptions import ParamValidationError

    with pytest.raises(ParamValidationError):
        dag.params.get_param(name).resolve(value)


@pytest.mark.airflow
def test_documentation_names_every_task(dag):
    assert dag.tags
    assert all(task.owner == "dispatch-audit" for task in dag.tasks)
    for task in dag.tasks:
        assert f"`{task.task_id}`" in dag.doc_md


@pytest.mark.airflow
def test_a_fail_reaches_publish_and_alert_and_still_makes_the_run_red(dag):
    order = ["choose_interval", "pull", "ingest", "replay", "aggregate", "validate"]
    for before, after in itertools.pairwise(order):
        assert after in dag.get_task(before).downstream_task_ids
    for task_id in ("publish", "report", "alert"):
        assert task_id in dag.get_task("validate").downstream_task_ids
        assert dag.get_task(task_id).trigger_rule == "all_done"
    assert "alert" in dag.get_task("report").downstream_task_ids, "an alert points to the report"
    # The last tasks decide a run's state: one of them must not run when validate is red.
    last = {task.task_id for task in dag.tasks if not task.downstream_task_ids}
    assert last == {"alert", "conclude"}
    assert dag.get_task("conclude").trigger_rule == "all_success"
    assert "validate" in dag.get_task("conclude").upstream_task_ids
