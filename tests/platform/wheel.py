"""Build the project's wheel from the files of the repository, for tests of what gets installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.checkout import ROOT
from tests.platform.test_boundaries import tracked

#: What the wheel is built from.
_SOURCES = ("pyproject.toml", "README.md", "LICENSE", "dispatch_core", "spark_jobs", "expectations", "dags")
_BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


def build_wheel(folder: Path) -> Path:
    """Build the wheel in ``folder``, from a copy, so that the checkout gets no new files; return its path."""
    copy = folder / "sources"
    for path in tracked(*_SOURCES):
        target = copy / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(folder)],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / done.stdout.split()[-1]
