"""Run cases in processes of their own, with a share of the time for each target, and keep findings in a folder."""

from __future__ import annotations

import multiprocessing as mp
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.fuzz.targets import TARGETS, WEIGHTS

#: Time limit of a case; most take some milliseconds.
CASE_S: Final = 60.0
#: Factor for the first case of a process, which loads and compiles.
_FIRST_TIMES: Final = 5
#: A case must not make its process grow by more.
CASE_GROWTH_MB: Final = 600
#: Memory limit of a process.
_MEMORY_BYTES: Final = 12 << 30
#: Length of a target's turn.
_TURN_S: Final = 20.0
_TELL_S: Final = 30.0
#: A folder in memory where there is one, for the files of a million documents.
_MEMORY: Final = "/dev/shm" if Path("/dev/shm").is_dir() else None
#: Number of findings of a kind that are kept with their documents.
_KEPT: Final = 3


@dataclass
class Findings:
    """Findings in a folder: for each the error, the documents, and the command that repeats it."""

    folder: Path
    seed: int
    count: int = 0
    _kinds: Counter[str] = field(default_factory=Counter)

    def add(self, target: str, number: int, what: str, kind: str) -> None:
        """Keep a finding."""
        self.count += 1
        self._kinds[kind] += 1
        if self._kinds[kind] > _KEPT:
            return
        sys.stdout.write(f"finding: {target} {number}: {kind}\n")
        home = self.folder / f"{target}-{number}"
        home.mkdir(parents=True, exist_ok=True)
        again = f"python -m tests.fuzz --seed {self.seed} --only {target} --case {number}"
        (home / "finding.txt").write_text(f"{again}\n\n{what}\n", encoding="utf-8", errors="backslashreplace")
        for name, data in TARGETS[target](_random(self.seed, target, number)).files.items():
            (home / name.replace("/", "-")).write_bytes(data)


def _random(seed: int, target: str, number: int) -> Random:
    return Random(f"{seed}:{target}:{number}")


def run_case(seed: int, target: str, number: int) -> int:
    """Make a case and read its documents; return the number of reads. Raises the finding of the case."""
    return TARGETS[target](_random(seed, target, number)).check()


def _grown_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _work(target: str, seed: int, first: int, most: int, shared: Any, pipe: Connection) -> None:
    """Run cases of a target in order. ``shared``: number of the present case, and of documents read before it."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    began, number, done = time.monotonic(), first, 0
    found: list[tuple[int, str, str]] = []
    while done < most and time.monotonic() - began < _TURN_S:
        shared[0], shared[1] = number, done
        before_s, before_mb = time.monotonic(), _grown_mb()
        try:
            done += run_case(seed, target, number)
        except Exception as error:  # noqa: BLE001 - any exception of a reader is a finding
            done += 1
            last = traceback.extract_tb(error.__traceback__)[-1]
            kind = f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
            found.append((number, traceback.format_exc(), kind))
        took_s, grown_mb = time.monotonic() - before_s, _grown_mb() - before_mb
        # The first case also loads and compiles, which does not count.
        if took_s > CASE_S / 2 and number > first:
            found.append((number, f"took {took_s:.1f} s", "slow"))
        if grown_mb > CASE_GROWTH_MB and number > first:
            found.append((number, f"grew by {grown_mb} MB", "memory"))
        number += 1
    shared[0], shared[1] = number, done
    pipe.send(found)


@dataclass
class _Turn:
    """A process that runs cases of a target for a while."""

    target: str
    process: Any
    pipe: Connection
    shared: Any
    began: float
    first: int
    number: int = -1  # the case it was seen at
    since: float = 0.0  # when it was first seen there


def run(
    targets: list[str], seed: int, executions: int, seconds: float, jobs: int, findings: Findings
) -> dict[str, int]:
    """Read ``executions`` documents, each target for its share of the time; return the reads by target."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=_MEMORY) as folder:
        tempfile.tempdir = folder  # for the processes too
        try:
            return _run(targets, seed, executions, seconds, jobs, findings)
        finally:
            tempfile.tempdir = before


def _run(
    targets: list[str], seed: int, executions: int, seconds: float, jobs: int, findings: Findings
) -> dict[str, int]:
    # Forked, since the modules are loaded; this process has read nothing that could have started a thread.
    context = mp.get_context("fork")
    done: Counter[str] = Counter(dict.fromkeys(targets, 0))
    spent_s = dict.fromkeys(targets, 0.0)
    following: Counter[str] = Counter()
    turns: list[_Turn] = []
    began = reported = time.monotonic()
    while True:
        now = time.monotonic()
        total = sum(done.values()) + sum(int(turn.shared[1]) for turn in turns)
        left = executions - total
        while len(turns) < jobs and left > 0 and now - began < seconds:
            free = [target for target in targets if target not in {turn.target for turn in turns}] or targets
            target = min(free, key=lambda name: spent_s[name] / WEIGHTS.get(name, 1))
            turns.append(_begin(context, target, seed, following[target], left))
        if not turns:
            return dict(done)
        wait([turn.pipe for turn in turns], timeout=1.0)
        for turn in list(turns):
            if not _over(turn, findings):
                continue
            following[turn.target] = int(turn.shared[0])
            done[turn.target] += int(turn.shared[1])
            spent_s[turn.target] += time.monotonic() - turn.began
            turns.remove(turn)
        if now - reported > _TELL_S:
            reported = now
            rate = total / (now - began)
            sys.stdout.write(f"{total:,} documents read, {rate:,.0f} a second, {findings.count} findings\n")
            sys.stdout.flush()


def _begin(context: Any, target: str, seed: int, first: int, most: int) -> _Turn:
    receiver, sender = context.Pipe(duplex=False)
    shared = context.Array("q", [first, 0], lock=False)
    sys.stdout.flush()
    process = context.Process(target=_work, args=(target, seed, first, most, shared, sender), daemon=True)
    process.start()
    sender.close()
    return _Turn(target, process, receiver, shared, time.monotonic(), first)


def _over(turn: _Turn, findings: Findings) -> bool:
    """Return True if a turn has ended, by itself or because its case exceeded the limit; collect its findings."""
    now = time.monotonic()
    if turn.pipe.poll(0):
        try:
            found = turn.pipe.recv()
        except EOFError:
            turn.process.join()
            kind = f"the process ended with {turn.process.exitcode}"
            return _broken(turn, kind, findings)
        turn.process.join()
        for number, what, kind in found:
            findings.add(turn.target, number, what, kind)
        return True
    if turn.shared[0] != turn.number:
        turn.number, turn.since = int(turn.shared[0]), now
    patience_s = CASE_S * (_FIRST_TIMES if turn.number == turn.first else 1)
    if now - turn.since > patience_s:
        turn.process.kill()
        turn.process.join()
        return _broken(turn, f"did not end in {patience_s:.0f} s", findings)
    return False


def _broken(turn: _Turn, kind: str, findings: Findings) -> bool:
    number = int(turn.shared[0])
    findings.add(turn.target, number, kind, kind)
    turn.shared[0], turn.shared[1] = number + 1, turn.shared[1] + 1
    return True
