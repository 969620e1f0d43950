"""The stack of ``docker-compose.yml`` at work: schedule, backfill, alerts, and faults in the middle of runs.

The home is in an object store, and each service has a mount namespace in which the folders of the others do not exist. After
each fault the tables are compared with those of an undisturbed run. One stack for all tests of the file, which build on each
other's runs and go in this order.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest

from dispatch_airflow.local_run.client import ApiError
from dispatch_airflow.processes import Process, processes
from spark_jobs.location import Location
from spark_jobs.warehouse.contracts import CONTRACTS, NOT_COMPARED
from spark_jobs.warehouse.delta_tables import read_table
from tests.checkout import PYTHONPATH
from tests.stack.airflow import DAG, Airflow
from tests.stack.compose import ROOT
from tests.stack.logs import LATE, POLICY, Injected, in_segments, scaled_logs
from tests.stack.native import BUCKET, HOME, Running, Stack

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.slow]

DAYS = 4
MAINTENANCE = "dispatch_audit_maintenance"
#: The first day has the order violation, the third is disturbed, the last is the schedule's.
BAD, DISTURBED, SCHEDULED = 0, 2, 3
RUN_S = 900.0


@dataclass
class Scene:
    """The stack, its logs and the expected tables."""

    stack: Stack
    airflow: Airflow
    injected: Injected
    first: date
    reference: Path
    #: Segments of all days of an unknown dispatcher, and the expected tables after they have arrived.
    late: Path
    reference_with_late: Path

    def start(self, day: int) -> datetime:
        """Return the start of the interval of a day, counted from 0."""
        at = self.first + timedelta(days=day)
        return datetime(at.year, at.month, at.day, tzinfo=UTC)

    @property
    def warehouse(self) -> Location:
        """Tables of the stack."""
        return Location.of(HOME) / "warehouse"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    root = tmp_path_factory.mktemp("stack")
    # The schedule's run audits the last whole day.
    first = datetime.now(UTC).date() - timedelta(days=DAYS)
    injected = scaled_logs(root / "logs", first, DAYS, bad=BAD)
    segments = root / "logs" / "segments"
    policy = root / "audit-policy.yaml"
    policy.write_text(POLICY)
    undisturbed(segments, root / "reference", first, policy)
    late = in_segments([LATE], root / "late" / "segments", first, DAYS)
    shutil.copytree(segments, root / "all" / "segments")
    shutil.copytree(late, root / "all" / "segments", dirs_exist_ok=True)
    undisturbed(root / "all" / "segments", root / "reference-with-late", first, policy)
    # Lateness would depend on the time of day; with this deadline no log is late.
    further = {
        "DISPATCH_AUDIT_POLICY": str(root / "stack" / "given" / policy.name),
        "DISPATCH_AUDIT_DEADLINE_HOURS": "240",
        "DISPATCH_AUDIT_MAINTENANCE_SCHEDULE": "none",
    }
    stack = Stack(root / "stack", further)
    shutil.copy(policy, stack.given)
    patch = pytest.MonkeyPatch()
    for name, value in stack.store.items():
        patch.setenv(name, value)
    try:
        stack.start()
        upload(stack, segments)
        airflow = stack.until(lambda: log_in(stack), "the login", 60)
        stack.until(lambda: airflow.knows(DAG), f"the DAG {DAG}", 120)
        yield Scene(stack, airflow, injected, first, root / "reference", late, root / "reference-with-late")
    finally:
        stack.end()
        patch.undo()
        kept = os.environ.get("DISPATCH_AUDIT_STACK_LOGS")
        for name, folder in (("services", stack.logs), ("tasks", stack.stored / BUCKET / "task-logs")):
            if kept and folder.is_dir():
                shutil.copytree(folder, Path(kept) / name, dirs_exist_ok=True)


def undisturbed(source: Path, home: Path, first: date, policy: Path) -> None:
    days = [(first + timedelta(days=day)).isoformat() for day in range(DAYS)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.stack.reference", str(source), str(home), *days],
        cwd=ROOT,
        env=os.environ | {"DISPATCH_AUDIT_POLICY": str(policy), "PYTHONPATH": PYTHONPATH},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def upload(stack: Stack, segments: Path) -> None:
    store = boto3.client(
        "s3",
        endpoint_url=stack.store["AWS_ENDPOINT_URL"],
        region_name=stack.store["AWS_REGION"],
        aws_access_key_id=stack.store["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=stack.store["AWS_SECRET_ACCESS_KEY"],
    )
    assert {bucket["Name"] for bucket in store.list_buckets()["Buckets"]} == {BUCKET, "recordings"}
    files = sorted(segments.rglob("*.gz"))
    assert files
    for file in files:
        # Tables name files from the source's last folder on.
        store.upload_file(str(file), "recordings", file.relative_to(segments.parent).as_posix())


def log_in(stack: Stack) -> Airflow | None:
    try:
        return Airflow.login(stack)
    except ApiError:
        return None


# results -------------------------------------------------------------------------------------------------------


def rows(warehouse: Path | Location, name: str, start: datetime) -> Counter[str]:
    """Return the rows of one interval of a table, without clock times of processing."""
    found = Counter[str]()
    for row in read_table(warehouse, name).to_pylist():
        if row["interval_start"] == start:
            found[repr({k: v for k, v in row.items() if k not in ("run_id", "validated_at")})] += 1
    return found


def assert_as_undisturbed(scene: Scene, day: int, reference: Path | None = None) -> None:
    """Assert that all tables have the same rows for a day as the run in one process."""
    start, counts, expected_in = scene.start(day), {}, (reference or scene.reference) / "warehouse"
    for name in sorted(set(CONTRACTS) - set(NOT_COMPARED)):
        if not (expected_in / name).exists():
            assert not (scene.warehouse / name).exists(), name
            continue
        expected, found = rows(expected_in, name, start), rows(scene.warehouse, name, start)
        gone, come = list(expected - found)[:2], list(found - expected)[:2]
        assert (gone, come) == ([], []), name
        counts[name] = expected.total()
    assert counts["consumer_events"] > 0
    assert counts["verdicts"] > 0


def verdicts(scene: Scene, day: int, reference: Path | None = None) -> dict[str, str]:
    """Return the overall verdict of each topic, in the stack's tables or in those of ``reference``."""
    warehouse = scene.warehouse if reference is None else Location.of(reference) / "warehouse"
    table = read_table(warehouse, "verdicts").to_pylist()
    wanted = [row for row in table if row["interval_start"] == scene.start(day) and row["promise"] == "all"]
    return {row["topic"]: row["verdict"] for row in wanted}


