"""Answer what holds the messages of each subscription, from the statistics of one or several moments.

Each moment is read into facts (``facts``), the moments of a subscription form a history (``history``), and the rules make
answers of it. The last moment is *now*; the earlier ones prove that its state lasts.

>>> from dispatch_core.diagnose.documents import documents_in, moments_of
>>> from dispatch_core.diagnose.facts import subscriptions_of
>>> from dispatch_core.diagnose.history import histories_of
>>> text = '{"subscriptions": {"s": {"type": "Shared", "msgBacklog": 7, "unackedMessages": 0, "consumers": ['
>>> text += '{"consumerName": "c1", "availablePermits": 0, "unackedMessages": 0}]}}}'
>>> moments = moments_of(documents_in("stats.json", text).documents)
>>> (history,) = histories_of([subscriptions_of(moment, []) for moment in moments])
>>> [(answer.rule, answer.certainty, answer.waiting) for answer in answers_of(history)]
[('no_permits', 'possible', 7)]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dispatch_core.audit.sentences.lists import counted
from dispatch_core.diagnose import multiple_consumers, single_active
from dispatch_core.diagnose.answering import (
    CERTAIN,
    FLOWS,
    PART,
    REST,
    WHOLE,
    answer,
    most_first,
    of_consumer,
)
from dispatch_core.diagnose.answers import (
    CATCHING_UP,
    NOTHING_WAITS,
    UNACKNOWLEDGED,
    UNKNOWN,
    Answer,
    Evidence,
    in_order,
)
from dispatch_core.diagnose.facts import Subscription
from dispatch_core.diagnose.history import History
from dispatch_core.diagnose.known_issues import matching
from dispatch_core.diagnose.reads import RULE

_AGAIN = "dispatch-audit diagnose --admin-url URL --topic {topic} --every 5 --times 3"


def diagnose(histories: Iterable[History]) -> list[Answer]:
    """Return the answers of all subscriptions, worst first."""
    return in_order([found for history in histories for found in answers_of(history)])


def answers_of(history: History) -> list[Answer]:
    """Return the answers of a subscription, worst first; there is at least one."""
    found = _held(history)
    waiting = history.now.waiting
    if not any(item.rank >= WHOLE - 0.5 for item in found) and (waiting is None or waiting > 0):
        found += _flows(history)
    if not found:
        found = _rest(history)
    return in_order([replace(item, issues=_issues(item, history)) for item in found])


def _issues(item: Answer, history: History) -> tuple[str, ...]:
    now = history.now
    return matching(
        item.symptoms,
        kind=now.kind,
        by_read_position=now.by_read_position,
        broker_version=history.broker_version,
        is_4x=now.has_draining_fields,
    )


def _held(history: History) -> list[Answer]:
    now = history.now
    if _is_done(now):
        return []
    if not now.consumers:
        return _nobody(history)
    if now.waiting == 0 and not now.is_single_active:
        return []
    return single_active.answers(history) if now.is_single_active else multiple_consumers.answers(history)


def _is_done(now: Subscription) -> bool:
    """True if everything is acknowledged. ``msgBacklog`` is an estimate that may be too large, the cursor is exact."""
    cursor = now.cursor
    if cursor is not None and cursor.waits and cursor.mark_delete is not None and not cursor.unread:
        ledger, entry = cursor.mark_delete
        if cursor.read_position == (ledger, entry + 1) and not now.in_replay and not now.pending:
            return True
    return now.backlog == 0 and not now.unread and not now.in_replay


def _nobody(history: History) -> list[Answer]:
    """No consumer is in the statistics."""
    now = history.now
    if now.blocked:
        return multiple_consumers.answers(history)  # the flag is the subscription's
    if not now.lists_consumers or not now.complete:
        return [
            _unknown(history, "the statistics do not list the consumers", "pulsar-admin topics stats {topic}")
        ]
    # Sums over the consumers, which are there although `--exclude-consumers` leaves the list empty.
    cursor = now.cursor
    left_out = bool(now.consumed_us or now.rate_out or now.pending or now.active) or (
        cursor is not None and bool(cursor.pending_read or cursor.waits)
    )
    if left_out:
        why = "the list of consumers is empty, but sums of theirs are not: it was taken with --exclude-consumers"
        return [_unknown(history, why, "pulsar-admin topics stats {topic}")]
    if now.backlog is None and not now.unread:
        return []
    # 3.x has no option to leave the consumers out.
    sure = now.kind is None or now.polled or not now.has_draining_fields
    return [
        answer(
            history,
            "no_consumer",
            certain=sure,
            rank=WHOLE + 0.3,
            waiting=max(now.backlog or 0, now.unread or 0),
            evidence=[
                Evidence("consumers", [], history.count(lambda moment: not moment.consumers)),
                history.evidence("msgBacklog", lambda moment: moment.backlog),
            ],
            decided_by="statistics that were taken without --exclude-consumers",
            since=(now.flow_us, "a consumer granted permits then for the last time"),
            commands=(
                "pulsar-admin topics stats {topic}",
                "pulsar-admin topics unsubscribe -s {subscription} {topic}  # only if nobody needs it any more",
            ),
        )
    ]


def _unknown(history: History, said: str, command: str) -> Answer:
    now = history.now
    return answer(
        history,
        UNKNOWN,
        certain=False,
        rank=PART,
        waiting=now.waiting,
        said=said,
        evidence=[history.evidence("msgBacklog", lambda moment: moment.backlog)],
        decided_by="statistics that list the consumers",
        commands=(command,),
    )


def _flows(history: History) -> list[Answer]:
    """Messages flow: between the moments, or by the rate of the last minute."""
    now = history.now
    if not now.consumers:
        return []
    seen = history.progress
    if not history.flows:
        return []
    first = history.moments[0]
    # What has been read and was not sent waits by a rule: the consumers do not catch up with it.
    unread = now.unread if now.unread is not None else (now.waiting or 0) - (now.in_replay or 0)
    all_read = bool(now.in_replay) and unread <= now.delayed
    return [
        answer(
            history,
            CATCHING_UP,
            certain=bool(seen),
            rank=FLOWS - CERTAIN if seen else REST if all_read else FLOWS,
            waiting=now.waiting,
            said="messages are being sent: the backlog shrinks or grows by what the consumers take and the producers send"
            + ("" if _acknowledged(history) else "; but nothing was acknowledged in between"),
            evidence=[
                Evidence("msgOutCounter", f"{first.sent} → {now.sent}" if seen else now.sent),
                Evidence("msgBacklog", f"{first.backlog} → {now.backlog}" if seen else now.backlog),
                Evidence("msgRateOut", now.rate_out),
            ],
            commands=(_AGAIN,),
        )
    ]


def _acknowledged(history: History) -> bool:
    """False if the moments show that nothing was acknowledged between them."""
    first, last = history.moments[0], history.now
    acks = [max((c.acked_us for c in moment.consumers), default=0) for moment in (first, last)]
    if len(history.moments) < 2 or not history.same_consumers or acks[0] != acks[1]:
        return True
    return first.cursor is None or last.cursor is None or first.cursor.mark_delete != last.cursor.mark_delete


def _rest(history: History) -> list[Answer]:
    """Nothing waits to be sent, or nothing tells what does."""
    now = history.now
    backlog = now.backlog if now.backlog is not None else now.unread
    if backlog is None:
        return [_unknown(history, "msgBacklog is missing", "pulsar-admin topics stats {topic}")]
    if _is_done(now):
        estimated = backlog > 0
        return [
            answer(
                history,
                NOTHING_WAITS,
                certain=True,
                rank=0.0,
                waiting=0,
                said="nothing waits: everything is acknowledged"
                + (
                    "; msgBacklog is an estimate and too large, --get-precise-backlog counts the entries"
                    if estimated
                    else ""
                ),
                evidence=[
                    history.evidence("msgBacklog", lambda moment: moment.backlog),
                    history.evidence("waitingReadOp", lambda moment: moment.cursor and moment.cursor.waits),
                ],
            )
        ]
    holders = most_first(consumer for consumer in now.consumers if (consumer.unacked or 0) > 0)
    if now.waiting:
        return [
            _unknown(
                history,
                "no rule that the statistics show holds what waits",
                "pulsar-admin topics stats-internal {topic}" if now.cursor is None else _AGAIN,
            )
        ]
    again = bool(history.progress) and not _acknowledged(history)
    read = now.unread == 0 and (now.is_single_active or now.in_replay == 0)
    holders = holders or (now.consumers if now.is_single_active else ())
    found = [
        answer(
            history,
            UNACKNOWLEDGED,
            certain=read and (again or not history.progress),
            rank=REST + 0.2,
            waiting=0,
            said=(
                f"nothing waits to be sent: the {counted(backlog, 'entry', 'entries')} of the backlog were sent and are not "
                "acknowledged"
                + (
                    "; the same ones are sent again and again, as they are refused or time out"
                    if again
                    else ""
                )
            ),
            holders=holders,
            evidence=[
                history.evidence("msgBacklog", lambda moment: moment.backlog),
                history.evidence("unackedMessages", lambda moment: moment.unacked),
                *(
                    item
                    for consumer in holders[:3]
                    for item in of_consumer(history, consumer, "unackedMessages")
                ),
            ],
            decided_by="pulsar-admin topics stats-internal: is readPosition behind lastConfirmedEntry?",
            since=(
                max((consumer.acked_us for consumer in holders), default=0),
                "these consumers acknowledged something then for the last time",
            ),
            commands=("pulsar-admin topics peek-messages -s {subscription} -n 1 {topic}", _AGAIN),
        )
    ]
    if now.is_single_active and now.waiting is None:
        # Without the cursor the backlog may as well be unread.
        found.append(
            answer(
                history,
                RULE,
                certain=False,
                rank=REST,
                waiting=None,
                evidence=[history.evidence("msgBacklog", lambda moment: moment.backlog)],
                decided_by="pulsar-admin topics stats-internal: is readPosition behind lastConfirmedEntry?",
                commands=("pulsar-admin topics stats-internal {topic}",),
            )
        )
    return found
