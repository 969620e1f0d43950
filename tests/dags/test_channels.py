"""Channels by the type of their connection, through Airflow's providers; those that are optional are tried if installed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dispatch_airflow import channels
from dispatch_airflow.webhook import ChannelError, ChannelSetupError
from dispatch_expectations.alert_message import Message, notice
from tests.dags.test_notify import _everything_said, _Posts, http_endpoint

pytestmark = pytest.mark.airflow
SECRET = "T000-secret-token"
MESSAGE = replace(
    notice("[dispatch-audit] FAIL t audit", "key k went backwards", "key-1"),
    severity="critical",
    incident="incident-1",
    links=(("report", "https://airflow/report"),),
)


def channel(monkeypatch, kind: str, **fields: object) -> channels.Connection:
    monkeypatch.setenv("AIRFLOW_CONN_CHANNEL", json.dumps({"conn_type": kind, **fields}))
    return channels.connection("channel")


def sent(found: object, message: Message = MESSAGE) -> None:
    channels.send(found, message)


@pytest.mark.parametrize(
    ("kind", "module", "package"),
    [
        ("slackwebhook", "slack", "apache-airflow-providers-slack"),
        ("pagerduty_events", "pagerduty", "apache-airflow-providers-pagerduty"),
        ("opsgenie", "opsgenie", "apache-airflow-providers-opsgenie"),
        ("apprise", "apprise", "apache-airflow-providers-apprise"),
    ],
)
def test_a_provider_that_is_not_installed_is_named(monkeypatch, kind, module, package):
    found = channel(monkeypatch, kind, password=SECRET)
    for name in (f"airflow.providers.{module}", module):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(ChannelSetupError, match=rf"type '{kind}'.*install {package}"):
        sent(found)


def test_a_type_of_connection_that_nothing_is_sent_by_is_named(monkeypatch):
    with pytest.raises(
        ChannelSetupError, match="type 'postgres', by which no alert can be sent; use one of smtp, http"
    ):
        sent(channel(monkeypatch, "postgres"))


@pytest.mark.parametrize(("status", "refused"), [(200, None), (404, False), (400, True)])
def test_slack_gets_text_and_its_token_stays_secret(monkeypatch, tmp_path, caplog, capfd, status, refused):
    pytest.importorskip("airflow.providers.slack")
    caplog.set_level("DEBUG")
    posts = _Posts(status, echo=True)
    with http_endpoint(posts) as port:
        found = channel(
            monkeypatch, "slackwebhook", host=f"http://127.0.0.1:{port}/services", password=SECRET
        )
        if refused is None:
            sent(found)
            error = None
        else:
            with pytest.raises(ChannelError, match=f"answered with status {status}") as caught:
                sent(found)
            error = caught.value
            assert error.refused is refused
    assert posts.seen[0][1]["text"] == MESSAGE.chat
    assert SECRET not in _everything_said(caplog, capfd, tmp_path, error)


def test_slack_that_does_not_answer_shows_no_token(monkeypatch, tmp_path, caplog, capfd):
    pytest.importorskip("airflow.providers.slack")
    caplog.set_level("DEBUG")
    for host in ("http://127.0.0.1:1/services", "hook://127.0.0.1/services"):
        found = channel(monkeypatch, "slackwebhook", host=host, password=SECRET)
        with pytest.raises(ChannelError) as caught:
            sent(found)
        assert SECRET not in _everything_said(caplog, capfd, tmp_path, caught.value)


def test_pagerduty_opens_and_resolves_one_incident(monkeypatch, tmp_path, caplog, capfd):
    pytest.importorskip("airflow.providers.pagerduty.notifications.pagerduty")
    import pagerduty

    caplog.set_level("DEBUG")
    posts = _Posts(202, answer=b'{"dedup_key": "incident-1"}')
    with http_endpoint(posts) as port:
        address = property(lambda _client: f"http://127.0.0.1:{port}", lambda _client, _url: None)
        monkeypatch.setattr(pagerduty.EventsApiV2Client, "url", address)
        found = channel(monkeypatch, "pagerduty_events", password=SECRET)
        sent(found)
        sent(found, replace(MESSAGE, resolves=True))
        posts.status, posts.answer = 400, SECRET.encode()
        with pytest.raises(ChannelError, match="status 400") as caught:
            sent(found)
    assert caught.value.refused
    assert SECRET not in _everything_said(caplog, capfd, tmp_path, caught.value)
    events = [body for _headers, body in posts.seen]
    assert {(event["event_action"], event["dedup_key"]) for event in events[:2]} == {
        ("trigger", "incident-1"),
        ("resolve", "incident-1"),
    }
    assert events[0]["payload"]["severity"] == "critical"
    assert events[0]["links"] == [{"href": "https://airflow/report", "text": "report"}]


def test_opsgenie_opens_and_closes_one_alert(monkeypatch, tmp_path, caplog, capfd):
    pytest.importorskip("airflow.providers.opsgenie")
    caplog.set_level("DEBUG")
    posts = _Posts(202, answer=b'{"result": "Request will be processed", "requestId": "1", "took": 0.1}')
    with http_endpoint(posts) as port:
        found = channel(monkeypatch, "opsgenie", host=f"http://127.0.0.1:{port}", password=SECRET)
        sent(found)
        sent(found, replace(MESSAGE, resolves=True))
        posts.status = 422
        with pytest.raises(ChannelError, match="status 422") as caught:
            sent(found)
    assert caught.value.refused
    assert SECRET not in _everything_said(caplog, capfd, tmp_path, caught.value)
    assert (posts.seen[0][1]["alias"], posts.seen[0][1]["priority"]) == ("incident-1", "P1")
    assert posts.seen[1][1]["note"] == MESSAGE.body


@pytest.mark.parametrize("status", [200, 500])
def test_apprise_that_does_not_deliver_is_a_failure(monkeypatch, tmp_path, caplog, capfd, status):
    pytest.importorskip("airflow.providers.apprise")
    caplog.set_level("DEBUG")
    posts = _Posts(status)
    with http_endpoint(posts) as port:
        config = {"path": f"json://127.0.0.1:{port}/{SECRET}", "tag": "alerts"}
        found = channel(monkeypatch, "apprise", extra={"config": config})
        error = None
        if status == 200:
            sent(found)
        else:
            with pytest.raises(ChannelError, match="did not take the message") as caught:
                sent(found)
            error = caught.value
    assert posts.seen[0][1]["message"] == MESSAGE.body
    assert SECRET not in _everything_said(caplog, capfd, tmp_path, error)
