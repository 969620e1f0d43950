"""Answers for Failover and Exclusive, where one consumer gets everything (PersistentDispatcherSingleActiveConsumer)."""

from __future__ import annotations

from typing import Final

from dispatch_core.diagnose.answering import PART, WHOLE, answer, named, of_consumer
from dispatch_core.diagnose.answers import Answer, Evidence
from dispatch_core.diagnose.facts import Consumer
from dispatch_core.diagnose.history import History
from dispatch_core.diagnose.reads import stalls

_DELAY: Final = "activeConsumerFailoverDelayTimeMillis"
_CLIENT: Final = (
    "dispatch-audit diagnose --admin-url URL --topic {topic} --every 5 --times 3",
    "pulsar-admin topics stats-internal {topic}",
)


def answers(history: History) -> list[Answer]:
    """Return what may hold the messages of a subscription with a connected consumer."""
    now = history.now
    active = active_consumer(history)
    if active is None:
        return [_handover(history, None)]
    if active.permits is not None and active.permits <= 0:
        waiting = now.waiting
        # Without the cursor the backlog may have been sent, all of it, and only not be acknowledged.
        certain = history.settled and bool(now.unread)
        if now.unread == 0:
            return []
        return [
            answer(
                history,
                "no_permits",
                certain=certain,
                rank=WHOLE if certain or not history.flows else PART,
                waiting=waiting,
                held_for=[active],
                holders=[active],
                evidence=[
                    *of_consumer(history, active, "availablePermits"),
                    history.evidence("msgBacklog", lambda moment: moment.backlog),
                ],
                decided_by=None
                if now.cursor is not None
                else "stats-internal: is readPosition behind lastConfirmedEntry?",
                since=(
                    max(active.sent_us, active.flow_us, active.connected_us),
                    f"{named(active, now.consumers)} was sent or granted something then for the last time",
                ),
                symptoms=["negative"] if active.permits < 0 else [],
                commands=_CLIENT,
            )
        ]
    if now.unread == 0:
        return []
    cursor = now.cursor
    waits_for_delay = (
        now.kind == "Failover"
        and cursor is not None
        and cursor.pending_read is False
        and not active.sent_us
        and not history.progress
    )
    found = [_handover(history, active)] if waits_for_delay else []
    return [*found, *stalls(history, explained=bool(found))]


def active_consumer(history: History) -> Consumer | None:
    """Return the active consumer, if it is known: the only one, or the only one with the name of the active one."""
    now = history.now
    if len(now.consumers) == 1:
        return now.consumers[0]
    fits = [consumer for consumer in now.consumers if consumer.name == now.active]
    return fits[0] if len(fits) == 1 else None


def _handover(history: History, active: Consumer | None) -> Answer:
    now = history.now
    return answer(
        history,
        "failover_delay",
        certain=False,
        rank=WHOLE if active is not None else PART,
        waiting=now.waiting,
        held_for=[active] if active is not None else [],
        evidence=[
            Evidence("activeConsumerName", now.active),
            history.evidence(
                "subscriptionHavePendingRead", lambda moment: moment.cursor and moment.cursor.pending_read
            ),
            *(of_consumer(history, active, "availablePermits") if active is not None else []),
        ],
        decided_by=f"the value of {_DELAY} (pulsar-admin brokers get-runtime-config), and a moment later than that",
        since=(active.connected_us if active is not None else None, "the active consumer connected then"),
        commands=("pulsar-admin brokers get-runtime-config", *_CLIENT[:1]),
    )
