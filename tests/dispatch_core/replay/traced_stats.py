"""The statistics of a replayed log beside the figures that the broker itself wrote into its trace."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.state import LAZY_RELEASE_COUNTS, TRACK_DRAINING
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.statistics import subscription_stats
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.runner import Verifier, verify


def recorded(folder: Path) -> DispatcherLog:
    (source,) = find_recordings([str(folder)])
    (log,) = read_recording(source).logs
    return log


def raw(folder: Path) -> list[dict[str, Any]]:
    """The lines of a trace after its header."""
    with gzip.open(folder / "trace.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines][1:]


def compare(folder: Path) -> Counter[str]:
    """Number of figures compared, by name; those that differ under the name with ``differs`` behind it.

    ``counters``: permits and unacknowledged messages of all consumers, at the end of each read attempt. ``in_replay``:
    size of the replay set after each round. ``draining``: all draining hashes with their counts, at each read attempt, by
    the additions and releases so far; not where a hash can be freed without a line (before #24736). ``joined``: the read
    position at each join, where the release shows it.
    """
    trace = {line["seq"]: line for line in raw(folder)}
    log = recorded(folder)
    entries = Entries(log.messages)
    refs: Counter[tuple[int, int]] = Counter()
    found: Counter[str] = Counter()

    def note(name: str, shown: object, written: object) -> None:
        found[name] += 1
        found[f"{name} differs"] += shown != written

    def watch(line: Line, driver: Verifier) -> None:
        written, core = trace[line.seq], driver.core
        if line.kind == "draining_add":
            refs[line.consumer or 0, written["hash"]] += 1
        elif line.kind == "draining_release" and written["ref_count_before"] > 0:
            refs[line.consumer or 0, written["hash"]] -= 1
        if line.kind not in ("read_attempt", "read_attempt_end", "round_end", "selector_added"):
            return
        assert isinstance(core, KeySharedDispatcher)
        stats = subscription_stats(core, entries, ranges=False)
        shown = {consumer["consumer"]: consumer for consumer in stats["consumers"]}
        if line.kind == "round_end":
            note("in_replay", stats["msgInReplay"], written["in_replay"])
        elif line.kind == "read_attempt_end":
            counters = {who: (c["availablePermits"], c["unackedMessages"]) for who, c in shown.items()}
            note("counters", counters, {who: (permits, n) for who, _, permits, n in written["usable"]})
        elif line.kind == "selector_added" and "readPositionWhenJoining" in shown[line.consumer or 0]:
            added = next(
                t for t in trace.values() if t["kind"] == "consumer_added" and t["consumer"] == line.consumer
            )
            note("joined", shown[line.consumer or 0]["readPositionWhenJoining"], added["read_position"])
        elif (
            line.kind == "read_attempt" and core.state.s[LAZY_RELEASE_COUNTS] and core.state.s[TRACK_DRAINING]
        ):
            hashes = {
                (who, item["hash"]): item["unackMsgs"]
                for who, c in shown.items()
                for item in c.get("drainingHashes", [])
            }
            note("draining", hashes, {key: n for key, n in refs.items() if n > 0 and key[0] in shown})
            found["draining hashes"] += len(hashes)

    verification = verify(log, watch=watch)
    assert verification.not_judged is None, verification.not_judged
    return found
