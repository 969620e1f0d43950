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
_SHOWN_FINDINGS: Final = 3
_RANK: Final = {"PASS": 0, "UNKNOWN": 1, "FAIL": 2}


def read_outcome(home: Home, days: Sequence[datetime]) -> dict[Dispatcher, dict[datetime, list[Verdict]]]:
    """Read the published verdicts of some days, by (topic, subscription) and day."""
    from dispatch_expectations.validate import read_verdicts

    found: defaultdict[Dispatcher, dict[datetime, list[Verdict]]] = defaultdict(lambda: defaultdict(list))
    for day in days:
        for verdict in read_verdicts(home.warehouse, day):
            found[verdict.topic, verdict.subscription][day].append(verdict)
    return dict(found)


def show(home: Home, days: Sequence[datetime], screen: Screen) -> dict[Dispatcher, dict[str, str]]:
    """Print the verdict of every subscription with its reasons and top findings; return the verdicts by promise.

    For several days, the worst verdict of a promise counts.
    """
    worst: dict[Dispatcher, dict[str, str]] = {}
    outcome = read_outcome(home, days)
    for dispatcher in sorted(outcome, key=lambda name: (_RANK[_overall(outcome[name])], name)):
        topic, subscription = dispatcher
        overall = _overall(outcome[dispatcher])
        screen.line(f"  {screen.coloured(f'{overall:<7}', overall)} {topic} / {subscription}")
        promises: dict[str, str] = {}
        for day, verdicts in outcome[dispatcher].items():
            for published in verdicts:
                if _RANK[published.verdict] >= _RANK[promises.get(published.promise, "PASS")]:
                    promises[published.promise] = published.verdict
                if published.promise == "all" or published.verdict == "PASS":
                    continue
                when = f" on {day:%Y-%m-%d}" if len(days) > 1 else ""
                verdict = screen.coloured(published.verdict)
                screen.line(f"            {published.promise} {verdict}{when}: {published.reason}")
                for finding in published.top_findings[:_SHOWN_FINDINGS]:
                    screen.line(f"              - {finding}")
        worst[dispatcher] = promises
    return worst


def _overall(by_day: Mapping[datetime, Sequence[Verdict]]) -> str:
    found = [
        verdict.verdict for verdicts in by_day.values() for verdict in verdicts if verdict.promise == "all"
    ]
    return max(found, key=_RANK.__getitem__, default="UNKNOWN")


def show_places(
    home: Home, days: Sequence[datetime], found: Mapping[Dispatcher, Mapping[str, str]], screen: Screen
) -> None:
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


def current_alerts(
    folder: Location, days: Sequence[datetime], found: Mapping[Dispatcher, Mapping[str, str]]
) -> list[dict[str, Any]]:
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


def differences(
    found: Mapping[Dispatcher, Mapping[str, str]], source: Source, home: Home, days: Sequence[datetime]
) -> list[str]:
    """List every difference between the outcome and the verdicts stated beside the sample."""
    wrong: list[str] = []
    kinds = _kinds(home, days)
    alerted = {
        (alert.get("topic"), alert.get("subscription")) for alert in current_alerts(home.alerts, days, found)
    }
    for dispatcher, statement in source.stated.items():
        verdicts = found.get(dispatcher)
        if verdicts is None:
            wrong.append(f"{statement.recording}: no verdict, stated is {statement.verdicts['all']}")
            continue
        for promise, stated in statement.verdicts.items():
            if verdicts.get(promise) != stated:
                wrong.append(
                    f"{statement.recording}: {promise} is {verdicts.get(promise)}, stated is {stated}"
                )
        missing = statement.main_kinds - kinds.get(dispatcher, set())
        if missing:
            wrong.append(
                f"{statement.recording}: no {', '.join(sorted(missing))} found, which is stated to be there"
            )
        if statement.verdicts["all"] == "FAIL" and dispatcher not in alerted:
            wrong.append(f"{statement.recording}: FAIL, but no alert of it arrived in {home.alerts}")
    return wrong


def _kinds(home: Home, days: Sequence[datetime]) -> dict[Dispatcher, set[str]]:
    from dispatch_expectations.table_rows import interval_dataset, read_rows

    kinds: defaultdict[Dispatcher, set[str]] = defaultdict(set)
    for day in days:
        dataset = interval_dataset(home.warehouse, "anomalies", day)
        for row in read_rows(dataset, ["topic", "subscription", "kind"]):
            kinds[row["topic"], row["subscription"]].add(row["kind"])
    return kinds
