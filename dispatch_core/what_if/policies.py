"""Policies and properties that a log shows beside its header: those that are simulated, and those that are not.

Simulated are limits of unacknowledged messages by a policy (``unacked_limits``): from the line on they take the place of
``maxUnackedMessagesPerConsumer``. A recorder may write the line a second or two late. All others hold back or leave out
entries in ways that a simulation does not know: ``not_simulated`` names them in one sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import ints, valid
from dispatch_core.audit.assumptions import BEHAVIOURS
from dispatch_core.audit.deliveries.delayed_delivery import DelayedDelivery
from dispatch_core.audit.deliveries.window import SINGLE_ACTIVE
from dispatch_core.audit.sentences.lists import counted, listed
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.simulation.dispatcher_run import UnackedLimit
from dispatch_core.verify.trace.limits_in_force import UNACKED, Limit, LimitsInForce, is_deletion, of_mark

#: Behaviour that lets entries wait; any other leaves entries out.
_HOLDS: Final = ("delayed_delivery", "dispatch_rate")
#: Settings of a broker that limit how much it dispatches per second; 0 and less = no limit.
_RATES: Final = tuple(
    f"dispatchThrottlingRate{of}In{unit}"
    for of in ("", "PerTopic", "PerSubscription")
    for unit in ("Msg", "Byte")
)


def unacked_limits(log: DispatcherLog) -> tuple[UnackedLimit, ...]:
    """Return the limits of unacknowledged messages that policies set, by time."""
    in_force, found = LimitsInForce(), []
    for at_us, limit in _limits(log):
        if limit.what in UNACKED:
            in_force.take(limit)
            found.append(UnackedLimit(at_us, in_force.unacked()))
    return tuple(found)


def not_simulated(log: DispatcherLog, applied: DispatcherLog) -> str | None:
    """Say what the log or the rules have that a simulation lacks, and what that does to waits; ``None`` = nothing.

    ``applied``: the log with the simulated rules in its header.
    """
    names = {limit.what for _, limit in _limits(log) if limit.active and limit.what in BEHAVIOURS}
    names -= set(UNACKED)
    if _is_set(log, _RATES) or _is_set(applied, _RATES):
        names.add("dispatch_rate")
    messages = log.messages
    if "txn" in messages.column_names and messages["txn"].null_count < messages.num_rows:
        names.add("transactions")
    found = [BEHAVIOURS[name] for name in BEHAVIOURS if name in names]
    if delayed := max(_delayed(messages, DelayedDelivery.of(side)) for side in (log, applied)):
        names.add("delayed_delivery")
        found = [text for text in found if text != BEHAVIOURS["delayed_delivery"]]
        found.insert(0, f"delayed delivery of {counted(delayed, 'entry', 'entries')}")
    if cursor_moves(log):
        found.append("moves of the cursor (skip, clear, expiry, reset, seek)")
    marks = _of_kinds(log, ("subscription_deleted", "step"), ("kind", "note"))
    if any(row["kind"] != "step" or is_deletion(row["note"]) for row in marks):
        found.append("a deletion of the subscription")
    if not found:
        return None
    too_short = "; waits come out too short" if names & set(_HOLDS) else ""
    return f"the simulation lacks {listed(found, most=len(found))}{too_short}"


def cursor_moves(log: DispatcherLog) -> int:
    """Count the lines by which an operator or a client moves the cursor: skip, clear, expiry, reset, seek.

    The reset that opens a cursor is none, and of a subscription with one active consumer a mark-delete may be an
    acknowledgement.
    """
    lines = _of_kinds(log, ("consumer_added", "cursor_op", "cursor_moved"), ("kind", "op"))
    moves = {"skip", "clear_backlog", "reset"}
    moves |= {"mark_delete"} if subscription_type(log) not in SINGLE_ACTIVE else set()
    kinds = [row["kind"] for row in lines]
    begun = kinds.index("consumer_added") if "consumer_added" in kinds else len(kinds)
    # A clear, skip or expiry is followed by the mark-delete that it leads to.
    return sum(row["kind"] == "cursor_moved" or row["op"] in moves for row in lines[begun:])


def _limits(log: DispatcherLog) -> Iterator[tuple[int, Limit]]:
    """Yield the limits that lines and marks show, with their times."""
    for row in _of_kinds(log, ("limit", "step"), ("kind", "t_us", "what", "limit_active", "value", "note")):
        if row["kind"] == "limit":
            yield row["t_us"], Limit(row["what"], bool(row["limit_active"]), row["value"])
        elif (limit := of_mark(row["note"] or "")) is not None:
            yield row["t_us"], limit


def _of_kinds(log: DispatcherLog, kinds: tuple[str, ...], names: tuple[str, ...]) -> list[dict[str, Any]]:
    wanted = pc.is_in(log.events["kind"].cast(pa.string()), pa.array(kinds))
    rows: list[dict[str, Any]] = log.events.filter(wanted).select(list(names)).to_pylist()
    return rows


def _is_set(log: DispatcherLog, names: tuple[str, ...]) -> bool:
    config = log.header.get("config")
    values = [str(config.get(name, 0)).strip() for name in names] if isinstance(config, dict) else []
    return any(text.isdecimal() and int(text[:12]) > 0 for text in values)


def _delayed(messages: pa.Table, delays: DelayedDelivery) -> int:
    """Count the entries with a delivery time after they were published."""
    if not delays.enabled or "deliver_at_ms" not in messages.column_names:
        return 0
    times = messages["deliver_at_ms"]
    if times.null_count == len(times):
        return 0
    known = valid(times)
    return int((ints(times)[known] > ints(messages["publish_time_ms"])[known]).sum())
