"""Print the outcome of a run (verdicts with reasons, places of results) and compare it with the expected verdicts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from dispatch_airflow.home import Home
from dispatch_airflow.local_run.sample import Source
from dispatch_airflow.local_run.watch import Screen

if TYPE_CHECKING:
    from dispatch_expectations.verdict import Verdict
    from spark_jobs.location import Location

Dispatcher = tuple[str, str]
#: Verdicts by dispatcher and promise; for several days, the worst ones.
Found = Mapping[Dispatcher, Mapping[str, str]]
_SHOWN_FINDINGS: Final = 3
_RANK: Final = {"PASS": 0, "UNKNOWN": 1, "FAIL": 2}


def show(home: Home, days: Sequence[datetime], screen: Screen) -> dict[Dispatcher, dict[str, str]]:
    """Print the verdict of every subscription with its reasons and top findings; return the verdicts by promise."""
    from dispatch_expectations.validate import read_verdicts

    published: defaultdict[Dispatcher, list[Verdict]] = defaultdict(list)
    found: defaultdict[Dispatcher, dict[str, str]] = defaultdict(dict)
    for verdict in (verdict for day in days for verdict in read_verdicts(home.warehouse, day)):
        dispatcher = verdict.topic, verdict.subscription
        published[dispatcher].append(verdict)
        known = found[dispatcher].get(verdict.promise, "PASS")
        found[dispatcher][verdict.promise] = max(known, verdict.verdict, key=_RANK.__getitem__)
    for dispatcher in sorted(found, key=lambda name: (_RANK[found[name]["all"]], name)):
        overall = found[dispatcher]["all"]
        screen.line(f"  {overall:<7} {' / '.join(dispatcher)}")
        for verdict in published[dispatcher]:
            if verdict.promise == "all" or verdict.verdict == "PASS":
                continue
            when = f" on {verdict.interval_start:%Y-%m-%d}" if len(days) > 1 else ""
            name = f"{verdict.promise} {verdict.verdict}{when}"
            screen.line(f"            {name}: {verdict.reason}")
            for finding in verdict.top_findings[:_SHOWN_FINDINGS]:
                screen.line(f"              - {finding}")
    return dict(found)


def show_places(home: Home, days: Sequence[datetime], found: Found, screen: Screen) -> None:
    """Print the places of pages, tables and alerts, and the alerts about these verdicts."""
    from spark_jobs.intervals import interval

    for day in days:
        page = home.reports / interval(day).name / "index.html"
        if page.exists():
            screen.line(f"  Reports    {page.link}")
    screen.line(f"  Data Docs  {(home.data_docs / 'index.html').link}")
    screen.line(f"  Tables     {home.warehouse} (Delta)")
    alerts = current_alerts(home.alerts, days, found)
    screen.line(f"  Alerts     {home.alerts}, {len(alerts)} of these verdicts:")
    for alert in alerts:
        screen.line(f"             - {alert.get('subject', '(no subject)')}")


def current_alerts(folder: Location, days: Sequence[datetime], found: Found) -> list[dict[str, Any]]:
    """Read the latest alert of each dispatcher and day, if its verdict is the present one.

    The folder also has the alerts of verdicts that a later run has replaced.
    """
    from dispatch_expectations.alert import read_alerts

    wanted = {day.isoformat() for day in days}
    latest = {
        (alert.get("topic"), alert.get("subscription"), alert.get("interval_start")): alert
        for alert in read_alerts(folder)
        if alert.get("interval_start") in wanted
    }
    return [
        alert
        for (topic, subscription, _), alert in latest.items()
        if found.get((str(topic), str(subscription)), {}).get("all") == alert.get("verdict")
    ]


def differences(found: Found, source: Source, home: Home, days: Sequence[datetime]) -> list[str]:
    """List every difference between the outcome and the verdicts stated beside the sample."""
    wrong: list[str] = []
    kinds = _kinds(home, days)
    alerted = {
        (alert.get("topic"), alert.get("subscription")) for alert in current_alerts(home.alerts, days, found)
    }
    for dispatcher, statement in source.stated.items():
        name, stated, verdicts = statement.recording, statement.verdicts, found.get(dispatcher)
        if verdicts is None:
            wrong.append(f"{name}: no verdict, stated is {stated['all']}")
            continue
        for promise, verdict in stated.items():
            if verdicts.get(promise) != verdict:
                wrong.append(f"{name}: {promise} is {verdicts.get(promise)}, stated is {verdict}")
        if missing := statement.main_kinds - kinds[dispatcher]:
            wrong.append(f"{name}: no {', '.join(sorted(missing))} found, which is stated to be there")
        if stated["all"] == "FAIL" and dispatcher not in alerted:
            wrong.append(f"{name}: FAIL, but no alert of it arrived in {home.alerts}")
    return wrong


def _kinds(home: Home, days: Sequence[datetime]) -> defaultdict[Dispatcher, set[str]]:
    from dispatch_expectations.table_rows import interval_dataset, read_rows

    kinds: defaultdict[Dispatcher, set[str]] = defaultdict(set)
    for day in days:
        dataset = interval_dataset(home.warehouse, "anomalies", day)
        for row in read_rows(dataset, ["topic", "subscription", "kind"]):
            kinds[row["topic"], row["subscription"]].add(row["kind"])
    return kinds
