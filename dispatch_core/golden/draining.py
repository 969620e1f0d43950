"""Player of ``draining`` histories: the tracker of draining hashes, operation by operation.

It drives the functions of ``ordering.draining_hashes`` over a ``State``, the same that a replay runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dispatch_core.broker import profiles
from dispatch_core.broker.ordering import draining_hashes
from dispatch_core.broker.state import (
    DRAIN_BATCH,
    DRAIN_UNBLOCKED,
    LAZY_RELEASE_COUNTS,
    NOBODY,
    TRACK_DRAINING,
    new_state,
)

Answer = dict[str, Any]


def rules(version: str, _line: dict[str, Any]) -> bool | None:
    """True if a lazy release counts as cleared (#24736); None for a release without draining hashes."""
    changes = profiles.resolve(version).changes
    return "added_ranges" in changes if "draining_hashes" in changes else None


def play(lazy_release_counts: bool, line: dict[str, Any]) -> Iterator[Answer]:
    """Yield an answer per step of a history."""
    tracker = _Tracker(line, lazy_release_counts)
    for step in line["steps"]:
        yield tracker.step(step)


class _Tracker:
    """A state with the history's consumers and hashes, and nothing pending."""

    def __init__(self, line: dict[str, Any], lazy_release_counts: bool) -> None:
        used = {step["hash"] for step in line["steps"] if "hash" in step}
        self._hashes = sorted({*used, *(value for value in line["hashes"] if isinstance(value, int))})
        self._ids = {value: at for at, value in enumerate(self._hashes)}
        self._insts = [consumer["inst"] for consumer in line["consumers"]]
        self._slots = {inst: slot for slot, inst in enumerate(self._insts)}
        none = np.zeros(0, np.int32)
        self._st = new_state(none, none, max(len(self._hashes), 1), max(len(self._insts), 1))
        self._st.s[TRACK_DRAINING] = 1
        self._st.s[LAZY_RELEASE_COUNTS] = int(lazy_release_counts)
        self._attempts = np.zeros(3, np.int64)

    def step(self, step: dict[str, Any]) -> Answer:
        st = self._st
        result = self._apply(step)
        notice = draining_hashes.take_notice(st)
        named = notice if notice is None or notice == draining_hashes.END_OF_BATCH else self._hashes[notice]
        return {
            "result": result,
            "unblocked": [] if named is None else [named],
            "entries": [
                [
                    value,
                    self._insts[st.drain_owner[at]],
                    int(st.drain_refs[at]),
                    int(st.drain_attempts[at]),
                ]
                for at, value in enumerate(self._hashes)
                if st.drain_owner[at] != NOBODY
            ],
            "batch_level": int(st.s[DRAIN_BATCH]),
            "unblocked_while_batching": bool(st.s[DRAIN_UNBLOCKED]),
            "stats": [self._stats(slot) for slot in range(len(self._insts))],
        }

    def _apply(self, step: dict[str, Any]) -> Any:
        st, slot = self._st, self._slots.get(step.get("inst", -1), NOBODY)
        at = self._ids.get(step.get("hash", -1), NOBODY)
        match step["op"]:
            case "add":
                if not draining_hashes.drainable(step["hash"]):
                    return _error("IllegalArgumentException", "Sticky hash cannot be 0")
                return "ok" if draining_hashes.drain(st, slot, at) else self._foreign(step, at)
            case "release":
                before = draining_hashes.release(st, slot, at, step["closing"])
                return "ok" if before >= 0 else self._foreign(step, at)
            case "should_block":
                self._attempts[:] = 0
                return bool(draining_hashes.should_block(st, slot, at, self._attempts))
            case "consumer_removed":
                draining_hashes.forget_consumer(st, slot)
            case "start_batch":
                draining_hashes.start_batch(st)
            case "end_batch":
                draining_hashes.end_batch(st)
            case "clear":
                draining_hashes.clear_draining(st)
        return "ok"

    def _foreign(self, step: dict[str, Any], at: int) -> dict[str, str]:
        owner = self._insts[self._st.drain_owner[at]]
        return _error(
            "IllegalStateException",
            f"Consumer C{owner} is already draining hash {step['hash']} in dispatcher d. "
            f"Same hash being used for consumer C{step['inst']}.",
        )

    def _stats(self, slot: int) -> list[Any]:
        own = draining_hashes.statistics(self._st, slot)
        hashes = [[self._hashes[at], refs, attempts] for at, refs, attempts in own.hashes]
        return [self._insts[slot], own.count, own.cleared_total, own.unacked, hashes]


def _error(kind: str, message: str) -> dict[str, str]:
    return {"error": kind, "message": message}
