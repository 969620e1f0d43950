"""Fold a dispatcher trace up to a line: the dispatcher then, and the sizes of its replay set and its tracker until then."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.runner import Verification, verify
from dispatch_core.verify.trace.verification import Verifier

Core = KeySharedDispatcher | SharedDispatcher | SingleActiveDispatcher


class NoStateError(DispatchAuditError):
    """A log has no dispatcher state to show at the place asked for. The log was left as it is."""


@dataclass(frozen=True, slots=True)
class Size:
    """Positions in the replay set and draining hashes from ``t_us`` on, until the next one."""

    t_us: int
    in_replay: int
    draining: int


@dataclass(slots=True)
class StateHistory:
    """The past of a dispatcher, which its state does not show.

    Attributes:
        sizes: by time, one for each change.
        draining_since_us: by hash id of the state, since when the hash drains for its present holder, microseconds.
    """

    sizes: list[Size] = field(default_factory=list)
    draining_since_us: dict[int, int] = field(default_factory=dict)
    _draining: st_.I32 = field(default_factory=lambda: np.empty(0, np.int32))

    def look(self, core: Core, t_us: int) -> None:
        """Take the dispatcher as it is after a line."""
        owners = core.state.drain_owner
        before = self._draining
        if len(before) != len(owners):
            before = np.full(len(owners), st_.NOBODY, np.int32)
            before[: len(self._draining)] = self._draining
        changed = np.flatnonzero(before != owners).tolist()
        for hash_id in changed:
            if owners[hash_id] == st_.NOBODY:
                self.draining_since_us.pop(hash_id, None)
            else:
                self.draining_since_us[hash_id] = t_us
        if changed:
            self._draining = owners.copy()
        in_replay, draining = int(core.state.s[st_.N_REPLAY]), len(self.draining_since_us)
        last = self.sizes[-1] if self.sizes else None
        if last is None or (last.in_replay, last.draining) != (in_replay, draining):
            self.sizes.append(Size(t_us, in_replay, draining))


@dataclass(frozen=True, slots=True)
class TracedState:
    """A dispatcher after a line of a trace. ``verification``: of the lines up to there."""

    core: Core
    entries: Entries
    history: StateHistory
    verification: Verification


def state_at(log: DispatcherLog, seq: int) -> tuple[Core, Entries]:
    """Return the dispatcher after the line ``seq``, and its entries. Raises ``NoStateError`` as ``traced_state`` does."""
    state = _folded(log, seq, None)
    return state.core, state.entries


def traced_state(log: DispatcherLog, seq: int) -> TracedState:
    """Return the dispatcher after the line ``seq``, with its history.

    It is the fold of ``verify``, stopped there. Raises ``NoStateError`` where the log cannot be replayed, or ``seq`` lies
    before its first line.
    """
    return _folded(log, seq, StateHistory())


def _folded(log: DispatcherLog, seq: int, history: StateHistory | None) -> TracedState:
    drivers: dict[str, Verifier] = {}

    def watch(line: Line, driver: Verifier) -> None:
        drivers["only"] = driver
        if history is not None:
            history.look(driver.core, line.t_us)

    verification = verify(log, watch=watch, goes_on=True, until=seq)
    where = log.recording or f"{log.topic} {log.subscription}"
    if verification.not_judged is not None:
        raise NoStateError(
            f"{where}: no statistics, as the log is not replayed: {verification.not_judged}. Its messages and events can "
            "be audited all the same"
        )
    if not drivers:
        seqs = log.events["seq"]
        lines = (
            f"its lines are seq {seqs[0].as_py()} to {seqs[-1].as_py()}" if len(seqs) else "it has no line"
        )
        raise NoStateError(
            f"{where}: no line up to seq {seq} tells of a dispatcher; {lines}: ask for a later one"
        )
    stopped = drivers["only"].stopped
    if stopped is not None:
        raise NoStateError(
            f"{where}: no statistics behind seq {stopped[1]}, as the log is not replayed from there on: {stopped[0]}"
        )
    core = drivers["only"].core
    return TracedState(core, Entries(log.messages), history or StateHistory(), verification)
