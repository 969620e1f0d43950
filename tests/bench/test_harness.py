"""Results that the benchmark computes from its measurements: ratios, medians, the table, the file of results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import harness
from bench.harness import Bar, BenchError, Measured, in_turns, keep, measure, per_message, ratio, table


def measured(*seconds: float) -> list[Measured]:
    return [Measured(wall, 100.0) for wall in seconds]


def test_a_ratio_is_of_medians_and_its_spread_of_turns() -> None:
    bar = ratio("replay", measured(3.0, 2.0, 100.0), measured(2.0, 2.0, 4.0), 1.5)
    assert bar.value == pytest.approx(1.5)
    assert bar.spread == (1.0, 25.0)
    assert bar.holds is True
    assert "3.00 s against 2.00 s" in bar.detail


def test_sides_of_different_length_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratio("replay", measured(1.0, 2.0), measured(1.0), 1.5)


def test_seconds_per_message() -> None:
    assert [run.seconds for run in per_message(measured(2.0, 4.0), 1_000_000)] == [2.0, 4.0]
    assert per_message(measured(2.0), 10)[0].peak_mb == 100.0


def test_the_table_tells_what_holds_and_what_does_not() -> None:
    lines = table(
        [
            Bar("good", 1.2, 1.5, "x", "detail", (1.1, 1.3)),
            Bar("bad", 1.6, 1.5, "x", ""),
            Bar("information", 2_000_000, None, "messages/s", ""),
        ]
    ).splitlines()
    assert len(lines) == 4
    assert "1.20 x (1.10-1.30)" in lines[1]
    assert "holds" in lines[1]
    assert "<= 1.5" in lines[2]
    assert "MISSED" in lines[2]
    assert "2,000,000 messages/s" in lines[3]
    assert "holds" not in lines[3]


def test_results_are_kept_with_what_they_were_measured_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    keep("quick", "one", [Bar("bad", 1.6, 1.5, "x", "why")], {"sizes": {"messages": 2}})
    path = keep("quick", "other", [Bar("good", 1.4, 1.5, "x", "why")], {"sizes": {"messages": 3}})
    keep("quick", "one", [Bar("bad", 1.6, 1.5, "x", "why")], {"sizes": {"messages": 3}})
    cases = json.loads(path.read_text())["cases"]
    assert list(cases) == ["one", "other"], "measured again, a case takes the place that it had"
    kept = cases["one"]
    assert path == tmp_path / "results" / "quick.json"
    assert kept["sizes"] == {"messages": 3}
    assert kept["cores"] >= 1
    assert kept["bars"][0] | {"name": "bad", "holds": False, "bar": 1.5} == kept["bars"][0]


def test_a_measurement_is_a_process_of_its_own_on_the_cores_given() -> None:
    found = measure("tests.bench.targets:cores", {"times": 2}, cores=1)
    assert found.facts == {"cores": 1, "times": 2}
    assert found.seconds == 0.5
    assert 10 < found.peak_mb < 1000


def test_sides_take_turns() -> None:
    sides = [
        ("a", "tests.bench.targets:cores", {"times": 1}),
        ("b", "tests.bench.targets:cores", {"times": 2}),
    ]
    found = in_turns(sides, 2, cores=1)
    assert [run.facts["times"] for run in found["a"] + found["b"]] == [1, 1, 2, 2]


def test_a_measurement_that_fails_says_why() -> None:
    with pytest.raises(BenchError, match="this target breaks"):
        measure("tests.bench.targets:broken", {})
