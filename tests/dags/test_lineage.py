"""OpenLineage: data sets of stages and verdicts as data-quality assertions, in a file and over HTTP."""

from __future__ import annotations

import json
import logging
import os
import queue
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dispatch_airflow.home import Home
from dispatch_airflow.observability import lineage
from dispatch_core.tables import ALL_TABLES
from dispatch_expectations.suites import BY_NAME
from dispatch_expectations.verdict import Verdict
from spark_jobs.warehouse.contracts import CONTRACTS
from tests.checkout import PYTHONPATH
from tests.expectations.make import DAY

ORDER = Verdict(DAY, "standalone", "t", "s", 0, "per_key_order", "PASS", 0, 0, "kept")

#: A DAG whose task reports as the stages of ``dispatch_audit`` do, run to its end in one process.
_RUN = """
import sys
from datetime import UTC, datetime
from airflow.sdk import dag, task
from dispatch_airflow.home import Home
from dispatch_airflow.observability import lineage
from dispatch_expectations.verdict import Verdict

@dag(schedule=None, start_date=datetime(2026, 11, 21, tzinfo=UTC))
def audited():
    @task
    def validate():
        home = Home(sys.argv[1])
        lineage.pulled("s3://store@logs/recordings", home)
        lineage.ran("ingest", home)
        lineage.validated([
            Verdict(datetime(2026, 11, 21, tzinfo=UTC), "standalone", topic, "s", 0, promise, verdict, 0, 0, "why")
            for topic, promise, verdict in (
                ("a", "all", "FAIL"), ("a", "per_key_order", "FAIL"), ("b", "per_key_order", "PASS"),
                ("a", "completeness", "PASS"), ("b", "completeness", "UNKNOWN"), ("a", "balance", "PASS"),
            )
        ], home)
    validate()

made = audited()
if __name__ == "__main__":
    print("STATE", made.test().state)
"""


@pytest.fixture
def received():
    """An HTTP endpoint: the events that it has received, and its address."""
    events: queue.Queue[dict] = queue.Queue()

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            events.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield events, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def run_task(tmp_path, **more: str) -> str:
    """Run the task in an Airflow of its own; return all that it printed."""
    env = {
        **os.environ,
        "PYTHONPATH": PYTHONPATH,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "NO_PROXY": "127.0.0.1",
        **more,
    }
    migrated = subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"],
        env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert migrated.returncode == 0, migrated.stderr
    dag_file = tmp_path / "airflow" / "dags" / "audited.py"  # Airflow runs only what it has parsed
    dag_file.parent.mkdir()
    dag_file.write_text(_RUN)
    done = subprocess.run(
        [sys.executable, str(dag_file), str(tmp_path / "home")],
        env=env, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert "STATE success" in done.stdout, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.airflow
@pytest.mark.slow
def test_a_task_reports_its_data_sets_and_verdicts_to_every_transport(tmp_path, received):
    over_http, address = received
    transports = {
        "file": {"type": "file", "log_file_path": str(tmp_path / "events.jsonl"), "append": True},
        "http": {"type": "http", "url": address, "endpoint": "api/v1/lineage"},
    }
    run_task(
        tmp_path,
        AIRFLOW__OPENLINEAGE__TRANSPORT=json.dumps({"type": "composite", "transports": transports}),
        AIRFLOW__OPENLINEAGE__NAMESPACE="audit",
    )
    in_file = [json.loads(text) for text in (tmp_path / "events.jsonl").read_text().splitlines()]
    sent = [over_http.get(timeout=10) for _ in in_file]
    ours = [event for event in in_file if event["eventType"] == "RUNNING"]
    assert [event for event in sent if event["eventType"] == "RUNNING"] == ours
    pulled, ingested, validated = ours
    [started] = [
        event
        for event in in_file
        if event["eventType"] == "START" and event["job"]["name"] == "audited.validate"
    ]
    assert {event["run"]["runId"] for event in ours} == {started["run"]["runId"]}, (
        "the run of the task itself"
    )
    assert {(event["job"]["namespace"], event["job"]["name"]) for event in ours} == {
        ("audit", "audited.validate")
    }

    home = str(tmp_path / "home")
    assert [(data["namespace"], data["name"]) for data in pulled["inputs"]] == [("s3://logs", "recordings")]
    assert [data["name"] for data in pulled["outputs"]] == [f"{home}/landing"]
    assert {data["name"] for data in ingested["outputs"]} == {
        f"{home}/warehouse/{table}" for table in ("messages", "consumer_events", "quarantine")
    }
    quality = {
        data["name"].rpartition("/")[2]: data["inputFacets"]["dataQualityAssertions"]["assertions"]
        for data in validated["inputs"]
        if "dataQualityAssertions" in data.get("inputFacets", {})
    }
    found = {
        (table, entry["assertion"]): (entry["success"], entry["severity"], entry["actual"])
        for table, entries in quality.items()
        for entry in entries
    }
    assert found == {
        ("anomalies", "per_key_order"): (False, "error", "1 PASS, 1 FAIL"),
        ("waits", "completeness"): (False, "warn", "1 PASS, 1 UNKNOWN"),
        ("balance", "balance"): (True, "warn", "1 PASS"),
    }
    assert [data["name"] for data in validated["outputs"]] == [f"{home}/warehouse/verdicts"]


def test_without_the_provider_nothing_happens_and_nothing_is_logged(monkeypatch, caplog, tmp_path):
    caplog.set_level(logging.DEBUG)
    monkeypatch.setitem(sys.modules, "airflow.providers.openlineage.api", None)
    monkeypatch.setattr(lineage, "_emit", lambda *_: pytest.fail("there is nothing to emit with"))
    lineage.pulled("/logs", Home(tmp_path))
    lineage.ran("replay", Home(tmp_path))
    lineage.validated([ORDER], Home(tmp_path))
    assert caplog.records == []


def test_without_a_transport_nothing_happens(monkeypatch, tmp_path):
    monkeypatch.setattr(lineage, "_emit", lambda *_: pytest.fail("there is nowhere to emit to"))
    lineage.ran("replay", Home(tmp_path))


def test_a_promise_has_one_assertion_over_all_subscriptions():
    others = [replace(ORDER, topic=f"t{number}", verdict="FAIL") for number in range(3)]
    [assertion] = lineage.assertions([ORDER, *others, replace(ORDER, promise="all", verdict="FAIL")])
    assert (assertion["success"], assertion["severity"]) == (False, "error")
    assert assertion["actual"] == "1 PASS, 3 FAIL"


def test_every_promise_has_a_table_and_every_table_exists():
    assert set(lineage.TABLE_OF_PROMISE) == set(BY_NAME)
    reads, _writes = lineage.TABLES["validate"]
    assert set(lineage.TABLE_OF_PROMISE.values()) <= set(reads)
    named = {table for sides in lineage.TABLES.values() for side in sides for table in side}
    assert named <= set(CONTRACTS)
    assert set(ALL_TABLES) <= named, "a new table of results needs its stage"


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("/", ("file", "/")),
        ("/srv/my logs #1?", ("file", "/srv/my logs #1?")),
        ("file:///srv/logs/", ("file", "/srv/logs")),
        ("s3://bucket", ("s3://bucket", "/")),
        ("s3://store@bucket/a/b", ("s3://bucket", "a/b")),
        ("gs://bucket/a", ("gs://bucket", "a")),
    ],
)
def test_folders_are_named_as_openlineage_names_files(place, name):
    assert lineage.dataset_name(place) == name
