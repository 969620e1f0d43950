"""Find and unpack golden vector files."""

from __future__ import annotations

import glob
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dispatch_core.golden.vectors import VectorFile, VectorFileError, parse

SUFFIXES: Final = (".jsonl.gz", ".jsonl")
MAX_BYTES: Final = 1 << 30  # of one file, unpacked


def find(paths: list[str]) -> list[Path]:
    """Vector files named by ``paths``: files, folders (recursive) or globs; each once, in order.

    Raises ``VectorFileError`` for a path that names none.
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
    """Read one file. Raises ``VectorFileError`` when its header does not say what it is, or nothing can be read."""
    name = str(path)
    try:
        with gzip.open(path) if name.endswith(".gz") else path.open("rb") as stream:
            body = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise VectorFileError(
            f"{name}: cannot be read ({error}); nothing of it was judged. Get the file anew"
        ) from error
    if len(body) > MAX_BYTES:
        raise VectorFileError(f"{name}: more than {MAX_BYTES} bytes unpacked; nothing of it was judged")
    return parse(name, body)
