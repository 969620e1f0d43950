"""The fold of a Failover or Exclusive log of level E, per entry: is each sending the next one that the cursor gives?

Data plane. One consumer at a time gets everything, in position order from the read position on; acknowledged entries are
left out. The read position goes back to mark-delete at a hand-over and at a redelivery request of the active consumer:
either makes a *rewind due*, and the sending that goes back takes it.

Source: PersistentDispatcherSingleActiveConsumer, ManagedCursorImpl.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.audit.deliveries.operations import (
    ACK,
    ACK_CUMULATIVE,
    REDELIVER,
    REDELIVER_ALL,
    REWIND,
    SENT,
)
from dispatch_core.broker.cursor import acknowledge, acknowledge_up_to, moved_by_read, rewind
from dispatch_core.broker.state import READ_POSITION, WIDE, State

Array = npt.NDArray[Any]

#: Why the rule would not have sent an entry; AGREED = it would.
AGREED, NOT_ACTIVE, GOES_BACK, SKIPS = range(4)


@compiled
def fold(
    st: State,
    op_code: Array,
    op_consumer: Array,
    op_start: Array,
    op_ordinals: Array,
    active: int,
    rewind_due: bool,
    first: int,
    stop: int,
    expected: Array,
    reason: Array,
) -> tuple[int, bool]:
    """Take the operations [first, stop) up to the next one that concerns membership.

    ``active``: who is active, as numbered in ``op_consumer``. ``expected``, ``reason``: per element of ``op_ordinals`` of a
    ``sent`` operation who should have got it, and why the rule differs. Returns where it stopped, and whether a rewind is
    due then.
    """
    op = first
    while op < stop:
        code, consumer = op_code[op], op_consumer[op]
        if code == SENT:
            if rewind_due and goes_back(st, op_start, op_ordinals, op):
                rewind(st)
                rewind_due = False
            for at in range(op_start[op], op_start[op + 1]):
                expected[at] = active
                reason[at] = _judge(st, op_ordinals[at] + WIDE)
                if consumer != active:
                    reason[at] = NOT_ACTIVE
                moved_by_read(st, op_ordinals[at] + WIDE)
        elif code == ACK:
            for at in range(op_start[op], op_start[op + 1]):
                acknowledge(st, op_ordinals[at] + WIDE)
        elif code == ACK_CUMULATIVE:
            for at in range(op_start[op], op_start[op + 1]):
                acknowledge_up_to(st, op_ordinals[at] + WIDE)
        elif code in (REDELIVER, REDELIVER_ALL, REWIND):
            rewind_due = True
        elif code <= 1:  # ADDED, REMOVED
            return op, rewind_due
        op += 1
    return op, rewind_due


@compiled
def goes_back(st: State, op_start: Array, op_ordinals: Array, op: int) -> bool:
    """Whether a ``sent`` line begins behind the read position."""
    return op_start[op] < op_start[op + 1] and op_ordinals[op_start[op]] < st.s[READ_POSITION]


@compiled
def _judge(st: State, entry: int) -> int:
    """Whether ``entry`` is the next that is not acknowledged."""
    if entry < st.s[READ_POSITION]:
        return GOES_BACK
    for between in range(st.s[READ_POSITION], entry):
        if st.deleted[between] == 0:
            return SKIPS
    return AGREED
