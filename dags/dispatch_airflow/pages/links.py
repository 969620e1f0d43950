"""Make links from tasks and alerts to the pages.

Airflow computes a task's extra links in the worker when the task ends, even if it failed. A page that was not written has no
link.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from dispatch_airflow.home import Home
from dispatch_airflow.pages.published_files import INDEX, address_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

    from spark_jobs.location import Location

_Task = TypeVar("_Task")


def base_url() -> str | None:
    """Return Airflow's public address (``[api] base_url``) without a slash at its end; None if it is not set."""
    from airflow.sdk.configuration import conf

    return str(conf.get("api", "base_url", fallback=None) or "").rstrip("/") or None


def page_link(home: Home, path: Location, base: str | None) -> str:
    """Return the URL of a page if Airflow's address is known, else its path."""
    address = address_of(home, path)
    return str(path) if address is None or base is None else base + quote(address)


def run_link(base: str | None, dag_id: str, run_id: str) -> str | None:
    """Return the address of a run in Airflow's UI."""
    return None if base is None else f"{base}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


class _PageLink(BaseOperatorLink):
    """A button on the task's page."""

    title: str = ""

    @property
    def name(self) -> str:
        """Label of the button."""
        return self.title

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """Return the address of the page, "" if it does not exist. ``ti_key``: the task instance that has just ended."""
        home, path = Home.current(), self.find(ti_key)
        address = None if path is None or not path.exists() else address_of(home, path)
        return "" if address is None else (base_url() or "") + quote(address)

    def find(self, ti: Any) -> Location | None:
        """Return the page's file, which need not exist."""
        raise NotImplementedError


class ReportLink(_PageLink):
    """Link to the reports of the run's interval."""

    title = "Reports"

    def find(self, ti: Any) -> Location | None:
        """Return the index of the interval's reports."""
        from spark_jobs.intervals import interval
        from spark_jobs.reports.report_pages import folder_of

        chosen = _chosen(ti)
        if chosen is None:
            return None
        return (
            folder_of(Home.of(chosen).reports, interval(chosen["interval_start"], chosen["interval_end"]))
            / INDEX
        )


class DataDocsLink(_PageLink):
    """Link to the Data Docs of the run's interval."""

    title = "Data Docs"

    def find(self, ti: Any) -> Location | None:
        """Return the interval's table of verdicts."""
        from dispatch_expectations.data_docs import index_of
        from spark_jobs.intervals import parse_moment

        chosen = _chosen(ti)
        if chosen is None:
            return None
        return index_of(Home.of(chosen).data_docs, parse_moment(chosen["interval_start"]))


class _IndexLink(_PageLink):
    """Link to what a task has made: the ``index`` in the task's return value."""

    def find(self, ti: Any) -> Location | None:
        """Return the index page."""
        made = ti.xcom_pull(task_ids=ti.task_id)
        index = made.get("index") if isinstance(made, dict) else None
        if not isinstance(index, str) or "/" not in index:
            return None
        from spark_jobs.location import Location

        return Location.of(index)


class WhatIfLink(_IndexLink):
    """Link to the comparison of rules."""

    title = "What-if comparison"


class UpgradeRiskLink(_IndexLink):
    """Link to the comparison of two releases over many subscriptions."""

    title = "Upgrade risk"


class HuntLink(_IndexLink):
    """Link to the comparison of releases."""

    title = "Hunt"


REPORT: Final = ReportLink()
DATA_DOCS: Final = DataDocsLink()
WHAT_IF: Final = WhatIfLink()
UPGRADE_RISK: Final = UpgradeRiskLink()
HUNT: Final = HuntLink()
#: Key of each link's XCom, with the link's name.
LINKS: Final = {link.xcom_key: link.name for link in (REPORT, DATA_DOCS, WHAT_IF, UPGRADE_RISK, HUNT)}


def with_links(task: _Task, *links: BaseOperatorLink) -> _Task:
    """Add links to a task of a DAG (the return value of a decorated function); return the task."""
    task.operator.operator_extra_links = links  # type: ignore[attr-defined]
    return task


def _chosen(ti: Any) -> dict[str, str] | None:
    """Return the interval that the run's first task chose."""
    chosen = ti.xcom_pull(task_ids="choose_interval")
    return chosen if isinstance(chosen, dict) and {"interval_start", "namespace"} <= chosen.keys() else None
