"""The permit ledger over all recordings beside the repository: nothing is off but what a real broker did."""

from __future__ import annotations

from pathlib import Path

import pytest

from dispatch_core.audit.permits.choose_ledger import choose_ledger
from dispatch_core.audit.permits.findings import Moment, permit_findings
from dispatch_core.recording.log_profile import profile_of, subscription_type
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.result_rows import names_of
from tests.sample import some

SHARED = Path(__file__).resolve().parents[3] / "shared"
HOMES = ("recordings", "operations", "unsolved")

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not SHARED.is_dir(), reason="no recordings beside the repository"),
]
#: Recordings whose totals really part from the sum: kind, first line and number of permits.
REAL: dict[str, list[tuple[str, int, int]]] = {}


def folders() -> list[Path]:
    found = {path.parent for home in HOMES for path in (SHARED / home).glob("*/*/trace.jsonl.gz")}
    assert len(found) > 500
    real = [folder for folder in found if folder.name in REAL]
    return sorted({*some(sorted(found), 4), *real})
