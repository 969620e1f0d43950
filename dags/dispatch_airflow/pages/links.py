"""Links from tasks and alerts to the pages.

Airflow computes a task's extra links in the worker when the task ends, also when it is red. A page that was not written has
no link.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from dispatch_airflow.home import Home
from dispatch_airflow.pages.published_files import INDEX, address_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator

_Task = TypeVar("_Task")


def base_url() -> str | None:
    """Airflow's address for people (``[api] base_url``), without a slash at its end; None if it is not set."""
    from airflow.sdk.configuration import conf

    return str(conf.get("api", "base_url", fallback=None) or "").rstrip("/") or None


def page_link(home: Home, path: Path, base: str | None) -> str:
    """A page as a URL where Airflow's own is known, else as its path."""
    address = address_of(home, path)
    return str(path) if address is None or base is None else base + quote(address)


def run_link(base: str | None, dag_id: str, run_id: str) -> str | None:
    """The page of a run in Airflow's UI."""
    return None if base is None else f"{base}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}"


class _PageLink(BaseOperatorLink):
    """A button on the task's page."""

    title: str = ""

    @property
    def name(self) -> str:
        """Label of the button."""
        return self.title

    def get_link(self, operator: BaseOperator, *, ti_key: Any) -> str:
        """The address of the page; empty if it does not exist. ``ti_key``: the task instance that has just ended."""
        home = Home.current()
        path = self.find(home, ti_key)
        address = None if path is None or not path.exists() else address_of(home, path)
        return "" if address is None else (base_url() or "") + quote(address)

    def find(self, home: Home, ti: Any) -> Path | None:
        """The page's file, which need not exist."""
        raise NotImplementedError


class ReportLink(_PageLink):
    """To the reports of the run's interval."""

    title = "Reports"

    def find(self, home: Home, ti: Any) -> Path | None:
        """The index of the interval's reports."""
        from spark_jobs.intervals import interval
        from spark_jobs.reports.report_pages import folder_of

        chosen = _chosen(ti)
        if chosen is None:
            return None
        return folder_of(home.reports, interval(chosen["interval_start"], chosen.get("interval_end"))) / INDEX


class DataDocsLink(_PageLink):
    """To Great Expectations' pages of the run's interval."""

    title = "Data Docs"

    def find(self, home: Home, ti: Any) -> Path | None:
        """The interval's table of verdicts."""
        from dispatch_expectations.data_docs import index_of
        from spark_jobs.intervals import parse_moment

        chosen = _chosen(ti)
        return None if chosen is None else index_of(home.data_docs, parse_moment(chosen["interval_start"]))


class WhatIfLink(_PageLink):
    """To the comparison that a task has made: the ``index`` of what it returned."""

    title = "What-if comparison"

    def find(self, home: Home, ti: Any) -> Path | None:
        """The comparison's entry page."""
        made = ti.xcom_pull(task_ids=ti.task_id)
        index = made.get("index") if isinstance(made, dict) else None
        return Path(index) if isinstance(index, str) and os.sep in index else None


REPORT: Final = ReportLink()
DATA_DOCS: Final = DataDocsLink()
WHAT_IF: Final = WhatIfLink()
#: Key of each link's XCom, with the link's name.
LINKS: Final = {link.xcom_key: link.name for link in (REPORT, DATA_DOCS, WHAT_IF)}


def with_links(task: _Task, *links: BaseOperatorLink) -> _Task:
    """Give a task of a DAG (what calling a decorated function returns) these links; returns the task."""
    task.operator.operator_extra_links = links  # type: ignore[attr-defined]
    return task


def _chosen(ti: Any) -> dict[str, str] | None:
    """The interval that the run's first task chose."""
    chosen = ti.xcom_pull(task_ids="choose_interval")
    return chosen if isinstance(chosen, dict) and "interval_start" in chosen else None
