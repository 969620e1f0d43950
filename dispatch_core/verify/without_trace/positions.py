"""Judge the deliveries of a Failover or Exclusive log without a trace: each must be the next entry of the cursor.

Data plane. One consumer at a time gets everything, in position order from the read position on, without acknowledged
entries. An active-consumer change and a redelivery request of the active consumer set the read position back to mark-delete.
Either makes a *rewind due*, and the next delivery that goes back applies it.

Example: 3:0 and 3:1 are sent to consumer 1 and not acknowledged, consumer 1 leaves, and 3:0 is sent to consumer 2. The
change made a rewind due, so 3:0 is right. Without the change it would have the reason ``GOES_BACK``.

A read does not wait for acknowledgements: an entry that is acknowledged between its read and its delivery is delivered all
the same. Behind a reload, clients acknowledge what they got before it while the broker reads it again. Such a delivery has
the reason ``ACK_RACES``.

Source: PersistentDispatcherSingleActiveConsumer, ManagedCursorImpl.
"""

from __future__ import annotations

from typing import Any, Final

import numpy.typing as npt

from dispatch_core.arrays.jit import compiled_in_place as compiled
from dispatch_core.arrays.jit import compiled_inside
from dispatch_core.audit.deliveries.operations import (
    ACK,
    ACK_CUMULATIVE,
    PASSED,
    REDELIVER,
    REDELIVER_ALL,
    REWIND,
    SENT,
)
from dispatch_core.audit.waits.sampling import BatchSamples, next_look, passes_quietly
from dispatch_core.broker.cursor import acknowledge, acknowledge_up_to, moved_by_read, rewind
from dispatch_core.broker.state import MARK_DELETE, READ_POSITION, WIDE, State
from dispatch_core.verify.without_trace.races import RACE_US

Array = npt.NDArray[Any]

#: Reasons why the rule would not have sent an entry; AGREED = it would have.
AGREED, NOT_ACTIVE, GOES_BACK, SKIPS, ACK_RACES = range(5)
#: Time of an acknowledgement that the log does not show: long ago.
LONG_AGO_US: Final = -(1 << 62)
#: Indexes of ``again``.
BELOW, SINCE_US = range(2)


@compiled
def fold_while_quiet(
    st: State,
    op_code: Array,
    op_consumer: Array,
    op_start: Array,
    op_ordinals: Array,
    op_t_us: Array,
    active: int,
    rewind_due: bool,
    again: Array,
    acked_us: Array,
    samples: BatchSamples,
    first: int,
    stop: int,
    expected: Array,
    reason: Array,
) -> tuple[int, bool]:
    """Fold the operations [first, stop), and take the samples on the way that find nothing waiting.

    Returns where it stopped, and True if a rewind is due then: at ``stop``, at an operation that concerns membership or
    moves the cursor, or at one before which a sample is due that must be taken in full.
    """
    op = first
    while True:
        look = min(next_look(samples, op), stop)
        op, rewind_due = fold(
            st,
            op_code,
            op_consumer,
            op_start,
            op_ordinals,
            op_t_us,
            active,
            rewind_due,
            again,
            acked_us,
            op,
            look,
            expected,
            reason,
        )
        if op < look or op == stop or not passes_quietly(st, samples, op, again[BELOW]):
            return op, rewind_due


@compiled_inside
def fold(
    st: State,
    op_code: Array,
    op_consumer: Array,
    op_start: Array,
    op_ordinals: Array,
    op_t_us: Array,
    active: int,
    rewind_due: bool,
    again: Array,
    acked_us: Array,
    first: int,
    stop: int,
    expected: Array,
    reason: Array,
) -> tuple[int, bool]:
    """Take the operations [first, stop) up to the next one that concerns membership, or moves the cursor.

    ``active``: the active consumer as numbered in ``op_consumer``. ``again``: the entry below which all unacknowledged ones
    are to be sent again (``BELOW``, 0 = none is), and since when (``SINCE_US``). ``acked_us``: when each entry was
    acknowledged; filled in for those that are acknowledged here. Filled in for each element of
    ``op_ordinals`` of a ``sent`` operation: ``expected``, the consumer by the rule, and ``reason``, why the rule differs.

    ``again`` ends with the first delivery that goes back. It also ends with a later one that does not, unless that may have
    been on its way: then there was nothing to send again.

    Returns the operation at which it stopped, and True if a rewind is due then.
    """
    op = first
    while op < stop:
        code, consumer = op_code[op], op_consumer[op]
        if code == SENT:
            back = goes_back(st, op_start, op_ordinals, op)
            if rewind_due and back:
                rewind(st)
                rewind_due = False
            if back or op_t_us[op] > again[SINCE_US] + RACE_US:
                again[BELOW] = 0
            for at in range(op_start[op], op_start[op + 1]):
                expected[at] = active
                reason[at] = _judge(st, op_ordinals[at] + WIDE, op_t_us[op], acked_us)
                if consumer != active:
                    reason[at] = NOT_ACTIVE
                moved_by_read(st, op_ordinals[at] + WIDE)
        elif code == ACK:
            for at in range(op_start[op], op_start[op + 1]):
                acked_us[op_ordinals[at]] = op_t_us[op]
                acknowledge(st, op_ordinals[at] + WIDE)
        elif code == ACK_CUMULATIVE:
            for at in range(op_start[op], op_start[op + 1]):
                for entry in range(st.s[MARK_DELETE] + 1, op_ordinals[at] + 1):
                    if st.deleted[entry] == 0:
                        acked_us[entry] = op_t_us[op]
                acknowledge_up_to(st, op_ordinals[at] + WIDE)
        elif code in (REDELIVER, REDELIVER_ALL, REWIND):
            rewind_due = True
            if code != REWIND and consumer == active:
                again[BELOW], again[SINCE_US] = st.s[READ_POSITION], max(again[SINCE_US], op_t_us[op])
        elif code <= 1 or code >= PASSED:  # ADDED, REMOVED, a move of the cursor
            return op, rewind_due
        op += 1
    return op, rewind_due


@compiled
def goes_back(st: State, op_start: Array, op_ordinals: Array, op: int) -> bool:
    """Check whether a ``sent`` line begins before the read position."""
    return op_start[op] < op_start[op + 1] and op_ordinals[op_start[op]] < st.s[READ_POSITION]


@compiled
def _judge(st: State, entry: int, t_us: int, acked_us: Array) -> int:
    """Return AGREED if ``entry`` is the next one that is not acknowledged, else the reason."""
    if entry < st.s[READ_POSITION]:
        return ACK_RACES if t_us - acked_us[entry] <= RACE_US else GOES_BACK
    for between in range(st.s[READ_POSITION], entry):
        if st.deleted[between] == 0:
            return SKIPS
    return AGREED
