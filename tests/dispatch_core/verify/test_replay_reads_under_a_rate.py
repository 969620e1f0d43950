"""A dispatch rate bounds the entries that the pre-filter of a replay read looks at, not those that it leaves.

In ``4.2.4/soak-80420-classic-ch-quiet`` (tests/data/races) a rate of 15 messages a second is in force. The replay read of
line 348 has 10 entries. The pre-filter has looked at 14 or 15, and left out four whose consumer is held back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.dispatch_core.verify import tampering as t

RECORDING: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "soak-80420-classic-ch-quiet"
)
READ: Final = 348
OF_CONSUMER_3: Final = ["1:47", "1:48"]
BEHIND: Final = [f"1:{entry}" for entry in (*range(50, 56), 60, 61, 63, 69, 71, 72)]


def found(positions: list[str], where: Path) -> set[int]:
    trace = t.raw(RECORDING)
    t.line_of(trace, READ)["positions"] = positions
    return {finding.seq for finding in t.divergent(RECORDING, trace, where)}


def test_a_smaller_read_is_not_judged() -> None:
    tally = t.verified(RECORDING).tally
    assert tally.total("divergent") == 0
    assert sum(counts["read"] for counts in tally.not_judged.values()) == 9


@pytest.mark.parametrize("count", [6, 7, 9])
def test_a_rate_may_allow_any_number(count: int, tmp_path: Path) -> None:
    assert READ not in found([*OF_CONSUMER_3, *BEHIND[:count]], tmp_path)


@pytest.mark.parametrize(
    "positions",
    [
        [*OF_CONSUMER_3, *BEHIND[:7], "1:63"],
        [*OF_CONSUMER_3, *BEHIND[:6], "1:56", "1:57"],
        [*OF_CONSUMER_3, *BEHIND, "1:73"],
        BEHIND[:8],
    ],
    ids=["a hole", "of a consumer that is held back", "one more than there are", "not the first ones"],
)
def test_it_allows_the_first_ones_only(positions: list[str], tmp_path: Path) -> None:
    assert READ in found(positions, tmp_path)
