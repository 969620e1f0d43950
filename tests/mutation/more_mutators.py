"""Further ways to put the same faults into a recorded life: cruder ones, and ones at the edges of a log.

As in ``mutators`` each declares what must be found and what may follow; nothing here looks at how anything is detected.
"""

from __future__ import annotations

import random
from itertools import pairwise

from tests.mutation.faults import (
    May,
    Mutation,
    Mutator,
    ack_of,
    drop,
    insert_at_time,
    leaving,
    mutation,
    only_without,
    sent_to,
    shuffled,
)
from tests.mutation.lives import Life
from tests.mutation.mutators import DOUBTS, LONG, MILLISECOND, SECOND, before_a_hole, newcomers_wait, ordinal

#: Whatever may be found of a key whose entries went wrong.
_OF_THE_KEY = ("divergence", "stuck_key", "split_key")


def the_very_first_entry(life: Life, rng: random.Random) -> Mutation | None:
    """The first entry of the subscription is sent to nobody: nothing before it shows where the subscription begins."""
    first = min(life.sendings, key=lambda one: ordinal(one.position))
    if not life.is_plain(first.position):
        return None
    key, waits = life.key(first.position), newcomers_wait(life, first.line)
    life = life.copied()
    drop(life, ("sent", "ack"), lambda _line, position: position == first.position)
    return mutation(life, "never_delivered", first, May("stuck_key", key), *waits)


def the_very_last_entry(life: Life, rng: random.Random) -> Mutation | None:
    """The last entry is sent to nobody: nothing goes over it."""
    last = max(life.sendings, key=lambda one: ordinal(one.position))
    if not life.is_plain(last.position):
        return None
    waits = newcomers_wait(life, last.line)
    life = life.copied()
    drop(life, ("sent", "ack"), lambda _line, position: position == last.position)
    return mutation(life, "never_delivered", last, *waits)


def acknowledged_unsent(life: Life, rng: random.Random) -> Mutation | None:
    """An entry is acknowledged by whom nobody sent it to."""
    good = [one for one in life.sendings if life.is_plain(one.position)]
    if not good:
        return None
    sending = rng.choice(good)
    key, waits = life.key(sending.position), newcomers_wait(life, sending.line)
    life = life.copied()
    drop(life, ("sent",), lambda _line, position: position == sending.position)
    return mutation(life, "never_delivered", sending, *(May(kind, key) for kind in _OF_THE_KEY), *waits)


def a_line_of_sendings(life: Life, rng: random.Random) -> Mutation | None:
    """Everything in one ``sent`` line was sent to nobody."""
    good = [
        number
        for number, line in enumerate(life.events)
        if line["kind"] == "sent" and all(life.is_plain(position) for position in line["positions"])
    ]
    if not good:
        return None
    number = rng.choice(good)
    gone = frozenset(life.events[number]["positions"])
    first = next(one for one in life.sendings if one.line == number)
    waits = newcomers_wait(life, number)
    follows = [
        May(kind, life.key(position))
        for position in gone
        for kind in ("never_delivered", "stuck_key", "divergence")
    ]
    life = life.copied()
    drop(life, ("sent", "ack"), lambda _line, position: position in gone)
    return mutation(life, "never_delivered", first, *follows, May("stuck_consumer", None, gone), *waits)


def sent_behind_the_next(life: Life, rng: random.Random) -> Mutation | None:
    """An entry is sent in a line of its own, behind the line that sends the next of its key to the same connection."""
    pairs = [
        (one, two)
        for sendings in life.of_key.values()
        for one, two in pairwise(sendings)
        if one.consumer == two.consumer
        and one.line < two.line < life.acked.get(one.position, 0)
        and life.is_plain(one.position)
        and life.is_plain(two.position)
    ]
    if not pairs:
        return None
    one, two = rng.choice(pairs)
    key, waits = life.key(one.position), newcomers_wait(life, one.line)
    life = life.copied()
    left = only_without(life.events[one.line], one.position)
    life.events.insert(two.line + 1, sent_to(life.events[two.line], one.consumer, one.position))
    life.events[one.line : one.line + 1] = [left] if left is not None else []
    return mutation(life, "out_of_order", one, *(May(kind, key) for kind in _OF_THE_KEY), *waits)


def again_to_another(life: Life, rng: random.Random) -> Mutation | None:
    """An entry comes again long after its ack, to another connection."""
    for sending in shuffled(life.sendings, rng):
        if not life.is_plain(sending.position):
            continue
        ack, key = life.acked[sending.position], life.key(sending.position)
        t_us = life.events[ack]["t_us"] + rng.randrange(60, 900) * MILLISECOND
        there = max((at for at, line in enumerate(life.events) if line["t_us"] <= t_us), default=0)
        if there + 1 >= len(life.events):
            continue
        others = sorted(life.connected[there + 1] - {sending.consumer})
        others = [one for one in others if life.slack(one, there) >= 5]
        if not others:
            continue
        to = rng.choice(others)
        life = life.copied()
        insert_at_time(life, sent_to(life.events[sending.line], to, sending.position, t_us), ack)
        insert_at_time(life, ack_of(to, sending.position, t_us), ack)
        follows = [May(kind, key) for kind in ("out_of_order", "split_key", "divergence")]
        return mutation(life, "duplicate_after_ack", sending, *follows, consumer=to)
    return None


