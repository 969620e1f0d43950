"""Variants of the mutators: cruder faults, and faults at the edges of a log.

As in ``mutators``, each declares what must be found and what may follow, and knows nothing of how faults are detected.
"""

from __future__ import annotations

import random
from dataclasses import replace
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
    ordinal,
    sent_to,
    shuffled,
)
from tests.mutation.mutators import (
    DOUBTS,
    LONG,
    MILLISECOND,
    SECOND,
    before_a_hole,
    later_joiners_wait,
)
from tests.mutation.recording import Recording

#: Kinds of findings that may follow for the key of the fault.
_OF_THE_KEY = ("divergence", "stuck_key", "split_key")


def the_very_first_entry(recording: Recording, rng: random.Random) -> Mutation | None:
    """Send the first entry of the subscription to no consumer: no earlier line shows where the subscription begins."""
    first = min(recording.deliveries, key=lambda delivery: ordinal(delivery.position))
    if not recording.is_plain(first.position):
        return None
    key, waits = recording.key(first.position), later_joiners_wait(recording, first.line)
    recording = recording.copied()
    drop(recording, ("sent", "ack"), lambda _line, position: position == first.position)
    return mutation(recording, "never_delivered", first, May("stuck_key", key), *waits)


def the_very_last_entry(recording: Recording, rng: random.Random) -> Mutation | None:
    """Send the last entry to no consumer: no later delivery shows that it was skipped."""
    last = max(recording.deliveries, key=lambda delivery: ordinal(delivery.position))
    if not recording.is_plain(last.position):
        return None
    waits = later_joiners_wait(recording, last.line)
    recording = recording.copied()
    drop(recording, ("sent", "ack"), lambda _line, position: position == last.position)
    return mutation(recording, "never_delivered", last, *waits)


def acknowledged_unsent(recording: Recording, rng: random.Random) -> Mutation | None:
    """Acknowledge an entry that was never sent."""
    good = [delivery for delivery in recording.deliveries if recording.is_plain(delivery.position)]
    if not good:
        return None
    delivery = rng.choice(good)
    key, waits = recording.key(delivery.position), later_joiners_wait(recording, delivery.line)
    recording = recording.copied()
    drop(recording, ("sent",), lambda _line, position: position == delivery.position)
    return mutation(recording, "never_delivered", delivery, *(May(kind, key) for kind in _OF_THE_KEY), *waits)


def a_line_of_deliveries(recording: Recording, rng: random.Random) -> Mutation | None:
    """Remove a whole ``sent`` line, with the acks of its entries. If nothing is read any more, that is the finding."""
    good = [
        number
        for number, line in enumerate(recording.events)
        if line["kind"] == "sent" and all(recording.is_plain(position) for position in line["positions"])
    ]
    if not good:
        return None
    number = rng.choice(good)
    gone = frozenset(recording.events[number]["positions"])
    first = next(delivery for delivery in recording.deliveries if delivery.line == number)
    waits = later_joiners_wait(recording, number)
    follows = [
        May(kind, recording.key(position))
        for position in gone
        for kind in ("never_delivered", "stuck_key", "divergence")
    ]
    recording = recording.copied()
    drop(recording, ("sent", "ack"), lambda _line, position: position in gone)
    found = mutation(recording, "never_delivered", first, *follows, May("stuck_consumer", None, gone), *waits)
    return replace(found, also="stuck_subscription")


def sent_behind_the_next(recording: Recording, rng: random.Random) -> Mutation | None:
    """Send an entry in a line of its own, behind the line that sends the next entry of its key to the same connection."""
    pairs = [
        (first, second)
        for deliveries in recording.deliveries_of_key.values()
        for first, second in pairwise(deliveries)
        if first.consumer == second.consumer
        and first.line < second.line < recording.acked.get(first.position, 0)
        and recording.is_plain(first.position)
        and recording.is_plain(second.position)
    ]
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    key, waits = recording.key(first.position), later_joiners_wait(recording, first.line)
    recording = recording.copied()
    left = only_without(recording.events[first.line], first.position)
    recording.events.insert(
        second.line + 1, sent_to(recording.events[second.line], first.consumer, first.position)
    )
    recording.events[first.line : first.line + 1] = [left] if left is not None else []
    return mutation(recording, "out_of_order", first, *(May(kind, key) for kind in _OF_THE_KEY), *waits)


def again_to_another(recording: Recording, rng: random.Random) -> Mutation | None:
    """Send an entry again long after its ack, to another connection."""
    for delivery in shuffled(recording.deliveries, rng):
        if not recording.is_plain(delivery.position):
            continue
        ack, key = recording.acked[delivery.position], recording.key(delivery.position)
        t_us = recording.events[ack]["t_us"] + rng.randrange(60, 900) * MILLISECOND
        there = max((at for at, line in enumerate(recording.events) if line["t_us"] <= t_us), default=0)
        if there + 1 >= len(recording.events):
            continue
        others = sorted(recording.connected[there + 1] - {delivery.consumer})
        others = [consumer for consumer in others if recording.slack(consumer, there) >= 5]
        if not others:
            continue
        to = rng.choice(others)
        recording = recording.copied()
        insert_at_time(recording, sent_to(recording.events[delivery.line], to, delivery.position, t_us), ack)
        insert_at_time(recording, ack_of(to, delivery.position, t_us), ack)
        follows = [May(kind, key) for kind in ("out_of_order", "split_key", "divergence")]
        return mutation(recording, "duplicate_after_ack", delivery, *follows, consumer=to)
    return None