def settled(scene: Scene, run_ids: list[str], timeout_s: float) -> dict[str, str]:
    """Wait for runs; tasks may fail only because of a verdict. Return the states of the runs."""
    states = scene.airflow.wait(run_ids, timeout_s)
    for run_id in run_ids:
        assert scene.airflow.not_well(run_id) == {}
    return states


# the tests -----------------------------------------------------------------------------------------------------------


def test_every_service_is_healthy_by_its_own_check(scene: Scene) -> None:
    names = {running.service.name for running in scene.stack.running.values()}
    assert {"api-server", "scheduler", "dag-processor", "triggerer", "spark-master", "spark-worker"} <= names
    assert sum(name.startswith("spark-worker") for name in scene.stack.running) == 2
    for running in scene.stack.running.values():
        if running.service.is_ours:
            assert scene.stack.is_healthy(running), running.name
        assert running.starts == 1, running.name


def test_no_service_sees_the_folder_of_another(scene: Scene) -> None:
    stack = scene.stack
    if stack.not_apart is not None:
        pytest.skip(f"the services see each other's folders, because {stack.not_apart}")
    machines = {path.name for path in stack.machines.iterdir()}
    assert {"api-server", "scheduler", "spark-master", "spark-worker-1", "spark-worker-2"} <= machines
    for name in machines:
        (stack.machines / name / "tmp" / f"of-{name}").touch()
    spaces = {namespace(os.getpid())}
    for running in stack.running.values():
        assert seen_by(running.child.pid, stack.machines) == [running.name]
        marks = [name for name in seen_by(running.child.pid, Path("/tmp")) if name.startswith("of-")]
        assert marks == [f"of-{running.name}"]
        spaces.add(namespace(running.child.pid))
    assert len(spaces) == len(stack.running) + 1


def test_no_secret_is_in_a_variable_or_on_a_command_line(scene: Scene) -> None:
    """The object store reads its keys from variables only, so its own start puts them there."""
    stack = scene.stack
    given = [running.child.pid for running in stack.running.values() if running.name != "object-store"]
    assert shown(stack, given, "environ") == []
    assert shown(stack, [running.child.pid for running in stack.running.values()], "cmdline") == []


