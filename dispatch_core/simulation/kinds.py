"""Kinds of lines of a simulated log as small integers: the values of ``world.Lines.kind``.

The comment of each kind names the contents of the columns ``a`` to ``d``, and of the list, of its lines. Positions are entry
numbers, -1 = before the first; yes and no are 1 and 0.
"""

from __future__ import annotations

from typing import Final

NAMES: Final = (
    "consumer_added",  # read position, mark-delete position
    "consumer_removed",  # the same
    "flow",  # permits, blocked
    "sent",  # permits before; positions
    "ack",  # see ``ack_details``; positions
    "redeliver",  # ALL = it names no positions; positions
    "active_notified",  # active
    "consumer_removing",
    "selector_added",
    "selector_refused",
    "selector_removed",
    "flow_counted",  # permits after, blocked after
    "flow_applied",  # permits; -1 = the line has none
    "read_attempt",
    "read_attempt_end",  # total permits, pending read, pending replay
    "read_issued",  # most entries, read position
    "replay_read_issued",  # positions
    "replay_already_deleted",  # positions
    "read_cancelled",  # cancelled
    "read_done",  # is a replay, read position; positions
    "round_begin",  # is a replay, read position, mark-delete position; positions
    "round_end",  # retry, size of the replay set, look ahead, has more
    "send_returned",  # permits after
    "mark_delete",  # mark-delete position
    "rewind",  # read position, mark-delete position
    "pending_ack_removed",  # hash; positions
    "draining_add",  # hash
    "draining_release",  # hash, closing, reference count before
    "draining_blocked",  # hash
    "draining_clear",
    "pending_ack_refused",  # positions
    "recently_joined_pruned",  # read position, mark-delete position
    "active_picked",  # changed, partition index; consumers in order
    "handover_scheduled",  # pending read
    "end",
)

(
    CONSUMER_ADDED,
    CONSUMER_REMOVED,
    FLOW,
    SENT,
    ACK,
    REDELIVER,
    ACTIVE_NOTIFIED,
    CONSUMER_REMOVING,
    SELECTOR_ADDED,
    SELECTOR_REFUSED,
    SELECTOR_REMOVED,
    FLOW_COUNTED,
    FLOW_APPLIED,
    READ_ATTEMPT,
    READ_ATTEMPT_END,
    READ_ISSUED,
    REPLAY_READ_ISSUED,
    REPLAY_ALREADY_DELETED,
    READ_CANCELLED,
    READ_DONE,
    ROUND_BEGIN,
    ROUND_END,
    SEND_RETURNED,
    MARK_DELETE,
    REWIND,
    PENDING_ACK_REMOVED,
    DRAINING_ADD,
    DRAINING_RELEASE,
    DRAINING_BLOCKED,
    DRAINING_CLEAR,
    PENDING_ACK_REFUSED,
    RECENTLY_JOINED_PRUNED,
    ACTIVE_PICKED,
    HANDOVER_SCHEDULED,
    END,
) = range(len(NAMES))

#: Kinds below are of level E, the others of a trace only.
FIRST_OF_TRACE: Final = CONSUMER_REMOVING

#: A redelivery request that names no positions.
ALL: Final = 1


def ack_details(words: int, *, up_to: bool) -> int:
    """Return ``a`` of an ack's line: the number of its ack set among those noted (0 = none), and whether it is cumulative.

    An individual ack of whole entries has 0.

    >>> ack_details(0, up_to=False), ack_details(0, up_to=True), ack_details(3, up_to=False)
    (0, 1, 6)
    """
    return words << 1 | int(up_to)
