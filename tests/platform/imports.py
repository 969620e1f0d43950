"""Read the imports between the repository's own Python files from their sources, without importing anything."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """``importer`` (a file's dotted name) imports ``imported`` in line ``line``."""

    importer: str
    imported: str
    line: int


def module_name(path: Path, package_folders: Iterable[Path]) -> str:
    """The dotted name of a source file, relative to the innermost of the folders that hold packages."""
    folder = max((f for f in package_folders if path.is_relative_to(f)), key=lambda f: len(f.parts))
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_between(sources: Mapping[str, str]) -> list[Import]:
    """All imports of one of ``sources`` (dotted name → source text) by another, wherever they stand in the file.

    Imports under ``TYPE_CHECKING`` and inside functions count too: a reader has to follow them like any other.
    """
    found = []
    for name, text in sources.items():
        for node in ast.walk(ast.parse(text, name)):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                targets = [
                    inner if (inner := f"{node.module}.{alias.name}") in sources else node.module
                    for alias in node.names
                ]
            else:
                continue
            found += [Import(name, target, node.lineno) for target in targets if target in sources]
    return [one for one in found if one.importer != one.imported]


def levels(imports: Iterable[Import]) -> Iterator[tuple[str, dict[tuple[str, str], Import]]]:
    """The imports between the children of each folder: files and subfolders, a subfolder taken as a whole.

    Yields the folder's dotted name ("" = the repository) and, for each pair of its children of which one imports the
    other, one of these imports.
    """
    edges: dict[str, dict[tuple[str, str], Import]] = {}
    for one in imports:
        importer, imported = one.importer.split("."), one.imported.split(".")
        common = 0
        while common < min(len(importer), len(imported)) and importer[common] == imported[common]:
            common += 1
        if common in (len(importer), len(imported)):
            continue  # a folder's __init__ and what lies in the folder
        folder = ".".join(importer[:common])
        edges.setdefault(folder, {}).setdefault((importer[common], imported[common]), one)
    yield from edges.items()


def cycles(imports: Iterable[Import]) -> list[str]:
    """A line for each folder whose files or subfolders import each other in a circle, with the imports that do so."""
    found = []
    for folder, edges in levels(imports):
        needs: dict[str, set[str]] = {}
        for importer, imported in edges:
            needs.setdefault(importer, set()).add(imported)
        try:
            TopologicalSorter(needs).prepare()
        except CycleError as error:
            circle = list(reversed(error.args[1]))
            steps = [edges[step] for step in pairwise(circle)]
            shown = ", ".join(f"{step.importer}:{step.line} imports {step.imported}" for step in steps)
            found.append(f"{folder or 'the repository'}: {' -> '.join(circle)} ({shown})")
    return found
