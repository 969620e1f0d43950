"""The start of every trial: a home that was audited once, whose source then grew, before each stage of the second run.

A trial thus replaces earlier results instead of filling an empty home: whatever is killed, a reader finds the earlier rows
of a table or the new ones.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spark_jobs.warehouse.contracts import CONTRACTS, NOT_COMPARED
from spark_jobs.warehouse.delta_tables import all_files, read_table
from tests.chaos.stages import STAGES
from tests.checkout import PYTHONPATH

ROOT: Final = Path(__file__).parents[2]
_SAMPLE: Final = ROOT / "tests" / "data" / "recordings" / "4.2.4"
_FIRST: Final = ("designed-negative-acks-ch", "designed-rolling-restart-ch")
_THEN: Final = (
    "designed-drain-one-by-one-ch",
    "designed-failover-modulo-p1",
    "designed-rolling-restart-classic-ch",
)
#: Tables that depend on the logs alone.
TABLES: Final = tuple(sorted(set(CONTRACTS) - set(NOT_COMPARED)))
_DIGITS: Final = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STAGE_SECONDS: Final = 300

Rows = dict[str, Counter[str]]


@dataclass(frozen=True)
class Scene:
    """Snapshots of a home in an undisturbed run: ``before(stage)`` and ``after(stage)``."""

    root: Path

    @property
    def source(self) -> Path:
        """The logs."""
        return self.root / "source"

    def before(self, stage: str) -> Path:
        """Return the home before a stage of the second run."""
        return self.root / f"before-{stage}"

    def after(self, stage: str) -> Path:
        """Return the home after a stage of the second run."""
        names = [*STAGES, "end"]
        return self.root / f"before-{names[names.index(stage) + 1]}"

    @classmethod
    def make(cls, root: Path) -> Scene:
        """Run all stages twice, the second time on more logs, and keep the home before each of its stages."""
        scene = cls(root)
        _add(scene.source, _FIRST)
        home = root / "first"
        home.mkdir(parents=True)
        for stage in STAGES:
            _must(scene, stage, home)
        _add(scene.source, _THEN)
        _spoil(scene.source)
        for stage in STAGES:
            copy(home, scene.before(stage))
            _must(scene, stage, home)
        home.rename(scene.before("end"))
        return scene


def _add(source: Path, names: tuple[str, ...]) -> None:
    for name in names:
        shutil.copytree(_SAMPLE / name, source / name)


def _spoil(source: Path) -> None:
    """Add a log with a line that is no JSON, for rows in the quarantine."""
    folder = source / "spoiled"
    folder.mkdir()
    whole = gzip.decompress((_SAMPLE / _FIRST[0] / "messages.jsonl.gz").read_bytes())
    lines = whole.replace(_FIRST[0].encode(), b"spoiled").splitlines(keepends=True)
    (folder / "messages.jsonl").write_bytes(b"".join([*lines[:3], b"{no line\n", *lines[3:5]]))


def _must(scene: Scene, stage: str, home: Path) -> None:
    done = start(stage, home, scene.source)
    said = done.communicate(timeout=_STAGE_SECONDS)[1]
    if done.returncode:
        raise RuntimeError(
            f"{stage} failed without being disturbed ({done.returncode}): {said.decode()[-2000:]}"
        )


def start(
    stage: str, home: Path, source: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a stage in a process of its own, which leads its process group."""

    return subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.victim", stage, str(home), str(source)],
        cwd=ROOT,
        env=os.environ
        | {"PYTHONPATH": f"{ROOT / 'tests' / 'chaos' / 'inject'}{os.pathsep}{PYTHONPATH}"}
        | (environment or {}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def copy(home: Path, to: Path) -> Path:
    """Copy a home with its times."""
    shutil.copytree(home, to, copy_function=shutil.copy2)
    return to


def rows_of(home: Path) -> Rows:
    """Return the rows of every table, as a reader finds them."""
    return {name: Counter(map(repr, read_table(home / "warehouse", name).to_pylist())) for name in TABLES}


def pages_of(home: Path) -> dict[str, bytes]:
    """Return the contents of the report pages, without hidden files."""
    found = [path for path in sorted((home / "reports").rglob("[!.]*")) if path.is_file()]
    return {str(path.relative_to(home)): path.read_bytes() for path in found}


def strays(home: Path) -> list[str]:
    """List files without a use: staged, half written, or in a table's folder and in none of its versions."""
    warehouse = home / "warehouse"
    found = [
        path
        for path in (warehouse / "_staging").rglob("*")
        if path.is_file() and not path.name.startswith(".")
    ]
    found += [path for path in home.rglob("*") if path.is_file() and _is_partial(path.name)]
    for name in CONTRACTS:
        live = set(all_files(warehouse, name))
        known = _of_any_version(warehouse / name)
        found += [
            path
            for path in (warehouse / name).rglob("part-*.parquet")
            if str(path) not in live and path.name not in known
        ]
    return sorted({_DIGITS.sub("*", str(path.relative_to(home))) for path in found})


def _is_partial(name: str) -> bool:
    return name.endswith((".tmp", ".partial", ".part")) or (name.startswith(".") and ".tmp" in name)


def _of_any_version(table: Path) -> set[str]:
    """Return the data files of all versions of a table: earlier versions stay readable for some days."""
    text = "".join(commit.read_text(errors="replace") for commit in (table / "_delta_log").glob("*.json"))
    return set(re.findall(r"part-[^\"/]+?\.parquet", text))
