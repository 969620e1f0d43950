"""The form of ``dispatch_hunt``: what it asks for, what is refused before anything is played, and how a run ends."""

from __future__ import annotations

import pytest

from dispatch_airflow import hunt_steps, stages
from dispatch_airflow.home import Home
from dispatch_airflow.hunt_steps import NewFindError
from dispatch_core.errors import DispatchAuditError

FORM = {
    "releases": ["4.0.0", "4.2.4"],
    "subscription_type": "Key_Shared",
    "allow_out_of_order": False,
    "settings": "# splits ranges\n\n subscriptionKeySharedUseConsistentHashing=false \n",
    "promises": ["stuck", "leak"],
    "also": ["hangs"],
    "pass_over": ["rewind_waits"],
    "schedules": 1000,
    "seeds": 4,
    "first_seed": 7,
    "tasks": 3,
    "watched": 10,
    "states": True,
}


def test_the_stage_takes_what_the_form_gives(monkeypatch, tmp_path):
    from dispatch_core.hunt.campaign import Campaign
    from spark_jobs.hunt import hunt_releases

    asked = []
    monkeypatch.delenv("DISPATCH_AUDIT_SPARK_MASTER", raising=False)
    monkeypatch.setattr(
        hunt_releases, "hunt_releases", lambda _spark, *arguments: asked.append(arguments) or {"new": []}
    )
    checked = hunt_steps.check(FORM)
    assert hunt_releases.main([*checked["arguments"], "--out", str(tmp_path)]) == 0
    [(campaign, out, tasks)] = asked
    assert campaign == Campaign.of_json(checked["asked"])
    assert campaign.settings == {"subscriptionKeySharedUseConsistentHashing": False}
    assert campaign.aim.also == ("hangs",)
    assert campaign.aim.states
    assert (campaign.schedules, campaign.first_seed, tasks, out.local) == (1000, 7, 3, tmp_path)
    hunt_steps.check({**FORM, "allow_out_of_order": True, "states": False, "settings": None})


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"releases": None}, "^releases: give 1 to 16"),
        ({"releases": ["4.2.4", "two"]}, "^releases: 'two'"),
        (
            {"settings": "dispatcherMaxReadBatchSiz=16"},
            "^settings: .*the nearest is dispatcherMaxReadBatchSize",
        ),
        ({"settings": "dispatcherMaxReadBatchSize"}, "^settings: .*NAME=VALUE"),
        ({"pass_over": ["rewind_wait"]}, "^pass_over: 'rewind_wait' is not one of"),
        ({"subscription_type": "Failover"}, "^also: "),
        ({"schedules": 0}, "^schedules: 0"),
        ({"seeds": 0}, "^seeds: 0"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_parameter(wrong, says):
    with pytest.raises(DispatchAuditError, match=says):
        hunt_steps.check({**FORM, **wrong})


def test_another_attempt_of_a_run_has_the_same_folder(monkeypatch):
    asked = []

    def hunt(arguments):
        asked.append(list(arguments))
        return {"stage": "hunt", "index": arguments[-1] + "/index.html"}

    monkeypatch.setattr(stages, "hunt", hunt)
    checked, home = hunt_steps.check(FORM), Home("/srv/audit")
    first, again, other = (
        hunt_steps.hunt(checked, home, run) for run in ("manual__../etc", "manual__../etc", "manual__2")
    )
    assert first == again
    assert first["folder"] != other["folder"]
    assert first["index"] == f"/srv/audit/hunts/{first['folder']}/index.html"
    assert asked[0][:-2] == checked["arguments"]


def test_a_new_find_makes_the_run_red_unless_it_is_not_to():
    summary = {"new": ["4.2.4: leak.no_count in 8 steps"], "known": 2, "finds": 3, "index": "/h/index.html"}
    with pytest.raises(NewFindError, match=r"4\.2\.4: leak\.no_count in 8 steps.*/h/index\.html"):
        hunt_steps.conclude(summary, fail_on_new=True)
    assert hunt_steps.conclude(summary, fail_on_new=False)["new"] == summary["new"]
    assert hunt_steps.conclude({**summary, "new": []}, fail_on_new=True)["new"] == []
