"""Folders of scenarios, the brokers in them, and one line per scenario at the end.

Only ``make test-recorder`` runs the scenarios: it brings a broker by Maven and runs Java's scenarios before. Without it
only the checker of the clients' journals and the client log of Python are tested.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from tests.recorder.broker import TARGET, Broker
from tests.recorder.comparison import Audit, status
from tests.recorder.truth import Truth

if "DISPATCH_AUDIT_RECORDER_TARGET" not in os.environ:
    collect_ignore = [
        file.name
        for file in Path(__file__).parent.glob("test_*.py")
        if file.name not in ("test_truth.py", "test_client_log.py")
    ]

#: A summary line of each scenario.
LINES: list[str] = []

Start = Callable[..., Broker]
Starts = Start


@pytest.fixture
def broker() -> Iterator[Start]:
    """Start a broker for a scenario, on an empty folder of its name."""
    yield from _starting()


@pytest.fixture(scope="module")
def brokers() -> Iterator[Starts]:
    """The same for the scenarios of a module."""
    yield from _starting()


def _starting() -> Iterator[Start]:
    running: list[Broker] = []

    def start(name: str, settings: Mapping[str, str] | None = None, options: Sequence[str] = ()) -> Broker:
        folder = TARGET / "it" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        started = Broker(folder, settings, options)
        running.append(started)
        started.start()
        return started

    yield start
    for started in running:
        started.kill()


def tell(recording: Path, truth: Truth, audit: Audit) -> None:
    """Keep a scenario's summary line for the end."""
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
    """Print the summary lines."""
    for line in LINES:
        terminalreporter.write_line(line)
