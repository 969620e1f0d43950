"""Every Python example of the documents prints its output; every link between documents has a target."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").rglob("*.md")])
PYTHON = re.compile(r"^```python\n(.*?)^```$", flags=re.MULTILINE | re.DOTALL)


def examples_of(document: Path) -> str:
    """Return the page with only its Python blocks, at the same line numbers, for messages of failures."""
    text = document.read_text(encoding="utf-8")
    kept = [""] * (text.count("\n") + 1)
    for block in PYTHON.finditer(text):
        first = text[: block.start(1)].count("\n")
        for at, line in enumerate(block.group(1).splitlines()):
            kept[first + at] = line
    return "\n".join(kept) + "\n"


def run(source: str, name: str) -> list[str]:
    """Run the examples of a page, which share their names; return a report for each that fails."""
    test = doctest.DocTestParser().get_doctest(source, {}, name, name, 0)
    said: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append)
    return said


WITH_EXAMPLES = [document for document in DOCUMENTS if ">>> " in examples_of(document)]


def test_the_rules_page_has_examples() -> None:
    assert ROOT / "docs" / "dispatch-rules.md" in WITH_EXAMPLES
    assert examples_of(ROOT / "docs" / "dispatch-rules.md").count(">>> ") > 50


@pytest.mark.parametrize("document", WITH_EXAMPLES, ids=lambda path: path.name)
def test_examples_print_what_they_say(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # paths in the documents are written from there
    failed = run(examples_of(document), document.name)
    assert not failed, "".join(failed)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_blocks_are_examples(document: Path) -> None:
    """A Python block without prompts would never run."""
    blocks = PYTHON.findall(document.read_text(encoding="utf-8"))
    assert [block for block in blocks if ">>> " not in block] == []


def test_a_wrong_example_is_found_at_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\ntext\n\n```python\n>>> x = 1\n>>> x\n2\n\n```\n", encoding="utf-8")
    said = run(examples_of(page), "page.md")
    assert len(said) == 1
    assert "line 7" in said[0]


def anchors_of(document: Path) -> set[str]:
    """Return the anchors of a page's headings, as on GitHub."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors_of(target)):
            lost.append(link)
    assert lost == []
