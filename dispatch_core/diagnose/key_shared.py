"""Answers for the rules of Key_Shared: draining hashes, recently joined consumers, uncovered ranges, look-ahead limit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dispatch_core.audit.sentences.lists import counted
from dispatch_core.broker.profiles import resolve
from dispatch_core.diagnose.answering import LASTING_PART, PART, WHOLE, answer, most_first, named, of_consumer
from dispatch_core.diagnose.answers import Answer, Evidence
from dispatch_core.diagnose.facts import Consumer, Draining, Subscription
from dispatch_core.diagnose.history import History
from dispatch_core.errors import ProfileError

_PER_CONSUMER: Final = "keySharedLookAheadMsgInReplayThresholdPerConsumer"
_PER_SUBSCRIPTION: Final = "keySharedLookAheadMsgInReplayThresholdPerSubscription"
_LAST_SLOT: Final = 65535
#: A hole that may only seem to be there: releases before #24730 leave ranges of one slot out of their reports.
_ONE_SLOT: Final = 1
_AGAIN: Final = "dispatch-audit diagnose --admin-url URL --topic {topic} --every 5 --times 3"


@dataclass(frozen=True, slots=True)
class _Drains:
    """The hashes that drain for a consumer and are not its own; ``counted_twice``: more entries than it has messages."""

    holder: Consumer
    hashes: tuple[Draining, ...]
    waiting_for: tuple[Consumer, ...]
    counted_twice: bool

    @property
    def attempted(self) -> bool:
        """True if messages of these hashes were refused, and so wait."""
        return any(drain.attempts for drain in self.hashes)


class _Owners:
    """The owner of each hash, by the ranges of all consumers."""

    def __init__(self, consumers: Sequence[Consumer]) -> None:
        pairs = sorted(
            (start, end, at) for at, consumer in enumerate(consumers) for start, end in consumer.ranges or ()
        )
        self._consumers = consumers
        self._starts = [start for start, _, _ in pairs]
        self._pairs = pairs

    def of(self, sticky_hash: int) -> Consumer | None:
        """The owner of a hash; ``None`` = nobody's range covers it."""
        at = bisect_right(self._starts, sticky_hash) - 1
        if at < 0 or self._pairs[at][1] < sticky_hash:
            return None
        return self._consumers[self._pairs[at][2]]


def _drains(moment: Subscription) -> list[_Drains]:
    found = []
    owners_of = _Owners(moment.consumers)
    for holder in moment.consumers:
        # Before #24736 a hash that came back to its owner stays listed, and holds nothing.
        owner_of = {drain.hash: owners_of.of(drain.hash) for drain in holder.draining}
        foreign = tuple(drain for drain in holder.draining if owner_of[drain.hash] is not holder)
        if not foreign:
            continue
        # Consumers are compared by identity: two may be equal in all that the statistics show.
        owners = list({id(c): c for drain in foreign if (c := owner_of[drain.hash]) is not None}.values())
        entries = sum(drain.unacked for drain in foreign)
        twice = holder.unacked is not None and entries > max(holder.unacked, 0)
        found.append(_Drains(holder, foreign, tuple(owners), twice))
    return sorted(found, key=lambda drains: -sum(drain.attempts for drain in drains.hashes))


def draining(history: History) -> list[Answer]:
    """Hashes that drain for a consumer (PIP-379): nobody else gets their messages until it has acknowledged its own."""
    now = history.now
    if now.in_replay == 0:
        return []  # what is refused is in the replay set
    answers = []
    at_moments = [_drains(moment) for moment in history.moments]
    for drains in at_moments[-1][:3]:
        holder, refused = drains.holder, [drain for drain in drains.hashes if drain.attempts]
        same = _moments_with(drains, at_moments)
        # Nobody but the holder gets messages of a hash while it drains, so a refused one still waits.
        certain = drains.attempted and bool(now.in_replay) and (bool(drains.waiting_for) or same > 1)
        twice = drains.counted_twice and (history.settled or same > 1)
        hashes = counted(len(drains.hashes), "hash", "hashes")
        entries = sum(drain.unacked for drain in drains.hashes)
        said = None
        if drains.attempted and not twice:
            who = named(holder, now.consumers)
            said = (
                f"{hashes} drain for {who}, which holds {counted(entries, 'entry', 'entries')} of them unacknowledged: "
                "draining hashes (PIP-379) give their new owners nothing of them until it has acknowledged these, or leaves"
            )
        answers.append(
            answer(
                history,
                "draining_hash",
                certain=certain,
                rank=PART + (0.2 if drains.attempted else -0.4),
                waiting=now.in_replay,
                said=said,
                holders=[holder],
                held_for=most_first(drains.waiting_for),
                evidence=[
                    Evidence(
                        f"consumers[{named(holder, now.consumers)}].drainingHashes",
                        len(drains.hashes),
                        same,
                    ),
                    Evidence("drainingHashes.unackMsgs", entries),
                    Evidence("drainingHashes.blockedAttempts", sum(drain.attempts for drain in refused)),
                    *of_consumer(history, holder, "unackedMessages"),
                    history.evidence("msgInReplay", lambda moment: moment.in_replay),
                ],
                decided_by="a second moment: blockedAttempts of these hashes grows while messages of them wait",
                since=_drains_since(history, drains, same),
                symptoms=["counted_twice"] if twice else [],
                commands=(_AGAIN, "pulsar-admin topics stats-internal {topic}"),
                phantom=twice,
                hashes=len(drains.hashes),
            )
        )
    return answers


