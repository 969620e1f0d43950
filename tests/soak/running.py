"""Play and judge seeds, several brokers at a time, and keep the result of each in a file.

A run that was stopped goes on where it was: seeds that have a row in the file are not played again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from threading import Event, Lock
from typing import Final

from tests.soak.driver import Driver, DriverError
from tests.soak.judging import Played, Result, judge
from tests.soak.script import Script, is_quiet, script_of
from tests.soak.shrinking import shrink

#: Seeds that are judged by one call of a command, which takes seconds to begin.
BATCH = 8
#: How often a broker is started until it serves: another process may take one of its ports.
_START_TRIES: Final = 3
#: How often a script of a racing seed is played before it counts as one that does not diverge.
_RACING_TRIES = 3


class Results:
    """The file of results of a release. For several threads."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._lock = Lock()
        file.parent.mkdir(parents=True, exist_ok=True)
        self.rows = [Result(**json.loads(line)) for line in _whole_lines(file)]

    def add(self, result: Result) -> None:
        """Append a row, and have it on the disk."""
        with self._lock, self._file.open("a", encoding="utf-8") as file:
            self.rows.append(result)
            file.write(json.dumps(result.as_json()) + "\n")

    def left(self, seeds: Iterable[int]) -> list[int]:
        """Return the seeds without a row."""
        done = {row.seed for row in self.rows}
        return [seed for seed in seeds if seed not in done]


def _whole_lines(file: Path) -> list[str]:
    """Read the rows, and cut off one that was being written when the run was ended."""
    if not file.exists():
        return []
    text = file.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole, encoding="utf-8")
    return whole.splitlines()


@dataclass(slots=True)
class Soak:
    """A run over seeds.

    ``target`` is the folder that ``.ci/soak`` has built, ``home`` gets the results, the recordings of what is wrong
    (``wrong``), and what is being played (``playing``).
    """

    target: Path
    release: str
    home: Path
    say: Callable[[str], None]
    keep: bool = False
    #: Scripts that are played to shrink one that went wrong.
    shrinking: int = 40
    _number: count[int] = field(default_factory=count)
    _over: Event = field(default_factory=Event)
    _drivers: list[Driver] = field(default_factory=list)

    def run(self, seeds: Sequence[int], jobs: int) -> Results:
        """Play and judge the seeds that have no result."""
        results = Results(self.home / "results.jsonl")
        left = results.left(seeds)
        shutil.rmtree(self.home / "playing", ignore_errors=True)
        batches = [left[at : at + BATCH] for at in range(0, len(left), BATCH)]
        with ThreadPoolExecutor(max(1, min(jobs, len(batches)))) as pool:
            try:
                for _ in pool.map(lambda share: self._share(share, results), _shares(batches, jobs)):
                    pass
            except BaseException:  # the user ends the run: its threads must not go on with their seeds
                self._over.set()
                for driver in self._drivers:
                    driver.kill()
                raise
        shutil.rmtree(self.home / "playing", ignore_errors=True)
        return results

    def _share(self, batches: Sequence[Sequence[int]], results: Results) -> None:
        """Play some batches on one broker; a broker that ends is replaced by another."""
        driver: Driver | None = None
        try:
            for batch in batches:
                driver = self._batch(driver, batch, results)
        finally:
            if driver is not None:
                driver.close()

    def _batch(self, driver: Driver | None, seeds: Sequence[int], results: Results) -> Driver | None:
        played: list[Played] = []
        for seed in seeds:
            if self._over.is_set():
                return driver
            script = script_of(seed)
            try:
                driver = self._running(driver)
                folder = self.home / "playing" / str(next(self._number)) / script.name
                played.append(Played(seed, script, folder, driver.play(script, folder), driver.missing))
            except DriverError as error:
                if self._over.is_set():
                    return driver
                results.add(Result(seed, script.name, failure=str(error)))
                self.say(f"{script.name}: {error}")
        for play, result in zip(played, judge(played), strict=True):
            if result.wrong:
                self._keep(play.folder, result.name)
            elif self.keep:
                self._keep(play.folder, result.name, "played")
            results.add(result)
            self.say(f"{result.name}: {_reason(result)}")
            if result.wrong and self.shrinking:
                driver = self._running(driver)
                self._shrink(driver, play, result)
        for play in played:
            shutil.rmtree(play.folder.parent, ignore_errors=True)
        return driver

    def _running(self, driver: Driver | None) -> Driver:
        if driver is not None and driver.runs:
            return driver
        for _ in range(_START_TRIES - 1):
            with suppress(DriverError):
                return self._started()
        return self._started()

    def _started(self) -> Driver:
        started = Driver(self.target, self.release, self.home / "playing" / f"broker-{next(self._number)}")
        self._drivers.append(started)
        return started

    def _keep(self, folder: Path, name: str, where: str = "wrong") -> None:
        kept = self.home / where / name
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept)

    def _shrink(self, driver: Driver, played: Played, result: Result) -> None:
        """Keep the shortest script found that goes wrong in the same way, with its recording."""

        def still(script: Script) -> bool:
            for _ in range(1 if is_quiet(result.name) else _RACING_TRIES):
                number = next(self._number)
                shorter = replace(script, name=f"{script.name}-{number}")
                folder = self.home / "playing" / str(number) / shorter.name
                try:
                    again = replace(
                        played, script=shorter, folder=folder, counts=driver.play(shorter, folder)
                    )
                except DriverError:
                    return False
                if not again.recording.is_dir() or not any(again.recording.glob("trace-*")):
                    continue  # nobody has joined
                (other,) = judge([again])
                same = bool(other.divergent) == bool(result.divergent) and other.wrong
                if same:
                    self._keep(folder, f"{result.name}-shrunk")
                shutil.rmtree(folder.parent, ignore_errors=True)
                if same:
                    return True
            return False

        short = shrink(played.script, still, self.shrinking)
        if len(short.steps) < len(played.script.steps):
            self.say(f"{result.name}: {len(short.steps)} of {len(played.script.steps)} steps are enough")
        else:
            self.say(f"{result.name}: played again, it did not go wrong with fewer steps")


def _shares(batches: Sequence[Sequence[int]], jobs: int) -> list[Sequence[Sequence[int]]]:
    return [batches[at::jobs] for at in range(jobs)]


def _reason(result: Result) -> str:
    if result.divergent:
        return f"{result.divergent} of {result.decisions:,} decisions divergent, first: {result.first_divergence}"
    if result.disagreements:
        return "; ".join(result.disagreements)
    return (
        result.failure or result.not_judged or f"{result.decisions:,} decisions, {result.uncertain} uncertain"
    )
