"""Alerts reach a real SMTP server and a real HTTP endpoint, once each; one that fails hides nothing of the rest."""

from __future__ import annotations

import email
import json
import socketserver
import ssl
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.policy import default
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from dispatch_airflow import notify, outbox_delivery, stages
from dispatch_airflow.home import Home, StepError
from dispatch_airflow.outbox_delivery import ChannelsError
from dispatch_core.audit.promises.promise import FAIL, PASS
from dispatch_expectations.alert import read_alerts
from dispatch_expectations.dispatcher_results import AlertFinding, DispatcherResult
from dispatch_expectations.verdict import Verdict

pytestmark = pytest.mark.airflow
DAY = datetime(2026, 11, 21, tzinfo=UTC)


def result(name: str = "t", *, clean: bool = False, evidence: str = "e") -> DispatcherResult:
    """Make the result of one subscription: a key out of order, or no finding."""
    topic, reason = f"persistent://public/default/{name}", "entries sent after a later entry of their key: 3"
    verdicts = {
        promise: Verdict(
            DAY,
            "standalone",
            topic,
            "audit",
            0,
            promise,
            PASS if clean else FAIL,
            0,
            0,
            "kept" if clean else reason,
        )
        for promise in ("all", "per_key_order")
    }
    finding = AlertFinding(
        state="new",
        kind="out_of_order",
        subject="key {{ 7 * 7 }}",
        severity="critical",
        uncertain=False,
        count=3,
        positions=("5:28",),
        explanation="key order-17 went backwards: 5:31, then 5:28 <b>",
        identity=f"id-{name}",
        evidence=evidence,
    )
    return DispatcherResult(verdicts, () if clean else (finding,))


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
    location: str | None = None
    echo: bool = False
    answer: bytes = b""
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
def http_endpoint(posts: _Posts, certificate=None):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posts.seen.append((dict(self.headers), json.loads(body)))
            # Some servers repeat the address in the reason and the text of an error.
            self.send_response(posts.status, self.path if posts.echo else None)
            if posts.location is not None:
                self.send_header("Location", posts.location)
            self.end_headers()
            self.wfile.write(self.path.encode() if posts.echo else posts.answer)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    with _serving(server) as port:
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


def _webhook_connection(monkeypatch, port: int, scheme: str = "http", **extra: object) -> None:
    fields = {
        "conn_type": "http",
        "host": f"{scheme}://127.0.0.1:{port}{SECRET_PATH}",
        "extra": {"timeout": 5, **extra},
    }
    monkeypatch.setenv("AIRFLOW_CONN_DISPATCH_AUDIT_WEBHOOK", json.dumps(fields))


@pytest.fixture
def tables(monkeypatch):
    """Results of the interval, which a test may change."""
    results = [result()]
    monkeypatch.setattr("dispatch_expectations.dispatcher_results.read_results", lambda *_: results)
    return results


CHOSEN = {"interval_start": "2026-11-21T00:00:00+00:00", "interval_end": "2026-11-22T00:00:00+00:00"}
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
SECRET_PATH = "/services/T000/B000/secret-token"
NEWS = {"new": 1, "changed": 0, "clear": 0}
NOTHING = {"new": 0, "changed": 0, "clear": 0}


def test_without_connections_the_file_alone_is_written(tables, tmp_path):
    home = Home(tmp_path)
    assert notify.alert(CHOSEN, home) == {"file": 1} | NEWS
    kept = read_alerts(home.alerts)[0]
    assert kept["findings"][0]["positions"] == ["5:28"]