def acknowledged_late(life: Life, rng: random.Random) -> Mutation | None:
    """An ack comes more than a minute after all the others."""
    good = before_a_hole(life)
    if not good:
        return None
    hole = rng.choice(good)
    key, waits = life.key(hole.position), newcomers_wait(life, hole.line)
    life = life.copied()
    drop(life, ("ack",), lambda _line, position: position == hole.position)
    tail = leaving(life)
    t_us = life.events[tail]["t_us"] + 90 * SECOND
    for line in life.events[tail:]:
        line["t_us"] += LONG
    life.events.insert(tail, ack_of(hole.consumer, hole.position, t_us))
    return mutation(life, "ack_hole", hole, May("divergence", key), *waits, consumer=hole.consumer)


def sent_unasked(life: Life, rng: random.Random) -> Mutation | None:
    """A connection asks for no messages, or for none from some line on, and is sent as many as before."""
    to = rng.choice(sorted({one.consumer for one in life.sendings}))
    mine = [
        number for number, line in enumerate(life.events) if line["kind"] == "sent" and line["consumer"] == to
    ]
    since = 0 if rng.random() < 0.5 else rng.choice(mine)
    left, unasked = 0, False
    for number, line in enumerate(life.events):
        if line.get("consumer") == to and line["kind"] == "flow" and number < since:
            left += line["permits"]
        elif line.get("consumer") == to and line["kind"] == "sent":
            unasked = unasked or left <= 0
            left -= len(line["positions"])
    if not unasked:
        return None
    life = life.copied()
    life.events = [
        line
        for number, line in enumerate(life.events)
        if number < since or line["kind"] not in _ASKING or line["consumer"] != to
    ]
    # the first of a trace's decisions that differs may be a read for that connection, or what drains for it
    follows = (May("divergence"),) if life.header["format"] == "pulsar-dispatch-trace" else ()
    return Mutation(life.numbered(), "divergence", None, None, to, follows)


#: What a trace says of permits that a client asks for, and of their way to the dispatcher.
_ASKING = ("flow", "flow_counted", "flow_applied")


def clock_minutes_back(life: Life, rng: random.Random) -> Mutation | None:
    """The clock of the broker goes back by five minutes for good: everything before seems to have been long ago."""
    first = rng.randrange(1, len(life.events) - 1)
    life = life.copied()
    shift = life.events[first]["t_us"] - life.events[first - 1]["t_us"] + 300 * SECOND
    for line in life.events[first:]:
        line["t_us"] -= shift
    return Mutation(life.numbered(), "clock_step", None, None, None, ())


def the_first_lines(life: Life, rng: random.Random) -> Mutation | None:
    """The log begins in the middle of things."""
    life = life.copied().numbered()
    life.events[: min(rng.choice([1, 2, 100]), len(life.events) - 5)] = []
    return Mutation(life, "log_gap", None, None, None, DOUBTS)


def nobody_joined(life: Life, rng: random.Random) -> Mutation | None:
    """The line that adds a connection is not there, and no number is missing; what else a trace says of it stays."""
    return _not_joined(life, rng)


def nothing_of_a_join(life: Life, rng: random.Random) -> Mutation | None:
    """No line of the moment in which a connection joins is there: of a trace all that its thread did then is gone."""
    return _not_joined(life, rng, _BEFORE_A_JOIN, _BEHIND_A_JOIN)


#: What a trace says while a connection is being added, and of its selector right after.
_BEFORE_A_JOIN = (
    "handover_scheduled", "rewind", "active_notified", "read_attempt", "read_issued", "active_picked",
)  # fmt: skip
_BEHIND_A_JOIN = ("selector_added", "draining_add")


def _not_joined(
    life: Life, rng: random.Random, before: tuple[str, ...] = (), behind: tuple[str, ...] = ()
) -> Mutation | None:
    busy = {line.get("consumer") for line in life.events if line["kind"] in ("sent", "ack", "flow")}
    joins = [
        number
        for number, line in enumerate(life.events)
        if line["kind"] == "consumer_added" and line["consumer"] in busy
    ]
    if not joins:
        return None
    number = rng.choice(joins)
    stranger = life.events[number]["consumer"]
    first, end = number, number + 1
    while first and life.events[first - 1]["kind"] in before:
        first -= 1
    while end < len(life.events) and life.events[end]["kind"] in behind:
        end += 1
    life = life.copied()
    del life.events[first:end]
    return Mutation(
        life.numbered(), "unknown_consumer", None, None, stranger,
        (*DOUBTS, May("unknown_consumer"), May("unnecessary_blocking")),
    )  # fmt: skip


MORE: dict[str, Mutator] = {
    one.__name__: one
    for one in (
        the_very_first_entry, the_very_last_entry, acknowledged_unsent, a_line_of_sendings, sent_behind_the_next,
        again_to_another, acknowledged_late, sent_unasked, clock_minutes_back, the_first_lines, nobody_joined,
        nothing_of_a_join,
    )
}  # fmt: skip
