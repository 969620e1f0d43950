"""What every trial begins with: a home that was audited once, whose source then grew, before each stage of the second run.

So a trial sees earlier results being replaced, not only an empty home being filled: whatever is killed, a reader finds the
earlier rows of a table or the new ones.
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

from spark_jobs.warehouse.contracts import APPENDED, CONTRACTS
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
#: All that is a function of the logs.
TABLES: Final = tuple(sorted(set(CONTRACTS) - set(APPENDED)))
_DIGITS: Final = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_STAGE_SECONDS: Final = 300

Rows = dict[str, Counter[str]]


@dataclass(frozen=True)
class Scene:
    """Snapshots of a home: ``before(stage)`` and, of an undisturbed run, ``after(stage)``."""

    root: Path

    @property
    def source(self) -> Path:
        """The logs."""
        return self.root / "source"

    def before(self, stage: str) -> Path:
        """The home before a stage of the second run."""
        return self.root / f"before-{stage}"

    def after(self, stage: str) -> Path:
        """The home after it."""
        names = [*STAGES, "end"]
        return self.root / f"before-{names[names.index(stage) + 1]}"

    @classmethod
    def make(cls, root: Path) -> Scene:
        """Run all stages twice, the second time on more logs, and keep what stood before each."""
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
    """Rows for the quarantine: a line that is none, in a log of its own."""
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
    """One stage in a process of its own, which leads its process group."""

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
    """A home as it stands, times and all."""
    shutil.copytree(home, to, copy_function=shutil.copy2)
    return to


def rows_of(home: Path) -> Rows:
    """What a reader finds: every table, row by row."""
    return {name: Counter(map(repr, read_table(home / "warehouse", name).to_pylist())) for name in TABLES}


def pages_of(home: Path) -> dict[str, bytes]:
    """What stands on the pages that people open; a hidden file is none of them."""
    found = [one for one in sorted((home / "reports").rglob("[!.]*")) if one.is_file()]
    return {str(one.relative_to(home)): one.read_bytes() for one in found}


def strays(home: Path) -> list[str]:
    """Files that nothing names: staged, half written, or in a table's folder and in none of its versions."""
    warehouse = home / "warehouse"
    found = [
        one for one in (warehouse / "_staging").rglob("*") if one.is_file() and not one.name.startswith(".")
    ]
    found += [one for one in home.rglob("*") if one.is_file() and _is_partial(one.name)]
    for name in CONTRACTS:
        live = set(all_files(warehouse, name))
        known = _of_any_version(warehouse / name)
        found += [
            one
            for one in (warehouse / name).rglob("part-*.parquet")
            if str(one) not in live and one.name not in known
        ]
    return sorted({_DIGITS.sub("*", str(one.relative_to(home))) for one in found})


def _is_partial(name: str) -> bool:
    return name.endswith((".tmp", ".partial", ".part")) or (name.startswith(".") and ".tmp" in name)


def _of_any_version(table: Path) -> set[str]:
    """Names of data files that some version of the table has or had: earlier versions stay readable for some days."""
    text = "".join(one.read_text(errors="replace") for one in (table / "_delta_log").glob("*.json"))
    return set(re.findall(r"part-[^\"/]+?\.parquet", text))