def test_mail_and_webhook_carry_key_positions_and_reason_and_are_sent_once(tables, tmp_path, monkeypatch):
    server, posts = _SmtpServer(), _Posts()
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://airflow.example.org/base/")
    page = tmp_path / "data-docs" / "2026-11-21" / "index.html"
    with _serving(server) as smtp_port, http_endpoint(posts) as http_port:
        _smtp_connection(monkeypatch, smtp_port)
        _webhook_connection(monkeypatch, http_port, format="json")
        sent = notify.alert(CHOSEN, Home(tmp_path), run="https://airflow.example.org/base/dags/d/runs/r")
        assert sent == {"file": 1, "mail": 1, "webhook": 1} | NEWS
        assert notify.alert(CHOSEN, Home(tmp_path)) == {"file": 0, "mail": 0, "webhook": 0} | NOTHING
    assert outbox_delivery.deliver_due(Home(tmp_path)) == {}, "nothing waits"
    assert len(server.mails) == 1
    mail = email.message_from_bytes(server.mails[0], policy=default)
    assert mail["Subject"] == "[dispatch-audit] FAIL persistent://public/default/t audit, 2026-11-21: 1 new"
    assert mail["To"] == "night@example.org"
    text = mail.get_body(("html",)).get_content()
    assert "key order-17 went backwards: 5:31, then 5:28 &lt;b&gt;" in text
    assert "{{ 7 * 7 }}" in text, "names from logs are no templates"
    link = "https://airflow.example.org/base/dispatch-audit/data-docs/2026-11-21/index.html"
    assert f'<a href="{link}">Data Docs</a>' in text
    assert '<a href="https://airflow.example.org/base/dags/d/runs/r">Airflow run</a>' in text
    assert str(page) not in text
    assert len(posts.seen) == 1
    headers, body = posts.seen[0]
    assert headers["Idempotency-Key"] == mail["X-Dispatch-Audit-Idempotency-Key"]
    assert headers["Idempotency-Key"] == body["alert"]["idempotency_key"]
    assert "format" not in {name.lower() for name in headers}, "options of the connection are no headers"
    assert "5:28" in body["text"]
    assert body["alert"]["findings"][0]["kind"] == "out_of_order"
    assert body["alert"]["findings"][0]["idempotency_key"]
    assert body["alert"]["links"]["Data Docs"] == link


def test_a_chat_gets_text_alone_in_the_form_it_takes(tables, tmp_path, monkeypatch):
    posts = _Posts()
    with http_endpoint(posts) as port:
        _webhook_connection(monkeypatch, port, format="slack")
        monkeypatch.setenv("DISPATCH_AUDIT_HOME", str(tmp_path))
        notify.alert(CHOSEN, Home(tmp_path))
        notify.send_notice("late <!here>", "no verdict of 2026-11-21", "late-1")
    first, second = (body for _, body in posts.seen)
    assert set(first) == set(second) == {"text"}
    assert first["text"].startswith("```\n[dispatch-audit] FAIL")
    assert "then 5:28 &lt;b&gt;" in first["text"]
    assert second["text"] == "```\nlate &lt;!here&gt;\nno verdict of 2026-11-21\n```"
    assert posts.seen[1][0]["Idempotency-Key"] == "late-1"


def test_a_format_that_there_is_not_is_named(tables, tmp_path, monkeypatch):
    _webhook_connection(monkeypatch, 1, format="teams")
    with pytest.raises(ChannelsError, match=r"format 'teams' .*use one of json, slack"):
        notify.alert(CHOSEN, Home(tmp_path))


def test_a_dead_mail_server_hides_neither_the_file_nor_the_webhook(tables, tmp_path, monkeypatch):
    posts, home = _Posts(), Home(tmp_path)
    with http_endpoint(posts) as http_port:
        _smtp_connection(monkeypatch, 1)
        _webhook_connection(monkeypatch, http_port)
        done = notify.alert(CHOSEN, home, now=NOON)
    waiting = done.pop("waiting")
    assert done == {"file": 1, "mail": 0, "webhook": 1} | NEWS
    assert (waiting["mail"]["waiting"], waiting["mail"]["next_attempt"]) == (1, "2026-11-22 12:01 UTC")
    assert "ConnectionRefusedError" in waiting["mail"]["reason"]
    assert len(posts.seen) == 1
    assert home.alerts.exists()
    # When it is back, the mail is sent and the webhook not again.
    server = _SmtpServer()
    with _serving(server) as smtp_port, http_endpoint(posts) as http_port:
        _smtp_connection(monkeypatch, smtp_port)
        _webhook_connection(monkeypatch, http_port)
        assert outbox_delivery.deliver_due(home, now=NOON + timedelta(minutes=1)) == {
            "file": 0,
            "mail": 1,
            "webhook": 0,
        }
    assert len(server.mails) == len(posts.seen) == 1


def test_an_endpoint_that_refuses_is_named_and_tried_again_without_telling_its_secret(
    tables, tmp_path, monkeypatch
):
    posts = _Posts(status=503)
    with http_endpoint(posts) as port:
        _webhook_connection(monkeypatch, port, check_response=False)
        done = notify.alert(CHOSEN, Home(tmp_path), now=NOON)
        assert done["waiting"]["webhook"]["reason"] == "http://127.0.0.1/… answered with status 503"
        posts.status = 200
        assert notify.alert(CHOSEN, Home(tmp_path), now=NOON + timedelta(minutes=1))["webhook"] == 1
    assert len(posts.seen) == 2
    tables[0] = result(evidence="another")
    done = notify.alert(CHOSEN, Home(tmp_path))
    assert "refused" in done["waiting"]["webhook"]["reason"]
    assert "secret-token" not in str(done)


