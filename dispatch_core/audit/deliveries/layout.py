"""Columns of the integer arrays that hold the state of the audit's rules: one row per delivery, entry, key, pair, request.

References are row numbers, -1 = none. ``kernel`` fills the arrays, ``trim`` cuts them.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: End of a delivery; the first value = still open.
OPEN: Final = 0
ACKED: Final = 1
NACKED: Final = 2
NACKED_ALL: Final = 3
DISCONNECTED: Final = 4
ALL_LEFT: Final = 5
RELOADED: Final = 6
REPLACED: Final = 7  # sent again to the same connection while open there
REWOUND: Final = 8  # open still; Failover and Exclusive went back to the mark-delete position
MOVED: Final = (
    9  # the cursor was moved: what it passed is settled, what lies behind its new position comes again
)

NOBODY: Final = -1
MANY: Final = -2

# Columns of a delivery.
ENTRY: Final = 0  # ordinal
CONSUMER: Final = 1
OPERATION: Final = 2
BEFORE_OF_ENTRY: Final = 3  # the delivery of the same entry before this one
BEFORE_OF_KEY: Final = 4
OPEN_OF_ENTRY: Final = 5  # next open delivery of the same entry
NEXT_AT_CONSUMER: Final = 6
LAST_AT_CONSUMER: Final = 7
NEXT_OF_KEY: Final = 8
LAST_OF_KEY: Final = 9
END: Final = 10  # OPEN … REWOUND
END_OPERATION: Final = 11
# Earlier deliveries of the key are searched in jumps (``kernel._later``): the delivery that a jump leads to, -1 = no jump;
# the highest ordinal from this delivery on back to that one, without it; and how many deliveries long the jump was made.
JUMP_OF_KEY: Final = 12
JUMP_HIGHEST: Final = 13
JUMP_LENGTH: Final = 14
DELIVERY_COLUMNS: Final = 15

# Columns of an entry. NACKED_WITH_ALL counts the deliveries that a request for everything closed; FIRST_REQUEST begins the
# list of connections that asked for the entry by its position. ACKED_BEFORE_RELOAD: 1 = an earlier incarnation got its
# acknowledgement, 2 = an individual one, and this one has not sent it.
LAST_DELIVERY, FIRST_OPEN, ACK_OPERATION, TIMES_SENT, NACKED_WITH_ALL, FIRST_REQUEST, ACKED_BEFORE_RELOAD = (
    range(7)
)
ENTRY_COLUMNS: Final = 7
NEW_ENTRY: Final = np.array([-1, -1, -1, 0, 0, -1, 0], dtype=np.int32)

# Columns of a key. The last three remember a search for splits (``kernel._split_by``): the open delivery of the earliest
# entry, that of the earliest entry at any other connection, and the last delivery that the search knew.
(
    KEY_LAST_DELIVERY,
    KEY_FIRST_OPEN,
    KEY_OPEN_COUNT,
    KEY_ONLY_AT,
    KEY_HIGHEST,
    KEY_FIRST_PAIR,
    KEY_EARLIEST,
    KEY_EARLIEST_ELSEWHERE,
    KEY_SEARCHED,
) = range(9)
KEY_COLUMNS: Final = 9
NEW_KEY: Final = np.array([-1, -1, 0, -1, -1, -1, -1, -1, -1], dtype=np.int32)

# Columns of a (connection, key) pair.
PAIR_CONSUMER, PAIR_HIGHEST, PAIR_NEXT = range(3)
PAIR_COLUMNS: Final = 3

# Columns of a request of a connection for an entry: its last one counts.
REQUEST_CONSUMER, REQUEST_OPERATION, REQUEST_NEXT = range(3)
REQUEST_COLUMNS: Final = 3

# Single numbers. HIGHEST_SENT may be of an entry that is gone: then -1, and SENT_ANY says that there was one.
# LAST_MOVE: the last move of the cursor that may make entries come again (seek, reset). LAST_MOVED_TO: the ordinal of the
# new mark-delete position of the last move of any kind. LAST_EMPTY: the last operation at which
# the cursor may have been moved without a line that says where to: nobody was left, or not the active consumer.
# LAST_TO: the connection of the last delivery. MOVES_LOGGED: the recorder writes every move of the cursor, EXACT: and the
# last entry that it passes; DELETIONS_LOGGED: and every deletion of the subscription, which begins anew when it is made
# again.
# REWIND_DUE: the active consumer has changed; if no line shows the rewind, the first delivery that goes back does.
# A *run* is a row of deliveries to one connection (Failover and Exclusive): SENT_TO gets it, RUN_HIGHEST is its highest
# ordinal. CHANGES counts the joins and leaves since it began, FIRST_CHANGE is the first of them; CARRIED counts earlier ones
# that no run has followed yet. HANDED_OVER is the first delivery of the last run that followed a join or leave (CHANGED_AT),
# HANDED_BY says how sure that is.
(
    DELIVERIES,
    PAIRS,
    REQUESTS,
    CONNECTED,
    ACKED_UP_TO,
    LAST_REWIND,
    REWIND_DUE,
    HIGHEST_SENT,
    SENT_ANY,
    LAST_RELOAD,
    SENT_TO,
    RUN_HIGHEST,
    CHANGES,
    FIRST_CHANGE,
    CARRIED,
    HANDED_OVER,
    HANDED_BY,
    CHANGED_AT,
    LAST_MOVE,
    LAST_MOVED_TO,
    LAST_EMPTY,
    MOVES_LOGGED,
    DELETIONS_LOGGED,
    LAST_TO,
) = range(24)
SCALARS: Final = 24
#: Of MOVES_LOGGED.
EXACT: Final = 2
#: Single numbers that name an entry, an operation or a connection: -1 at first.
NONE_AT_FIRST: Final = (
    *(ACKED_UP_TO, LAST_REWIND, HIGHEST_SENT, LAST_RELOAD, SENT_TO, RUN_HIGHEST, FIRST_CHANGE, HANDED_OVER),
    *(CHANGED_AT, LAST_MOVE, LAST_MOVED_TO, LAST_EMPTY, LAST_TO),
)

#: What a hand-over to another active consumer has to do with a finding (Failover and Exclusive). ``HANDOVER_LATE``: it
#: delivers the entry again although its ack had come before the change.
NO_HANDOVER: Final = 0
HANDOVER: Final = 1
MAYBE_HANDOVER: Final = 2
HANDOVER_LATE: Final = 3
