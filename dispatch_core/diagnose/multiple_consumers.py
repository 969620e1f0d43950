"""Answers for Shared and Key_Shared (PersistentDispatcherMultipleConsumers, PersistentStickyKeyDispatcher…).

The rules are those of ``broker.gates``. Those of the whole subscription come first. Then come those of a consumer or a
hash, which hold only what is for that consumer or of that hash: such an answer is certain only if nothing else can hold what
waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dispatch_core.audit.sentences.lists import counted
from dispatch_core.diagnose.answering import LASTING_PART, PART, WHOLE, answer, most_first, of_consumer
from dispatch_core.diagnose.answers import Answer, Evidence
from dispatch_core.diagnose.facts import Consumer, Subscription
from dispatch_core.diagnose.history import History
from dispatch_core.diagnose.key_shared import (
    draining,
    look_ahead,
    recently_joined,
    uncovered,
)
from dispatch_core.diagnose.reads import stalls

_AGAIN: Final = "dispatch-audit diagnose --admin-url URL --topic {topic} --every 5 --times 3"


def answers(history: History) -> list[Answer]:
    """Return what may hold the messages of a subscription with a connected consumer."""
    now = history.now
    found = [*_subscription_blocked(history), *_nobody_may_get(history)]
    if any(consumer.may_get for consumer in now.consumers):
        ordering: list[Answer] = []
        if now.kind == "Key_Shared":
            ordering = [*draining(history), *recently_joined(history), *uncovered(history)]
            ordering += _some_may_not_get(history, alone=not ordering)
            ordering += look_ahead(history, ordering)
        found += [*ordering, *_delayed(history), *_throttled(history)]
        if (now.waiting or 0) > now.delayed:
            found += stalls(history, explained=bool(found))
    else:
        found += _delayed(history)
    return found


def _subscription_blocked(history: History) -> list[Answer]:
    now = history.now
    if not now.blocked:
        return []
    unread = now.unread if now.unread is not None else (now.waiting or 0) - (now.in_replay or 0)
    holders = most_first(consumer for consumer in now.consumers if (consumer.unacked or 0) > 0)
    limit = history.settings.get("maxUnackedMessagesPerSubscription")
    few = isinstance(limit, int) and limit > 0 and now.pending < limit // 2
    return [
        answer(
            history,
            "unacked_limit_subscription",
            # A subscription that works at its limit is blocked and unblocked again and again.
            certain=unread > 0 and history.settled,
            rank=WHOLE + 0.2,
            waiting=max(unread, 0),
            said=(
                f"the dispatcher is blocked on {now.pending:,} unacknowledged messages, by "
                "maxUnackedMessagesPerSubscription, a policy, or the broker's limit: nothing new is read until they "
                "are down to half of it"
            ),
            holders=holders,
            evidence=[
                history.evidence("blockedSubscriptionOnUnackedMsgs", lambda moment: moment.blocked),
                history.evidence("unackedMessages", lambda moment: moment.unacked),
                history.evidence("msgBacklog", lambda moment: moment.backlog),
            ],
            decided_by=None if unread > 0 else "stats-internal: is readPosition behind lastConfirmedEntry?",
            since=_last_sent(holders),
            symptoms=["few"] if few else [],
            commands=(
                "pulsar-admin topics get-max-unacked-messages-on-subscription {topic} --applied",
                "pulsar-admin topics stats-internal {topic}",
            ),
        )
    ]


def _nobody_may_get(history: History) -> list[Answer]:
    """All consumers are blocked or have no permits."""
    now = history.now
    if any(consumer.may_get or consumer.permits is None for consumer in now.consumers) or not now.consumers:
        return []
    waits = None if now.waiting is None else now.waiting - now.delayed
    if waits is not None and waits <= 0:
        return []
    return _without(
        history,
        now.consumers,
        whole=True,
        waiting=waits,
        sure=history.settled and now.complete and bool(waits),
    )


def _some_may_not_get(history: History, *, alone: bool) -> list[Answer]:
    """Key_Shared: those who may not get anything hold what is for them. ``alone``: no other rule holds anything."""
    now = history.now
    consumers = [
        consumer for consumer in now.consumers if not consumer.may_get and consumer.permits is not None
    ]
    if not consumers or now.in_replay == 0 or not now.waiting or now.waiting <= now.delayed:
        return []
    sure = history.settled and alone and bool(now.in_replay) and not now.delayed and now.complete
    lasts = all(map(history.idles, consumers)) and history.count(_replays) == len(history.moments)
    return _without(history, consumers, whole=False, waiting=now.in_replay, sure=sure, lasts=lasts)


def _replays(moment: Subscription) -> bool:
    return bool(moment.in_replay)


def _without(
    history: History,
    consumers: Sequence[Consumer],
    *,
    whole: bool,
    waiting: int | None,
    sure: bool,
    lasts: bool = False,
) -> list[Answer]:
    """Answers for consumers without permits, and for those at their limit of unacknowledged messages."""
    blocked = most_first(consumer for consumer in consumers if consumer.blocked)
    empty = most_first(consumer for consumer in consumers if not consumer.blocked)
    part = LASTING_PART if lasts and not sure else PART
    rank = WHOLE if whole and not (history.flows and not sure) else part
    found = []
    if blocked:
        limit = history.settings.get("maxUnackedMessagesPerConsumer")
        few = [
            c
            for c in blocked
            if (c.unacked or 0) <= 0 or (isinstance(limit, int) and 2 * (c.unacked or 0) < limit)
        ]
        found.append(
            answer(
                history,
                "unacked_limit_consumer",
                certain=sure,
                rank=rank + 0.1,
                waiting=waiting,
                held_for=blocked,
                holders=blocked,
                evidence=[
                    item
                    for consumer in blocked[:3]
                    for item in of_consumer(
                        history, consumer, "blockedConsumerOnUnackedMsgs", "unackedMessages"
                    )
                ],
                since=_last_sent(blocked),
                symptoms=["few"] if few else [],
                commands=(
                    "pulsar-admin topics get-max-unacked-messages-on-consumer {topic} --applied",
                    _AGAIN,
                ),
            )
        )
    if empty:
        leading = not blocked
        found.append(
            answer(
                history,
                "no_permits",
                certain=sure,
                rank=rank if leading else rank - 0.5,
                waiting=waiting,
                held_for=empty,
                holders=empty,
                evidence=[
                    item
                    for consumer in empty[:3]
                    for item in of_consumer(history, consumer, "availablePermits", "unackedMessages")
                ],
                since=(
                    max(max(consumer.sent_us, consumer.flow_us, consumer.connected_us) for consumer in empty),
                    "they were sent or granted something then for the last time",
                ),
                symptoms=["negative"] if any((consumer.permits or 0) < 0 for consumer in empty) else [],
                commands=(_AGAIN, "pulsar-admin topics stats-internal {topic}"),
            )
        )
    return found


def _delayed(history: History) -> list[Answer]:
    now = history.now
    if not now.delayed:
        return []
    rest = (now.waiting or 0) - now.delayed
    # Messages in batches are more than their entries.
    exact = not now.pending or (now.unread == 0 and now.in_replay == 0)
    whole = rest <= 0 or (now.backlog is not None and now.backlog - now.pending - now.delayed <= 0)
    return [
        answer(
            history,
            "delayed_delivery",
            certain=whole and exact and not history.progress,
            rank=WHOLE if whole else REST_DELAYED,
            waiting=now.delayed,
            said=f"{counted(now.delayed, 'message is', 'messages are')} not due yet: the producer set a time of delivery",
            evidence=[
                history.evidence("msgDelayed", lambda moment: moment.delayed),
                history.evidence("msgBacklog", lambda moment: moment.backlog),
            ],
            decided_by="a moment later: msgBacklog without msgDelayed that stays is held by something else",
            since=(history.since_us(lambda moment: moment.delayed > 0), "the first of the moments"),
            commands=("pulsar-admin topics get-delayed-delivery {topic} --applied", _AGAIN),
        )
    ]


REST_DELAYED: Final = 1.5


def _throttled(history: History) -> list[Answer]:
    """A dispatch rate: its counters rise, or nothing reads although a consumer may get more and messages flow slowly."""
    now = history.now
    waits = (now.waiting or 0) - now.delayed
    if waits <= 0:
        return []
    first = history.moments[0].throttled
    rises = now.throttled is not None and first is not None and now.throttled > first
    counted_once = len(history.moments) == 1 and bool(now.throttled)
    paused = bool(history.progress) and all(map(_nothing_reads, history.moments)) and now.throttled is None
    if not (rises or counted_once or paused):
        return []
    return [
        answer(
            history,
            "dispatch_rate",
            certain=rises,
            rank=WHOLE - 0.5,
            waiting=waits,
            said="a dispatch rate puts reads off: the messages that were sent use it up",
            evidence=[
                Evidence(
                    "dispatchThrottled…EventsBy…Limit",
                    None if now.throttled is None else f"{first} → {now.throttled}",
                ),
                history.evidence(
                    "subscriptionHavePendingRead", lambda moment: moment.cursor and moment.cursor.pending_read
                ),
            ],
            decided_by="the rates in force: pulsar-admin topics get-subscription-dispatch-rate --applied, get-dispatch-rate",
            commands=(
                "pulsar-admin topics get-subscription-dispatch-rate {topic} --applied",
                "pulsar-admin topics get-dispatch-rate {topic} --applied",
                "pulsar-admin brokers get-runtime-config",
            ),
        )
    ]


def _nothing_reads(moment: Subscription) -> bool:
    """True if entries are unread, a consumer may get them, and no read is pending."""
    cursor = moment.cursor
    return (
        cursor is not None
        and bool(cursor.unread)
        and cursor.pending_read is False
        and not cursor.pending_replay
        and any(consumer.may_get for consumer in moment.consumers)
    )


def _last_sent(consumers: Sequence[Consumer]) -> tuple[int | None, str]:
    latest = max((consumer.sent_us for consumer in consumers), default=0)
    return latest or None, "the last message was sent to them then, and nothing has come since"
