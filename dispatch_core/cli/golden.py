"""``dispatch-audit golden``: compare selectors, hashing and draining hashes with answers of the broker's own classes."""

from __future__ import annotations

import argparse
import glob
import gzip
import json
import sys
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from dispatch_core.cli import CLEAN, COULD_NOT_JUDGE, FINDINGS
from dispatch_core.cli.recordings import progress
from dispatch_core.errors import DispatchAuditError
from dispatch_core.golden.runner import Judgement, judge
from dispatch_core.golden.vectors import VectorFile, VectorFileError, parse

SUFFIXES: Final = (".jsonl.gz", ".jsonl")
MAX_BYTES: Final = 1 << 30  # of one file, unpacked
_SHOWN = 300  # characters of an answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``golden``."""
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a vector file, a folder above, or a glob")
    parser.add_argument("--json", action="store_true", help="JSON Lines on stdout, one object per file")


def run(options: argparse.Namespace) -> int:
    """Judge all vector files; returns 0 if all steps are exact, 1 if a step mismatched, 2 if a file could not be judged."""
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


# --- vector files ----------------------------------------------------------------------------------------------------


def find(paths: list[str]) -> list[Path]:
    """Find the vector files at ``paths``: files, folders (recursive) or globs; each once, in order.

    Raises ``VectorFileError`` for a path without vector files.
    """
    found: dict[Path, None] = {}
    for text in paths:
        files = [file for path in _expand(text) for file in _files_of(path)]
        if not files:
            raise VectorFileError(
                f"{text}: no vector file there; nothing was judged. Name a file, a folder above, or a glob "
                f"({' or '.join(SUFFIXES)})"
            )
        found.update(dict.fromkeys(files))
    return list(found)


def _expand(text: str) -> list[Path]:
    path = Path(text)
    if path.exists():
        return [path]
    # glob.glob, because Path.glob refuses absolute patterns.
    return [Path(match) for match in sorted(glob.glob(text, recursive=True))]  # noqa: PTH207


def _files_of(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(file for file in path.rglob("*") if file.is_file() and file.name.endswith(SUFFIXES))
    else:
        yield path


def read(path: Path) -> VectorFile:
    """Read and unpack one file. Raises ``VectorFileError`` if it cannot be read or is no vector file."""
    name = str(path)
    try:
        with gzip.open(path) if name.endswith(".gz") else path.open("rb") as stream:
            body = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise VectorFileError(
            f"{name}: cannot be read ({error}); nothing of it was judged. Fetch the file again"
        ) from error
    if len(body) > MAX_BYTES:
        raise VectorFileError(f"{name}: more than {MAX_BYTES} bytes unpacked; nothing of it was judged")
    return parse(name, body)