def acknowledged_late(recording: Recording, rng: random.Random) -> Mutation | None:
    """Delay an ack until more than a minute after all others."""
    good = before_a_hole(recording)
    if not good:
        return None
    hole = rng.choice(good)
    key, waits = recording.key(hole.position), later_joiners_wait(recording, hole.line)
    recording = recording.copied()
    drop(recording, ("ack",), lambda _line, position: position == hole.position)
    tail = leaving(recording)
    t_us = recording.events[tail]["t_us"] + 90 * SECOND
    for line in recording.events[tail:]:
        line["t_us"] += LONG
    recording.events.insert(tail, ack_of(hole.consumer, hole.position, t_us))
    return mutation(recording, "ack_hole", hole, May("divergence", key), *waits, consumer=hole.consumer)


def sent_unasked(recording: Recording, rng: random.Random) -> Mutation | None:
    """Remove the flows of a connection, all or from some line on; it is sent as many messages as before."""
    to = rng.choice(sorted({delivery.consumer for delivery in recording.deliveries}))
    its_deliveries = [
        number
        for number, line in enumerate(recording.events)
        if line["kind"] == "sent" and line["consumer"] == to
    ]
    since = 0 if rng.random() < 0.5 else rng.choice(its_deliveries)
    left, unasked = 0, False
    for number, line in enumerate(recording.events):
        if line.get("consumer") == to and line["kind"] == "flow" and number < since:
            left += line["permits"]
        elif line.get("consumer") == to and line["kind"] == "sent":
            unasked = unasked or left <= 0
            left -= len(line["positions"])
    if not unasked:
        return None
    recording = recording.copied()
    recording.events = [
        line
        for number, line in enumerate(recording.events)
        if number < since or line["kind"] not in _FLOWS or line["consumer"] != to
    ]
    # the first of a trace's decisions that differs may be a read for that connection, or what drains for it
    follows = (May("divergence"),) if recording.header["format"] == "pulsar-dispatch-trace" else ()
    return Mutation(recording.numbered(), "divergence", None, None, to, follows)


#: Kinds of the lines that record a flow and its way to the dispatcher.
_FLOWS = ("flow", "flow_counted", "flow_applied")


def clock_minutes_back(recording: Recording, rng: random.Random) -> Mutation | None:
    """Set the clock of the broker back by five minutes for good."""
    first = rng.randrange(1, len(recording.events) - 1)
    recording = recording.copied()
    shift = recording.events[first]["t_us"] - recording.events[first - 1]["t_us"] + 300 * SECOND
    for line in recording.events[first:]:
        line["t_us"] -= shift
    return Mutation(recording.numbered(), "clock_step", None, None, None, ())


def the_first_lines(recording: Recording, rng: random.Random) -> Mutation | None:
    """Remove the first lines of the log."""
    recording = recording.copied().numbered()
    recording.events[: min(rng.choice([1, 2, 100]), len(recording.events) - 5)] = []
    return Mutation(recording, "log_gap", None, None, None, DOUBTS)


def nobody_joined(recording: Recording, rng: random.Random) -> Mutation | None:
    """Remove the line that adds a connection, without a hole in ``seq``; other trace lines of the join stay."""
    return _not_joined(recording, rng)


def nothing_of_a_join(recording: Recording, rng: random.Random) -> Mutation | None:
    """Remove the line that adds a connection, and the trace lines that the same thread wrote around it."""
    return _not_joined(recording, rng, _BEFORE_A_JOIN, _BEHIND_A_JOIN)


#: Kinds of trace lines written while a connection is added, and right after.
_BEFORE_A_JOIN = (
    "handover_scheduled", "rewind", "active_notified", "read_attempt", "read_issued", "active_picked",
)  # fmt: skip
_BEHIND_A_JOIN = ("selector_added", "draining_add")


def _not_joined(
    recording: Recording, rng: random.Random, before: tuple[str, ...] = (), behind: tuple[str, ...] = ()
) -> Mutation | None:
    busy = {line.get("consumer") for line in recording.events if line["kind"] in ("sent", "ack", "flow")}
    joins = [
        number
        for number, line in enumerate(recording.events)
        if line["kind"] == "consumer_added" and line["consumer"] in busy
    ]
    if not joins:
        return None
    number = rng.choice(joins)
    unknown = recording.events[number]["consumer"]
    first, end = number, number + 1
    while first and recording.events[first - 1]["kind"] in before:
        first -= 1
    while end < len(recording.events) and recording.events[end]["kind"] in behind:
        end += 1
    recording = recording.copied()
    del recording.events[first:end]
    return Mutation(
        recording.numbered(), "unknown_consumer", None, None, unknown,
        (*DOUBTS, May("unknown_consumer"), May("unnecessary_blocking")),
    )  # fmt: skip


VARIANTS: dict[str, Mutator] = {
    mutator.__name__: mutator
    for mutator in (
        the_very_first_entry, the_very_last_entry, acknowledged_unsent, a_line_of_deliveries, sent_behind_the_next,
        again_to_another, acknowledged_late, sent_unasked, clock_minutes_back, the_first_lines, nobody_joined,
        nothing_of_a_join,
    )
}  # fmt: skip
