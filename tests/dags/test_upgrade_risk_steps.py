"""The form of ``upgrade_risk``: what it asks for, what is refused before anything is read, and whom a run tells."""

from __future__ import annotations

import logging

import pytest

from dispatch_airflow import notify, stages, upgrade_risk_steps
from dispatch_airflow.home import Home
from dispatch_core.errors import DispatchAuditError

FORM = {
    "interval_start": "2026-11-21T02:00:00+02:00",
    "interval_end": "2026-11-23T00:00:00Z",
    "subscriptions": "--out",
    "topics": "*",
    "broker_version": "5.0.1",
    "settings": "# smaller reads\n\n dispatcherMaxReadBatchSize=16 \n",
    "against": "4.2.4",
    "seeds": 3,
    "most_events": 5000,
    "namespace": "sources/orders",
}


def test_the_stage_takes_what_the_form_gives(monkeypatch, tmp_path):
    from spark_jobs.what_if import upgrade_risk

    asked = []
    monkeypatch.setattr(
        upgrade_risk.stage_command,
        "run",
        lambda options, work, _size: asked.append((options, work)) or 0,
    )
    checked = upgrade_risk_steps.check(FORM)
    assert checked["namespace"] == "sources/orders"
    assert upgrade_risk.main(["--warehouse", "/w", *checked["arguments"], "--out", str(tmp_path)]) == 0
    [(options, work)] = asked
    spans = []
    monkeypatch.setattr(
        upgrade_risk, "compare_releases", lambda *arguments: spans.append(arguments) or {"worse": 0}
    )
    assert work(None, None) == {"worse": 0}
    [(_spark, warehouse, _span, wanted, out, policy)] = spans
    assert wanted.as_json() == checked["asked"]
    assert wanted.as_json() == {
        "release": "5.0.1", "settings": {"dispatcherMaxReadBatchSize": 16}, "against": "4.2.4",
        "called": ["4.2.4", "5.0.1 dispatcherMaxReadBatchSize=16"], "topics": "*", "subscriptions": "--out", "seeds": 3,
        "most_events": 5000,
    }  # fmt: skip
    assert (str(warehouse), out.local, policy) == ("/w", tmp_path, None)
    assert (options.interval_start.isoformat(), options.interval_end.day) == ("2026-11-21T00:00:00+00:00", 23)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"interval_start": None}, "neither a day nor"),
        ({"interval_end": "2026-11-20T00:00:00Z"}, "not after its start"),
        ({"settings": "dispatcherMaxReadBatchSiz=16"}, "the nearest is dispatcherMaxReadBatchSize"),
        ({"broker_version": None}, "broker_version is empty"),
        ({"broker_version": "two"}, "two"),
        ({"broker_version": "4.2.4", "settings": None}, r"both sides are 4\.2\.4"),
        ({"seeds": 0}, "from 1 to 100"),
        ({"most_events": 0}, "^most_events"),
        ({"topics": " "}, "the pattern of topics is empty"),
        ({"namespace": "../etc"}, "namespace is"),
    ],
)
def test_a_wrong_value_is_refused(wrong, says):
    with pytest.raises(DispatchAuditError, match=says):
        upgrade_risk_steps.check({**FORM, **wrong})


def test_another_attempt_of_a_run_has_the_same_folder(monkeypatch):
    monkeypatch.setattr(
        stages, "upgrade_risk", lambda arguments, _home: {"index": arguments[-1] + "/upgrade-risk.html"}
    )
    checked, home = upgrade_risk_steps.check(FORM), Home("/srv/audit")
    first, again, other = (
        upgrade_risk_steps.compare(checked, home, run)
        for run in ("manual__../etc", "manual__../etc", "manual__2")
    )
    assert first == again
    assert first["folder"] != other["folder"]
    assert first["index"] == f"/srv/audit/what-if/{first['folder']}/upgrade-risk.html"


SUMMARY = {
    "said": "5.0.1 against as recorded: 3 subscriptions: 2 introduces order violations, 1 same",
    "worse": 2,
    "not_judged": 0,
    "folder": "ab12",
    "index": "/srv/audit/what-if/ab12/upgrade-risk.html",
    "interval_start": "2026-11-21T00:00:00+00:00",
    "interval_end": "2026-11-23T00:00:00+00:00",
}


@pytest.mark.parametrize(
    ("asked", "worse", "sent"), [("", 2, 0), ("upgrade_risk: [hook]", 2, 1), ("upgrade_risk: [hook]", 0, 0)]
)
def test_somebody_is_told_only_if_the_policy_asks_for_it_and_something_gets_worse(
    asked, worse, sent, monkeypatch, tmp_path, caplog
):
    from dispatch_expectations import alert_outbox

    policy = tmp_path / "audit-policy.yaml"
    policy.write_text(
        "version: 1\nrules:\n- {name: all, topics: '*'}\n"
        f"alerts:\n  channels: {{hook: {{connection: own_hook}}, mail: {{connection: own_mail}}}}\n  {asked}\n"
    )
    monkeypatch.setenv("DISPATCH_AUDIT_POLICY", str(policy))
    monkeypatch.setenv("DISPATCH_AUDIT_HOME", str(tmp_path / "home"))
    for name in ("own_hook", "own_mail"):
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", "http://127.0.0.1:1/")
    put = []
    monkeypatch.setattr(alert_outbox.Outbox, "put", lambda _self, entries: put.extend(entries))
    monkeypatch.setattr(notify, "deliver", lambda *_arguments, **_more: None)
    with caplog.at_level(logging.INFO):
        found = upgrade_risk_steps.conclude({**SUMMARY, "worse": worse})
    assert [entry.channel for entry in put] == ["hook"] * sent
    assert found["channels"] == ["hook"] * sent
    assert SUMMARY["said"] in caplog.text
    if sent:
        assert "2 subscriptions get worse" in put[0].subject
        assert SUMMARY["index"] in put[0].body
