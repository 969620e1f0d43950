"""The look-up of pinned packages in OSV's export lists affected packages, without fixed or withdrawn advisories."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def pinned_version(package: str) -> str:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{package}=="))
    return line.partition("==")[2].partition(" ")[0]


def run(folder: Path, *advisories: dict[str, object]) -> tuple[int, str]:
    export = folder / "all.zip"
    with zipfile.ZipFile(export, "w") as archive:
        for advisory in advisories:
            archive.writestr(f"{advisory['id']}.json", json.dumps(advisory))
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "advisories", export], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


def advisory(number: str, package: str, **about: object) -> dict[str, object]:
    return {"id": number, "affected": [{"package": {"ecosystem": "PyPI", "name": package}, **about}]}


def test_what_is_affected_is_named_and_nothing_else(tmp_path: Path) -> None:
    pinned = pinned_version("pyarrow")
    every_version = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}]}
    fixed = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": pinned}]}
    last = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"last_affected": pinned}]}
    code, said = run(
        tmp_path,
        advisory("A-1", "PyArrow", ranges=[every_version]),
        advisory("A-2", "pyarrow", ranges=[fixed]),
        advisory("A-3", "pyarrow", ranges=[last]),
        advisory("A-4", "pyarrow", versions=[pinned]),
        advisory("A-5", "no-such-package", ranges=[every_version]),
        advisory("A-6", "pyarrow", ranges=[every_version]) | {"withdrawn": "2026-01-01T00:00:00Z"},
    )
    assert code == 1
    assert said.splitlines() == [f"pyarrow {pinned}: A-{number}" for number in (1, 3, 4)]


def test_no_finding_and_an_empty_export_differ(tmp_path: Path) -> None:
    fixed = {"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "0.1"}]}
    assert run(tmp_path, advisory("A-1", "pyarrow", ranges=[fixed])) == (0, "")
    assert run(tmp_path) == (2, "")