def _moments_with(now: _Drains, at_moments: Sequence[Sequence[_Drains]]) -> int:
    """The number of moments, back from the last without a break, at which a hash of these drains for the same consumer."""
    hashes = {drain.hash for drain in now.hashes}
    number = 0
    for moment in reversed(at_moments):
        if not any(
            before.holder.name == now.holder.name and hashes & {drain.hash for drain in before.hashes}
            for before in moment
        ):
            break
        number += 1
    return number


def _drains_since(history: History, drains: _Drains, moments: int) -> tuple[int | None, str]:
    first = history.moments[-moments].taken_us if moments > 1 else None
    joined = max((consumer.connected_us for consumer in drains.waiting_for), default=0)
    if joined and (first is None or joined < first):
        return joined, "the consumer that waits for them connected then"
    return first, "the first of the moments that shows it"


def recent_consumers(moment: Subscription) -> list[tuple[Consumer, str]]:
    """Consumers that the read-position rule holds back, each with the read position when it joined."""
    positions = dict(moment.recently_joined)
    return [
        (consumer, positions[consumer.name]) for consumer in moment.consumers if consumer.name in positions
    ]


def recently_joined(history: History) -> list[Answer]:
    """Consumers that get nothing from their join position on until all before it is acknowledged (3.x, classic)."""
    now = history.now
    recent = [
        (consumer, position) for consumer, position in recent_consumers(now) if not _released(now, position)
    ]
    if not recent or now.in_replay == 0 or not now.waiting:
        return []
    consumers = [consumer for consumer, _ in recent]
    oldest = min(consumer.connected_us for consumer in consumers)
    before = [c for c in now.consumers if c not in consumers or (c.connected_us and c.connected_us < oldest)]
    # Of several that joined, an earlier one can hold what a later one waits for.
    holders = most_first(c for c in (before or now.consumers) if (c.unacked or 0) > 0)
    others_may = all(consumer.may_get for consumer in now.consumers if consumer not in consumers)
    same = history.count(lambda moment: bool(set(now.recently_joined) & set(moment.recently_joined)))
    known = now.cursor is not None and now.cursor.mark_delete is not None
    rest = all(map(history.rests, consumers))
    certain = (
        rest and (known or same > 1) and others_may and not now.unread and any(c.may_get for c in consumers)
    )
    lasts = all(map(history.idles, consumers)) and same == len(history.moments)
    rule = "last_sent_position" if now.has_last_sent else "recently_joined"
    return [
        answer(
            history,
            rule,
            certain=certain,
            rank=LASTING_PART if lasts and not certain else PART + 0.3,
            waiting=now.in_replay if now.in_replay is not None else now.waiting,
            holders=holders,
            held_for=most_first(consumers),
            evidence=[
                Evidence("consumersAfterMarkDeletePosition", dict(now.recently_joined), same),
                Evidence("markDeletePosition", _position(now)),
                history.evidence("msgInReplay", lambda moment: moment.in_replay),
                *(item for c in holders[:2] for item in of_consumer(history, c, "unackedMessages")),
            ],
            decided_by=None if known else "stats-internal: is markDeletePosition still before that position?",
            since=(min(consumer.connected_us for consumer in consumers), "they connected then"),
            commands=("pulsar-admin topics stats-internal {topic}", _AGAIN),
        )
    ]


def _released(moment: Subscription, position: str) -> bool:
    """True if the mark-delete position has reached a join position: the entry is dropped when the dispatcher looks next."""
    mark_delete = moment.cursor.mark_delete if moment.cursor is not None else None
    ledger, _, entry = position.partition(":")
    if mark_delete is None or not (ledger.isdecimal() and entry.lstrip("-").isdecimal()):
        return False
    return (mark_delete[0], mark_delete[1] + 1) >= (int(ledger), int(entry))


def _position(moment: Subscription) -> str | None:
    found = moment.cursor.mark_delete if moment.cursor is not None else None
    return None if found is None else f"{found[0]}:{found[1]}"


