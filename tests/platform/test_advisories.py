"""The look-up of pinned packages in OSV's export: what is affected is named, what is fixed or withdrawn is not."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pinned_version(package: str) -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith(f"{package}=="))
    return line.partition("==")[2].partition(" ")[0]


def run(folder: Path, *advisories: dict[str, object]) -> tuple[int, str]:
    export = folder / "all.zip"
    with zipfile.ZipFile(export, "w") as archive:
        for one in advisories:
            archive.writestr(f"{one['id']}.json", json.dumps(one))
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "advisories", export], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def advisory(number: str, package: str, **about: object) -> dict[str, object]:
    return {"id": number, "affected": [{"package": {"ecosystem": "PyPI", "name": package}, **about}]}


def test_what_is_affected_is_named_and_nothing_else(tmp_path: Path) -> None:
    mine = pinned_version("pyarrow")
    all_of_it = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}
    fixed = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": mine}]}
    last = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"last_affected": mine}]}
    code, said = run(
        tmp_path,
        advisory("A-1", "PyArrow", ranges=[all_of_it]),
        advisory("A-2", "pyarrow", ranges=[fixed]),
        advisory("A-3", "pyarrow", ranges=[last]),
        advisory("A-4", "pyarrow", versions=[mine]),
        advisory("A-5", "no-such-package", ranges=[all_of_it]),
        advisory("A-6", "pyarrow", ranges=[all_of_it]) | {"withdrawn": "2026-01-01T00:00:00Z"},
    )
    assert code == 1
    assert said.splitlines() == [f"pyarrow {mine}: A-{number}" for number in (1, 3, 4)]


def test_nothing_found_and_nothing_to_look_in_are_told_apart(tmp_path: Path) -> None:
    fixed = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "0.1"}]}
    assert run(tmp_path, advisory("A-1", "pyarrow", ranges=[fixed])) == (0, "")
    assert run(tmp_path) == (2, "")
