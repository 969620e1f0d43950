"""Two seeds on a real broker: the trace has the lines of the format, follows the rules, and agrees with the clients."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.soak import running
from tests.soak.driver import ROOT
from tests.soak.judging import Played, Result, judge
from tests.soak.running import Results, Soak
from tests.soak.script import script_of

TARGET = Path(os.environ["DISPATCH_AUDIT_SOAK_TARGET"])
RELEASE = os.environ["DISPATCH_AUDIT_SOAK_RELEASE"]
#: A racing and a quiet script of a Key_Shared subscription.
SEEDS = (1, 6)
#: Fields of each line that the header gives in a file of one dispatcher.
_OF_THE_HEADER = {"topic", "subscription", "incarnation"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("soak")


@pytest.fixture(scope="module")
def results(home: Path) -> Results:
    said: list[str] = []
    return Soak(TARGET, RELEASE, home, said.append, keep=True, shrinking=0).run(SEEDS, jobs=1)


def lines(files: Iterator[Path]) -> Iterator[dict[str, Any]]:
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as text:
            yield from map(json.loads, text)


def fields_by_kind(files: Iterator[Path]) -> dict[str, set[frozenset[str]]]:
    found: dict[str, set[frozenset[str]]] = {}
    for line in lines(files):
        if "seq" in line:
            found.setdefault(line["kind"], set()).add(frozenset(line) - _OF_THE_HEADER)
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_every_decision_follows_the_rules(results: Results, seed: int) -> None:
    (result,) = [row for row in results.rows if row.seed == seed]
    assert (result.failure, result.not_judged, result.first_divergence) == (None, None, None)
    assert result.divergent == 0
    assert result.disagreements == []
    assert result.decisions > 300
    assert isinstance(result, Result)


def test_lines_have_the_fields_of_other_recordings(results: Results, home: Path) -> None:
    """``tests/data`` holds recordings of the same kinds of lines, made by another program."""
    known = fields_by_kind((ROOT / "tests" / "data" / "recordings").rglob("trace*.jsonl.gz"))
    own = fields_by_kind((home / "played").rglob("trace-*.jsonl.gz"))
    assert len(results.rows) == len(SEEDS)
    both = set(own) & set(known)
    assert {"sent", "read_done", "round_begin", "round_end", "usable_seen", "pending_ack_removed"} <= both
    assert {kind: own[kind] - known[kind] for kind in both if own[kind] - known[kind]} == {}


def test_a_header_says_that_nothing_is_missing(results: Results, home: Path) -> None:
    headers = [line for line in lines((home / "played").rglob("trace-*.jsonl.gz")) if "records" in line]
    assert len(headers) == len(SEEDS)
    assert all("missing" not in header for header in headers)
    assert {header["format"] for header in headers} == {"pulsar-dispatch-trace"}


def test_a_second_run_plays_nothing(results: Results, home: Path) -> None:
    before = (home / "results.jsonl").read_bytes()
    again = Soak(TARGET / "nowhere", RELEASE, home, print, shrinking=0).run(SEEDS, jobs=2)
    assert len(again.rows) == len(results.rows)
    assert (home / "results.jsonl").read_bytes() == before


def test_the_driver_plays_what_the_seed_says(results: Results, home: Path) -> None:
    for row in results.rows:
        played = json.loads((home / "played" / row.name / "script.json").read_text(encoding="utf-8"))
        assert played == json.loads(json.dumps(script_of(row.seed).as_json()))


def test_what_goes_wrong_is_kept_and_shrunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every negative acknowledgement made a broker diverge."""

    def diverging(played: Sequence[Played]) -> list[Result]:
        results = judge(played)
        return [
            replace(result, divergent=1) if play.script.uses("nack") else result
            for play, result in zip(played, results, strict=True)
        ]

    monkeypatch.setattr(running, "judge", diverging)
    said: list[str] = []
    results = Soak(TARGET, RELEASE, tmp_path, said.append, shrinking=5).run([6], jobs=1)
    assert [row.divergent for row in results.rows] == [1]
    kept = json.loads((tmp_path / "wrong" / "6-ch-quiet" / "script.json").read_text(encoding="utf-8"))
    short = tmp_path / "wrong" / "6-ch-quiet-shrunk"
    steps = json.loads((short / "script.json").read_text(encoding="utf-8"))["steps"]
    assert "nack" in {step["what"] for step in steps}
    assert len(steps) < len(kept["steps"])
    assert f"6-ch-quiet: {len(steps)} of {len(kept['steps'])} steps are enough" in said
    assert list((short / "recording").glob("trace-*.jsonl.gz"))
    assert not (tmp_path / "playing").exists()
