"""The index of several reports."""

from __future__ import annotations

from typing import Any

from dispatch_core.report.index import IndexRow, index, worst_first
from tests.report.tables import HOSTILE, HOSTILE_TOPIC


def row(topic: str, verdict: str, **findings: int) -> IndexRow:
    promises: list[dict[str, Any]] = [
        {
            "promise": promise,
            "verdict": verdict if count else "PASS",
            "reason": f"{count} of {promise}",
            "findings": count,
            "tolerated": 3,
            "top_findings": (f"the worst of {promise} in {topic}",) if count else (),
        }
        for promise, count in findings.items()
    ]
    whole = {"promise": "all", "verdict": verdict, "reason": f"why {topic}", "findings": 0, "tolerated": 0}
    return IndexRow(topic, "s", "origin", f"{topic}.html", ({**whole, "top_findings": ()}, *promises))


ROWS = (
    row("kept", "PASS", balance=0),
    row("open", "UNKNOWN", completeness=1),
    row("broken", "FAIL", per_key_order=5),
    row("more", "FAIL", per_key_order=7),
    row("twice", "FAIL", per_key_order=1, completeness=1),
)


def test_the_worst_is_first() -> None:
    assert [each.topic for each in worst_first(ROWS)] == ["twice", "more", "broken", "open", "kept"]
    nobody = IndexRow("t", "s", "o", None, ())
    assert (nobody.verdict, nobody.reasons()) == ("UNKNOWN", [])


def test_a_row_says_why_and_how_often() -> None:
    text = index(ROWS, title="Reports", origin="recording")
    rows = text.split("<tbody", 1)[1].split("<tr ")[1:]
    assert "why twice" in rows[0]
    assert "the worst of per_key_order in twice" in rows[0]
    assert "the worst of completeness in twice" in rows[0]
    assert "FAIL</span> per_key_order: 1 (+3 tolerated)" in rows[0]
    assert "why kept" not in rows[-1]
    assert 'href="more.html"' in rows[1]
    assert "FAIL (3)" in text
    assert "FAIL" not in index(ROWS[:2], title="Reports", origin="recording").split("<body", 1)[1], (
        "nothing is offered that would leave no row"
    )
    assert index(tuple(reversed(ROWS)), title="Reports", origin="recording") == text


def test_hostile_names_stay_text() -> None:
    text = index((IndexRow(HOSTILE_TOPIC, HOSTILE, HOSTILE, None, ()),), title=HOSTILE, origin="recording")
    assert "<img" not in text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "href=" not in text.split("<tbody", 1)[1]
