"""A failed and late run in a real Airflow: the worker reports the task, the scheduler the missed deadline."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dispatch_airflow.home import HOME_VARIABLE, Home
from dispatch_airflow.local_run import control
from dispatch_airflow.local_run.settings import PORT_VARIABLE, Place
from dispatch_airflow.sources import SOURCE_VARIABLE


@pytest.fixture
def received():
    """An HTTP endpoint: its received bodies and its address."""
    bodies: queue.Queue[dict] = queue.Queue()

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield bodies, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.mark.airflow
@pytest.mark.slow
def test_a_scheduled_run_that_fails_and_has_no_verdict_in_time_is_reported_as_both(
    monkeypatch, tmp_path, received
):
    bodies, address = received
    place = Place(Home(tmp_path / "home"))
    place.airflow.mkdir(parents=True)
    (tmp_path / "source").mkdir()  # without a log in it, no run ever comes to a verdict
    for name, value in {
        HOME_VARIABLE: str(place.home.root),
        SOURCE_VARIABLE: str(tmp_path / "source"),
        "DISPATCH_AUDIT_SCHEDULE": "* * * * *",
        "DISPATCH_AUDIT_DEADLINE_HOURS": "0.001",
        "DISPATCH_AUDIT_WAIT_MINUTES": "0",
        "AIRFLOW_CONN_DISPATCH_AUDIT_WEBHOOK": json.dumps({"conn_type": "http", "host": address}),
        "NO_PROXY": "127.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(PORT_VARIABLE, raising=False)
    try:
        client, _port = control.start(place, stays=True, say=print, waiting=lambda _text: None)
        client.set_paused("dispatch_audit", paused=False)
        notices = {}
        while len(notices) < 2:
            text = bodies.get(timeout=600)["text"]
            notices.setdefault("late" if "No verdict in time" in text else "failed", text)
    finally:
        control.end(place)
    assert "No verdict in time: dispatch audit of 20" in notices["late"]
    assert notices["failed"].startswith("[dispatch-audit] ")
    assert " failed: dispatch_audit, run scheduled__" in notices["failed"]
    assert "Log: http://127.0.0.1:" in notices["failed"]
    assert all("scheduled__" in text for text in notices.values())
