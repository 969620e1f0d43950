"""Hunt mutants of the newest core: ``python -m tests.hunted [NAME...]``; exit code 1 if more than two survive.

Machine code keeps its callees, so a mutant is compiled anew, which takes as long as its hunt. Most die soon, so each is
hunted interpreted first (``NUMBA_DISABLE_JIT=1``), a hundred times slower; only those that live on are compiled, each in a
copy of the package with a cache of its own. Compiling does not count as hunting.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.hunted.campaigns import NONE, Answer, hunt
from tests.hunted.mutants import MUTANTS
from tests.wrong_rules.switch import Edit

_ROOT: Final = Path(__file__).resolve().parents[2]
#: Mutants that may survive.
_MAY_SURVIVE: Final = 2
_INTERPRETED_S, _COMPILED_S = 10.0, 50.0


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a hunt: the answer that kills the mutant, or the last one; the time and schedules of all."""

    name: str
    answer: Answer
    seconds: float
    schedules: int

    @property
    def killed(self) -> bool:
        """True if a promise was broken that the right core keeps."""
        return bool(self.answer.find)

    def __str__(self) -> str:
        came_to = f"{self.answer.find} in {len(self.answer.steps)} steps" if self.killed else "survived"
        return f"{self.name}: {came_to}, {self.seconds:.1f} s, {self.schedules:,} schedules"


def main() -> int:
    """Hunt the mutants that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.hunted", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(MUTANTS)}, or none: the right core"
    )
    parser.add_argument("--interpreted", type=float, default=_INTERPRETED_S, metavar="SECONDS")
    parser.add_argument(
        "--compiled", type=float, default=_COMPILED_S, metavar="SECONDS", help="0 = not at all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--here", choices=("interpreted", "compiled"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.names or [*MUTANTS]
    if options.here:
        compiled = options.here == "compiled"
        budget_s = options.compiled if compiled else options.interpreted
        for answer in hunt(names[0], budget_s, options.seed, compiled=compiled):
            print(json.dumps(answer.as_json()), flush=True)
        return 0
    began = time.monotonic()

    def work(name: str) -> Result:
        result = hunted(name, options.interpreted, options.compiled, options.seed)
        print(result, flush=True)
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(work, names))
    killed = sum(result.killed for result in results)
    print(f"{killed} of {len(results)} killed in {time.monotonic() - began:.0f} s")
    return int(len(results) - killed > _MAY_SURVIVE)


def hunted(name: str, interpreted_s: float, compiled_s: float, seed: int = 0) -> Result:
    """Hunt a mutant: interpreted, then compiled if it lives on."""
    arguments = [
        "--seed",
        str(seed),
        "--interpreted",
        str(interpreted_s),
        "--compiled",
        str(compiled_s),
        name,
    ]
    answer = _first(["--here", "interpreted", *arguments], _ROOT, {"NUMBA_DISABLE_JIT": "1"})
    if answer.find or not compiled_s:
        return Result(name, answer, answer.seconds, answer.schedules)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        shutil.copytree(_ROOT / "dispatch_core", copy / "dispatch_core")
        for switch in () if name == NONE else MUTANTS[name].switches:
            if isinstance(switch, Edit):
                edit_source(switch, copy / "dispatch_core")
        cache = {"NUMBA_CACHE_DIR": str(copy / "cache"), "PYTHONPATH": f"{copy}{os.pathsep}{_ROOT}"}
        later = _first(["--here", "compiled", *arguments], copy, cache)
    return Result(name, later, answer.seconds + later.seconds, answer.schedules + later.schedules)


def _first(arguments: list[str], folder: Path, environment: Mapping[str, str]) -> Answer:
    """Run a hunt in a process of its own; return its first answer that counts, or its last one."""
    command = [sys.executable, "-m", "tests.hunted", *arguments]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )
    assert process.stdout is not None
    answer = None
    with process:
        for line in process.stdout:
            answer = Answer(**json.loads(line))
            if answer.find and not answer.breaks_the_right_core():
                process.kill()
                return answer
    if answer is None or answer.find or process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return answer


def edit_source(edit: Edit, package: Path) -> None:
    """Change a rule in the source of a copy of the package."""
    path = package / "broker" / f"{edit.module.replace('.', '/')}.py"
    source = path.read_text(encoding="utf-8")
    name = edit.function.rpartition(".")[2]
    (segment,) = (
        ast.get_source_segment(source, node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    if segment is None or segment.count(edit.old) != 1:
        raise LookupError(f"{edit.module}.{edit.function} does not hold {edit.old!r} once")
    path.write_text(source.replace(segment, segment.replace(edit.old, edit.new)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
