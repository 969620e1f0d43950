"""The walk in docs/architecture.md names functions that exist, in the files it links to."""

from __future__ import annotations

import re

from tests.platform.test_boundaries import ROOT

STOP = re.compile(r"^\| (\d+) \| \[`(\w+)`\]\(\.\./([\w/]+\.py)\) \|", re.MULTILINE)


def test_every_stop_of_the_walk_is_there() -> None:
    stops = STOP.findall((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in stops] == list(range(1, len(stops) + 1))
    assert 10 <= len(stops) <= 15
    for _, name, path in stops:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^\s*(def|class) {name}\b", text, re.MULTILINE), f"{path} has no {name}"
