"""Every kind of tampering with a real trace is found at the line of the decision, whatever races with it.

The bars: 99 % of the places in quiet recordings, 97 % in racing ones. A place is drawn at random from a kind's lines, in
recordings drawn at random: of all selectors, releases and orders, Failover and Exclusive, with operations and policies too.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from dispatch_core.verify.tally import Finding
from tests.dispatch_core.verify import tampering as t
from tests.dispatch_core.verify.tampering import Keys, Trace
from tests.dispatch_core.verify.tampering_kinds import KINDS, Kind, numbered
from tests.sample import WHOLE

SHARED = Path(__file__).resolve().parents[3] / "shared"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not (SHARED / "recordings").is_dir(), reason="no recordings beside the repository"),
]

#: Group → smallest share of tampered places that is found.
BARS = {"quiet": 0.99, "racing": 0.97}
#: Recordings in which each kind is tried once.
RECORDINGS = 12 if WHOLE else 1
#: Larger recordings take long. Without them there are some of every selector, release and order, quiet and racing.
LARGEST_BYTES = 60_000 if WHOLE else 20_000
#: Not all of it is compared (docs/verify.md, "What is not judged").
LEFT_OUT = ("large", "delayed", "compacted", "rate")
#: Lines of a recording at which a kind is tried until it lends itself to one.
LINES = 60
#: Fewest kinds, and kinds that are tried in ``RECORDINGS`` recordings of each group.
KINDS_EXPECTED = 44


@cache
def recordings() -> tuple[Path, ...]:
    """Return the folders of the recordings."""
    homes = ("recordings", "operations", "unsolved")
    files = sorted(file for home in homes for file in SHARED.glob(f"{home}/*/*/trace.jsonl.gz"))
    return tuple(
        file.parent
        for file in files
        if file.stat().st_size <= LARGEST_BYTES and not set(LEFT_OUT) & set(file.parent.name.split("-"))
    )


def group(folder: Path) -> str:
    return "racing" if folder.name.endswith("-racing") else "quiet"


@cache
def recorded(folder: Path) -> tuple[bytes, Counter[str], Keys]:
    """Return the trace of a recording, pickled, its lines by kind, and the keys of its entries."""
    trace = t.raw(folder)
    return pickle.dumps(trace), Counter(line.get("kind", "") for line in trace), t.keys_of(folder)


def tampered(kind: Kind, folder: Path, rng: random.Random) -> tuple[Trace, int] | None:
    """Return a trace with a change and the line that must show it; ``None`` if no line lends itself to it."""
    dumped, kinds, keys = recorded(folder)
    if not kinds[kind.of]:
        return None
    lines = t.places(pickle.loads(dumped), kind.of)
    for at in rng.sample(lines, min(len(lines), LINES)):
        trace: Trace = pickle.loads(dumped)
        shows = kind.change(trace, at, keys)
        if shows is not None:
            return trace, numbered(trace, shows)
    return None


def shown_by(kind: Kind, folder: Path, finding: Finding, shows: int) -> bool:
    """Check whether a finding shows a change. In Shared, where nothing drains, pending acks are counted as ``state``."""
    if kind.decision_class == "draining" and "shared" in folder.name:
        kind = replace(kind, decision_class="state")
    return kind.is_shown_by(finding, shows)


@pytest.mark.parametrize("which", BARS)
def test_tampering_is_found_at_its_line(which: str, tmp_path: Path) -> None:
    tried: Counter[str] = Counter()
    misses: list[str] = []
    for name, kind in KINDS.items():
        rng = random.Random(f"{name} {which}")
        folders = [folder for folder in recordings() if group(folder) == which]
        rng.shuffle(folders)
        for folder in folders:
            if tried[name] == RECORDINGS:
                break
            changed = tampered(kind, folder, rng)
            if changed is None:
                continue
            tried[name] += 1
            trace, shows = changed
            findings = t.verified(t.copy_with(folder, trace, tmp_path)).tally.findings
            if not any(shown_by(kind, folder, finding, shows) for finding in findings):
                here = [
                    (finding.decision_class, finding.status) for finding in findings if finding.seq == shows
                ]
                misses.append(f"{name}: {folder.parent.name}/{folder.name} seq {shows}, found there: {here}")
    if which == "quiet":  # racing recordings have no operations on the cursor
        assert set(tried) == set(KINDS)
    assert sum(count == RECORDINGS for count in tried.values()) >= KINDS_EXPECTED
    assert len(misses) <= (1 - BARS[which]) * tried.total(), "\n".join([f"of {tried.total()}", *misses])
