"""The assumptions of a prediction, as sentences for its reader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import numpy as np

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import listed
from dispatch_core.audit.sentences.names import consumer_name, shown

if TYPE_CHECKING:
    from dispatch_core.what_if.clients import Deliveries
    from dispatch_core.what_if.connections import Join
    from dispatch_core.what_if.recorded import RecordedLoad

#: Assumptions for every log.
ALWAYS: Final = (
    "producers publish the same messages at the same times, however these are dispatched",
    "clients join, leave and crash when they did, whatever they are sent",
    "a client answers an entry at the time at which it answered it in the log; if it was not sent that entry, it answers "
    "another then, and where it was idle, like the entry that it was sent nearest to that time under the recorded rules",
    "a client that ran out of entries in the log answers as many as the busiest other client that had some left",
    "permits are granted at the recorded times, but not before the client has received the messages that they follow, and "
    "behind the last of them half a queue at a time",
)


def assumptions_of(load: RecordedLoad, deliveries: Deliveries | None) -> tuple[str, ...]:
    """The assumptions for every log and those for this one. ``deliveries``: the result of ``run.deliveries_of``."""
    found = [*ALWAYS, _speed(load, deliveries)]
    if load.begins_at_work:
        found.append(
            "the log begins with a checkpoint of a dispatcher at work: its load is simulated as after a restart of the "
            "broker, so what was pending then is sent again, to clients with the permits that they had"
        )
    if load.unacked_limits:
        found.append(
            "a limit of unacknowledged messages that a policy sets holds from its line in the log on"
        )
    if load.refused:
        found.append(
            f"{names_of(load.refused)}: the recorded broker refused the connection, so it is none of the load"
        )
    granted = set(load.flows[1].tolist())
    silent = [join for join in load.joins if join.number not in granted]
    if silent:
        found.append(
            f"{names_of(silent)}: the log shows no permits for some connection, so nothing is sent to it"
        )
    if not len(load.acks.at_us):
        found.append("the log shows no acknowledgement, so nothing is ever acknowledged")
    if load.unknown:
        found.append(
            f"{load.unknown} acknowledged or asked-for positions are not in the message log and were left out"
        )
    if int(load.num_messages.max(initial=1)) > 1 and not load.acks.words:
        found.append("entries with several messages were acknowledged as a whole: the log shows no parts")
    return tuple(found)


def names_of(joins: Iterable[Join]) -> str:
    """List the names of some connections in a sentence, each once."""
    return listed(map(shown, sorted({consumer_name(join.number, join.name) for join in joins})))


def _speed(load: RecordedLoad, deliveries: Deliveries | None) -> str:
    """The sentence about the assumed delays of the broker."""
    if deliveries is None:
        return (
            "the broker has the median delays of recorded brokers; other seeds take longer or shorter, "
            "as recorded brokers do"
        )
    delays = deliveries.delays
    stored_us = int(np.median(deliveries.stored_us - load.published_us)) if len(load.published_us) else 0
    read, replay, write = (duration(us) for us in (delays.read_us, delays.replay_us, delays.write_us))
    return (
        f"a read takes {read}, a replay read {replay}, a delivery {write}, and entries can be read {duration(stored_us)} "
        "after they were published (in the median): with these delays more acknowledgements come from clients that hold the "
        f"entry than with others{_start_up(deliveries)}{_moments(deliveries)}; other seeds take longer or shorter, "
        "as recorded brokers do"
    )


def _start_up(deliveries: Deliveries) -> str:
    found = deliveries.start_up
    if found is None:
        return ""
    return (
        f", with a start that took {found.factor} times as long in everything, half of that {duration(found.half_us)} "
        "later, and so on"
    )


def _moments(deliveries: Deliveries) -> str:
    start_up = deliveries.start_up
    # a start-up of factor 8 has 4 paces: 8, 4, 2 and 1 times as long; a moment has 2
    count = (len(deliveries.paces) - (start_up.factor.bit_length() if start_up else 0)) // 2
    return f", with {count} moments in which it was slower or faster" if count else ""