def shown(stack: Stack, pids: list[int], what: str) -> list[tuple[str, int]]:
    """Return which secrets stand in the environment or command line of processes and their descendants."""
    everyone, family = processes(), set(pids)
    while new := {child.pid for child in everyone if child.parent in family} - family:
        family |= new
    found = []
    for pid in family:
        with suppress(OSError):  # it has ended
            text = Path(f"/proc/{pid}/{what}").read_bytes()
            found += [(name, pid) for name, value in stack.secrets.items() if value.encode() in text]
    return found


def test_the_schedule_audits_the_last_day_through_spark_submit(scene: Scene) -> None:
    scene.airflow.client.set_paused(DAG, paused=False)
    found = scene.stack.until(lambda: scene.airflow.runs("scheduled"), "a run of the schedule", 120)
    assert [run["data_interval_start"][:10] for run in found] == [scene.start(SCHEDULED).date().isoformat()]
    stack = scene.stack
    worker, executor = stack.until(lambda: executor_at_work(stack), "an executor", RUN_S, every_s=0.1)
    assert shown(stack, [os.getpid()], "cmdline") == []
    if stack.not_apart is None:
        home = f"HOME={stack.machines / 'driver'}"
        driver = next(child for child in processes() if child.has_environment(home))
        assert seen_by(driver.pid, stack.machines) == ["driver"]
        assert namespace(executor.pid) == namespace(worker.child.pid)
        assert namespace(driver.pid) not in {namespace(found.child.pid) for found in stack.running.values()}
    states = settled(scene, [found[0]["dag_run_id"]], RUN_S)
    assert set(states.values()) == {"success"}
    assert set(verdicts(scene, SCHEDULED).values()) == {"PASS"}
    assert_as_undisturbed(scene, SCHEDULED)
    applications = (scene.stack.logs / "spark-master.log").read_text(encoding="utf-8")
    for stage in ("ingest", "plan", "replay group 0"):
        assert f"Registered app dispatch audit: {stage}" in applications, stage
    # The log of a task that ran on the scheduler's machine, as the pages show it.
    (ingest,) = (task for task in scene.airflow.tasks(found[0]["dag_run_id"]) if task["task_id"] == "ingest")
    assert "ingest: " in scene.airflow.log(found[0]["dag_run_id"], ingest)


def test_a_backfill_over_rest_judges_each_of_its_days(scene: Scene) -> None:
    scene.airflow.backfill(scene.start(BAD), scene.start(1), max_active_runs=1)
    runs = [run["dag_run_id"] for run in scene.airflow.runs("backfill")]
    assert len(runs) == 2
    states = settled(scene, runs, 2 * RUN_S)
    assert sorted(states.values()) == ["failed", "success"]
    assert set(verdicts(scene, 1).values()) == {"PASS"}
    of_bad_day = verdicts(scene, BAD)
    assert of_bad_day.pop(scene.injected.topic) == "FAIL"
    assert set(of_bad_day.values()) == {"PASS"}
    for day in (BAD, 1):
        assert_as_undisturbed(scene, day)


def test_the_alert_arrives_by_mail_and_webhook_with_key_positions_and_reason(scene: Scene) -> None:
    injected = scene.injected
    mails = [str(mail["Subject"]) + "\n" + mail.get_body().get_content() for mail in scene.stack.mail.mails]
    posts = [body["text"] for _headers, body in scene.stack.webhook.posts]
    for texts in (mails, posts):
        # The alert of one day is cleared on the next; there is no other message.
        (broken,), (clear,) = (
            [text for text in texts if f"[dispatch-audit] {word} " in text] for word in ("FAIL", "CLEAR")
        )
        for word in (
            injected.topic,
            injected.subscription,
            injected.day.isoformat(),
            injected.key,
            "backwards",
        ):
            assert word in broken, (word, broken)
        for position in injected.positions:
            assert position in broken, (position, broken)
        assert injected.topic in clear
        assert injected.key in clear
        assert len(texts) == 2