SECRET_URL = "http://hook-user:hook-pass%21@127.0.0.1:{port}/services/T000/path%2Dtoken?token=query-token&v=1#frag-token"
SECRETS = (
    *(
        "hook-user",
        "hook-pass",
        "services",
        "T000",
        "path-token",
        "path%2Dtoken",
        "query-token",
        "v=1",
        "frag-token",
    ),
    *("location-token", "Basic "),
)


def _everything_said(caplog, capfd, folder, error: BaseException | None) -> str:
    """Logs at every level, output, files, and an error with all errors that it carries."""
    out = capfd.readouterr()
    files = [path.read_bytes().decode("latin-1") for path in folder.rglob("*") if path.is_file()]
    said = [caplog.text, *(str(record.__dict__) for record in caplog.records), out.out, out.err, *files]
    while error is not None:
        said += [repr(error), str(error), str(error.__notes__) if hasattr(error, "__notes__") else ""]
        error = error.__cause__ or error.__context__
    return "\n".join(said)


@pytest.mark.parametrize(
    ("posts", "url", "reason"),
    [
        (_Posts(), SECRET_URL, None),
        (_Posts(404, echo=True), SECRET_URL, "http://127.0.0.1/… answered with status 404"),
        (
            _Posts(302, location="https://127.0.0.1/location-token"),
            SECRET_URL,
            "http://127.0.0.1/… answered with status 302: redirects are not followed",
        ),
        (
            _Posts(),
            SECRET_URL.replace("{port}", "1"),
            "http://127.0.0.1/…: ConnectionError: Connection refused",
        ),
        (_Posts(), SECRET_URL.replace("{port}", "x"), "http://127.0.0.1/…: InvalidURL"),
        (_Posts(), SECRET_URL.replace("http:", "hook:"), "the webhook: InvalidSchema"),
        (_Posts(), SECRET_URL.replace("127.0.0.1:{port}", "[::1"), "the webhook: "),
        (_Posts(), SECRET_URL.replace("127.0.0.1:{port}", ""), "the webhook: "),
    ],
    ids=["success", "http-error", "redirect", "refused", "bad-port", "bad-scheme", "bad-host", "no-host"],
)
def test_nothing_of_a_webhook_beyond_scheme_and_host_is_shown(
    posts, url, reason, tables, tmp_path, monkeypatch, caplog, capfd
):
    caplog.set_level("DEBUG")
    monkeypatch.setattr("airflow.sdk.log.mask_secret", lambda *_: None)  # which works in task logs alone
    with http_endpoint(posts) as port:
        fields = {"conn_type": "http", "host": url.replace("{port}", str(port)), "extra": {"timeout": 5}}
        monkeypatch.setenv("AIRFLOW_CONN_DISPATCH_AUDIT_WEBHOOK", json.dumps(fields))
        home, late = Home(tmp_path), NOON + timedelta(days=2)
        monkeypatch.setenv("DISPATCH_AUDIT_HOME", str(tmp_path))
        notify.alert(CHOSEN, home, now=NOON)
        notify.send_notice("late", "no verdict", "late-1", now=NOON + timedelta(minutes=2))
        error: BaseException | None = None
        try:
            outbox_delivery.deliver_due(home, now=late)
        except ChannelsError as failed:
            error = failed
        # Without a home, too.
        monkeypatch.setattr(notify, "outbox_of", lambda _home: (_ for _ in ()).throw(OSError("no home")))
        with pytest.raises(StepError, match="no home") as directly:
            notify.send_notice("late", "no verdict", "late-2")
    for raised in (error, directly.value):
        said = _everything_said(caplog, capfd, tmp_path, raised)
        assert [secret for secret in SECRETS if secret in said] == []
    if reason is None:
        assert (error, len(posts.seen)) == (None, 3)
        assert posts.seen[0][0]["Authorization"].startswith("Basic ")
    else:
        assert reason in str(error)
        assert reason in str(directly.value)


def test_the_stages_do_not_get_the_channels_connections(monkeypatch, tmp_path):
    _webhook_connection(monkeypatch, 1)
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\nalerts: {channels: {night: {connection: pagerduty_night}}}\n")
    monkeypatch.setenv("DISPATCH_AUDIT_POLICY", str(policy))
    monkeypatch.setenv("AIRFLOW_CONN_PAGERDUTY_NIGHT", "{}")
    assert "AIRFLOW_CONN_PAGERDUTY_NIGHT" not in stages._environment()
    assert not {name for name in stages._environment() if name.startswith("AIRFLOW_CONN_DISPATCH_AUDIT_")}


