"""Traces of a heavy load leave read attempts out, up to the line at which the load is over, or to the end."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.trace.facts import TraceFacts
from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "recordings" / "4.2.4" / "designed-rolling-restart-ch"
)
#: Kinds that are left out.
LEFT_OUT: Final = frozenset(
    {"read_attempt", "read_attempt_end", "usable_seen", "send_returned", "flow_counted"}
)


def light(until: int) -> t.Trace:
    """Leave them out of the lines before the first read attempt from line ``until`` on; 0 = of all lines."""
    trace = t.raw(RECORDING)
    attempts = [line["seq"] for line in trace if line.get("kind") == "read_attempt"]
    over = next(seq for seq in attempts if seq >= until) if until else 1 << 30
    return [line for line in trace if line.get("kind") not in LEFT_OUT or line["seq"] >= over]


def facts_of(folder: str) -> TraceFacts:
    (source,) = find_recordings([folder])
    (log,) = read_recording(source).logs
    return TraceFacts().with_lines(log.events)


@pytest.mark.parametrize("until", [0, 400, 900])
def test_reads_are_compared_without_their_attempts(until: int, tmp_path: Path) -> None:
    folder = t.copy_with(RECORDING, light(until), tmp_path)
    facts = facts_of(folder)
    assert facts.attempts_logged == (until > 0)
    assert not facts.attempts_from_the_start
    tally = t.verified(Path(folder)).tally
    assert tally.total("divergent") == 0
    assert tally.total("exact") > 0


@pytest.mark.parametrize("until", [0, 400, 900])
def test_another_read_is_found(until: int, tmp_path: Path) -> None:
    trace = light(until)
    read = next(line for line in trace if line.get("kind") == "read_issued" and line["seq"] > 200)
    read["max_entries"] += 1
    assert read["seq"] in {finding.seq for finding in t.divergent(RECORDING, trace, tmp_path)}


def test_a_read_outside_an_attempt_is_found_where_attempts_have_lines(tmp_path: Path) -> None:
    for until in (1, 400):
        trace = light(until)
        attempts = [at for at, line in enumerate(trace) if line.get("kind") == "read_attempt"]
        at = next(at for at in attempts[5:] if trace[at + 1]["kind"] in ("usable_seen", "read_issued"))
        read = next(line["seq"] for line in trace[at:] if line["kind"].endswith("read_issued"))
        del trace[at]
        found = {finding.seq for finding in t.divergent(RECORDING, trace, tmp_path / str(until))}
        assert read in found


def test_one_missing_attempt_is_no_heavy_load() -> None:
    assert TraceFacts(attempts_logged=True, reads_before_attempts=1).attempts_from_the_start
    assert not TraceFacts(attempts_logged=True, reads_before_attempts=2).attempts_from_the_start
    assert not TraceFacts(attempts_logged=False).attempts_from_the_start
