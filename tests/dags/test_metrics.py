"""Metrics that Airflow sends: to a StatsD server with and without tags, to an OpenTelemetry collector, to a file."""

from __future__ import annotations

import json
import os
import queue
import shutil
import socket
import subprocess
import sys
import threading
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dispatch_airflow import notify, outbox_delivery
from dispatch_airflow.home import Home
from dispatch_airflow.observability import metrics
from dispatch_core.audit.catalogue import KINDS
from dispatch_expectations.validate import validate_interval
from tests.checkout import PYTHONPATH
from tests.dags.test_notify import _Posts, _webhook_connection, http_endpoint
from tests.expectations.make import DAY, NEXT_DAY, Day

CHOSEN = {"interval_start": DAY.isoformat(), "interval_end": NEXT_DAY.isoformat()}


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Home:
    """A home with one judged day: a PASS and a FAIL."""
    home = Home(tmp_path_factory.mktemp("home"))
    day = Day()
    day.dispatcher("persistent://public/default/healthy")
    day.anomaly(day.dispatcher("persistent://public/default/broken"), "split_key")
    day.write(home.warehouse.local)
    validate_interval(home.warehouse, DAY, home.data_docs)
    return home


@pytest.fixture
def statsd(monkeypatch):
    """A StatsD server that Airflow sends to; call it for what has come so far."""
    from airflow.sdk.observability import stats
    from airflow.sdk.observability.metrics import stats_utils

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(0.2)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.getsockname()[1]))

        def begin() -> None:
            stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)

        def received() -> dict[str, str]:
            found = {}
            while True:
                try:
                    name, _, value = server.recv(65536).decode().partition(":")
                except TimeoutError:
                    return found
                found[name] = value

        begin()
        received.begin = begin
        yield received
        monkeypatch.undo()
        begin()


@pytest.mark.slow
@pytest.mark.airflow
@pytest.mark.parametrize("namespace", ["sources/orders", "ad-hoc/logs-71e37609"])
def test_another_source_has_numbers_of_its_own_and_an_ad_hoc_run_none(
    statsd, home, tmp_path, monkeypatch, namespace
):
    monkeypatch.setenv(metrics.PROMETHEUS_FILE_VARIABLE, str(tmp_path / "audit.prom"))
    other = Home(tmp_path / "home", namespace)
    shutil.copytree(home.root, other.place.local)
    metrics.judged(CHOSEN, other)
    found, files = statsd(), sorted(path.name for path in tmp_path.glob("*.prom"))
    if namespace.startswith("ad-hoc"):
        assert (found, files) == ({}, [])
        return
    assert found["airflow.dispatch_audit.orders.verdicts.FAIL"] == "1|g"
    assert all(name.startswith("airflow.dispatch_audit.orders.") for name in found)
    assert files == ["audit-orders.prom"]
    assert 'dispatch_audit_verdicts{source="orders",verdict="FAIL"} 1.0' in (tmp_path / files[0]).read_text()


@pytest.mark.airflow
def test_plain_statsd_gets_the_labels_in_the_names(statsd, home):
    metrics.judged(CHOSEN, home)
    found = statsd()
    lag_s = float(found.pop("airflow.dispatch_audit.lag_seconds").partition("|")[0])
    assert lag_s == pytest.approx(_seconds_since_the_day(home), abs=1)
    none_found = {
        f"airflow.dispatch_audit.findings.{kind}.{certainty}": "0|g"
        for kind in KINDS
        for certainty in ("certain", "uncertain")
    }
    assert found == none_found | {
        "airflow.dispatch_audit.verdicts.PASS": "1|g",
        "airflow.dispatch_audit.verdicts.UNKNOWN": "0|g",
        "airflow.dispatch_audit.verdicts.FAIL": "1|g",
        "airflow.dispatch_audit.findings.split_key.certain": "1|g",
        "airflow.dispatch_audit.messages": "6|g",
    }, "zeros replace what an earlier interval has left in the server"


def _seconds_since_the_day(home: Home) -> float:
    from dispatch_expectations.interval_state import newest_state

    return (newest_state(home.warehouse).judged_at - NEXT_DAY).total_seconds()


@pytest.mark.airflow
def test_a_backend_with_tags_gets_them(statsd, home, monkeypatch):
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    statsd.begin()
    metrics.judged(CHOSEN, home)
    found = statsd()
    assert found["airflow.dispatch_audit.verdicts,verdict=FAIL"] == "1|g"
    assert found["airflow.dispatch_audit.findings,kind=split_key,certainty=certain"] == "1|g"


@pytest.mark.airflow
def test_stages_and_alerts_are_sent_when_they_end(statsd):
    with metrics.timed("pull"):
        pass
    metrics.stage_ended("replay group 12", 61.23456)
    metrics.stage_ended("what-if", 2)
    metrics.alerted("mail", sent=3, waiting=2)
    with pytest.raises(RuntimeError), metrics.timed("report"):
        raise RuntimeError
    found = statsd()
    assert float(found.pop("airflow.dispatch_audit.stage_seconds.pull").partition("|")[0]) < 1
    assert found == {
        "airflow.dispatch_audit.stage_seconds.replay_group": "61.235|g",
        "airflow.dispatch_audit.stage_seconds.what-if": "2|g",
        "airflow.dispatch_audit.alerts_sent.mail": "3|c",
        "airflow.dispatch_audit.alerts_waiting.mail": "2|g",
    }


