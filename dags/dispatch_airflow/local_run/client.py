"""Call Airflow's REST API, as far as a local run needs it."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from dispatch_core.errors import DispatchAuditError

_TIMEOUT_S: Final = 20.0
_TRIES: Final = 5
#: Calls on loopback do not use a proxy of the environment.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ApiError(DispatchAuditError):
    """Airflow refused or did not answer a call; ``status`` is 0 without an answer."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class AirflowClient:
    """Client with the token of one login."""

    base: str
    user: str
    token: str = field(repr=False)

    @classmethod
    def login(cls, base: str, user: str, secret: str) -> AirflowClient:
        """Log in with the generated password."""
        answer = _call("POST", f"{base}/auth/token", {"username": user, "password": secret}, None)
        return cls(base, user, answer["access_token"])

    @staticmethod
    def load_task_api(base: str) -> None:
        """Let the API server load the API of the tasks, which it does at the first call and in several seconds."""
        _call("GET", f"{base}/execution/health", None, None)

    def _api(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return _call(method, f"{self.base}/api/v2/{path}", body, self.token)

    def _get(self, path: str) -> dict[str, Any]:
        # SQLite has one writer: under load the server sometimes answers 500 to a call that succeeds a moment later.
        for attempt in range(1, _TRIES + 1):
            try:
                return self._api("GET", path)
            except ApiError as error:
                if attempt == _TRIES or 0 < error.status < 500:
                    raise
                time.sleep(0.5 * attempt)
        raise AssertionError("the last attempt returns or raises")

    def is_healthy(self) -> bool:
        """True if database, scheduler and DAG processor report that they are healthy."""
        health = self._api("GET", "monitor/health")
        return all(
            (health.get(name) or {}).get("status") == "healthy"
            for name in ("metadatabase", "scheduler", "dag_processor")
        )

    def knows_dag(self, dag_id: str) -> bool:
        """True if the DAG has been parsed and stored."""
        try:
            self._api("GET", f"dags/{quote(dag_id)}")
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def import_errors(self) -> list[str]:
        """List import errors of DAG files: file name and stack trace."""
        return [
            f"{error['filename']}: {error['stack_trace']}"
            for error in self._get("importErrors")["import_errors"]
        ]

    def set_paused(self, dag_id: str, *, paused: bool) -> None:
        """Pause or unpause a DAG."""
        self._api("PATCH", f"dags/{quote(dag_id)}", {"is_paused": paused})

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
        body |= {"data_interval_start": start, "data_interval_end": end}
        self._api("POST", f"dags/{quote(dag_id)}/dagRuns", body)

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Return the state of a run: ``queued``, ``running``, ``success`` or ``failed``."""
        return str(self._get(f"dags/{quote(dag_id)}/dagRuns/{quote(run_id)}")["state"])

    def task_instances(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """Return state, times and attempt of each task of a run."""
        answer = self._get(f"dags/{quote(dag_id)}/dagRuns/{quote(run_id)}/taskInstances")
        return list(answer["task_instances"])


def _call(method: str, url: str, body: dict[str, Any] | None, token: str | None) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers=headers, method=method)  # noqa: S310 - http on loopback
    try:
        with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
            found = json.load(answer)
    except urllib.error.HTTPError as error:
        detail = error.read(2000).decode(errors="replace")
        raise ApiError(f"Airflow answered {error.code} to {method} {url}: {detail}", error.code) from None
    except (OSError, ValueError) as error:
        raise ApiError(f"Airflow did not answer {method} {url}: {error}") from None
    if not isinstance(found, dict):
        raise ApiError(f"Airflow's answer to {method} {url} is not a JSON object")
    return found
