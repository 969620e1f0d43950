"""Find ack holes: unacknowledged entries below acknowledged ones, which keep the mark-delete position back.

A *hole* is an entry that was sent and is not acknowledged while a later one is. It begins when the first later entry is
acknowledged, and ends with its own acknowledgement. Example: 3:4 and 3:5 are acknowledged, 3:3 is not; 3:3 is a hole, and
the mark-delete position stays at 3:2. An entry that was never sent is no hole but ``never_delivered`` or stuck. An entry
that an earlier incarnation got the acknowledgement of is no hole either, as long as it does not come again: the broker
stored the acknowledgement.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.columns import Mask
from dispatch_core.audit.behaviour_in_force import NOTHING_IN_FORCE, BehaviourInForce
from dispatch_core.audit.catalogue import KINDS
from dispatch_core.audit.deliveries import layout as at
from dispatch_core.audit.deliveries.findings import (
    BEFORE_CHECKPOINT,
    CLOCK_JUMPED,
    DOUBTS,
    LOG_GAP,
    ROWS_LOST,
    Finding,
)
from dispatch_core.audit.deliveries.scan import Scan
from dispatch_core.audit.deliveries.window import LogWindow
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import plural, positions_listed
from dispatch_core.audit.sentences.names import display_names, shown
from dispatch_core.audit.waits.findings import End
from dispatch_core.audit.waits.left_out import LEAVE_OUT
from dispatch_core.audit.waits.tracker import MOST_POSITIONS
from dispatch_core.times import clock

Ints = npt.NDArray[np.int64]

_NEVER: Final = np.iinfo(np.int64).max


def ack_holes(
    scan: Scan,
    window: LogWindow,
    limits: Limits,
    end: End,
    in_force: BehaviourInForce = NOTHING_IN_FORCE,
) -> list[Finding]:
    """Find the holes at the end of a log that are older than the limit; of a closed log all holes.

    ``in_force``: behaviours of the log. Those of ``LEAVE_OUT`` acknowledge entries without a line.
    """
    acked_us, above_us = _acknowledged(scan, window)
    open_ = (acked_us == _NEVER) & (above_us < _NEVER) & (scan.times_sent > 0) & ~scan.acked_before_reload
    if not end.closed:
        open_ &= end.as_of_us - above_us > 1000 * limits.ack_hole_ms
    open_ &= ~_explained(window, in_force, above_us, np.full(len(above_us), end.as_of_us))
    entries = np.flatnonzero(open_)
    if not len(entries):
        return []
    doubts = _doubts(scan, window, entries, above_us, limits, end)
    return [
        finding
        for doubt in dict.fromkeys(doubts)
        for finding in _findings(
            scan,
            window,
            entries[[doubt == of_entry for of_entry in doubts]],
            above_us,
            end.as_of_us,
            end.seq,
            ended=False,
            doubt=doubt,
        )
    ]


def _doubts(
    scan: Scan, window: LogWindow, entries: npt.NDArray[np.intp], above_us: Ints, limits: Limits, end: End
) -> list[str | None]:
    """Return for each hole the reason why something that the log does not show may have acknowledged the entry.

    Before a checkpoint: the acknowledgement of an entry that the checkpoint calls pending may have been on its way, and of a
    batch a part may have been acknowledged.
    """
    found: list[str | None] = []
    of_batches = window.num_messages[entries] > 1 if window.ack_sets_from_seq is not None else entries < 0
    ops = scan.deliveries[scan.last_delivery[entries], at.OPERATION]
    waited_us = end.as_of_us - above_us[entries]
    for op, of_batch, us in zip(ops.tolist(), of_batches.tolist(), waited_us.tolist(), strict=True):
        doubt = end.doubt
        if doubt == BEFORE_CHECKPOINT and not (of_batch or window.is_of_checkpoint(op)):
            doubt = None
        if doubt is None and end.only_by_lost_rows(us, 1000 * limits.ack_hole_ms):
            doubt = ROWS_LOST
        jumped_us = 0 if end.closed else end.jumped_us(end.as_of_us - us, end.as_of_us)
        if doubt is None and jumped_us and us - jumped_us <= 1000 * limits.ack_hole_ms:
            doubt = CLOCK_JUMPED
        found.append(doubt)
    return found


def filled_holes(
    scan: Scan,
    window: LogWindow,
    first_op: int,
    limits: Limits,
    *,
    gap: bool,
    in_force: BehaviourInForce = NOTHING_IN_FORCE,
) -> list[Finding]:
    """Find the holes that an operation from ``first_op`` on filled, too late for the limit; ``in_force``: as above."""
    times = window.op_t_us
    if first_op >= len(times) or int(times.max()) - int(times.min()) <= 1000 * limits.ack_hole_ms:
        return []
    acked_us, above_us = _acknowledged(scan, window)
    late = (scan.acknowledged_by >= first_op) & (scan.times_sent > 0)
    late &= (above_us < acked_us) & (acked_us - np.minimum(above_us, acked_us) > 1000 * limits.ack_hole_ms)
    if late.any():
        late &= ~_explained(window, in_force, above_us, acked_us)
    found = []
    ops = scan.acknowledged_by
    for op in np.unique(ops[late]).tolist():
        entries = np.flatnonzero(late & (ops == op))
        until = int(window.op_t_us[op]), int(window.op_seq[op])
        doubt = LOG_GAP if gap else None
        found += _findings(scan, window, entries, above_us, *until, ended=True, doubt=doubt)
    return found


def _explained(window: LogWindow, in_force: BehaviourInForce, from_us: Ints, until_us: Ints) -> Mask:
    """Mask the holes during which a behaviour was in force that acknowledges entries without a line."""
    explained = np.zeros(len(from_us), np.bool_)
    for time in in_force.times:
        if time.what in LEAVE_OUT:
            explained |= (from_us < time.until_us) & (until_us >= time.from_us)
    if window.transactions_from_us is not None:
        explained |= until_us >= window.transactions_from_us
    return explained


def _acknowledged(scan: Scan, window: LogWindow) -> tuple[Ints, Ints]:
    """Return when each entry and when the first later one was acknowledged, microseconds; ``_NEVER`` = not yet."""
    ops = scan.acknowledged_by
    acked_us = np.full(len(ops), _NEVER, np.int64)
    acked = ops >= 0
    # A clock that goes back makes no hole older.
    acked_us[acked] = np.maximum.accumulate(window.op_t_us)[ops[acked]] if len(window.op_t_us) else 0
    above_us = np.full(len(ops), _NEVER, np.int64)
    above_us[:-1] = np.minimum.accumulate(acked_us[:0:-1])[::-1]
    if window.any_delayed:  # what comes later than the entries behind it is acknowledged later, too
        above_us = np.maximum(above_us, window.due_us)
    return acked_us, above_us


def _findings(
    scan: Scan,
    window: LogWindow,
    entries: npt.NDArray[np.intp],
    above_us: Ints,
    until_us: int,
    until_seq: int,
    *,
    ended: bool,
    doubt: str | None,
) -> list[Finding]:
    """Make one finding per consumer and key; ``doubt``: the reason why they are uncertain."""
    names = display_names(window.consumers)
    last = scan.last_delivery[entries]
    groups: dict[tuple[int, int], list[int]] = {}
    for entry, holder in zip(entries.tolist(), scan.deliveries[last, at.CONSUMER].tolist(), strict=True):
        key = int(window.entry_key[entry])
        groups.setdefault((holder, key if key >= 0 else -1), []).append(entry)
    found = []
    for (holder, key), members in groups.items():
        first = members[0]
        since_us = int(above_us[members].min())
        sent_op = int(scan.deliveries[scan.last_delivery[first], at.OPERATION])
        text = None if key < 0 else window.keys.text(key)
        of_key = "" if text is None else f" (key {shown(text)})"
        positions = [window.position(entry) for entry in members[:MOST_POSITIONS]]
        verb = plural(len(members), "was", "were")
        state = (
            f"{verb} acknowledged only {duration(until_us - since_us)} after later entries were"
            if ended
            else f"{verb} not acknowledged by {clock(until_us)}, though later entries are since {clock(since_us)}"
        )
        hashed = int(window.entry_hash[first])
        seqs = {
            int(window.op_seq[sent_op]) if window.is_of_last_log(sent_op) else until_seq,
            until_seq,
        }
        found.append(
            Finding(
                kind="ack_hole",
                severity=KINDS["ack_hole"].severity,
                key=text,
                key_b64=key >= 0 and bool(window.keys.base64[key]),
                hash=hashed if hashed >= 0 else None,
                positions=positions,
                consumers=[window.consumers[holder].number],
                seqs=sorted(seqs),
                t_us=until_us,
                cause=None,
                reason=doubt,
                uncertain=doubt is not None,
                explanation=(
                    f"{positions_listed(positions, len(members))}{of_key}, sent to {names[holder]} at "
                    f"{window.when(sent_op)}, {state}: the mark-delete position "
                    f"{'stayed' if ended else 'stays'} before {positions[0]}"
                    + ("" if doubt is None else DOUBTS[doubt])
                ),
                place=1,
            )
        )
    return found