def test_certificates_are_verified_whatever_the_connection_says(tables, tmp_path, monkeypatch):
    posts, certificate = _Posts(), self_signed(tmp_path)
    with http_endpoint(posts, certificate) as port:
        _webhook_connection(monkeypatch, port, "https", verify=False)
        done = notify.alert(CHOSEN, Home(tmp_path), now=NOON)
        assert "CERTIFICATE_VERIFY_FAILED: self-signed certificate" in done["waiting"]["webhook"]["reason"]
        _webhook_connection(monkeypatch, port, "https", verify=str(certificate))
        assert notify.alert(CHOSEN, Home(tmp_path), now=NOON + timedelta(minutes=1))["webhook"] == 1
    _smtp_connection(monkeypatch, 1, ssl_context="none")
    tables[0] = result(evidence="another")
    with pytest.raises(ChannelsError, match="ssl_context none"):
        notify.alert(CHOSEN, Home(tmp_path))


def test_a_mail_connection_without_recipient_says_what_is_missing(tables, tmp_path, monkeypatch):
    _smtp_connection(monkeypatch, 1, to_email="")
    with pytest.raises(ChannelsError, match="set to_email in its extra field"):
        notify.alert(CHOSEN, Home(tmp_path))


def test_a_clear_finding_is_reported_by_every_channel_that_reported_it(tables, tmp_path, monkeypatch):
    posts, home = _Posts(), Home(tmp_path)
    notify.alert(CHOSEN, home)
    with http_endpoint(posts) as port:
        _webhook_connection(monkeypatch, port)
        tables[:] = [result(clean=True), result("second")]
        assert notify.alert(CHOSEN, home) == {"file": 2, "webhook": 1, "new": 1, "changed": 0, "clear": 1}
        assert [body["alert"]["topic"].rpartition("/")[2] for _, body in posts.seen] == ["second"]
        tables[:] = [result("second", clean=True)]
        notify.alert(CHOSEN, home)
    assert posts.seen[-1][1]["alert"]["findings"][0]["state"] == "clear"
    assert sorted(kept["verdict"] for kept in read_alerts(home.alerts)) == [
        "FAIL",
        "FAIL",
        "PASS",
        "PASS",
    ]


def test_a_notice_goes_to_every_channel_once_and_waits_for_those_that_failed(tmp_path, monkeypatch):
    server, posts, home = _SmtpServer(), _Posts(), Home(tmp_path)
    monkeypatch.setenv("DISPATCH_AUDIT_HOME", str(tmp_path))
    with _serving(server) as port, http_endpoint(posts) as http_port:
        _smtp_connection(monkeypatch, port)
        _webhook_connection(monkeypatch, 1)
        for minute in (0, 2):
            notify.send_notice(
                "No verdict in time",
                "of <2026-11-21>\nlate",
                "deadline:1",
                now=NOON + timedelta(minutes=minute),
            )
        assert (len(server.mails), posts.seen) == (1, [])
        _webhook_connection(monkeypatch, http_port)
        assert outbox_delivery.deliver_due(home, now=NOON + timedelta(minutes=7)) == {
            "file": 0,
            "mail": 0,
            "webhook": 1,
        }
    assert [headers["Idempotency-Key"] for headers, _body in posts.seen] == ["deadline:1"]
    mail = email.message_from_bytes(server.mails[0], policy=default)
    assert (mail["Subject"], mail["X-Dispatch-Audit-Idempotency-Key"]) == ("No verdict in time", "deadline:1")
    # Lines end as the encoding of the transfer has them.
    said = mail.get_body(("html",)).get_content().replace("\r\n", "\n")
    assert "<pre>of &lt;2026-11-21&gt;\nlate</pre>" in said


def self_signed(folder):
    """A certificate of 127.0.0.1 with its key, in one file, that nobody else knows."""
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / "certificate.pem"
    path.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def test_a_run_that_sends_is_waited_for_and_not_for_ever(tables, tmp_path, monkeypatch):
    home = Home(tmp_path)
    monkeypatch.setattr(outbox_delivery, "TURN_TIMEOUT_S", 0.3)
    with (
        outbox_delivery.alert_turn(home, 10),
        pytest.raises(StepError, match="another run has been sending alerts for 0 s"),
    ):
        notify.alert(CHOSEN, home)
    assert not home.alerts.exists()
    # Another run sends it, an hour after it was announced.
    assert outbox_delivery.deliver_due(home) == {"file": 0}
    assert outbox_delivery.deliver_due(home, now=datetime.now(UTC) + timedelta(hours=1)) == {"file": 1}
