"""Folders of scenarios, the brokers in them, and one line per scenario at the end.

Only ``make test-recorder`` runs the scenarios: it brings a broker by Maven and runs Java's scenarios before. Without it the
checker of what clients see is tried, and nothing else.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.recorder.broker import TARGET, Broker
from tests.recorder.comparison import Audit, status
from tests.recorder.truth import Truth

if "DISPATCH_AUDIT_RECORDER_TARGET" not in os.environ:
    collect_ignore = [
        one.name for one in Path(__file__).parent.glob("test_*.py") if one.name != "test_truth.py"
    ]

#: What is told of each scenario.
LINES: list[str] = []

Start = Callable[..., Broker]


@pytest.fixture
def broker() -> Iterator[Start]:
    """Start a broker for a scenario, on an empty folder of its name."""
    running: list[Broker] = []

    def start(name: str, settings: Mapping[str, str] | None = None) -> Broker:
        folder = TARGET / "it" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        one = Broker(folder, settings)
        running.append(one)
        one.start()
        return one

    yield start
    for one in running:
        one.kill()


def tell(recording: Path, truth: Truth, audit: Audit) -> None:
    """Keep a scenario's line for the end."""
    counts = status(recording)
    lost = {
        name: counts[name]
        for name in ("lost_events", "lost_messages", "failed_lines", "errors", "late_events")
    }
    recorded = f"{counts['events']:,} events, " + (
        ", ".join(f"{value} {name}" for name, value in lost.items() if value) or "nothing lost, no error"
    )
    found = ", ".join(f"{count} {kind}" for kind, count in audit.verdict["counts"].items()) or "no finding"
    line = f"{recording.parent.name}: clients saw {truth.words()} / recorder: {recorded} / "
    LINES.append(line + f"audit {audit.verdict['verdict']}: {found}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line per scenario."""
    for line in LINES:
        terminalreporter.write_line(line)
