"""Docstrings name the thing or say what it does: none opens with a question word."""

from __future__ import annotations

import ast
import functools
import re

import pytest

from tests.platform.test_boundaries import ROOT, tracked

_QUESTION = re.compile(r"\W*(What|Whether|How|Which|Who|Whose|Where|When|Why)\b")
#: A string that opens so; a file without one needs no parsing, which takes long for a thousand files.
_QUOTED_QUESTION = re.compile(f"[\"']{_QUESTION.pattern}")
_FOLDERS = ("bench", "dags", "dispatch_core", "expectations", "spark_jobs", "tests")

#: Files whose docstrings are still to be rewritten; nothing may be added.
STILL_ASKING: tuple[str, ...] = ()


def questions(text: str) -> list[str]:
    """List line number and text of each docstring's first line that opens with a question word."""
    if not _QUOTED_QUESTION.search(text):
        return []
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node) or ""
            if _QUESTION.match(docstring):
                found.append(f"{node.body[0].lineno}: {docstring.splitlines()[0]}")
    return found


@functools.cache
def asking() -> dict[str, list[str]]:
    """Return the docstrings that open with a question word, by file."""
    patterns = [f"{folder}/*.py" for folder in _FOLDERS]
    found = {
        str(path.relative_to(ROOT)): questions(path.read_text(encoding="utf-8"))
        for path in tracked(*patterns)
    }
    return {file: lines for file, lines in found.items() if lines}


def test_no_docstring_opens_with_a_question_word() -> None:
    shown = [
        f"{file}:{line}" for file, lines in asking().items() for line in lines if file not in STILL_ASKING
    ]
    assert shown == []


def test_files_without_such_docstrings_have_left_the_list() -> None:
    found = asking()
    assert [file for file in STILL_ASKING if file not in found] == []


@pytest.mark.parametrize(
    "text",
    [
        '"""What a module is."""',
        'class X:\n    """Who gets what."""',
        'def f():\n    """Whether it holds."""',
        'class X:\n    async def f(self):\n        """\n        "How" it goes.\n        """',
    ],
)
def test_a_question_word_is_found_wherever_a_docstring_stands(text: str) -> None:
    assert len(questions(text)) == 1


@pytest.mark.parametrize(
    "text", ['"""Whole numbers."""', 'x = "What"', 'def f():\n    return "Why"', "x = 1"]
)
def test_other_texts_are_not_taken_for_questions(text: str) -> None:
    assert questions(text) == []