def test_killed_processes_change_no_table(scene: Scene) -> None:
    """``kill -9`` a worker that ingests, a replay task, and the scheduler during aggregation, in one run."""
    airflow, stack = scene.airflow, scene.stack
    before = {run["dag_run_id"] for run in airflow.runs("backfill")}
    airflow.backfill(scene.start(DISTURBED), scene.start(DISTURBED))
    (run_id,) = {run["dag_run_id"] for run in airflow.runs("backfill")} - before

    airflow.wait_for_task(run_id, "ingest", 180)
    victim = stack.until(lambda: at_work(stack), "an executor of ingest", 120, every_s=0.1)
    stack.kill(victim)

    replaying = airflow.wait_for_task(run_id, "replay", RUN_S)
    stack.until(lambda: at_work(stack), "an executor of replay", 120, every_s=0.1)
    os.kill(replaying["pid"], signal.SIGKILL)

    airflow.wait_for_task(run_id, "aggregate", RUN_S)  # it has no executors
    stack.kill("scheduler")

    states = settled(scene, [run_id], 2 * RUN_S)
    assert set(states.values()) == {"success"}
    assert {name: running.starts for name, running in stack.running.items() if running.starts > 1} == {
        victim: 2,
        "scheduler": 2,
    }
    tries = {(task["task_id"], task["map_index"]): task["try_number"] for task in airflow.tasks(run_id)}
    assert tries["replay", replaying["map_index"]] == 2
    assert set(verdicts(scene, DISTURBED).values()) == {"PASS"}
    for day in range(DAYS):
        assert_as_undisturbed(scene, day)


def executor_at_work(stack: Stack) -> tuple[Running, Process] | None:
    """Return a Spark worker that has an executor now, and the executor."""
    workers = {
        running.child.pid: running
        for name, running in stack.running.items()
        if name.startswith("spark-worker")
    }
    executors = (child for child in processes() if child.parent in workers)
    return next(
        (
            (workers[child.parent], child)
            for child in executors
            if "CoarseGrainedExecutorBackend" in child.command
        ),
        None,
    )


def at_work(stack: Stack) -> str | None:
    """Return the name of a Spark worker that has an executor now."""
    found = executor_at_work(stack)
    return found and found[0].name


def namespace(pid: int) -> str:
    """Return the mount namespace of a process."""
    return str(Path(f"/proc/{pid}/ns/mnt").readlink())


def seen_by(pid: int, folder: Path) -> list[str]:
    """List a folder as a process sees it."""
    return sorted(path.name for path in Path(f"/proc/{pid}/root{folder}").iterdir())


# a run of its own, but not of a day of its own ------------------------------------------------------------------------


def run_again(scene: Scene, first: int, last: int) -> list[str]:
    """Backfill days that were audited before; return the runs, oldest first."""
    scene.airflow.backfill(
        scene.start(first), scene.start(last), max_active_runs=1, reprocess_behavior="completed"
    )
    wanted = {scene.start(day).date().isoformat() for day in range(first, last + 1)}
    runs = [run for run in scene.airflow.runs("backfill") if str(run["data_interval_start"])[:10] in wanted]
    assert len(runs) == last - first + 1
    return [run["dag_run_id"] for run in runs]


def bounds(scene: Scene, run_id: str, dag_id: str = DAG) -> tuple[str, str]:
    """Return when the first task of a run began, and when the last one ended."""
    tasks = [task for task in scene.airflow.tasks(run_id, dag_id) if task["start_date"] and task["end_date"]]
    return min(task["start_date"] for task in tasks), max(task["end_date"] for task in tasks)


def test_two_runs_of_one_interval_at_once_leave_the_rows_of_one(scene: Scene) -> None:
    (first,) = run_again(scene, DISTURBED, DISTURBED)
    scene.airflow.wait_for_task(first, "ingest", 180)
    second = scene.airflow.trigger({}, day=scene.start(DISTURBED))
    states = settled(scene, [first, second], 3 * RUN_S)
    assert set(states.values()) == {"success"}
    (began, ended), (began_too, ended_too) = bounds(scene, first), bounds(scene, second)
    assert began < ended_too
    assert began_too < ended
    for day in range(DAYS):
        assert_as_undisturbed(scene, day)


def test_maintenance_beside_a_backfill_removes_only_what_nobody_needs(scene: Scene) -> None:
    airflow = scene.airflow
    table = scene.stack.stored / HOME.removeprefix("s3://") / "warehouse" / "deliveries"
    used = next(path for path in sorted(table.rglob("*.parquet")) if "_delta_log" not in path.parts)
    abandoned = used.with_name("part-of-a-run-that-died.parquet")
    shutil.copy(used, abandoned)
    # All that is there now was written long ago, and what the backfill writes is new.
    long_ago = datetime.now(UTC).timestamp() - 40 * 86_400
    for path in (scene.stack.stored / BUCKET).rglob("*"):
        os.utime(path, (long_ago, long_ago))
    runs = run_again(scene, 1, DISTURBED)
    airflow.wait_for_task(runs[0], "replay", RUN_S)
    airflow.client.set_paused(MAINTENANCE, paused=False)
    days = dict.fromkeys(("keep_results_days", "keep_snapshots_days", "keep_versions_days"), 2)
    kept = airflow.trigger(days, MAINTENANCE)
    assert airflow.wait([kept], RUN_S, MAINTENANCE) == {kept: "success"}
    assert {task["task_id"]: task["state"] for task in airflow.tasks(kept, MAINTENANCE)} == dict.fromkeys(
        ("check", "list_sources", "verify", "retain", "compact", "remove_task_logs"), "success"
    )
    states = settled(scene, runs, 3 * RUN_S)
    assert set(states.values()) == {"success"}
    assert bounds(scene, kept, MAINTENANCE)[0] < bounds(scene, runs[-1])[1]
    assert not abandoned.exists()
    for day in range(DAYS):
        assert_as_undisturbed(scene, day)


