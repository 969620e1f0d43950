"""Whole steps of a Key_Shared dispatcher over its state: what follows a plan, a read result, a round, an ack, a flow.

Data plane, shared by the dispatchers (``key_shared``, ``key_shared_classic``), which call one step per event of a log, and
by the simulation, which runs many events in one compiled loop. The decisions themselves are in ``dispatch_loop`` and
``dispatch_loop_classic``.

Source: PersistentDispatcherMultipleConsumers, PersistentStickyKeyDispatcherMultipleConsumers (3.x and 4.x).
"""

from __future__ import annotations

from typing import Final

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.broker import cursor
from dispatch_core.broker.replay_set import remove_from_replay, remove_up_to
from dispatch_core.broker.state import (
    I64,
    MARK_DELETE,
    N_RECENT,
    PENDING_READ,
    PENDING_REPLAY,
    REWIND_DUE,
    SEND_IN_PROGRESS,
    SKIP_NEXT_REPLAY,
    TOTAL_PERMITS,
    TRIMMED_TO,
    TRIMS_TO_MARK_DELETE,
    State,
)

#: ``classic_goes_on``: bits of its answer.
RETRIES: Final = 1
WAITS_FOR_WRITES: Final = 2


@compiled
def apply_flow(st: State, slot: int, permits: int) -> None:
    """Permits have reached the dispatcher (``consumerFlow``); those of a consumer that has left do not count."""
    if st.connected[slot] == 1:
        st.s[TOTAL_PERMITS] += permits


@compiled
def acknowledge(st: State, entry: int) -> None:
    """The cursor deletes an entry; what was counted of its deliveries goes with it."""
    cursor.acknowledge(st, entry)
    st.redelivery_count[entry] = 0
    st.acked_indexes[entry] = 0


@compiled
def trim(st: State) -> bool:
    """Until #25581 a read attempt that finds mark-delete moved drops all up to it from the replay set.

    Returns whether it did: what is still pending up to there goes too then, which the caller sees to.
    """
    mark_delete = st.s[MARK_DELETE]
    if st.s[TRIMS_TO_MARK_DELETE] == 0 or mark_delete == st.s[TRIMMED_TO]:
        return False
    st.s[TRIMMED_TO] = mark_delete
    remove_up_to(st, mark_delete)
    return True


@compiled
def issue_replay(st: State, plan: I64) -> int:
    """The replay read of a plan is issued: entries that are acknowledged already leave the replay set.

    Returns how many those are. Where they are all of them, no read is under way.
    """
    gone = 0
    for at in range(2, 2 + plan[1]):
        if st.deleted[plan[at]] == 1:
            remove_from_replay(st, plan[at])
            gone += 1
    if gone == plan[1]:
        st.s[PENDING_REPLAY] = 0
    return gone


@compiled
def read_done(st: State, is_replay: bool, last_entry: int) -> bool:
    """A read result reaches the dispatcher; ``last_entry``: its highest, -1 for an empty one.

    Returns False when it is dropped and the cursor rewound instead.
    """
    if is_replay:
        st.s[PENDING_REPLAY] = 0
    else:
        st.s[PENDING_READ] = 0
        if last_entry >= 0:
            cursor.moved_by_read(st, last_entry)
        if st.s[REWIND_DUE] == 1:
            st.s[REWIND_DUE] = 0
            cursor.rewind(st)
            return False
    st.s[SEND_IN_PROGRESS] = 1
    return True


@compiled
def finish_round(st: State, wants_look_ahead: bool) -> None:
    """End of a round. One that looks ahead has the next scan of the replay set skipped once."""
    st.s[SEND_IN_PROGRESS] = 0
    if wants_look_ahead:
        st.s[SKIP_NEXT_REPLAY] = 1


@compiled
def classic_goes_on(st: State, owners: int, sent_to: int) -> int:
    """What follows a round of 3.x or classic: ``RETRIES`` at once, ``WAITS_FOR_WRITES``; bits, 0 = neither.

    ``owners``: consumers that own entries of the result; -1 = nothing was looked at. ``sent_to``: how many were sent any.
    Where some were and others not, it reads again at once only if all is written before the turn of the last consumer
    that gets nothing.
    """
    if owners < 0:
        return RETRIES
    answer = 0
    if 0 < sent_to < owners:
        answer |= WAITS_FOR_WRITES
    if sent_to == 0 and (owners > 0 or st.s[N_RECENT] == 0):
        answer |= RETRIES
    return answer
