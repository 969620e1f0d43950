"""Every recording of a real broker, without its trace: no delivery may differ from the rule."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import pytest

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.replay_log import replay
from tests.dispatch_core.logs_without_trace import stripped
from tests.sample import WHOLE, some

RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"
START, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]


def judged(folder: str) -> tuple[str, dict[str, int], Counter[str]]:
    """Counts of one recording, and the reasons of what is uncertain."""
    recording = read_recording(find_recordings([folder])[0])
    tables = replay(stripped(recording.logs[0]), interval_start=START, interval_end=END)
    state = tables["dispatcher_state"].to_pylist()[0]
    assert state["not_judged_reason"] is None, recording.name
    counts = {name: state[name] for name in ("decisions", "exact", "uncertain", "divergent")}
    return recording.name, counts, Counter(tables["divergences"]["reason"].to_pylist())


def test_no_delivery_of_a_real_broker_differs_from_its_rule() -> None:
    folders = some((str(source.folder) for source in find_recordings([RECORDINGS])), 9)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as workers:
        found = list(workers.map(judged, folders, chunksize=8))
    divergent = [name for name, counts, _ in found if counts["divergent"]]
    total = Counter[str]()
    reasons = Counter[str]()
    for _, counts, why in found:
        total.update(counts)
        reasons.update(why)
    assert divergent == []
    assert total["decisions"] > (700_000 if WHOLE else 60_000)
    assert total["uncertain"] < total["decisions"] / 500
    # Only what reads, and acknowledgements of parts of batches, could tell.
    explained = {
        "how far was read when the consumer joined is not in the log",
        "the consumer has no permits left",
        "an earlier entry of the key's hash waits to be sent",
        "nothing made the cursor go back",
        "it was acknowledged a moment before, when it may have been read already",
    }
    assert set(reasons) <= explained
