"""Resolve the new mark-delete positions of moves of the cursor to ordinals.

A move to *latest* passes everything that was stored by then, and no line says which entry that was. What is sent next lies
behind it, and so does what was published later. Example: a client seeks to the end at 12:00:00; 3:4 was published at
11:59:59 and 3:7 at 12:00:01, and 3:6 is sent next. Then the cursor stands at 3:5.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.columns import Ints, Mask
from dispatch_core.audit.deliveries.operations import MOVED, PASSED, RESET, SENT, Lines
from dispatch_core.errors import NotStreamableError
from dispatch_core.recording.checkpoint import upto

LATEST: Final = (1 << 63) - 1
#: What was read before a move may be sent so long after it; clocks of producers may differ by more, see below.
IN_FLIGHT_US: Final = 20_000
#: An entry that was published this much later than a move was stored after it.
_SLACK_US: Final = 50_000


def resolve(
    lines: Lines,
    ordinals: npt.NDArray[np.int32],
    ledger: Ints,
    entry: Ints,
    published_ms: tuple[Ints, Mask],
    *,
    highest_sent: int,
    streaming: bool,
    dropped: bool,
) -> None:
    """Write the ordinal of the last entry up to its new position into ``value`` of each move, -1 = there is none.

    Args:
        lines: the lines, with the places of their positions.
        ordinals: of these positions.
        ledger: ledger of each entry of the window.
        entry: entry id of each entry of the window.
        published_ms: publish time of each entry of the window, and the mask of known ones.
        highest_sent: the highest ordinal that was sent before these lines, -1 = none.
        streaming: the window may not hold everything.
        dropped: entries were dropped at the front of the window.

    Raises:
        NotStreamableError: when streaming, for a move to a place that the window does not hold.
    """
    if not lines.moved_to:
        return
    moves = np.flatnonzero(np.isin(lines.code, (RESET, MOVED)))
    for op, position in lines.moved_to.items():
        if position[0] == LATEST:
            later = moves[moves > op]
            until = int(later[0]) if len(later) else len(lines.code)
            lines.value[op] = _latest(
                lines, op, until, ordinals, published_ms, highest_sent, streaming=streaming
            )
            continue
        lines.value[op] = upto(ledger, entry, position) - 1
        if streaming and dropped and lines.value[op] < 0 and lines.code[op] != PASSED:
            raise NotStreamableError(
                f"the cursor was moved to {position[0]}:{position[1]}, which lies before the window that is kept"
            )


def _latest(
    lines: Lines,
    op: int,
    until: int,
    ordinals: npt.NDArray[np.int32],
    published_ms: tuple[Ints, Mask],
    highest_sent: int,
    *,
    streaming: bool,
) -> int:
    """Return the last entry that was stored when the operation ``op`` moved the cursor to the end of the topic."""
    published, known = published_ms
    t_us = int(lines.t_us[op])
    stored = np.flatnonzero(known & (1000 * published <= t_us + _SLACK_US))
    last = int(stored[-1]) if len(stored) else -1
    sent = np.zeros(len(lines.code), np.bool_)
    sent[op + 1 : until] = lines.code[op + 1 : until] == SENT
    if lines.code[op] == PASSED:
        sent &= lines.t_us > t_us + IN_FLIGHT_US
    before = lines.code == SENT
    before[op:] = False
    highest_sent = max(highest_sent, int(ordinals[np.repeat(before, lines.lengths)].max(initial=-1)))
    of_sent = ordinals[np.repeat(sent, lines.lengths)]
    of_sent = of_sent[of_sent > highest_sent]  # what was sent before was stored by then
    if not len(of_sent):
        if streaming and until == len(lines.code):
            raise NotStreamableError(
                "the cursor was moved to the end, and what is sent next is not known yet"
            )
        return last
    return min(last, int(of_sent.min()) - 1)
