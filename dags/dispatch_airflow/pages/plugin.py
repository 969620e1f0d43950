"""Airflow plugin: pages under ``/dispatch-audit``, and links to them in the menu and on the page of a run.

Airflow finds it by the entry point ``airflow.plugins`` of the installed package. Every process of Airflow loads it; only the
web server needs the application, so it is imported in a property.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from airflow.plugins_manager import AirflowPlugin


class DispatchAuditPlugin(AirflowPlugin):
    """Show reports, Data Docs and what-if results to users who are logged in."""

    name = "dispatch_audit"

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:
        """The web application, imported when the web server reads this property."""
        from dispatch_airflow.pages.app import app
        from dispatch_airflow.pages.published_files import PREFIX

        return [{"app": app, "url_prefix": PREFIX, "name": "Dispatch audit"}]

    @property
    def external_views(self) -> list[dict[str, Any]]:
        """An entry in the menu, and a tab on the page of a run."""
        from dispatch_airflow.pages.links import base_url
        from dispatch_airflow.pages.published_files import PREFIX

        base = urlsplit(base_url() or "").path.rstrip("/") + PREFIX
        return [
            {
                "name": "Dispatch audit",
                "href": f"{base}/",
                "destination": "nav",
                "category": "browse",
                "url_route": "dispatch-audit",
            },
            {
                "name": "Dispatch audit",
                "href": base + "/runs/{DAG_ID}/{RUN_ID}",
                "destination": "dag_run",
                "url_route": "dispatch-audit-run",
            },
        ]
