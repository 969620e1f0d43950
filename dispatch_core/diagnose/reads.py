"""Stalls that no rule explains: a consumer may get messages, and nothing is read (``audit.waits.no_read`` has the classes).

``stats-internal`` shows the flags of the dispatcher's reads beside the reads that the cursor knows of. A pending read that
the cursor does not know of will never complete: the flag stays set, and no other read is issued.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from dispatch_core.audit.waits.no_read import CLASSES, LOST_READ, NO_ATTEMPT, READ_AT_TAIL
from dispatch_core.diagnose.answering import FLOWS, PART, WHOLE, answer
from dispatch_core.diagnose.answers import Answer, Evidence
from dispatch_core.diagnose.facts import Cursor, Subscription
from dispatch_core.diagnose.history import History

RULE: Final = "no_read"
#: A read waits in the cursor although an entry is stored behind the read position.
NOT_NOTIFIED: Final = "not_notified"
_NOT_NOTIFIED: Final = (
    "the cursor's read waits for the next entry although one is stored: it was not notified of it"
)
_COMMANDS: Final = (
    "dispatch-audit diagnose --admin-url URL --topic {topic} --every 5 --times 3 --save FILE",
    "pulsar-admin topics unload {topic}",
)


def stall_class(moment: Subscription) -> str | None:
    """Return the class of ``no_read`` that the cursor shows; ``None`` = no cursor, or reads are as they should be."""
    cursor = moment.cursor
    if cursor is None or cursor.pending_read is None:
        return None
    idle = not cursor.waits and cursor.reads == 0
    replays = bool(moment.in_replay)
    if cursor.pending_replay and idle and moment.in_replay != 0:
        return LOST_READ
    if cursor.pending_read and idle and cursor.unread:
        return LOST_READ
    if cursor.waits and cursor.unread:
        return NOT_NOTIFIED
    if cursor.waits and replays:
        return READ_AT_TAIL
    if not cursor.pending_read and not cursor.pending_replay and idle and (cursor.unread or replays):
        return NO_ATTEMPT
    return None


def stalls(history: History, *, explained: bool) -> list[Answer]:
    """Return the answer if nothing is read. ``explained``: a rule may hold what waits, so that no read has to be issued."""
    now = history.now
    kind = stall_class(now)
    waiting = (now.waiting or 0) - now.delayed
    if kind is None:
        return _without_flags(history, waiting, explained=explained)
    if history.progress or (explained and kind in (READ_AT_TAIL, NO_ATTEMPT)):
        return []
    lasting = history.by_moments and all(stall_class(moment) == kind for moment in history.moments)
    # An open transaction keeps the read position from passing its first message, so that the read waits legally.
    certain = lasting and (kind == LOST_READ or (kind == NOT_NOTIFIED and not now.open_transactions))
    if kind in (READ_AT_TAIL, NO_ATTEMPT) and any(stall_class(moment) != kind for moment in history.moments):
        return []
    moved_us = now.moved_us
    return [
        answer(
            history,
            RULE,
            certain=certain,
            rank=_rank(history, kind, lasting=lasting, explained=explained),
            waiting=waiting,
            reads=_NOT_NOTIFIED if kind == NOT_NOTIFIED else CLASSES[kind],
            evidence=_flags(history, now.cursor),
            decided_by=_decided(history, kind, lasting=lasting),
            since=(moved_us, "the last time that a consumer was sent, acknowledged or granted something"),
            symptoms=[kind],
            commands=_COMMANDS,
        )
    ]


def _rank(history: History, kind: str, *, lasting: bool, explained: bool) -> float:
    """Rank a stall. Messages that were sent in the last minute speak less against a lost read than against the others."""
    if lasting and not explained:
        return WHOLE
    if history.flows:
        return FLOWS + 0.1 if kind == LOST_READ else PART - 0.5
    return PART


def _decided(history: History, kind: str, *, lasting: bool) -> str:
    if not lasting:
        return history.unsettled_because
    if kind == NOT_NOTIFIED:
        return "pulsar-admin transactions slow-transactions -t 1s: an open transaction explains it, too"
    return (
        "whether a rule that the statistics do not show holds the messages: a dispatch rate, an entry filter, "
        "dispatcherPauseOnAckStatePersistentEnabled; a recorded log shows it (docs/record.md)"
    )


def _without_flags(history: History, waiting: int, *, explained: bool) -> list[Answer]:
    """Statistics without the flags of reads: nothing was sent for long although a consumer may get messages."""
    now = history.now
    if explained or waiting <= 0 or history.progress or (len(history.moments) > 1 and not history.by_moments):
        return []
    if history.flows:
        return []
    return [
        answer(
            history,
            RULE,
            certain=False,
            rank=PART if now.cursor is None and not history.settled else WHOLE,
            waiting=waiting,
            evidence=[
                history.evidence("msgBacklog", lambda moment: moment.backlog),
                history.evidence("msgRateOut", lambda moment: moment.rate_out),
                Evidence(
                    "availablePermits", sum(max(consumer.permits or 0, 0) for consumer in now.consumers)
                ),
            ],
            decided_by="pulsar-admin topics stats-internal, which shows whether a read is pending, at two moments",
            since=(now.moved_us, "the last time that a consumer was sent, acknowledged or granted something"),
            commands=("pulsar-admin topics stats-internal {topic}", *_COMMANDS[:1]),
        )
    ]


def _flags(history: History, cursor: Cursor | None) -> list[Evidence]:
    assert cursor is not None
    fields = {
        "subscriptionHavePendingRead": "pending_read",
        "subscriptionHavePendingReplayRead": "pending_replay",
        "waitingReadOp": "waits",
        "pendingReadOps": "reads",
        "readPosition": "read_position",
        "lastConfirmedEntry": "last_confirmed",
    }
    found = []
    for name, attribute in fields.items():
        item = history.evidence(name, partial(_of_cursor, attribute=attribute))
        value = "{}:{}".format(*item.value) if isinstance(item.value, tuple) else item.value
        found.append(Evidence(name, value, item.moments))
    return [*found, history.evidence("msgInReplay", lambda moment: moment.in_replay)]


def _of_cursor(moment: Subscription, attribute: str) -> object:
    return getattr(moment.cursor, attribute, None)