@pytest.mark.airflow
def test_an_earlier_interval_does_not_replace_the_newest(statsd, home, caplog):
    earlier = {"interval_start": (DAY - timedelta(days=1)).isoformat()}
    caplog.set_level("INFO")
    metrics.judged(earlier, home)
    assert statsd() == {}
    assert "a later interval has verdicts" in caplog.text


@pytest.mark.airflow
def test_tables_that_cannot_be_read_are_an_error_in_the_log_and_nothing_else(statsd, monkeypatch, caplog):
    def refuse(_warehouse):
        raise OSError("503 Slow Down")

    monkeypatch.setattr("dispatch_expectations.interval_state.newest_state", refuse)
    metrics.judged(CHOSEN, Home("/nowhere"))
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().startswith("metrics.judged: OSError: 503 Slow Down; ")
    assert statsd() == {}


@pytest.mark.airflow
def test_nothing_is_read_or_sent_where_nobody_listens(monkeypatch, tmp_path):
    monkeypatch.delenv(metrics.PROMETHEUS_FILE_VARIABLE, raising=False)
    monkeypatch.setattr(
        "dispatch_expectations.interval_state.newest_state", lambda _: pytest.fail("was read")
    )
    metrics.judged(CHOSEN, Home(tmp_path))


@pytest.mark.airflow
def test_the_file_is_written_with_the_verdict_and_a_failure_fails_nothing(
    monkeypatch, tmp_path, home, caplog
):
    monkeypatch.setenv(metrics.PROMETHEUS_FILE_VARIABLE, str(tmp_path / "audit.prom"))
    metrics.judged(CHOSEN, home)
    assert 'dispatch_audit_verdicts{verdict="FAIL"} 1.0' in (tmp_path / "audit.prom").read_text()
    monkeypatch.setenv(metrics.PROMETHEUS_FILE_VARIABLE, str(tmp_path / "no such folder" / "audit.prom"))
    metrics.judged(CHOSEN, home)
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "no such folder/audit.prom: the metrics could not be written" in record.getMessage()


@pytest.mark.airflow
def test_the_file_has_what_waits_until_it_is_sent_or_discarded(monkeypatch, tmp_path, home):
    file, copy = tmp_path / "audit.prom", Home(tmp_path / "home")
    shutil.copytree(home.root, copy.root)
    monkeypatch.setenv(metrics.PROMETHEUS_FILE_VARIABLE, str(file))
    posts = _Posts(status=503)
    with http_endpoint(posts) as port:
        _webhook_connection(monkeypatch, port)
        notify.alert(CHOSEN, copy)
        assert 'dispatch_audit_alerts_waiting{channel="webhook"} 1.0' in file.read_text()
        assert 'dispatch_audit_alerts_waiting{channel="file"} 0.0' in file.read_text()
        outbox_delivery.discard(copy, "webhook")
        assert '_waiting{channel="webhook"}' not in file.read_text()
        notify.alert(CHOSEN, copy)
        posts.status = 200
        outbox_delivery.deliver_due(copy, at_once=True)
        assert 'dispatch_audit_alerts_waiting{channel="webhook"} 0.0' in file.read_text()


#: Sends as a task does, with the backend of the environment.
_SEND = """
import json, sys
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics import stats_utils
from dispatch_airflow import notify, outbox_delivery
from dispatch_airflow.home import Home
from dispatch_airflow.observability import metrics
stats.initialize(factory=stats_utils.get_stats_factory(), export_legacy_names=False)
metrics.judged(json.loads(sys.argv[1]), Home(sys.argv[2]))
metrics.stage_ended("replay", 7.5)
"""


@pytest.mark.slow
@pytest.mark.airflow
def test_an_opentelemetry_collector_gets_values_with_attributes(home, tmp_path):
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

    bodies: queue.Queue[bytes] = queue.Queue()

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/metrics":
                bodies.put(body)
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = {
        **os.environ,
        "PYTHONPATH": PYTHONPATH,
        "AIRFLOW_HOME": str(tmp_path),
        "NO_PROXY": "127.0.0.1",
        "AIRFLOW__METRICS__OTEL_ON": "True",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SEND, json.dumps(CHOSEN), home.root],
            env=env, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    finally:
        server.shutdown()
    found = {}
    while not bodies.empty():
        request = ExportMetricsServiceRequest.FromString(bodies.get())
        for metric in (m for r in request.resource_metrics for s in r.scope_metrics for m in s.metrics):
            for point in metric.gauge.data_points:
                labels = tuple(attribute.value.string_value for attribute in point.attributes)
                found[(metric.name, *labels)] = point.as_double or point.as_int
    assert found["airflow.dispatch_audit.verdicts", "FAIL"] == 1
    assert found["airflow.dispatch_audit.findings", "split_key", "certain"] == 1
    assert found["airflow.dispatch_audit.stage_seconds", "replay"] == 7.5
