"""``dispatch-audit golden``: do selectors, hashing and draining hashes answer what the broker's own classes answered?"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from typing import Any

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.golden_files import find, read
from dispatch_core.cli.recordings import progress
from dispatch_core.errors import DispatchAuditError
from dispatch_core.golden.runner import Judgement, judge

_SHOWN = 300  # characters of an answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``golden``."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a vector file, a folder above, or a glob")
    parser.add_argument("--json", action="store_true", help="JSON Lines on stdout, one object per file")


def run(options: argparse.Namespace) -> int:
    """Judge all vector files; returns 0 all exact, 1 something mismatched, 2 something could not be judged."""
    paths = find(options.paths)
    mismatched = steps = 0
    clean = True
    for number, path in enumerate(paths, start=1):
        try:
            file = read(path)
        except DispatchAuditError as error:
            clean = False
            print(f"dispatch-audit golden: {error}", file=sys.stderr)
            continue
        result = judge(file, partial(_progress, f"[{number}/{len(paths)}] {path}"))
        progress("")
        mismatched += result.mismatched
        steps += result.steps
        clean = clean and result.steps > 0 and not result.problems
        for problem in result.problems:
            print(f"dispatch-audit golden: {problem}", file=sys.stderr)
        print(json.dumps(result.as_json()) if options.json else _for_people(result), flush=True)
    if not options.json:
        print(f"{len(paths)} files, {steps} steps, {mismatched} mismatched")
    if mismatched:
        return FINDINGS
    return CLEAN if clean else COULD_NOT_JUDGE


def _progress(where: str, done: int, of: int) -> None:
    progress(f"{where}  {done}/{of} lines")


def _for_people(result: Judgement) -> str:
    rows = [
        f"{result.file}  ({', '.join(result.versions)})",
        f"  {result.steps} steps, {result.exact} exact, {result.mismatched} mismatched",
    ]
    first = result.first_mismatch
    if first is not None:
        history = "".join(f", {name} {value}" for name, value in first.history.items())
        rows += [
            f"  first mismatch: seed {first.seed} step {first.step}, {first.field} "
            f"(line {first.line}, release {first.version}{history})",
            f"    broker   {_short(first.expected)}",
            f"    computed {_short(first.computed)}",
        ]
    return "\n".join(rows)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"
