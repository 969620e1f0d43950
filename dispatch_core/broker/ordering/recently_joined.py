"""The consumers that joined recently, in a list: whom the rules of read position and last sent position hold back.

What is remembered for a newcomer, how the list is sorted and who is free differ between the two rules; the list is one.
Invariant: ``joined_at`` is NOT_TRACKED for all slots but the first ``N_RECENT`` of ``recent``. It is as long as there are
newcomers, however many consumers were ever connected.
"""

from __future__ import annotations

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker.state import N_RECENT, NOT_TRACKED, State


@compiled
def add_newcomer(st: State, slot: int, position: int) -> None:
    """A consumer is held back until mark-delete has come to ``position``; it is the last of the list."""
    st.recent[st.s[N_RECENT]] = slot
    st.joined_at[slot] = position
    st.s[N_RECENT] += 1


@compiled
def forget_newcomer(st: State, slot: int) -> None:
    """A consumer has left: off the list, if it is on it; the others keep their order."""
    if st.joined_at[slot] == NOT_TRACKED:
        return
    kept = 0
    for at in range(st.s[N_RECENT]):
        if st.recent[at] != slot:
            st.recent[kept] = st.recent[at]
            kept += 1
    st.s[N_RECENT] = kept
    st.joined_at[slot] = NOT_TRACKED


@compiled
def free_first(st: State, count: int) -> None:
    """The first ``count`` newcomers are held back no longer."""
    if count == 0:
        return
    for at in range(count):
        st.joined_at[st.recent[at]] = NOT_TRACKED
    for at in range(count, st.s[N_RECENT]):
        st.recent[at - count] = st.recent[at]
    st.s[N_RECENT] -= count
