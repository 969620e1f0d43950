"""The recorder's classes and packages point one way: none need each other in a circle."""

from __future__ import annotations

import pytest

from tests.platform.imports import Import, cycles, java_class_name, java_references_between
from tests.platform.test_boundaries import ROOT, tracked


def recorder_references() -> list[Import]:
    sources = {}
    for path in tracked("recorder/*.java"):
        text = path.read_text(encoding="utf-8")
        name = java_class_name(path.relative_to(ROOT), text)
        assert name not in sources, f"two files are {name}"
        sources[name] = text
    return java_references_between(sources)


def test_no_classes_and_no_packages_of_the_recorder_need_each_other_in_a_circle() -> None:
    assert cycles(recorder_references()) == []


def test_references_are_found_in_the_recorder() -> None:
    recorder = "dispatchaudit.recorder"
    pairs = {(found.importer, found.imported) for found in recorder_references()}
    assert (f"{recorder}.EventQueue", f"{recorder}.Event") in pairs
    assert (f"{recorder}.LogWriterTest", f"{recorder}.LogWriter") in pairs


@pytest.mark.parametrize(
    ("sources", "named"),
    [
        ({"a.X": "Y y;", "a.Y": "class Y {\n  X.Inner x;\n}"}, "a: "),
        ({"a.X": "b.Z z;", "b.Z": "import a.W;\nclass Z {\n  W w;\n}", "a.W": ""}, "the repository: "),
        ({"a.X": "import b.*;\nZ z;", "b.Z": "import static a.X.LIMIT;"}, "the repository: "),
        ({"X": "Y y;", "Y": "X x;"}, "the repository: "),
    ],
)
def test_a_circle_is_named_with_the_references(sources: dict[str, str], named: str) -> None:
    (line,) = cycles(java_references_between(sources))
    assert line.startswith(named)


def test_a_reference_has_its_line() -> None:
    text = '/* Y\n * Y */\nString s = """\n Y "quoted" \\"""\n""";\nY y;'
    assert java_references_between({"a.X": text, "a.Y": ""}) == [Import("a.X", "a.Y", 6)]


@pytest.mark.parametrize(
    "text",
    [
        "// Y\n/* Y */",
        "/** {@link Y} */",
        'String s = "Y \\" Y";',
        "char c = '\\''; // Y",
        "x.Y();",
        "import other.Y;\nY y;",
        "other.Y y;",
        "Yy y;",
    ],
)
def test_what_does_not_name_the_class_is_no_reference(text: str) -> None:
    assert java_references_between({"a.X": text, "a.Y": ""}) == []


def test_the_package_of_a_class_is_read_from_its_source() -> None:
    path = ROOT / "src" / "X.java"
    assert java_class_name(path, "/* package wrong; */\npackage a.b;\nclass X {}") == "a.b.X"
    assert java_class_name(path, "class X {}") == "X"
