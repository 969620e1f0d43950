"""The cursor: what is acknowledged, and where the next normal read starts (ManagedCursorImpl).

Invariants: every entry at or below ``MARK_DELETE`` is deleted, the entry after it is not; ``MARK_DELETE`` never goes
back; ``READ_POSITION`` > ``MARK_DELETE``.
"""

from __future__ import annotations

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker.state import MARK_DELETE, READ_POSITION, State


@compiled
def acknowledge(st: State, entry: int) -> None:
    """Acknowledge one whole entry; mark-delete moves over the acknowledged prefix."""
    st.deleted[entry] = 1
    at = st.s[MARK_DELETE] + 1
    while at < len(st.deleted) and st.deleted[at] == 1:
        at += 1
    st.s[MARK_DELETE] = at - 1
    st.s[READ_POSITION] = max(st.s[READ_POSITION], at)


@compiled
def rewind(st: State) -> None:
    """Set the read position to the first valid position after mark-delete."""
    st.s[READ_POSITION] = st.s[MARK_DELETE] + 1


@compiled
def moved_by_read(st: State, last_entry: int) -> None:
    """A normal read looked at everything up to ``last_entry``."""
    st.s[READ_POSITION] = max(st.s[READ_POSITION], last_entry + 1)