def test_a_store_that_refuses_and_is_slow_for_a_minute_changes_no_table(scene: Scene) -> None:
    stack, door = scene.stack, scene.stack.door
    (run_id,) = run_again(scene, DISTURBED, DISTURBED)
    scene.airflow.wait_for_task(run_id, "replay", RUN_S)
    stack.until(lambda: at_work(stack), "an executor of replay", 120, every_s=0.1)
    refused, slowed = door.refused, door.slowed
    overloaded = door.overload(refuse_s=30, slow_s=30, each_s=0.5)
    states = settled(scene, [run_id], 2 * RUN_S)
    overloaded.join()
    assert set(states.values()) == {"success"}
    assert door.refused - refused > 4
    assert door.slowed - slowed > 4
    for day in range(DAYS):
        assert_as_undisturbed(scene, day)


def test_logs_that_come_late_make_audited_days_stale_and_they_are_recomputed(scene: Scene) -> None:
    upload(scene.stack, scene.late)
    run_id = scene.airflow.trigger({"recompute_stale": True}, day=scene.start(SCHEDULED))
    settled(scene, [run_id], 3 * RUN_S)
    states = {(task["task_id"], task["map_index"]): task["state"] for task in scene.airflow.tasks(run_id)}
    judged = [states["judge_stale", number] for number in range(SCHEDULED)]
    expected = [verdicts(scene, day, scene.reference_with_late) for day in range(SCHEDULED)]
    assert judged == ["failed" if "FAIL" in of_day.values() else "success" for of_day in expected]
    # The late log breaks no promise: what its change of the active consumer delivers again, Failover announces.
    assert judged == ["failed" if day == BAD else "success" for day in range(SCHEDULED)]
    assert [states["alert_stale", number] for number in range(SCHEDULED)] == ["success"] * SCHEDULED
    for day in range(DAYS):
        assert_as_undisturbed(scene, day, scene.reference_with_late)
        assert len(verdicts(scene, day)) == 3


def test_no_alert_is_sent_twice(scene: Scene) -> None:
    keys: list[Any] = [headers.get("Idempotency-Key") for headers, _body in scene.stack.webhook.posts]
    assert len(keys) == len(set(keys))


def test_no_table_is_left_on_a_machine(scene: Scene) -> None:
    machines = [path for path in scene.stack.machines.iterdir() if path.name != "object-store"]
    left = [path for machine in machines for path in machine.rglob("*") if is_of_a_table(path)]
    assert left == []


def is_of_a_table(path: Path) -> bool:
    return path.suffix == ".parquet" or path.name == "_delta_log"


def holds_secrets(path: Path) -> bool:
    """Return True for the secret files, and the file of the login's own passwords."""
    return path.parent.name == "secrets" or path.name == "passwords.json"


def test_no_secret_stands_in_anything_that_was_written(scene: Scene) -> None:
    """Search logs of services and tasks, tables, pages, Data Docs, and Airflow's database with XComs and rendered fields."""
    secrets = {name: value.encode() for name, value in scene.stack.secrets.items()}
    found, files = [], 0
    for path in scene.stack.root.rglob("*"):
        if not path.is_file() or path.is_symlink() or holds_secrets(path):
            continue
        files += 1
        content = path.read_bytes()
        found += [
            (name, str(path.relative_to(scene.stack.root)))
            for name, value in secrets.items()
            if value in content
        ]
    for table in CONTRACTS:  # their files are compressed
        text = repr(read_table(scene.warehouse, table).to_pylist()).encode()
        found += [(name, f"table {table}") for name, value in secrets.items() if value in text]
    database = scene.stack.postgres.dump().encode()
    found += [(name, "database") for name, value in secrets.items() if value in database]
    assert found == []
    assert files > 100
    assert b"COPY public.xcom" in database
