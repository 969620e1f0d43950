"""The calls of Airflow's REST API that these tests make beyond those of a local run, and waiting for what they start."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from dispatch_airflow.local_run.client import AirflowClient, ApiError
from tests.stack.native import Stack

DAG = "dispatch_audit"
ENDED = {"success", "failed", "skipped", "upstream_failed", "removed"}
#: Red by a verdict: the audit doing its work.
JUDGED_RED = {"validate", "judge_stale", "conclude"}


@dataclass
class Airflow:
    """One login to the API server of a stack."""

    stack: Stack
    client: AirflowClient

    @classmethod
    def login(cls, stack: Stack) -> Airflow:
        """Log in with the password of the stack."""
        client = AirflowClient.login(stack.base, "admin", stack.secrets["AIRFLOW_ADMIN_PASSWORD"])
        return cls(stack, client)

    def get(self, path: str) -> dict[str, Any]:
        """A GET that is repeated where the server is busy."""
        return self.client._get(path)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """A POST."""
        return self.client._api("POST", path, body)

    def knows(self, dag_id: str) -> bool:
        """Whether the DAG has been parsed; raises with the import errors where there are any."""
        try:
            known = self.client.knows_dag(dag_id)
            problems = self.client.import_errors()
        except ApiError:
            return False
        assert not problems, "\n".join(problems)
        return known

    def runs(self, *types: str) -> list[dict[str, Any]]:
        """The DAG runs of these types, by their data interval."""
        found = self.get(f"dags/{DAG}/dagRuns?limit=100")["dag_runs"]
        return sorted(
            (one for one in found if one["run_type"] in types),
            key=lambda one: str(one["data_interval_start"]),
        )

    def backfill(self, first: datetime, last: datetime, **more: Any) -> int:
        """Start a backfill when those before are over, for a DAG has one at a time; returns its id."""

        def all_over() -> bool:
            return all(one["completed_at"] for one in self.get(f"backfills?dag_id={DAG}")["backfills"])

        self.stack.until(all_over, "the end of earlier backfills", 180, every_s=2)
        body = {"dag_id": DAG, "from_date": first.isoformat(), "to_date": last.isoformat(), **more}
        return int(self.post("backfills", body)["id"])

    def trigger(self, conf: dict[str, Any]) -> str:
        """Start a run by hand; returns its id."""
        started = self.post(f"dags/{DAG}/dagRuns", {"logical_date": None, "conf": conf})
        return str(started["dag_run_id"])

    def tasks(self, run_id: str) -> list[dict[str, Any]]:
        """All task instances of a run."""
        return self.client.task_instances(DAG, run_id)

    def wait(self, run_ids: Iterable[str], timeout_s: float) -> dict[str, str]:
        """Wait until runs have ended; their states."""
        wanted = list(run_ids)

        def ended() -> dict[str, str]:
            states = {one: self.client.run_state(DAG, one) for one in wanted}
            return states if set(states.values()) <= {"success", "failed"} else {}

        return self.stack.until(ended, f"runs {wanted}", timeout_s, every_s=2)

    def wait_for_task(self, run_id: str, task_id: str, timeout_s: float) -> dict[str, Any]:
        """Wait until an instance of a task is at work."""

        def at_work() -> dict[str, Any] | None:
            named = (one for one in self.tasks(run_id) if one["task_id"] == task_id)
            return next((one for one in named if one["state"] == "running" and one["pid"]), None)

        return self.stack.until(at_work, f"{task_id} of {run_id} to begin", timeout_s)

    def not_well(self, run_id: str) -> dict[str, str]:
        """Tasks that are red for another reason than a verdict, with the end of their logs."""
        found = {}
        for one in self.tasks(run_id):
            if one["state"] in {"failed", "upstream_failed"} and one["task_id"] not in JUDGED_RED:
                found[f"{one['task_id']}[{one['map_index']}]"] = self.log(run_id, one)
        return found

    def log(self, run_id: str, task: dict[str, Any]) -> str:
        """The last lines of a task's log."""
        where = f"dags/{DAG}/dagRuns/{quote(run_id)}/taskInstances/{task['task_id']}/logs/{max(task['try_number'], 1)}"
        answer = self.get(f"{where}?map_index={task['map_index']}")
        lines = [
            str(one.get("event", one)) if isinstance(one, dict) else str(one) for one in answer["content"]
        ]
        return "\n".join(lines[-25:])
