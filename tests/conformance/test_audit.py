"""The audit over all recordings beside the repository: the counts of the contracts, and a second opinion on each.

The expected counts are those of all recordings under the definitions (in-order AUTO_SPLIT, without ``large-300000-*``): a
difference is a finding about the audit or about the recordings. ``make conformance`` takes every third recording, and the
kinds of findings that none of them may have; ``make conformance-all`` takes all, and counts.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dispatch_core.audit.deliveries.rows import Audit
from dispatch_core.recording import rewrite
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.whole_log import audit_whole
from tests import checker
from tests.dispatch_core.audit.small_logs import audited, kinds, read
from tests.dispatch_core.audit.test_second_opinion import findings, second_opinion
from tests.sample import WHOLE, some

Ints = npt.NDArray[np.int64]
RECORDINGS = Path(__file__).resolve().parents[3] / "shared" / "recordings"

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not RECORDINGS.is_dir(), reason="no recordings beside the repository"),
]
VERSIONS = ("4.2.4", "4.0.0", "4.0.0-preview.1")
#: The checker compares each delivery with every earlier one of the key, which takes minutes on these.
TOO_LARGE = ("large-300000-ch", "large-300000-classic-ch")
#: In 4.0.0 a consumer that joins again under its name can overtake the rest of a batch.
SAME_NAME = ("designed-same-name-batches-ch", "designed-same-name-batches-range")
#: Release and rule → recordings, those with ``out_of_order``, those with ``split_key``.
ORDER = {
    "4.2.4": {"own": (52, 0, 0), "classic": (56, 14, 18)},
    "4.0.0": {"own": (43, 2, 0), "classic": (45, 11, 14)},
    "4.0.0-preview.1": {"own": (63, 3, 10)},
}


@functools.cache
def folders() -> tuple[Path, ...]:
    found = tuple(
        folder
        for version in VERSIONS
        for folder in sorted((RECORDINGS / version).iterdir())
        if folder.is_dir()
    )
    assert len(found) > 300
    return found


def in_order_auto_split(log: DispatcherLog) -> bool:
    modes = set(
        zip(
            log.events["key_shared_mode"].drop_null().to_pylist(),
            log.events["key_shared_allow_out_of_order"].drop_null().to_pylist(),
            strict=True,
        )
    )
    return log.header["subscription_type"] == "Key_Shared" and modes == {("AUTO_SPLIT", False)}


def rule(log: DispatcherLog) -> tuple[str, str]:
    config = log.header["config"]
    classic = config.get("subscriptionKeySharedUseClassicPersistentImplementation", False)
    return log.header["broker_version"], "classic" if classic else "own"


def names(version: str) -> Iterator[Path]:
    return (folder for folder in folders() if folder.parent.name == version)


def proven(audit: Audit, source: Ints | None = None) -> Counter[tuple[str, tuple[str, ...], int, bool]]:
    """Count findings by kind, positions, proving line as numbered in the trace, and certainty."""
    return Counter(
        (
            row["kind"],
            tuple(row["positions"]),
            row["seqs"][-1] if source is None else int(source[row["seqs"][-1] - 1]),
            not row["uncertain"],
        )
        for row in audit.anomalies.to_pylist()
    )


def refuted_by_the_trace(log: DispatcherLog, audit: Audit, *, minimal: bool) -> list[str]:
    """List findings that only the trace proves, and certain ones of the log without it that the trace does not have."""
    events, source = rewrite.without_trace(log.events, minimal=minimal)
    without_trace, with_trace = proven(audited(replace(log, events=events)), source), proven(audit)
    missed = Counter(finding[:3] for finding in with_trace.elements())
    missed.subtract(finding[:3] for finding in without_trace.elements())
    certain = Counter({finding: count for finding, count in without_trace.items() if finding[3]}) - with_trace
    if minimal and log.events["ack_sets"].null_count < len(log.events):
        # Acks of a part of a batch look like whole ones there: the rest that stays outstanding is unknown, and another held
        # entry may be named.
        known = {(kind, positions[:1], line) for kind, positions, line, _ in with_trace}
        return [str(finding) for finding in certain if (finding[0], finding[1][:1], finding[2]) not in known]
    return [str(finding) for finding in (*(+missed), *(-missed), *certain)]


def wrong_at_the_end(folder: Path, log: DispatcherLog) -> list[str]:
    """List differences of brute force and audit: faults of the log, entries never sent, entries never acknowledged."""
    paths = [str(folder / f"{name}.jsonl.gz") for name in ("messages", "trace")]
    wrong = [str(finding) for finding in checker.check_log(*map(checker.lines, paths))]  # real logs are sound
    unsent, holes = (set(positions) for positions in checker.open_at_end(*paths))
    rows = audit_whole(log, largest_trace=0).anomalies.to_pylist()
    lost = {position for row in rows if row["kind"] == "never_delivered" for position in row["positions"]}
    open_ = {position for row in rows if row["kind"] == "ack_hole" for position in row["positions"]}
    if not lost <= unsent:
        wrong.append(f"{folder.name}: sent, but reported as lost: {sorted(lost - unsent)[:5]}")
    if not open_ <= holes or bool(open_) != bool(holes):
        wrong.append(f"{folder.name}: unacknowledged by brute force {len(holes)}, by the audit {len(open_)}")
    return wrong


@pytest.mark.parametrize("version", VERSIONS)
def test_recordings_say_what_the_contracts_state(version: str) -> None:
    recordings: Counter[str] = Counter()
    having: Counter[tuple[str, str]] = Counter()
    disagreements: list[str] = []
    refuted: list[str] = []
    wrong: list[str] = []
    named: dict[tuple[str, str], list[str]] = {}
    # Brute force takes minutes on the large ones.
    left_out = TOO_LARGE if WHOLE else "large-"
    chosen = some((folder for folder in names(version) if not folder.name.startswith(left_out)), 10)
    for folder in chosen:
        log = read(folder)
        audit = audited(log)
        if findings(audit) != second_opinion(folder):
            disagreements.append(folder.name)
        for minimal in (False, True):
            refuted += [
                f"{folder.name}: {what}" for what in refuted_by_the_trace(log, audit, minimal=minimal)
            ]
        wrong += wrong_at_the_end(folder, log)
        if in_order_auto_split(log):
            which = rule(log)[1]
            recordings[which] += 1
            for kind in kinds(audit):
                having[which, kind] += 1
                named.setdefault((which, kind), []).append(folder.name)
    assert disagreements == []
    assert refuted == [], "the log without a trace and the trace give different findings"
    assert wrong == [], "entries open at the end differ from brute force"
    order = {
        which: (recordings[which], having[which, "out_of_order"], having[which, "split_key"])
        for which in recordings
    }
    if WHOLE:
        assert order == ORDER[version]
    else:
        most = ORDER[version]
        assert order.keys() == most.keys()
        assert not [
            (which, order[which])
            for which in order
            if any(count > limit for count, limit in zip(order[which], most[which], strict=True))
        ]
    if version == "4.0.0":
        assert named.get(("own", "out_of_order"), []) == [
            folder.name for folder in chosen if folder.name in SAME_NAME
        ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TOO_LARGE)
def test_the_large_recordings(name: str) -> None:
    """300,000 entries with consumers scaling up and down: draining hashes keep order, the 3.x rule does not."""
    audit = audited(read(RECORDINGS / "4.2.4" / name))
    assert audit.deliveries.num_rows >= 300_000
    found = set(kinds(audit))
    assert found <= (
        {"redelivered", "overtaken_redelivery"}
        | ({"out_of_order", "split_key"} if "classic" in name else set())
    )
