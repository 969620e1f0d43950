"""The form of ``dispatch_what_if``: what it asks for, and what is refused before anything is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_airflow import stages, what_if_steps
from dispatch_airflow.home import Home
from dispatch_core.errors import DispatchAuditError

FORM = {
    "interval_start": "2026-11-21T02:00:00+02:00",
    "subscriptions": "orders-*",
    "topics": "*",
    "rules": ["as recorded", "range"],
    "broker_version": None,
    "settings": "# smaller reads\n\n dispatcherMaxReadBatchSize=16 \n",
    "seeds": 3,
}


def test_the_form_becomes_the_arguments_of_the_stage():
    checked = what_if_steps.check(FORM)
    assert checked["arguments"] == [
        "--interval-start", "2026-11-21T00:00:00+00:00", "--seeds", "3", "--topics=*", "--subscriptions=orders-*",
        "--rules=as recorded", "--rules=range", "--set=dispatcherMaxReadBatchSize=16",
    ]  # fmt: skip
    assert checked["asked"]["settings"] == {"dispatcherMaxReadBatchSize": 16}


def test_the_stage_takes_what_the_form_gives(monkeypatch, capsys, tmp_path):
    from spark_jobs.what_if import comparison

    checked = what_if_steps.check({**FORM, "subscriptions": "--out", "broker_version": "4.0.0"})
    asked = []
    monkeypatch.setattr(
        comparison.stage_command, "run", lambda options, _work, _size: asked.append(options) or 0
    )
    assert comparison.main(["--warehouse", "/w", *checked["arguments"], "--out", str(tmp_path)]) == 0
    [options] = asked
    assert (options.subscriptions, options.broker_version, options.seeds) == ("--out", "4.0.0", 3)
    assert options.out.local == tmp_path
    assert options.rules == ["as recorded", "range"]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"interval_start": None}, "interval_start is empty; nothing was simulated"),
        ({"interval_start": "21st"}, "21st"),
        ({"settings": "dispatcherMaxReadBatchSiz=16"}, "the nearest is dispatcherMaxReadBatchSize"),
        ({"settings": "dispatcherMaxReadBatchSize"}, "NAME=VALUE"),
        ({"settings": "dispatcherMaxReadBatchSize=many"}, "expected an integer"),
        ({"rules": ["rnage"]}, "the nearest is range"),
        ({"broker_version": "two"}, "two"),
        ({"seeds": 0}, "from 1 to 100"),
        ({"subscriptions": " "}, "the pattern of subscriptions is empty"),
    ],
)
def test_a_wrong_value_is_refused_with_what_would_be_right(wrong, says):
    with pytest.raises(DispatchAuditError, match=says):
        what_if_steps.check({**FORM, **wrong})


def test_a_comparison_lies_in_a_folder_of_its_runs_own(monkeypatch):
    asked = []

    def what_if(arguments, home):
        asked.append(list(arguments))
        return {"stage": "what-if", "index": arguments[-1] + "/index.html"}

    monkeypatch.setattr(stages, "what_if", what_if)
    checked = what_if_steps.check(FORM)
    home = Home(Path("/srv/audit"))
    summary = what_if_steps.compare(checked, home, "manual__../../etc")
    other = what_if_steps.compare(checked, home, "manual__2")
    assert summary["folder"] != other["folder"]
    assert summary["folder"].isalnum()
    assert asked[0][-2:] == ["--out", f"/srv/audit/what-if/{summary['folder']}"]
    assert summary["index"] == f"/srv/audit/what-if/{summary['folder']}/index.html"
