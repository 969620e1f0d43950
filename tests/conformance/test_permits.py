"""The permit ledger over all recordings beside the repository: nothing is off but what real brokers did.

The second opinion reads raw lines: the total, less the sum of permits in the same line, with the flows on their way added,
is 0 wherever nothing is wrong.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dispatch_core.audit.permits.choose_ledger import choose_ledger
from dispatch_core.audit.permits.findings import Moment, permit_findings
from dispatch_core.recording.log_profile import profile_of, subscription_type
from dispatch_core.replay.result_rows import names_of
from tests.dispatch_core.audit.small_logs import read
from tests.sample import WHOLE, some

SHARED = Path(__file__).resolve().parents[3] / "shared"
HOMES = ("recordings", "operations", "unsolved")

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not SHARED.is_dir(), reason="no recordings beside the repository"),
]
#: A minute each, and they show no totals.
TOO_LARGE = "large-300000"
#: Recordings whose total really parts from the sum: reason, first line, permits.
REAL = {
    "4.0.0-preview.1/random-0031-range-racing": ("consumer_removed", 861, -200),
    "4.0.0-preview.1/random-0041-range-racing": ("consumer_removed", 842, -5),
    "4.0.0-preview.1/random-0045-ch-racing": ("consumer_removed", 883, -200),
    "4.0.0/shared-0001-racing": ("consumer_removed", 1276, -3),
    "4.0.0/shared-0013-racing": ("consumer_removed", 703, -5),
    "4.2.4/random-0023-ch-racing": ("acked_indexes", 745, -3),
    "4.2.4/random-1010-classic-range-quiet": ("acked_indexes", 1373, -2),
    "4.2.4/random-2019-classic-range-racing": ("acked_indexes", 88, -24),
    "4.2.4/random-2062-ch-quiet": ("acked_indexes", 286, -4),
    "4.2.4/shared-0001-racing": ("consumer_removed", 1270, -3),
    "4.2.4/shared-0026-classic-quiet": ("acked_indexes", 160, -3),
}


def name_of(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def folders() -> list[Path]:
    found = {path.parent for home in HOMES for path in (SHARED / home).glob("*/*/trace.jsonl.gz")}
    assert len(found) > 500
    wanted = [folder for folder in sorted(found) if WHOLE or not folder.name.startswith(TOO_LARGE)]
    return sorted({*some(wanted, 10), *(folder for folder in wanted if name_of(folder) in REAL)})


def found_in(folder: Path) -> list[dict[str, Any]]:
    log = read(folder)
    single_active = subscription_type(log) in ("Failover", "Exclusive")
    ledger = choose_ledger(log, profile_of(log), single_active=single_active, is_trace=True, is_first=True)
    assert ledger is not None
    ledger.take(log.events)
    last_us = log.events["t_us"][-1].as_py()
    made = permit_findings(ledger.off_for_good(), names_of(log.events), Moment(last_us, None))
    return [finding._asdict() for finding in made]


def parted(folder: Path) -> list[int]:
    """Return by how much total and sum part at each line that shows both; parked permits count as granted."""
    late: Counter[int] = Counter()  # permits that were granted and have not reached the total
    found: list[int] = []
    with gzip.open(folder / "trace.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in map(json.loads, file):
            kind = line.get("kind")
            if kind == "flow":
                late[line["consumer"]] += line["permits"]
            elif kind == "flow_applied":
                late[line["consumer"]] -= line.get("permits") or 0
            elif kind == "read_attempt_end" and line.get("usable") is not None:
                found.append(
                    line["total_permits"] + sum(late[who] - permits for who, _, permits, _ in line["usable"])
                )
    return found


def test_nothing_is_off_but_what_real_brokers_did() -> None:
    wrong = []
    for folder in folders():
        found = [(row["kind"], row["reason"], row["seqs"][0], row["uncertain"]) for row in found_in(folder)]
        real = REAL.get(name_of(folder))
        expected = [] if real is None else [("permit_drift", real[0], real[1], False)]
        if found != expected:
            wrong.append((name_of(folder), found))
    assert wrong == []


@pytest.mark.parametrize("name", REAL)
def test_a_second_opinion_finds_the_same_numbers(name: str) -> None:
    (folder,) = (folder for folder in folders() if name_of(folder) == name)
    by = REAL[name][2]
    (finding,) = found_in(folder)
    assert f" {-by} permits below the sum" in finding["explanation"]
    differences = parted(folder)
    first = differences.index(by)
    assert set(differences[:first]) == {0}
    assert differences[first : first + 15].count(by) >= 14


def test_a_second_opinion_finds_nothing_elsewhere() -> None:
    for folder in folders():
        differences = parted(folder)
        if name_of(folder) not in REAL and len(differences) > 20:
            last = differences[-10:]
            assert len(set(last)) > 1 or last[0] == 0, (name_of(folder), last)
