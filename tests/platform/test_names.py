"""Names of variables, functions and classes say what they hold: none is ``one``, ``mine``, ``held`` or ``told``."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from tests.platform.test_boundaries import ROOT, tracked

VAGUE = frozenset({"one", "mine", "held", "told"})
_VAGUE_WORD = re.compile(rf"\b({'|'.join(sorted(VAGUE))})\b")

#: Files that still use such names; nothing may be added.
STILL_VAGUE: tuple[str, ...] = ()


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of each identifier: variables, arguments, attributes, keywords, functions, classes, imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            continue  # its strings are texts, not names
        for _, value in ast.iter_fields(node):
            for name in value if isinstance(value, list) else [value]:
                if isinstance(name, str):
                    yield getattr(node, "lineno", 1), name


def vague_names(text: str) -> list[str]:
    """List the lines of a source text with a vague name, as ``LINE: NAME``."""
    if not _VAGUE_WORD.search(text):
        return []
    return [f"{line}: {name}" for line, name in identifiers(ast.parse(text)) if name in VAGUE]


@functools.cache
def vague_names_by_file() -> dict[str, list[str]]:
    found = {
        str(path.relative_to(ROOT)): vague_names(path.read_text(encoding="utf-8")) for path in tracked("*.py")
    }
    return {file: names for file, names in found.items() if names}


def test_no_name_is_vague() -> None:
    found = vague_names_by_file().items()
    assert [f"{file}:{name}" for file, names in found for name in names if file not in STILL_VAGUE] == []


def test_files_without_vague_names_have_left_the_list() -> None:
    assert [file for file in STILL_VAGUE if file not in vague_names_by_file()] == []


@pytest.mark.parametrize(
    "text",
    [
        "one = 1",
        "for held in (): pass",
        "def f(told): pass",
        "def f(*, told=1): pass",
        "lambda *mine: 0",
        "f(told=1)",
        "x.held",
        "def told(): pass",
        "async def told(): pass",
        "class mine: pass",
        "import x as one",
        "from x import held",
        "try: pass\nexcept E as held: pass",
        "def f():\n    global told",
        "match x:\n    case [*mine]: pass",
        'f"{one}"',
        "[y for one in x]",
    ],
)
def test_a_vague_name_is_found_wherever_it_stands(text: str) -> None:
    assert len(vague_names(text)) == 1


@pytest.mark.parametrize(
    "text", ['"one"', "# told", "held_by = 1", "f('mine')", '"""Held by one."""', "x = 1"]
)
def test_texts_and_longer_names_are_not_vague(text: str) -> None:
    assert vague_names(text) == []
