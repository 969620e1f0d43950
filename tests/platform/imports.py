"""Read the imports between the repository's own files, Python and Java, from their sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple


class Import(NamedTuple):
    """An import of the file ``imported`` by the file ``importer`` (dotted names) in line ``line``.

    For Java a use of the class ``imported``: classes of one package need no import.
    """

    importer: str
    imported: str
    line: int


#: Text blocks, strings and characters, then comments: parts that name no class.
_JAVA_TEXT = re.compile(
    r'''"""(?:\\.|[^\\])*?"""|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|//[^\n]*|/\*.*?\*/''', re.DOTALL
)
_JAVA_PACKAGE = re.compile(r"^\s*package\s+([\w.]+)\s*;", re.MULTILINE)
_JAVA_IMPORT = re.compile(r"^\s*import\s+(?:static\s+)?([\w.]+?)(\.\*)?\s*;", re.MULTILINE)
_JAVA_NAME = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")


def module_name(path: Path, package_folders: Iterable[Path]) -> str:
    """Return the dotted name of a source file, relative to the innermost of the folders that hold packages."""
    folder = max((f for f in package_folders if path.is_relative_to(f)), key=lambda f: len(f.parts))
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_between(sources: Mapping[str, str]) -> list[Import]:
    """List all imports between ``sources`` (dotted name → source text), anywhere in the files.

    Imports under ``TYPE_CHECKING`` and inside functions count too, since a reader has to follow them like any other.
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
    return [edge for edge in found if edge.importer != edge.imported]


def java_class_name(path: Path, text: str) -> str:
    """Return package and class of a Java source file: ``dispatchaudit.recorder.Segment``."""
    package = _JAVA_PACKAGE.search(_java_code(text))
    return f"{package[1]}.{path.stem}" if package else path.stem


def java_references_between(sources: Mapping[str, str]) -> list[Import]:
    """List all places where one of ``sources`` (package and class → source text) names the class of another.

    Classes of one package need no import, so every identifier counts, resolved as the compiler does: imported by name,
    then of the same package, then imported with ``*``; or written with its package. Comments and strings do not count.
    """
    found = []
    for name, text in sources.items():
        code = _java_code(text)
        package = name.rpartition(".")[0]
        imports = [(target[1], bool(target[2])) for target in _JAVA_IMPORT.finditer(code)]
        by_name = {target.rpartition(".")[2]: target for target, wildcard in imports if not wildcard}
        packages = [package, *(target for target, wildcard in imports if wildcard)]
        for reference in _JAVA_NAME.finditer(code):
            first, _, rest = reference[0].partition(".")
            if first in by_name:
                possible = [by_name[first]]
            else:
                possible = [f"{folder}.{first}" if folder else first for folder in packages]
                possible += accumulate(rest.split("."), lambda head, part: f"{head}.{part}", initial=first)
            target = next((target for target in possible if target in sources), name)
            if target != name:
                found.append(Import(name, target, code.count("\n", 0, reference.start()) + 1))
    return found


def _java_code(text: str) -> str:
    """Remove comments and contents of strings from a Java source, keeping its line numbers."""
    return _JAVA_TEXT.sub(lambda literal: "\n" * literal[0].count("\n") or " ", text)


def levels(imports: Iterable[Import]) -> Iterator[tuple[str, dict[tuple[str, str], Import]]]:
    """Yield the imports between the children of each folder: files and subfolders, a subfolder taken as a whole.

    Yields the folder's dotted name ("" = the repository) and, for each pair of its children of which one imports the
    other, one of these imports.
    """
    edges: dict[str, dict[tuple[str, str], Import]] = {}
    for edge in imports:
        importer, imported = edge.importer.split("."), edge.imported.split(".")
        common = 0
        while common < min(len(importer), len(imported)) and importer[common] == imported[common]:
            common += 1
        if common in (len(importer), len(imported)):
            continue  # a folder's __init__ and what lies in the folder
        folder = ".".join(importer[:common])
        edges.setdefault(folder, {}).setdefault((importer[common], imported[common]), edge)
    yield from edges.items()


def cycles(imports: Iterable[Import]) -> list[str]:
    """Return a line for each folder with a cycle of files or subfolders, with its imports."""
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
