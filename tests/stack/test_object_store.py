"""A home in an object store: what holds for a folder holds there, and runs share nothing but its URL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from dispatch_core.tables import REPLAY_TABLES
from dispatch_expectations.policy import load_policy
from spark_jobs.intervals import interval
from spark_jobs.location import HomeError, Location
from spark_jobs.maintenance.maintain import compact, retain, verify
from spark_jobs.maintenance.retention import Retention
from spark_jobs.one_process import one_process
from spark_jobs.stale_intervals import all_stale
from spark_jobs.warehouse.contracts import CONTRACTS, NOT_COMPARED
from spark_jobs.warehouse.delta_tables import read_table
from spark_jobs.warehouse.records import Records
from tests.checkout import PYTHONPATH, ROOT
from tests.spark_jobs.test_hourly import HOURS, POLICY, Home, hours_of_logs
from tests.spark_jobs.test_location import (
    test_a_folder_exists_while_something_is_in_it,
    test_a_home_that_can_be_used_is_left_as_it_was,
    test_a_stream_makes_a_new_object,
    test_an_object_is_written_as_a_whole_read_listed_and_removed,
)
from tests.spark_jobs.warehouse.test_records import (
    test_no_change_of_several_writers_is_lost,
    test_one_has_the_turn_and_one_that_died_loses_it,
    test_rows_are_added_and_a_change_to_nothing_commits_nothing,
)
from tests.stack.object_store import ObjectStore, Overloaded

__all__ = [
    "test_a_folder_exists_while_something_is_in_it",
    "test_a_home_that_can_be_used_is_left_as_it_was",
    "test_a_stream_makes_a_new_object",
    "test_an_object_is_written_as_a_whole_read_listed_and_removed",
    "test_no_change_of_several_writers_is_lost",
    "test_one_has_the_turn_and_one_that_died_loses_it",
    "test_rows_are_added_and_a_change_to_nothing_commits_nothing",
]

SAMPLE = ROOT / "tests" / "data" / "recordings"
DAY = interval("2026-11-21")
_SECONDS = 600
TABLES = [name for name in CONTRACTS if name not in NOT_COMPARED]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    made = ObjectStore(tmp_path_factory.mktemp("store"))
    with pytest.MonkeyPatch.context() as patch:
        made.start("lake")
        for name, value in made.environment.items():
            patch.setenv(name, value)
        yield made
        made.end()


@pytest.fixture
def place(store: ObjectStore, request: pytest.FixtureRequest) -> Location:
    return Location.of(f"s3://lake/{request.node.name}")


def test_a_folder_with_more_objects_than_one_request_lists_is_removed(place: Location) -> None:
    names = [f"{letter}/inner/{number}" for letter in "abc" for number in range(400)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: (place / name).write_text(name), names))
    assert len(list(place.files())) == len(names)
    place.delete_folder()
    assert not place.exists()


def rows_of(warehouse: str | Path | Location) -> dict[str, Counter[str]]:
    return {name: Counter(map(repr, read_table(warehouse, name).to_pylist())) for name in TABLES}


def start(module: str, arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    """Start a command in a working directory of its own, with a private folder for temporary files."""
    (folder / "scratch").mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": PYTHONPATH, "TMPDIR": str(folder / "scratch")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def pipeline(home: str | Path, folder: Path) -> str:
    command = start(
        "dispatch_core.cli.main", ["pipeline", str(SAMPLE), "--home", str(home), "--json"], folder
    )
    printed, said = command.communicate(timeout=_SECONDS)
    assert command.returncode == 1, said[-4000:]  # the sample has one FAIL
    return printed


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A local home of the sample, and what its run printed."""
    folder = tmp_path_factory.mktemp("local")
    return folder / "home", pipeline(folder / "home", folder / "elsewhere")


