"""Calls of Airflow's REST API that these tests make beyond those of a local run, and waits for what they start."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from dispatch_airflow.local_run.client import AirflowClient, ApiError
from tests.stack.native import Stack

DAG = "dispatch_audit"
ENDED = {"success", "failed", "skipped", "upstream_failed", "removed"}
#: Tasks that fail because of a verdict, which is their job.
JUDGED_RED = {"validate", "judge_stale", "conclude"}


@dataclass
class Airflow:
    """One login to the API server of a stack."""

    stack: Stack
    client: AirflowClient

    @classmethod
    def login(cls, stack: Stack) -> Airflow:
        """Log in with the password of the stack."""
        password = json.loads(stack.secret("airflow_passwords.json"))["admin"]
        client = AirflowClient.login(stack.base, "admin", password)
        return cls(stack, client)

    def get(self, path: str) -> dict[str, Any]:
        """Send a GET; repeat it while the server is busy."""
        return self.client._get(path)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Send a POST."""
        return self.client._api("POST", path, body)

    def knows(self, dag_id: str) -> bool:
        """Return True once the DAG is parsed; raises with the import errors if there are any."""
        try:
            known = self.client.knows_dag(dag_id)
            problems = self.client.import_errors()
        except ApiError:
            return False
        assert not problems, "\n".join(problems)
        return known

    def runs(self, *types: str) -> list[dict[str, Any]]:
        """Return the DAG runs of some types, by their data interval."""
        found = self.get(f"dags/{DAG}/dagRuns?limit=100")["dag_runs"]
        return sorted(
            (run for run in found if run["run_type"] in types),
            key=lambda run: str(run["data_interval_start"]),
        )

    def backfill(self, first: datetime, last: datetime, **more: Any) -> int:
        """Start a backfill after earlier ones have ended, since a DAG has one at a time; return its id."""

        def all_over() -> bool:
            return all(
                backfill["completed_at"] for backfill in self.get(f"backfills?dag_id={DAG}")["backfills"]
            )

        self.stack.until(all_over, "the end of earlier backfills", 180, every_s=2)
        body = {"dag_id": DAG, "from_date": first.isoformat(), "to_date": last.isoformat(), **more}
        return int(self.post("backfills", body)["id"])

    def trigger(self, conf: dict[str, Any], dag_id: str = DAG, day: datetime | None = None) -> str:
        """Start a run by hand, of a day if one is given; return its id."""
        body: dict[str, Any] = {"logical_date": datetime.now(UTC).isoformat(), "conf": conf}
        if day is not None:
            body["data_interval_start"] = day.isoformat()
            body["data_interval_end"] = (day + timedelta(days=1)).isoformat()
        return str(self.post(f"dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def tasks(self, run_id: str, dag_id: str = DAG) -> list[dict[str, Any]]:
        """Return all task instances of a run."""
        return self.client.task_instances(dag_id, run_id)

    def wait(self, run_ids: Iterable[str], timeout_s: float, dag_id: str = DAG) -> dict[str, str]:
        """Wait until runs have ended; return their states."""
        wanted = list(run_ids)

        def ended() -> dict[str, str]:
            states = {run_id: self.client.run_state(dag_id, run_id) for run_id in wanted}
            return states if set(states.values()) <= {"success", "failed"} else {}

        return self.stack.until(ended, f"runs {wanted}", timeout_s, every_s=2)

    def wait_for_task(self, run_id: str, task_id: str, timeout_s: float) -> dict[str, Any]:
        """Wait until an instance of a task runs; return it."""

        def at_work() -> dict[str, Any] | None:
            named = (task for task in self.tasks(run_id) if task["task_id"] == task_id)
            return next((task for task in named if task["state"] == "running" and task["pid"]), None)

        return self.stack.until(at_work, f"{task_id} of {run_id} to begin", timeout_s)

    def not_well(self, run_id: str) -> dict[str, str]:
        """Return the tasks that failed for another reason than a verdict, with the end of their logs."""
        found = {}
        for task in self.tasks(run_id):
            if task["state"] in {"failed", "upstream_failed"} and task["task_id"] not in JUDGED_RED:
                found[f"{task['task_id']}[{task['map_index']}]"] = self.log(run_id, task)
        return found

    def log(self, run_id: str, task: dict[str, Any]) -> str:
        """Return the last lines of a task's log."""
        where = f"dags/{DAG}/dagRuns/{quote(run_id)}/taskInstances/{task['task_id']}/logs/{max(task['try_number'], 1)}"
        answer = self.get(f"{where}?map_index={task['map_index']}")
        lines = [
            str(line.get("event", line)) if isinstance(line, dict) else str(line)
            for line in answer["content"]
        ]
        return "\n".join(lines[-25:])