def uncovered(history: History) -> list[Answer]:
    """Sticky ranges that leave hashes to nobody."""
    now = history.now
    if (
        now.mode != "STICKY"
        or not now.consumers
        or any(consumer.ranges is None for consumer in now.consumers)
    ):
        return []
    holes = holes_in(
        [pair for consumer in now.consumers for pair in consumer.ranges or ()],
        first=int(now.has_draining_fields),
    )
    if not holes or now.in_replay == 0 or (now.waiting or 0) <= now.delayed:
        return []
    real = any(end - start >= _ONE_SLOT for start, end in holes)
    alone = (
        all(consumer.may_get for consumer in now.consumers) and not now.blocked and not now.recently_joined
    )
    return [
        answer(
            history,
            "uncovered_range",
            certain=real
            and alone
            and history.settled
            and bool(now.in_replay)
            and now.complete
            and not now.delayed,
            rank=LASTING_PART if history.lasts(_has_work_in_hole) and not history.settled else PART + 0.1,
            waiting=now.in_replay if now.in_replay is not None else now.waiting,
            evidence=[
                Evidence("keySharedMode", now.mode),
                Evidence("hashes of no consumer", [list(hole) for hole in holes[:5]]),
                history.evidence("msgInReplay", lambda moment: moment.in_replay),
            ],
            since=(history.since_us(_has_hole), "the first of the moments that shows it"),
            commands=(_AGAIN,),
        )
    ]


def _has_work_in_hole(moment: Subscription) -> bool:
    return bool(moment.in_replay) and _has_hole(moment)


def _has_hole(moment: Subscription) -> bool:
    ranges = [pair for consumer in moment.consumers for pair in consumer.ranges or ()]
    return bool(holes_in(ranges, first=int(moment.has_draining_fields)))


def holes_in(ranges: Sequence[tuple[int, int]], *, first: int) -> list[tuple[int, int]]:
    """Return the slots from ``first`` to 65535 that no range covers, as ranges with both ends.

    >>> holes_in([(0, 20000), (40000, 65535)], first=1)
    [(20001, 39999)]
    """
    holes, at = [], first
    for start, end in sorted(ranges):
        if start > at:
            holes.append((at, start - 1))
        at = max(at, end + 1)
    return [*holes, (at, _LAST_SLOT)] if at <= _LAST_SLOT else holes


def look_ahead(history: History, others: Sequence[Answer]) -> list[Answer]:
    """The replay set is full, so that nothing new is read (#23231). ``others``: answers about what is in the replay set."""
    now = history.now
    if now.by_read_position or not now.in_replay or now.blocked:
        return []
    unread = now.unread
    if unread is None:
        unread = (now.waiting or 0) - now.in_replay - now.delayed
    if unread <= 0:
        return []
    cursor = now.cursor
    if cursor is not None and (cursor.pending_read or (cursor.waits and unread == 0)):
        return []  # a normal read was issued
    limit, known = _limit(history)
    full = limit is not None and now.in_replay >= limit
    if known and not full:
        return []
    # With an unknown limit, reads that stop while the replay set is held speak for it.
    reading = history.flows if cursor is None else cursor.pending_read is not False
    stopped = not reading and bool(others)
    if not (full or stopped):
        return []
    holders = list(dict.fromkeys(consumer for item in others for consumer in item.holders))
    who = [(item.rule, named(item.holders[0], now.consumers) if item.holders else None) for item in others]
    limits = Evidence("look-ahead limit", limit if known or full else None)
    return [
        answer(
            history,
            "look_ahead_limit",
            certain=known and full and bool(history.by_moments or history.settled),
            rank=WHOLE + 0.1 if full or (history.by_moments and stopped) else WHOLE - 0.2,
            waiting=unread,
            holders=holders,
            evidence=[
                history.evidence("msgInReplay", lambda moment: moment.in_replay),
                limits,
                history.evidence(
                    "subscriptionHavePendingRead", lambda moment: moment.cursor and moment.cursor.pending_read
                ),
            ],
            decided_by=(
                f"{_PER_CONSUMER} and {_PER_SUBSCRIPTION} in force (pulsar-admin brokers get-runtime-config): give them "
                "with --set"
                if not known
                else None
            ),
            since=(
                history.since_us(lambda moment: bool(moment.in_replay) and _not_reading(moment)),
                "the first of the moments that shows it",
            ),
            commands=("pulsar-admin brokers get-runtime-config", _AGAIN),
            count=now.in_replay,
            others=who[:4],
        )
    ]


def _not_reading(moment: Subscription) -> bool:
    return moment.cursor is None or moment.cursor.pending_read is False


def _limit(history: History) -> tuple[int | None, bool]:
    """Return the look-ahead limit, and whether it is known to be in force; else it is the release's default."""
    settings = {
        name: value
        for name, value in history.settings.items()
        if name.startswith(("keyShared", "maxUnacked"))
    }
    known = _PER_CONSUMER in settings and _PER_SUBSCRIPTION in settings
    try:
        profile = resolve(history.broker_version or "4.2.4", settings)
    except ProfileError:
        return None, False
    consumers = len(history.now.consumers)
    own, whole = profile.number(_PER_CONSUMER), profile.number(_PER_SUBSCRIPTION)
    limit = own * consumers if own > 0 else whole
    if own > 0 and whole > 0:
        limit = min(limit, whole)
    return (limit, known) if limit > 0 else (None, known)