@pytest.fixture(scope="module")
def remote(store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> tuple[Location, str, Path]:
    """A home of the sample in the store, what its run printed, and where it ran."""
    folder = tmp_path_factory.mktemp("remote")
    home = Location.of("s3://lake/homes/one")
    return home, pipeline(str(home), folder), folder


@pytest.mark.spark
@pytest.mark.slow
def test_verdicts_and_tables_are_those_of_a_local_folder(
    local: tuple[Path, str], remote: tuple[Location, str, Path], store: ObjectStore
) -> None:
    home, printed, folder = remote
    assert printed == local[1]
    assert rows_of(home / "warehouse") == rows_of(local[0] / "warehouse")
    pages = {
        found.location.below(home) for kind in ("reports", "data-docs") for found in (home / kind).files()
    }
    there = Location.of(local[0])
    assert pages == {
        found.location.below(there) for kind in ("reports", "data-docs") for found in (there / kind).files()
    }
    left = [path for path in folder.rglob("*") if path.is_file()]
    assert left == [], "nothing stays on the machine that ran it"
    for path in store.folder.rglob("*"):
        assert not (path.is_file() and store.secret.encode() in path.read_bytes()), path


@pytest.mark.spark
@pytest.mark.slow
def test_of_two_replays_at_once_one_publishes_and_the_other_says_so(
    remote: tuple[Location, str, Path], tmp_path: Path
) -> None:
    warehouse = remote[0] / "warehouse"
    before = rows_of(warehouse)
    asked = ["--interval-start", "2026-11-21", "--warehouse", str(warehouse)]
    both = [start("spark_jobs.replay", asked, tmp_path / name) for name in ("a", "b")]
    ended = [(command.communicate(timeout=_SECONDS)[1], command.returncode) for command in both]
    codes = sorted(code for _said, code in ended)
    assert codes in ([0, 0], [0, 75]), ended
    for said, code in ended:
        assert (code == 75) == ("another run published" in said), said[-2000:]
    assert rows_of(warehouse) == before


@pytest.mark.spark
@pytest.mark.slow
def test_a_replay_that_is_killed_leaves_the_tables_and_the_next_one_mends_them(
    remote: tuple[Location, str, Path], store: ObjectStore, tmp_path: Path
) -> None:
    home = remote[0]
    warehouse, before = home / "warehouse", rows_of(home / "warehouse")
    asked = ["--interval-start", "2026-11-21", "--warehouse", str(warehouse)]

    def data_files() -> set[str]:
        return {found.location.url for name in REPLAY_TABLES for found in (warehouse / name).files()}

    known = data_files()
    killed = start("spark_jobs.replay", asked, tmp_path / "killed")
    give_up = time.monotonic() + _SECONDS
    while not data_files() - known and killed.poll() is None and time.monotonic() < give_up:
        time.sleep(0.02)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL, "it must have been in the middle of its work"
    again = start("spark_jobs.replay", asked, tmp_path / "again")
    _printed, said = again.communicate(timeout=_SECONDS)
    assert again.returncode == 0, said[-2000:]
    assert rows_of(warehouse) == before
    # What the killed run left is removed when it is old, and nothing else.
    long_ago = time.time() - 40 * 86_400
    for path in (store.folder / "lake" / "homes" / "one").rglob("*"):
        os.utime(path, (long_ago, long_ago))
    summary = retain(home, Retention(results=None, pages=None, what_if=None, unreachable=30))
    assert any(kind.startswith("unreachable") for kind in summary["removed"])
    assert rows_of(warehouse) == before
    assert verify(home / "landing")["files"] == 10
    compact(home)
    assert rows_of(warehouse) == before


def test_a_store_that_cannot_be_used_is_refused_in_one_line(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(url: str) -> str:
        with pytest.raises(HomeError) as error:
            Location.of(url).check()
        text = str(error.value)
        assert "\n" not in text
        assert store.secret not in text
        assert store.url in text or "127.0.0.1:1" in text
        return text

    assert "bucket no-such-bucket" in refused("s3://no-such-bucket/x")
    assert "the bucket does not exist" in refused("s3://no-such-bucket/x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    assert "does not know these credentials" in refused("s3://lake/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    began = time.monotonic()
    assert "cannot be reached" in refused("s3://lake/x")
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_store_that_is_overloaded_for_a_while_is_waited_for(
    store: ObjectStore, place: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = Overloaded(store.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", door.url)
    (place / "before").write_text("before")
    door.closed.set()
    opened = threading.Timer(12, door.closed.clear)
    opened.start()
    with ThreadPoolExecutor(4) as threads:
        records = Records(place / "records", pa.schema([pa.field("name", pa.string())]))
        added = threads.submit(records.append, pa.table({"name": ["x"]}))
        written = threads.submit((place / "written").write_text, "written")
        read = threads.submit((place / "before").read_text)
        listed = threads.submit(lambda: [found.location.name for found in place.children()])
        assert (read.result(), "before" in listed.result()) == ("before", True)
        added.result()
        written.result()
    assert door.refused > 4
    assert (records.read()["name"].to_pylist(), (place / "written").read_text()) == (["x"], "written")
    door.end()


@pytest.mark.slow
def test_hours_run_backwards_in_a_store_are_as_hours_run_in_order_in_a_folder(
    place: Location, tmp_path: Path
) -> None:
    logs = hours_of_logs(tmp_path)
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    policy = load_policy(path)
    in_order, backwards = Home(tmp_path / "home", logs, policy), Home(place, logs, policy)
    in_order.run(one_process(), HOURS)
    backwards.run(one_process(), reversed(HOURS))
    assert rows_of(backwards.warehouse) != rows_of(in_order.warehouse), "what is stale must be judged again"
    assert backwards.recompute() == HOURS[1:]
    assert all_stale(backwards.landing, backwards.warehouse) == []
    assert rows_of(backwards.warehouse) == rows_of(in_order.warehouse)
    assert read_table(backwards.warehouse, "rolling_balance", HOURS[-1]).num_rows > 0


@pytest.mark.slow
def test_the_pipeline_refuses_such_a_home_before_any_work(store: ObjectStore, tmp_path: Path) -> None:
    asked = ["pipeline", str(SAMPLE), "--home", "s3://no-such-bucket/x"]
    command = start("dispatch_core.cli.main", asked, tmp_path)
    printed, said = command.communicate(timeout=_SECONDS)
    assert (command.returncode, printed) == (2, "")
    assert len(said.splitlines()) == 1
    assert said.startswith("error: home s3://no-such-bucket/x (bucket no-such-bucket, endpoint")
