"""Count permits and unacknowledged messages of Shared, Failover and Exclusive from a log without a trace.

Who is connected, who was granted what, what was sent and what was acknowledged is in such a log. So the counters follow from
it by the broker's own arithmetic (``broker``): nothing is inferred about reads. The deliveries are those of the log,
whatever the rule says. Commands count from their arrival.

Key_Shared has a fold of its own, which also knows who owns what (``verify.without_trace``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from dispatch_core.audit.deliveries.operations import (
    ACK,
    ACK_CUMULATIVE,
    ADDED,
    FLOW,
    REDELIVER,
    REDELIVER_ALL,
    REMOVED,
    SENT,
    Lines,
)
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.broker.single_active import SingleActiveDispatcher
from dispatch_core.broker.single_active_rules import ConsumerBusyError
from dispatch_core.broker.state import NOBODY, READ_POSITION
from dispatch_core.errors import IllegalTransitionError
from dispatch_core.recording.checkpoint import joins, leading
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.verify.inputs import Entries
from dispatch_core.verify.without_trace.rounds import book


def counted(
    log: DispatcherLog, profile: Profile
) -> tuple[SharedDispatcher | SingleActiveDispatcher, Entries]:
    """Return the dispatcher behind the last line of ``log``, with its counters, and the entries it numbers.

    ``profile``: the rules of a Shared, Failover or Exclusive subscription. The counters of consumers that were connected at
    a checkpoint, with which the log begins, are those since then. Lines that make no sense are left out, as the
    audit reports them.
    """
    entries = Entries(log.messages)
    messages = np.asarray(log.messages["num_messages"], dtype=np.int64)
    rows = joins(log.events, ("consumer", "name", "priority_level"))
    members = {row["consumer"]: (row["name"] or "", row["priority_level"] or 0) for row in rows}
    core: SharedDispatcher | SingleActiveDispatcher
    if profile.is_shared:
        core = SharedDispatcher(profile, np.zeros(len(messages), np.int64), messages, len(members))
    else:
        exclusive = subscription_type(log) == "Exclusive"
        core = SingleActiveDispatcher(
            profile, log.topic, profile.partition_index, exclusive=exclusive, num_messages=messages
        )
    begin = leading(log.events)
    for connected in () if begin is None else begin.consumers or ():
        core.join(connected.number, *members[connected.number])
    lines = Lines.of(log.events, flows=True)
    positions = list(zip(lines.ledger.tolist(), lines.entry.tolist(), strict=True))
    ordinals = entries.ordinals(positions)
    ends = np.cumsum(lines.lengths).tolist()
    operations = zip(
        lines.code.tolist(), lines.number.tolist(), lines.value.tolist(), [0, *ends], ends, strict=False
    )
    for at, (code, consumer, value, first, end) in enumerate(operations):
        named = ordinals[first:end]
        sets = _words(lines, at, len(named))
        with suppress(IllegalTransitionError, ConsumerBusyError):
            if code == ADDED and consumer in members:
                core.join(consumer, *members[consumer])
            elif code == REMOVED:
                core.leave(consumer)
            elif isinstance(core, SharedDispatcher):
                _shared(core, code, consumer, value, named, sets)
            else:
                _single_active(core, code, consumer, value, named, sets)
    return core, entries


def _words(lines: Lines, at: int, count: int) -> list[Sequence[int]]:
    """Return the ack set of each position of an operation, empty = the whole entry."""
    sets = None
    if lines.code[at] in (ACK, ACK_CUMULATIVE) and lines.ack_sets is not None:
        sets = lines.ack_sets[at].as_py()
    return [() if sets is None or place >= len(sets) else sets[place] or () for place in range(count)]


def _shared(
    core: SharedDispatcher,
    code: int,
    consumer: int,
    value: int,
    named: Sequence[int],
    sets: Sequence[Sequence[int]],
) -> None:
    """Take one line of a Shared subscription."""
    if code == FLOW:
        if core.flow(consumer, value):
            core.flow_applied(consumer, value)
    elif code == SENT:
        _sent(core, core.slot(consumer), [entry for entry in named if entry >= 0])
    elif code == ACK:
        for entry, words in zip(named, sets, strict=True):
            if entry < 0:
                continue
            if words and any(words):
                core.acknowledge_indexes(entry, words)
                continue
            acked = core.ack(entry)
            if acked is not None and acked.flows.notices:
                core.flow_applied(acked.consumer, acked.permits)
    elif code in (REDELIVER, REDELIVER_ALL):
        slot = core.slot(consumer)
        pending = core.pending_on(consumer)
        if code == REDELIVER:
            pending = [entry for entry in named if entry >= 0 and core.state.holder[entry] == slot]
        done = core.redeliver(consumer, pending, everything=code == REDELIVER_ALL)
        core.flow_applied(consumer, done.flows.permits)


def _sent(core: SharedDispatcher, slot: int, entries: Sequence[int]) -> None:
    """Book a delivery of the log."""
    if not entries:
        return
    array = np.asarray(entries, np.int64)
    book(core.state, True, array, np.full(len(array), slot, np.int64), np.zeros(len(array), np.int64))
    last = max(entries)
    core.state.s[READ_POSITION] = max(int(core.state.s[READ_POSITION]), last + 1)
    acknowledged = [
        entry for entry in entries if core.state.deleted[entry] and core.state.holder[entry] != NOBODY
    ]
    core.sent_alone(last, acknowledged)


def _single_active(
    core: SingleActiveDispatcher,
    code: int,
    consumer: int,
    value: int,
    named: Sequence[int],
    sets: Sequence[Sequence[int]],
) -> None:
    """Take one line of a Failover or Exclusive subscription."""
    if code == FLOW:
        core.flow(consumer, value)
    elif code == SENT and core.is_connected(consumer):
        core.charge(consumer, named)
    elif code in (ACK, ACK_CUMULATIVE):
        take = core.acknowledge if code == ACK else core.acknowledge_up_to
        for entry, words in zip(named, sets, strict=True):
            if entry >= 0:
                take(entry, words)
