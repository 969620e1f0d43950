"""The assumptions of a prediction, in sentences for the person who decides on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import listed
from dispatch_core.audit.sentences.names import consumer_name, shown

if TYPE_CHECKING:
    from dispatch_core.what_if.clients import Sendings
    from dispatch_core.what_if.recorded import RecordedLoad

#: Whatever the log.
ALWAYS: Final = (
    "producers publish the same messages at the same times, however these are dispatched",
    "clients join, leave and crash when they did, whatever they are sent",
    "a client answers an entry when it answered it in the log; one that another had got, as it answered the entry that it "
    "was sent nearest to that time under the recorded rules",
    "permits are granted when they were, as soon as what was received justifies them",
)


def assumptions_of(load: RecordedLoad, sendings: Sendings | None) -> tuple[str, ...]:
    """What is taken for granted, and what had to be guessed for this log. ``sendings``: those of ``run.sendings_of``."""
    found = [*ALWAYS, _speed(load, sendings)]
    granted = set(load.flows[1].tolist())
    silent = sorted(
        {consumer_name(join.number, join.name) for join in load.joins if join.number not in granted}
    )
    if silent:
        found.append(
            f"{listed(map(shown, silent))}: the log shows no permits of theirs for some connection, so it gets nothing there"
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


def _speed(load: RecordedLoad, sendings: Sendings | None) -> str:
    """How fast the broker is taken to be."""
    if sendings is None:
        return (
            "the broker takes the time of recorded brokers in the median; other seeds take half to twice that"
        )
    delays = sendings.delays
    stored_us = int(np.median(sendings.stored_us - load.published_us)) if len(load.published_us) else 0
    read, replay, write = (duration(us) for us in (delays.read_us, delays.replay_us, delays.write_us))
    return (
        f"a read takes {read}, a replay read {replay}, sending {write}, and entries can be read {duration(stored_us)} "
        "after they were published (in the median): of several such brokers the one under which most acknowledgements come "
        f"from clients that hold the entry{_start_up(sendings)}{_moments(sendings)}; other seeds take half to twice as long"
    )


def _start_up(sendings: Sendings) -> str:
    found = sendings.start_up
    if found is None:
        return ""
    return (
        f", with a start that took {found.factor} times as long in everything, half of that {duration(found.half_us)} "
        "later, and so on"
    )


def _moments(sendings: Sendings) -> str:
    start_up = sendings.start_up
    # a start-up of 8 is 4 paces: 8, 4, 2 and 1 times as long; a moment is 2
    count = (len(sendings.paces) - (start_up.factor.bit_length() if start_up else 0)) // 2
    return f", with {count} moments in which it was slower or faster" if count else ""
