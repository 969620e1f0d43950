"""Put one fault into a recording, and declare what must be found and what may be found as a consequence.

A mutator changes raw lines so that the definition of one kind of anomaly holds where it did not before. Findings that
follow by the definitions of other kinds are declared beside it, entry by entry. No mutator knows how faults are detected.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise

from tests.mutation.faults import (
    May,
    Mutation,
    Mutator,
    ack_of,
    drop,
    flow_of,
    insert_at_time,
    leaving,
    mutation,
    ordinal,
    others,
    send_elsewhere,
    sent_to,
    shuffled,
)
from tests.mutation.recording import Delivery, Line, Recording

MILLISECOND = 1000
SECOND = 1_000_000
#: Longer than any limit of the defaults.
LONG = 120 * SECOND


# order and repetition -----------------------------------------------------------------------------------------------


def out_of_order(recording: Recording, rng: random.Random) -> Mutation | None:
    """Swap two entries of a key, within one line or across two lines to the same connection."""
    pairs = [
        (first, second)
        for deliveries in recording.deliveries_of_key.values()
        for first, second in pairwise(deliveries)
        if first.consumer == second.consumer
        and recording.is_plain(first.position)
        and recording.is_plain(second.position)
        and second.line <= min(recording.acked[first.position], recording.acked[second.position])
    ]
    if not pairs:
        return None
    across = [pair for pair in pairs if pair[0].line != pair[1].line]
    first, second = rng.choice(across if across and rng.random() < 0.5 else pairs)
    recording = recording.copied()
    for here, position in ((first, second.position), (second, first.position)):
        recording.events[here.line]["positions"][here.at] = position
    both = frozenset({first.position, second.position})
    return mutation(recording, "out_of_order", first, May("divergence", recording.key(first.position), both))


def split_key(recording: Recording, rng: random.Random) -> Mutation | None:
    """Send the second of two entries of a key to another connection while the first is still outstanding."""
    for delivery in shuffled(recording.deliveries, rng):
        if not recording.is_plain(delivery.position):
            continue
        same_key = recording.deliveries_of_key[recording.key(delivery.position) or ""]
        before = [other for other in same_key if other.line < delivery.line]
        outstanding = [
            other
            for other in before
            if other.consumer == delivery.consumer
            and recording.is_plain(other.position)
            and recording.acked[other.position] > delivery.line
        ]
        elsewhere = others(recording, delivery, rng)
        if (
            not outstanding
            or not elsewhere
            or any(other.line == delivery.line and other != delivery for other in same_key)
        ):
            continue
        to, key = elsewhere[0], recording.key(delivery.position)
        later = frozenset(other.position for other in same_key if other.line >= delivery.line)
        recording = recording.copied()
        send_elsewhere(recording, delivery, to, rng)
        return mutation(
            recording,
            "split_key",
            delivery,
            May("split_key", key, later),
            May("divergence", key, later),
            consumer=to,
        )
    return None


def double_outstanding(recording: Recording, rng: random.Random) -> Mutation | None:
    """Send an entry that is outstanding at one connection to another one too."""
    for delivery in shuffled(recording.deliveries, rng):
        if not recording.is_plain(delivery.position) or not (elsewhere := others(recording, delivery, rng)):
            continue
        to, key = elsewhere[0], recording.key(delivery.position)
        later = frozenset(
            other.position for other in recording.deliveries_of_key[key or ""] if other.line >= delivery.line
        )
        recording = recording.copied()
        line = recording.events[delivery.line]
        recording.events[delivery.line + 1 : delivery.line + 1] = [
            *flow_of(line, to, rng),
            sent_to(line, to, delivery.position),
        ]
        return mutation(
            recording,
            "double_outstanding",
            delivery,
            May("split_key", key, later),
            May("divergence", key, frozenset({delivery.position})),
            consumer=to,
        )
    return None


def duplicate_after_ack(recording: Recording, rng: random.Random) -> Mutation | None:
    """Send an entry to the same connection again long after its ack, and acknowledge it again."""
    for delivery in shuffled(recording.deliveries, rng):
        if not recording.is_plain(delivery.position):
            continue
        ack, key = recording.acked[delivery.position], recording.key(delivery.position)
        t_us = recording.events[ack]["t_us"] + rng.randrange(60, 400) * MILLISECOND
        there = max((at for at, line in enumerate(recording.events) if line["t_us"] <= t_us), default=0)
        if there + 1 >= len(recording.events) or delivery.consumer not in recording.connected[there + 1]:
            continue
        recording = recording.copied()
        recording.events[ack]["consumer"] = delivery.consumer
        insert_at_time(
            recording,
            sent_to(recording.events[delivery.line], delivery.consumer, delivery.position, t_us),
            ack,
        )
        insert_at_time(recording, ack_of(delivery.consumer, delivery.position, t_us), ack)
        again = frozenset({delivery.position})
        return mutation(
            recording,
            "duplicate_after_ack",
            delivery,
            *(May(kind, key, again) for kind in ("out_of_order", "split_key", "divergence")),
            consumer=delivery.consumer,
        )
    return None


def later_joiners_wait(recording: Recording, since: int) -> tuple[May, ...]:
    """Allow what an unacknowledged entry causes under the rules of 3.x, classic and PIP-282.

    It holds back all consumers that joined later, whatever the key.
    """
    old = recording.header["broker_version"] in ("4.0.0-preview.1",) or recording.header["config"].get(
        "subscriptionKeySharedUseClassicPersistentImplementation"
    )
    if not old:
        return ()
    behind = frozenset(delivery.position for delivery in recording.deliveries if delivery.line >= since)
    return May("divergence", None, behind), May("unnecessary_blocking")


# losses and stalls --------------------------------------------------------------------------------------------------


def never_delivered(recording: Recording, rng: random.Random) -> Mutation | None:
    """Send an entry to no consumer; all others are sent."""
    begin = recording.deliveries[0].position
    good = [
        delivery
        for delivery in recording.deliveries
        if recording.is_plain(delivery.position) and delivery.position != begin
    ]
    if not good:
        return None
    gone = rng.choice(good)
    key = recording.key(gone.position)
    whole_key = frozenset(delivery.position for delivery in recording.deliveries_of_key[key or ""])
    waits = later_joiners_wait(recording, gone.line)
    recording = recording.copied()
    drop(recording, ("sent", "ack"), lambda _line, position: position == gone.position)
    return mutation(
        recording,
        "never_delivered",
        gone,
        May("ack_hole", key, frozenset({gone.position})),
        May("divergence", key, whole_key),
        *waits,
    )


def before_a_hole(recording: Recording) -> list[Delivery]:
    """List deliveries that can become ack holes.

    Their consumer stays to the end, and another entry is acknowledged later, and another one lies behind them.
    """
    tail = leaving(recording)
    stay = recording.connected[tail] if tail < len(recording.events) else frozenset()
    good = [
        delivery
        for delivery in recording.deliveries
        if recording.is_plain(delivery.position)
        and delivery.line > recording.last_change
        and delivery.consumer in stay
    ]
    last = max((recording.acked[delivery.position] for delivery in good), default=0)
    # a hole lies before something that is acknowledged
    above = max((ordinal(delivery.position) for delivery in good), default=())
    return [
        delivery
        for delivery in good
        if recording.acked[delivery.position] < last and ordinal(delivery.position) < above
    ]


def ack_hole(recording: Recording, rng: random.Random) -> Mutation | None:
    """Never acknowledge an entry; its consumer stays for minutes after all other acks."""
    tail, good = leaving(recording), before_a_hole(recording)
    if not good:
        return None
    hole = rng.choice(good)
    recording = recording.copied()
    for line in recording.events[tail:]:
        line["t_us"] += LONG
    drop(recording, ("ack",), lambda _line, position: position == hole.position)
    return mutation(recording, "ack_hole", hole, consumer=hole.consumer)


def stuck_key(recording: Recording, rng: random.Random) -> Mutation | None:
    """Send no entry of a key from some entry on; minutes pass until all consumers leave."""
    tail = leaving(recording)
    keys = {
        key: [delivery for delivery in deliveries if recording.is_plain(delivery.position)]
        for key, deliveries in recording.deliveries_of_key.items()
        if all(recording.is_plain(delivery.position) for delivery in deliveries) and len(deliveries) >= 3
    }
    if not keys or tail == len(recording.events):
        return None
    key = rng.choice(sorted(keys))
    first = keys[key][rng.randrange(1, len(keys[key]) - 1)]
    gone = {
        delivery.position for delivery in keys[key] if ordinal(delivery.position) >= ordinal(first.position)
    }
    waits = later_joiners_wait(recording, first.line)
    if all(delivery.position in gone for delivery in recording.deliveries if delivery.line > first.line):
        # if all later entries go to one consumer and have this key, that consumer is stuck, too
        waits = (*waits, May("stuck_consumer", None, frozenset(gone)))
    recording = recording.copied()
    for line in recording.events[tail:]:
        line["t_us"] += LONG
    drop(recording, ("sent", "ack"), lambda _line, position: position in gone)
    return mutation(
        recording,
        "stuck_key",
        first,
        May("never_delivered", key, frozenset(gone)),
        May("stuck_key", key, frozenset(gone)),
        May("ack_hole", key, frozenset(gone)),
        *waits,
    )


def _others_go_on(recording: Recording, first: Delivery) -> bool:
    """Check that another connection is sent something well after a delivery; else nothing is read at all (``no_read``)."""
    since = recording.events[first.line]["t_us"] + 100 * MILLISECOND
    return any(
        delivery.consumer != first.consumer and recording.events[delivery.line]["t_us"] > since
        for delivery in recording.deliveries
    )


def stuck_consumer(recording: Recording, rng: random.Random) -> Mutation | None:
    """Send a connection nothing from some moment on; minutes pass until all consumers leave."""
    tail = leaving(recording)
    since = recording.last_change
    stay = recording.connected[tail] if tail < len(recording.events) else frozenset()
    later: dict[int, list[Delivery]] = {}
    for delivery in recording.deliveries:
        if delivery.line > since and delivery.consumer in stay:
            later.setdefault(delivery.consumer, []).append(delivery)
    good = {
        consumer: deliveries
        for consumer, deliveries in later.items()
        if len({recording.key(delivery.position) for delivery in deliveries}) >= 2
        and all(recording.is_plain(delivery.position) for delivery in deliveries)
        and _others_go_on(recording, deliveries[0])
    }
    if not good:
        return None
    consumer = rng.choice(sorted(good))
    deliveries = good[consumer]
    gone = frozenset(delivery.position for delivery in deliveries)
    recording = recording.copied()
    for line in recording.events[tail:]:
        line["t_us"] += LONG
    drop(recording, ("sent", "ack"), lambda _line, position: position in gone)
    kinds = ("never_delivered", "stuck_key", "stuck_consumer", "ack_hole")
    return Mutation(
        recording.numbered(),
        "stuck_consumer",
        None,
        None,
        consumer,
        tuple(May(kind, None, gone) for kind in kinds),
    )


def no_read(recording: Recording, rng: random.Random) -> Mutation | None:
    """Send nothing to anybody from some moment on, as after a lost read; minutes pass until all consumers leave."""
    tail = leaving(recording)
    later = [delivery for delivery in recording.deliveries if delivery.line > recording.last_change]
    if tail == len(recording.events) or not all(recording.is_plain(delivery.position) for delivery in later):
        return None
    cuts = [
        delivery.line
        for delivery in later
        if len({recording.key(other.position) for other in later if other.line >= delivery.line}) >= 2
    ]
    if not cuts:
        return None
    cut = rng.choice(cuts)
    gone = frozenset(delivery.position for delivery in later if delivery.line >= cut)
    recording = recording.copied()
    for line in recording.events[tail:]:
        line["t_us"] += LONG
    drop(recording, ("sent", "ack"), lambda _line, position: position in gone)
    # beside the stall, a rule may hold some of it as well
    may = tuple(May(kind, None, gone) for kind in ("stuck_key", "stuck_consumer"))
    return Mutation(recording.numbered(), "stuck_subscription", None, None, None, may, reason="no_read")


# the log itself and the rules ---------------------------------------------------------------------------------------

#: Findings of any kind that missing lines may cause, as uncertain ones.
DOUBTS = tuple(
    May(kind, uncertain=True)
    for kind in (
        "out_of_order", "overtaken_redelivery", "split_key", "double_outstanding", "duplicate_after_ack", "redelivered",
        "never_delivered", "ack_hole", "stuck_key", "stuck_consumer", "stuck_subscription", "divergence",
        "unknown_consumer", "unnecessary_blocking",
    )
)  # fmt: skip


def log_gap(recording: Recording, rng: random.Random) -> Mutation | None:
    """Remove some lines in the middle; half of the time a ``gap`` line reports it."""
    count = rng.randrange(1, 6)
    first = rng.randrange(2, len(recording.events) - count - 2)
    recording = recording.copied().numbered()
    lost = recording.events[first : first + count]
    gap: list[Line] = []
    if rng.random() < 0.5:
        gap = [
            {
                "seq": lost[0]["seq"], "t_us": lost[0]["t_us"], "kind": "gap",
                "from": lost[0]["seq"], "to": lost[-1]["seq"], "lost": count,
            }
        ]  # fmt: skip
    recording.events[first : first + count] = gap
    return Mutation(recording, "log_gap", None, None, None, DOUBTS)


def clock_step(recording: Recording, rng: random.Random) -> Mutation | None:
    """Set the clock back by up to three seconds, for good or for one line."""
    first = rng.randrange(1, len(recording.events) - 1)
    back_us = rng.randrange(1, 3000) * MILLISECOND
    recording = recording.copied()
    until = len(recording.events) if rng.random() < 0.5 else first + 1
    before = recording.events[first - 1]["t_us"]
    shift = recording.events[first]["t_us"] - before + back_us
    for line in recording.events[first:until]:
        line["t_us"] -= shift
    return Mutation(recording.numbered(), "clock_step", None, None, None, ())


def unknown_consumer(recording: Recording, rng: random.Random) -> Mutation | None:
    """Let a connection that was never added send a flow or an ack."""
    unknown = 999
    acks = [number for number, line in enumerate(recording.events) if line["kind"] == "ack"]
    flows = [number for number, line in enumerate(recording.events) if line["kind"] == "flow"]
    number = rng.choice(acks or flows)
    waits = later_joiners_wait(recording, number)
    recording = recording.copied()
    if rng.random() < 0.5 and flows:
        number = rng.choice(flows)
        like = recording.events[number]
        recording.events.insert(number, {**like, "consumer": unknown})
    else:
        recording.events[number]["consumer"] = unknown
    return Mutation(recording.numbered(), "unknown_consumer", None, None, unknown, waits)


def divergence(recording: Recording, rng: random.Random) -> Mutation | None:
    """Send an entry to a connection that does not own its hash, if possible while no entry of its key is outstanding."""
    changes = [
        line["t_us"]
        for line in recording.events
        if line["kind"] in ("consumer_added", "consumer_removed", "redeliver")
    ]

    def others_of_key_outstanding(delivery: Delivery) -> bool:
        here, done = delivery.line, recording.acked[delivery.position]
        return any(
            other != delivery and other.line <= done and recording.acked.get(other.position, done) >= here
            for other in recording.deliveries_of_key[recording.key(delivery.position) or ""]
        )

    plain = [
        delivery for delivery in shuffled(recording.deliveries, rng) if recording.is_plain(delivery.position)
    ]
    for delivery in sorted(plain, key=others_of_key_outstanding):
        t_us = recording.events[delivery.line]["t_us"]
        elsewhere = others(recording, delivery, rng)
        same_key = recording.deliveries_of_key[recording.key(delivery.position) or ""]
        if sum(other.line == delivery.line for other in same_key) > 1:
            continue  # the other of the line would go before it or after it
        if not elsewhere or any(abs(change - t_us) < 100 * MILLISECOND for change in changes):
            continue
        to, key = elsewhere[0], recording.key(delivery.position)
        later = frozenset(
            other.position for other in recording.deliveries_of_key[key or ""] if other.line >= delivery.line
        )
        recording = recording.copied()
        send_elsewhere(recording, delivery, to, rng)
        return mutation(
            recording,
            "divergence",
            delivery,
            May("split_key", key, later),
            May("divergence", key, later),
            consumer=to,
        )
    return None


MUTATORS: dict[str, Mutator] = {
    mutator.__name__: mutator
    for mutator in (
        out_of_order, split_key, double_outstanding, duplicate_after_ack, never_delivered, ack_hole, stuck_key,
        stuck_consumer, no_read, log_gap, clock_step, unknown_consumer, divergence,
    )
}  # fmt: skip


def mutations(
    kind: str, recordings: Iterable[Recording], count: int, seed: int, mutator: Mutator | None = None
) -> Iterator[Mutation]:
    """Yield ``count`` recordings with a fault of ``kind``, from different recordings as long as there are any.

    ``mutator``: use this one instead of that of ``MUTATORS``.
    """
    mutator = MUTATORS[kind] if mutator is None else mutator
    rng = random.Random(f"{seed}-{kind}")
    left = count
    recordings = list(recordings)
    rng.shuffle(recordings)
    for _ in range(count):
        for recording in recordings:
            found = mutator(recording, rng) if left else None
            if found is not None:
                left -= 1
                yield found
