"""Faults put into recorded lives, one each, with what must be found and what may be found as their consequence.

A mutator changes raw lines so that the definition of one kind of anomaly holds where it did not before. What follows from
the definitions of other kinds is declared beside it, entry by entry. Nothing here looks at how anything is detected.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise

from tests.mutation.faults import (
    May,
    Mutation,
    Mutator,
    ack_at,
    ack_of,
    drop,
    flow_of,
    insert_at_time,
    leaving,
    mutation,
    only_without,
    others,
    sent_to,
    shuffled,
)
from tests.mutation.lives import Life, Line, Sending

MILLISECOND = 1000
SECOND = 1_000_000
#: Longer than any limit of the defaults.
LONG = 120 * SECOND


# order and repetition -----------------------------------------------------------------------------------------------


def out_of_order(life: Life, rng: random.Random) -> Mutation | None:
    """Two entries of a key change places, in one line or across two lines to one connection."""
    pairs = [
        (one, two)
        for sendings in life.of_key.values()
        for one, two in pairwise(sendings)
        if one.consumer == two.consumer
        and life.is_plain(one.position)
        and life.is_plain(two.position)
        and two.line <= min(life.acked[one.position], life.acked[two.position])
    ]
    if not pairs:
        return None
    across = [pair for pair in pairs if pair[0].line != pair[1].line]
    one, two = rng.choice(across if across and rng.random() < 0.5 else pairs)
    life = life.copied()
    for here, position in ((one, two.position), (two, one.position)):
        life.events[here.line]["positions"][here.at] = position
    both = frozenset({one.position, two.position})
    return mutation(life, "out_of_order", one, May("divergence", life.key(one.position), both))


def split_key(life: Life, rng: random.Random) -> Mutation | None:
    """The second of two entries of a key goes to another connection while the first is still held."""
    for two in shuffled(life.sendings, rng):
        if not life.is_plain(two.position):
            continue
        mine = life.of_key[life.key(two.position) or ""]
        before = [one for one in mine if one.line < two.line]
        held = [
            one for one in before
            if one.consumer == two.consumer and life.is_plain(one.position) and life.acked[one.position] > two.line
        ]  # fmt: skip
        elsewhere = others(life, two, rng)
        if not held or not elsewhere or any(one.line == two.line and one != two for one in mine):
            continue
        to, key = elsewhere[0], life.key(two.position)
        later = frozenset(one.position for one in mine if one.line >= two.line)
        life = life.copied()
        line = life.events[two.line]
        ack_at(life, two.position, to)
        left = only_without(line, two.position)
        lines = [*([left] if left else []), *flow_of(line, to, rng), sent_to(line, to, two.position)]
        number = next(at for at, other in enumerate(life.events) if other is line)
        life.events[number : number + 1] = lines
        return mutation(
            life, "split_key", two, May("split_key", key, later), May("divergence", key, later), consumer=to
        )
    return None


def double_outstanding(life: Life, rng: random.Random) -> Mutation | None:
    """An entry that a connection holds is sent to another one too."""
    for sending in shuffled(life.sendings, rng):
        if not life.is_plain(sending.position) or not (elsewhere := others(life, sending, rng)):
            continue
        to, key = elsewhere[0], life.key(sending.position)
        later = frozenset(one.position for one in life.of_key[key or ""] if one.line >= sending.line)
        life = life.copied()
        line = life.events[sending.line]
        life.events[sending.line + 1 : sending.line + 1] = [
            *flow_of(line, to, rng),
            sent_to(line, to, sending.position),
        ]
        return mutation(
            life,
            "double_outstanding",
            sending,
            May("split_key", key, later),
            May("divergence", key, frozenset({sending.position})),
            consumer=to,
        )
    return None


def duplicate_after_ack(life: Life, rng: random.Random) -> Mutation | None:
    """An entry comes again, to whom it was sent, long after its ack; and is acknowledged again."""
    for sending in shuffled(life.sendings, rng):
        if not life.is_plain(sending.position):
            continue
        ack, key = life.acked[sending.position], life.key(sending.position)
        t_us = life.events[ack]["t_us"] + rng.randrange(60, 400) * MILLISECOND
        there = max((at for at, line in enumerate(life.events) if line["t_us"] <= t_us), default=0)
        if there + 1 >= len(life.events) or sending.consumer not in life.connected[there + 1]:
            continue
        life = life.copied()
        life.events[ack]["consumer"] = sending.consumer
        insert_at_time(
            life, sent_to(life.events[sending.line], sending.consumer, sending.position, t_us), ack
        )
        insert_at_time(life, ack_of(sending.consumer, sending.position, t_us), ack)
        again = frozenset({sending.position})
        return mutation(
            life,
            "duplicate_after_ack",
            sending,
            *(May(kind, key, again) for kind in ("out_of_order", "split_key", "divergence")),
            consumer=sending.consumer,
        )
    return None


def newcomers_wait(life: Life, since: int) -> tuple[May, ...]:
    """By the rules of 3.x, classic and PIP-282 what is unacknowledged holds back who joined later, whatever the key."""
    old = life.header["broker_version"] in ("4.0.0-preview.1",) or life.header["config"].get(
        "subscriptionKeySharedUseClassicPersistentImplementation"
    )
    if not old:
        return ()
    behind = frozenset(one.position for one in life.sendings if one.line >= since)
    return May("divergence", None, behind), May("unnecessary_blocking")


# losses and stalls --------------------------------------------------------------------------------------------------


def never_delivered(life: Life, rng: random.Random) -> Mutation | None:
    """An entry is sent to nobody; all the others are."""
    begin = life.sendings[0].position
    good = [one for one in life.sendings if life.is_plain(one.position) and one.position != begin]
    if not good:
        return None
    gone = rng.choice(good)
    key = life.key(gone.position)
    mine = frozenset(one.position for one in life.of_key[key or ""])
    waits = newcomers_wait(life, gone.line)
    life = life.copied()
    drop(life, ("sent", "ack"), lambda _line, position: position == gone.position)
    return mutation(
        life,
        "never_delivered",
        gone,
        May("ack_hole", key, frozenset({gone.position})),
        May("divergence", key, mine),
        *waits,
    )


def before_a_hole(life: Life) -> list[Sending]:
    """Sendings that can become holes: to who stays to the end, of entries neither acknowledged last nor lying last."""
    tail = leaving(life)
    stay = life.connected[tail] if tail < len(life.events) else frozenset()
    good = [
        one
        for one in life.sendings
        if life.is_plain(one.position) and one.line > life.last_change and one.consumer in stay
    ]
    last = max((life.acked[one.position] for one in good), default=0)
    # a hole lies before something that is acknowledged
    above = max((ordinal(one.position) for one in good), default=())
    return [one for one in good if life.acked[one.position] < last and ordinal(one.position) < above]


def ack_hole(life: Life, rng: random.Random) -> Mutation | None:
    """An entry is never acknowledged, and its consumer stays for minutes after everything else was."""
    tail, good = leaving(life), before_a_hole(life)
    if not good:
        return None
    hole = rng.choice(good)
    life = life.copied()
    for line in life.events[tail:]:
        line["t_us"] += LONG
    drop(life, ("ack",), lambda _line, position: position == hole.position)
    return mutation(life, "ack_hole", hole, consumer=hole.consumer)


def stuck_key(life: Life, rng: random.Random) -> Mutation | None:
    """From one entry on nothing of a key is sent any more, and minutes pass until everybody leaves."""
    tail = leaving(life)
    keys = {
        key: [one for one in sendings if life.is_plain(one.position)]
        for key, sendings in life.of_key.items()
        if all(life.is_plain(one.position) for one in sendings) and len(sendings) >= 3
    }
    if not keys or tail == len(life.events):
        return None
    key = rng.choice(sorted(keys))
    first = keys[key][rng.randrange(1, len(keys[key]) - 1)]
    gone = {one.position for one in keys[key] if ordinal(one.position) >= ordinal(first.position)}
    waits = newcomers_wait(life, first.line)
    if all(one.position in gone for one in life.sendings if one.line > first.line):
        # where everything goes to one consumer, and is of this key, that one gets nothing any more
        waits = (*waits, May("stuck_consumer", None, frozenset(gone)))
    life = life.copied()
    for line in life.events[tail:]:
        line["t_us"] += LONG
    drop(life, ("sent", "ack"), lambda _line, position: position in gone)
    return mutation(
        life,
        "stuck_key",
        first,
        May("never_delivered", key, frozenset(gone)),
        May("stuck_key", key, frozenset(gone)),
        May("ack_hole", key, frozenset(gone)),
        *waits,
    )


def stuck_consumer(life: Life, rng: random.Random) -> Mutation | None:
    """From one moment on a connection is sent nothing, and minutes pass until everybody leaves."""
    tail = leaving(life)
    since = life.last_change
    stay = life.connected[tail] if tail < len(life.events) else frozenset()
    later: dict[int, list[Sending]] = {}
    for one in life.sendings:
        if one.line > since and one.consumer in stay:
            later.setdefault(one.consumer, []).append(one)
    good = {
        consumer: mine
        for consumer, mine in later.items()
        if len({life.key(one.position) for one in mine}) >= 2
        and all(life.is_plain(one.position) for one in mine)
    }
    if not good:
        return None
    consumer = rng.choice(sorted(good))
    mine = good[consumer]
    gone = frozenset(one.position for one in mine)
    life = life.copied()
    for line in life.events[tail:]:
        line["t_us"] += LONG
    drop(life, ("sent", "ack"), lambda _line, position: position in gone)
    kinds = ("never_delivered", "stuck_key", "stuck_consumer", "ack_hole")
    return Mutation(
        life.numbered(),
        "stuck_consumer",
        None,
        None,
        consumer,
        tuple(May(kind, None, gone) for kind in kinds),
    )


def ordinal(position: str) -> tuple[int, ...]:
    return tuple(int(part) for part in position.split(":"))


# the log itself and the rules ---------------------------------------------------------------------------------------

#: What missing lines may make of everything: doubt.
DOUBTS = tuple(
    May(kind, uncertain=True)
    for kind in (
        "out_of_order", "overtaken_redelivery", "split_key", "double_outstanding", "duplicate_after_ack", "redelivered",
        "never_delivered", "ack_hole", "stuck_key", "stuck_consumer", "stuck_subscription", "divergence",
        "unknown_consumer", "unnecessary_blocking",
    )
)  # fmt: skip


def log_gap(life: Life, rng: random.Random) -> Mutation | None:
    """Some lines in the middle are gone; half of the time a line says so."""
    count = rng.randrange(1, 6)
    first = rng.randrange(2, len(life.events) - count - 2)
    life = life.copied().numbered()
    lost = life.events[first : first + count]
    said: list[Line] = []
    if rng.random() < 0.5:
        said = [
            {
                "seq": lost[0]["seq"], "t_us": lost[0]["t_us"], "kind": "gap",
                "from": lost[0]["seq"], "to": lost[-1]["seq"], "lost": count,
            }
        ]  # fmt: skip
    life.events[first : first + count] = said
    return Mutation(life, "log_gap", None, None, None, DOUBTS)


def clock_step(life: Life, rng: random.Random) -> Mutation | None:
    """The clock goes back by some time, for good or for one line."""
    first = rng.randrange(1, len(life.events) - 1)
    back_us = rng.randrange(1, 3000) * MILLISECOND
    life = life.copied()
    until = len(life.events) if rng.random() < 0.5 else first + 1
    before = life.events[first - 1]["t_us"]
    shift = life.events[first]["t_us"] - before + back_us
    for line in life.events[first:until]:
        line["t_us"] -= shift
    return Mutation(life.numbered(), "clock_step", None, None, None, ())


def unknown_consumer(life: Life, rng: random.Random) -> Mutation | None:
    """A connection that nobody added asks for messages or acknowledges some."""
    stranger = 999
    acks = [number for number, line in enumerate(life.events) if line["kind"] == "ack"]
    flows = [number for number, line in enumerate(life.events) if line["kind"] == "flow"]
    number = rng.choice(acks or flows)
    waits = newcomers_wait(life, number)
    life = life.copied()
    if rng.random() < 0.5 and flows:
        number = rng.choice(flows)
        like = life.events[number]
        life.events.insert(number, {**like, "consumer": stranger})
    else:
        life.events[number]["consumer"] = stranger
    return Mutation(life.numbered(), "unknown_consumer", None, None, stranger, waits)


def divergence(life: Life, rng: random.Random) -> Mutation | None:
    """An entry goes to a connection that does not own its hash; if possible with nothing of its key held anywhere."""
    changes = [
        line["t_us"]
        for line in life.events
        if line["kind"] in ("consumer_added", "consumer_removed", "redeliver")
    ]

    def others_of_key_held(sending: Sending) -> bool:
        here, done = sending.line, life.acked[sending.position]
        return any(
            one != sending and one.line <= done and life.acked.get(one.position, done) >= here
            for one in life.of_key[life.key(sending.position) or ""]
        )

    plain = [one for one in shuffled(life.sendings, rng) if life.is_plain(one.position)]
    for sending in sorted(plain, key=others_of_key_held):
        t_us = life.events[sending.line]["t_us"]
        elsewhere = others(life, sending, rng)
        mine = life.of_key[life.key(sending.position) or ""]
        if sum(one.line == sending.line for one in mine) > 1:
            continue  # the other of the line would go before it or after it
        if not elsewhere or any(abs(change - t_us) < 100 * MILLISECOND for change in changes):
            continue
        to, key = elsewhere[0], life.key(sending.position)
        later = frozenset(one.position for one in life.of_key[key or ""] if one.line >= sending.line)
        life = life.copied()
        line = life.events[sending.line]
        ack_at(life, sending.position, to)
        left = only_without(line, sending.position)
        number = next(at for at, other in enumerate(life.events) if other is line)
        life.events[number : number + 1] = [
            *([left] if left else []),
            *flow_of(line, to, rng),
            sent_to(line, to, sending.position),
        ]
        return mutation(
            life,
            "divergence",
            sending,
            May("split_key", key, later),
            May("divergence", key, later),
            consumer=to,
        )
    return None


MUTATORS: dict[str, Mutator] = {
    one.__name__: one
    for one in (
        out_of_order, split_key, double_outstanding, duplicate_after_ack, never_delivered, ack_hole, stuck_key,
        stuck_consumer, log_gap, clock_step, unknown_consumer, divergence,
    )
}  # fmt: skip


def mutations(
    kind: str, lives: Iterable[Life], count: int, seed: int, mutator: Mutator | None = None
) -> Iterator[Mutation]:
    """``count`` lives with a fault of ``kind``, from different recordings as long as there are any.

    ``mutator``: another way to put it there than that of ``MUTATORS``.
    """
    mutator = MUTATORS[kind] if mutator is None else mutator
    rng = random.Random(f"{seed}-{kind}")
    left = count
    lives = list(lives)
    rng.shuffle(lives)
    for _ in range(count):
        for life in lives:
            found = mutator(life, rng) if left else None
            if found is not None:
                left -= 1
                yield found
