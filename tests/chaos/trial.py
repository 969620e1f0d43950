"""A trial: kill a stage at a point, read the home, run the stage again, and compare with a run without a kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from spark_jobs.maintenance.maintain import retain
from spark_jobs.maintenance.retention import Retention
from tests.chaos.scene import Scene, copy, pages_of, rows_of, start, strays

_SECONDS: Final = 300
#: Kinds of processes of a group, by a word of their command lines.
_KINDS: Final = {"jvm": "org.apache.spark.deploy.SparkSubmit", "worker": "pyspark.daemon"}


@dataclass(frozen=True)
class Kill:
    """A process to kill: at its point ``at`` (driver or worker), or after ``after_s`` seconds."""

    stage: str
    victim: str  # driver, worker, jvm
    at: int | None = None
    after_s: float | None = None


@dataclass
class Outcome:
    """The result of a trial. ``hit``: the point, as the process wrote it before it died; ``failures``: empty = passed."""

    kill: Kill
    hit: dict[str, Any] | None = None
    ended: str = ""
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def part(self) -> str:
        """Part of the pipeline at the hit: ingest, replay, audit or publish."""
        if self.hit and self.hit.get("publishes"):
            return "publish"
        return {"pull": "ingest", "aggregates": "audit", "validate": "audit", "reports": "publish"}.get(
            self.kill.stage, self.kill.stage
        )

    def to_json(self) -> str:
        """Return the outcome as a line of JSON."""
        return json.dumps(asdict(self) | {"part": self.part}, sort_keys=True)

    @classmethod
    def of_json(cls, line: str) -> Outcome:
        """Parse a line of ``to_json``."""
        fields = json.loads(line)
        fields.pop("part")
        return cls(**fields | {"kill": Kill(**fields["kill"])})


def attempt(scene: Scene, kill: Kill, folder: Path) -> Outcome:
    """Run a trial in ``folder``, which is removed again if nothing failed."""
    began = time.monotonic()
    outcome = Outcome(kill)
    shutil.rmtree(folder, ignore_errors=True)
    home = copy(scene.before(kill.stage), folder / "home")
    before, after = rows_of(scene.before(kill.stage)), rows_of(scene.after(kill.stage))
    _kill(scene, kill, home, folder, outcome)
    _look(home, scene, before, after, outcome)
    again = start(kill.stage, home, scene.source)
    said = again.communicate(timeout=_SECONDS)[1].decode(errors="replace")
    if again.returncode:
        outcome.failures.append(f"run again: ended with {again.returncode}: {said[-800:]}")
    if rows_of(home) != after:
        outcome.failures.append(f"run again: other rows in {_differing(rows_of(home), after)}")
    if pages_of(home) != pages_of(scene.after(kill.stage)):
        outcome.failures.append("run again: other reports")
    _collect(home, after, outcome)
    outcome.seconds = round(time.monotonic() - began, 1)
    if not outcome.failures:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _kill(scene: Scene, kill: Kill, home: Path, folder: Path, outcome: Outcome) -> None:
    mark = folder / "mark"
    environment = {}
    if kill.at is not None:
        environment = {
            "CHAOS_ROLE": kill.victim,
            "CHAOS_BELOW": str(home),
            "CHAOS_MARK": str(mark),
            "CHAOS_KILL_AT": str(kill.at),
        }
    process = start(kill.stage, home, scene.source, environment)
    if kill.after_s is not None:
        outcome.hit = _kill_later(process, kill, home)
    try:
        said = process.communicate(timeout=_SECONDS)[1].decode(errors="replace")
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        outcome.failures.append(f"killed: still running after {_SECONDS} s")
        said = process.communicate()[1].decode(errors="replace")
    if mark.exists():
        outcome.hit = json.loads(mark.read_text())
    outcome.ended = f"{process.returncode}"
    if process.returncode not in (0, 2, 75, -signal.SIGKILL):
        lines = [line for line in said.splitlines() if line.strip()]
        outcome.notes.append(f"killed: ended with {process.returncode}: {lines[-1][:300] if lines else ''}")


def _kill_later(process: subprocess.Popen[bytes], kill: Kill, home: Path) -> dict[str, Any] | None:
    """Kill a process of the group after ``after_s``; return its kind and the newest file below the home then."""
    assert kill.after_s is not None
    time.sleep(kill.after_s)
    while process.poll() is None:
        found = [process.pid] if kill.victim == "driver" else _members(process.pid, _KINDS[kill.victim])
        for pid in found[-1:]:
            newest = max(
                (path for path in home.rglob("*") if path.is_file()),
                key=lambda path: path.lstat().st_mtime_ns,
            )
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return None
            return {"event": f"{kill.victim} after {kill.after_s} s", "path": str(newest.relative_to(home))}
        time.sleep(0.02)
    return None


def _members(group: int, word: str) -> list[int]:
    """Return the processes of a session with a word in their command line, by pid: workers follow their parent."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if int(stat[3]) == group and word in line:
            found.append(int(entry.name))
    return sorted(found)


def _collect(home: Path, after: Any, outcome: Outcome) -> None:
    """Check that the run after the kill left no files, or only files that maintenance removes once they are old."""
    left = strays(home)
    for stray in left:
        # Files that a commit moved before it was killed: no version has them.
        moved = stray.startswith("warehouse/") and "/_staging/" not in stray
        (outcome.notes if moved else outcome.failures).append(f"run again: left {stray}")
    if not left:
        return
    _maintain(home)
    outcome.failures += [f"maintenance: left {stray}" for stray in strays(home)]
    if rows_of(home) != after:
        outcome.failures.append(f"maintenance: other rows in {_differing(rows_of(home), after)}")


def _maintain(home: Path) -> None:
    """Run maintenance on files that are made to look old."""
    keep = Retention()
    assert keep.unreachable is not None
    then = time.time() - (keep.unreachable + 10) * 86_400
    for path in home.rglob("*"):
        os.utime(path, (then, then), follow_symlinks=False)
    retain(home, keep, report=lambda _line: None)


def _look(home: Path, scene: Scene, before: Any, after: Any, outcome: Outcome) -> None:
    """Check that a reader finds for every table the rows from before or after the run, and no half page."""
    try:
        now = rows_of(home)
    except Exception as error:  # noqa: BLE001 - any error that a reader meets counts
        outcome.failures.append(f"after the kill a reader met {type(error).__name__}: {error}"[:800])
        return
    mixed = [name for name in now if now[name] not in (before[name], after[name])]
    if mixed:
        outcome.failures.append(f"after the kill: rows of neither run in {mixed}")
    old, new = pages_of(scene.before(outcome.kill.stage)), pages_of(scene.after(outcome.kill.stage))
    half = [name for name, text in pages_of(home).items() if text not in (old.get(name), new.get(name))]
    if half:
        outcome.failures.append(f"after the kill: pages of neither run {half[:5]}")


def _differing(rows: Any, expected: Any) -> list[str]:
    return [name for name in rows if rows[name] != expected[name]]
