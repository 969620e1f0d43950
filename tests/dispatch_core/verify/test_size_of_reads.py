"""A read of Failover has the size that its attempt began with, whatever flows are counted before it is issued.

In ``4.0.0/soak-80116-failover-ring-quiet`` (tests/data/races) consumer 4 has one permit when the attempt of line 154 begins.
Two more are counted before its read, which asks for one entry: line 160. It returns entry 1:15. The entries behind that are
acknowledged, and the read position does not pass them, because the read has what it asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.0.0" / "soak-80116-failover-ring-quiet"
)
ISSUED, DONE = 160, 163


def test_the_read_position_is_behind_what_was_returned() -> None:
    assert t.verified(RECORDING).tally.total("divergent") == 0


def test_it_passes_acknowledged_entries_only_at_the_end_of_the_topic(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    t.line_of(trace, DONE)["read_position"] = "1:18"
    assert DONE in {finding.seq for finding in t.divergent(RECORDING, trace, tmp_path)}


def test_no_moment_explains_more_than_its_permits(tmp_path: Path) -> None:
    trace = t.raw(RECORDING)
    t.line_of(trace, ISSUED)["max_entries"] = 4
    assert ISSUED in {finding.seq for finding in t.divergent(RECORDING, trace, tmp_path)}
