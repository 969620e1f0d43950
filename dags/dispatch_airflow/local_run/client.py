"""Call Airflow's REST API, as far as a local run needs it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urljoin

import requests

from dispatch_core.errors import DispatchAuditError

_TIMEOUT_S: Final = 20.0
_TRIES: Final = 5


class ApiError(DispatchAuditError):
    """Airflow refused or did not answer a call; ``status`` is 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class AirflowClient:
    """Client of one API server, after ``login`` with a token."""

    def __init__(self, base: str) -> None:
        self._base = base
        self._session = requests.Session()
        self._session.trust_env = False  # calls on loopback do not use a proxy of the environment
        self._session.headers["Connection"] = "close"

    @classmethod
    def login(cls, base: str, user: str, secret: str) -> AirflowClient:
        """Log in with the generated password."""
        client = cls(base)
        answer = client.call("POST", "/auth/token", {"username": user, "password": secret})
        client._session.headers["Authorization"] = f"Bearer {answer['access_token']}"
        return client

    def load_task_api(self) -> None:
        """Let the API server load the API of the tasks, which it does at the first call and in several seconds."""
        self.call("GET", "/execution/health")

    def is_healthy(self) -> bool:
        """True if database, scheduler and DAG processor report that they are healthy."""
        health = self.call("GET", "monitor/health")
        return all(
            (health.get(name) or {}).get("status") == "healthy"
            for name in ("metadatabase", "scheduler", "dag_processor")
        )

    def knows_dag(self, dag_id: str) -> bool:
        """True if the DAG has been parsed and stored."""
        try:
            self.call("GET", f"dags/{dag_id}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def import_errors(self) -> list[str]:
        """List import errors of DAG files: file name and stack trace."""
        found = self.get("importErrors")["import_errors"]
        return [f"{error['filename']}: {error['stack_trace']}" for error in found]

    def set_paused(self, dag_id: str, *, paused: bool) -> None:
        """Pause or unpause a DAG."""
        self.call("PATCH", f"dags/{dag_id}", {"is_paused": paused})

    def trigger(
        self, dag_id: str, run_id: str, conf: dict[str, Any], interval: tuple[datetime, datetime], note: str
    ) -> None:
        """Start a run with these parameters, this data interval (start and end, UTC) and a note that its page shows."""
        start, end = (bound.isoformat() for bound in interval)
        body = {
            "dag_run_id": run_id,
            "conf": conf,
            "note": note,
            "logical_date": datetime.now(UTC).isoformat(),
        }
        self.call(
            "POST", f"dags/{dag_id}/dagRuns", body | {"data_interval_start": start, "data_interval_end": end}
        )

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run: ``queued``, ``running``, ``success`` or ``failed``."""
        return str(self.get(f"dags/{dag_id}/dagRuns/{run_id}")["state"])

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return state, times and attempt of each task of a run."""
        return list(self.get(f"dags/{dag_id}/dagRuns/{run_id}/taskInstances")["task_instances"])

    def get(self, path: str) -> dict[str, Any]:
        """Send a GET, and again if the server fails: SQLite has one writer, so under load a call may fail for a moment."""
        for attempt in range(1, _TRIES):
            try:
                return self.call("GET", path)
            except ApiError as error:
                if 0 < error.status < 500:
                    raise
                time.sleep(0.5 * attempt)
        return self.call("GET", path)

    def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Call a path below ``/api/v2/``, or one that begins with a slash, once."""
        url = urljoin(f"{self._base}/api/v2/", path)
        try:
            answer = self._session.request(method, url, json=body, timeout=_TIMEOUT_S)
            if not answer.ok:
                said = f"Airflow answered {answer.status_code} to {method} {url}: {answer.text[:2000]}"
                raise ApiError(said, answer.status_code)
            return dict(answer.json())
        except (requests.RequestException, ValueError, TypeError) as error:
            raise ApiError(f"Airflow did not answer {method} {url}: {error}") from None
