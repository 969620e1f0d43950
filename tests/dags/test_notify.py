"""Alerts reach a real SMTP server and a real HTTP endpoint, and a dead one hides nothing."""

from __future__ import annotations

import email
import json
import socketserver
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dags import notify
from dags.steps import Home, StepError
from expectations.alert import Alert, AlertFinding, FileAlertSink

pytestmark = pytest.mark.airflow


def make_alert(
    name: str = "t", explanation: str = "key order-17 went backwards: 5:31, then 5:28 <b>"
) -> Alert:
    finding = AlertFinding(
        "out_of_order", "key order-17", "critical", 3, ("5:28",), explanation, f"id-{name}", "k"
    )
    return Alert(
        idempotency_key=f"key-{name}",
        cluster="standalone",
        topic=f"persistent://public/default/{name}",
        subscription="audit",
        interval_start="2026-11-21T00:00:00+00:00",
        verdict="FAIL",
        severity="critical",
        subject=f"[dispatch-audit] FAIL {name} audit, 2026-11-21",
        body=f"Verdict: FAIL\n{{{{ 7 * 7 }}}}\n{explanation}\npositions: 5:28\n",
        report=None,
        findings=(finding,),
    )


class _SmtpHandler(socketserver.StreamRequestHandler):
    """The few commands of RFC 5321 that a client needs to hand over a mail."""

    def handle(self) -> None:
        self._say("220 test")
        while line := self.rfile.readline().decode().strip():
            verb = line.split(":")[0].split(" ")[0].upper()
            if verb == "DATA":
                self._say("354 go on")
                data = b""
                while not data.endswith(b"\r\n.\r\n"):
                    data += self.rfile.readline()
                self.server.mails.append(data[:-5])
                self._say("250 kept")
            elif verb == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 ok")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


class _SmtpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _SmtpHandler)
        self.mails: list[bytes] = []


@dataclass
class _Posts:
    status: int = 200
    seen: list[tuple[dict, dict]] = field(default_factory=list)


@contextmanager
def _serving(server):
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def http_endpoint(posts: _Posts):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.seen.append((dict(self.headers), json.loads(body)))
            self.send_response(posts.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield port


def _smtp_connection(monkeypatch, port: int, **extra: object) -> None:
    fields = {
        "conn_type": "smtp",
        "host": "127.0.0.1",
        "port": port,
        "extra": {
            "disable_ssl": True,
            "disable_tls": True,
            "from_email": "audit@example.org",
            "to_email": "night@example.org",
            "timeout": 5,
            "retry_limit": 0,
            **extra,
        },
    }
    monkeypatch.setenv("AIRFLOW_CONN_DISPATCH_AUDIT_SMTP", json.dumps(fields))


def _webhook_connection(monkeypatch, port: int) -> None:
    fields = {"conn_type": "http", "host": f"http://127.0.0.1:{port}/hook", "extra": {"timeout": 5}}
    monkeypatch.setenv("AIRFLOW_CONN_DISPATCH_AUDIT_WEBHOOK", json.dumps(fields))


@pytest.fixture
def one_alert(monkeypatch):
    """``notify.alert`` finds these alerts in the tables."""
    alerts = [make_alert()]
    monkeypatch.setattr("expectations.alert.alerts_for_interval", lambda *_: alerts)
    return alerts


CHOSEN = {"interval_start": "2026-11-21T00:00:00+00:00"}


def test_without_connections_the_file_alone_is_written(one_alert, tmp_path):
    home = Home(tmp_path)
    assert notify.alert(CHOSEN, home) == {"alerts": 1, "file": 1}
    kept = json.loads(home.alerts.read_text())
    assert kept["findings"][0]["positions"] == ["5:28"]


def test_mail_and_webhook_carry_key_positions_and_reason_and_are_sent_once(one_alert, tmp_path, monkeypatch):
    server, posts = _SmtpServer(), _Posts()
    with _serving(server) as smtp_port, http_endpoint(posts) as http_port:
        _smtp_connection(monkeypatch, smtp_port)
        _webhook_connection(monkeypatch, http_port)
        assert notify.alert(CHOSEN, Home(tmp_path)) == {"alerts": 1, "file": 1, "mail": 1, "webhook": 1}
        assert notify.alert(CHOSEN, Home(tmp_path)) == {"alerts": 1, "file": 0, "mail": 0, "webhook": 0}
    assert len(server.mails) == 1
    mail = email.message_from_bytes(server.mails[0], policy=default)
    assert mail["Subject"] == one_alert[0].subject
    assert mail["To"] == "night@example.org"
    assert mail["X-Dispatch-Audit-Idempotency-Key"] == "key-t"
    text = mail.get_body(("html",)).get_content()
    assert "key order-17 went backwards: 5:31, then 5:28 &lt;b&gt;" in text
    assert "{{ 7 * 7 }}" in text, "names from logs are no templates"
    assert len(posts.seen) == 1
    headers, body = posts.seen[0]
    assert headers["Idempotency-Key"] == "key-t"
    assert "5:28" in body["text"]
    assert body["alert"]["findings"][0]["kind"] == "out_of_order"


def test_a_dead_mail_server_hides_neither_the_file_nor_the_webhook(one_alert, tmp_path, monkeypatch):
    posts, home = _Posts(), Home(tmp_path)
    with http_endpoint(posts) as http_port:
        _smtp_connection(monkeypatch, 1)
        _webhook_connection(monkeypatch, http_port)
        with pytest.raises(StepError, match=r"mail: .*FAIL t audit.*ConnectionRefusedError") as failure:
            notify.alert(CHOSEN, home)
    assert str(home.alerts) in str(failure.value)
    assert len(posts.seen) == 1
    assert home.alerts.exists()
    # When it is back, the mail is sent and the webhook not again.
    server = _SmtpServer()
    with _serving(server) as smtp_port, http_endpoint(posts) as http_port:
        _smtp_connection(monkeypatch, smtp_port)
        _webhook_connection(monkeypatch, http_port)
        assert notify.alert(CHOSEN, home)["mail"] == 1
    assert len(server.mails) == len(posts.seen) == 1


def test_an_endpoint_that_refuses_is_named_and_tried_again(one_alert, tmp_path, monkeypatch):
    posts = _Posts(status=503)
    with http_endpoint(posts) as port:
        _webhook_connection(monkeypatch, port)
        with pytest.raises(StepError, match=r"webhook: .*503"):
            notify.alert(CHOSEN, Home(tmp_path))
        posts.status = 200
        assert notify.alert(CHOSEN, Home(tmp_path))["webhook"] == 1
    assert len(posts.seen) == 2


def test_a_mail_connection_without_recipient_says_what_is_missing(one_alert, tmp_path, monkeypatch):
    _smtp_connection(monkeypatch, 1, to_email="")
    with pytest.raises(StepError, match="set to_email in its extra field"):
        notify.alert(CHOSEN, Home(tmp_path))


def test_what_was_sent_is_kept_beside_the_alerts(one_alert, tmp_path, monkeypatch):
    posts = _Posts()
    with http_endpoint(posts) as port:
        _webhook_connection(monkeypatch, port)
        notify.alert(CHOSEN, Home(tmp_path))
        one_alert.append(make_alert("second"))
        assert notify.alert(CHOSEN, Home(tmp_path))["webhook"] == 1
    assert [body["alert"]["idempotency_key"] for _, body in posts.seen] == ["key-t", "key-second"]
    assert FileAlertSink(tmp_path / "alerts" / "sent-by-webhook.jsonl").send(one_alert) == 0
