"""Find entries that a behaviour in force may have left out.

It may be an entry filter, a compacted read, a transaction that was aborted, or another cluster that moved the position of
the subscription. The entries were stored, never sent, and are no loss: one finding ``skipped`` counts them for each
behaviour, with its name as cause. A compacted read leaves out an entry only for a later one of its key; where none was sent,
the entry may be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from dispatch_core.audit.behaviour_in_force import BehaviourInForce
from dispatch_core.audit.catalogue import KINDS, NO_READ
from dispatch_core.audit.deliveries.findings import Finding
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.sentences.lists import counted, plural
from dispatch_core.audit.waits.findings import End
from dispatch_core.audit.waits.tracker import COMPACTED_READ, LIMIT_LATE, MOST_POSITIONS, SampledWait
from dispatch_core.times import clock

__all__ = ["COMPACTED_READ", "LEAVE_OUT", "left_out", "left_out_by", "with_cause"]

#: Behaviour that leaves entries out, and how sentences call it.
LEAVE_OUT: Final[Mapping[str, str]] = {
    "entry_filter": "an entry filter was in force",
    COMPACTED_READ: "the compacted topic was read",
    "replicated_subscription": "another cluster may have moved the subscription's position",
    "transactions": "messages of transactions were published, and transactions may have been aborted",
}
#: Reasons of entries that no rule held.
_NO_RULE: Final = (None, NO_READ, *LEAVE_OUT)


def left_out_by(in_force: BehaviourInForce, from_us: int, until_us: int) -> str | None:
    """Return the behaviour that may have left out an entry that waited from one moment to another; ``None`` = none may."""
    return next((what for what in LEAVE_OUT if in_force.during(what, from_us, until_us) is not None), None)


def with_cause(
    waits: Sequence[SampledWait],
    in_force: BehaviourInForce,
    limits: Limits,
    end: End,
    passed_us: Callable[[SampledWait], int],
) -> list[SampledWait]:
    """Name the behaviour that left out the entries of waits that go on at the end, of those that are old enough.

    ``passed_us``: when a later entry than the first of a wait was sent, microseconds. If no rule ever held the first one,
    the broker had read it by then and sent it to nobody: what came into force later did not leave it out.
    """
    if not LEAVE_OUT.keys() & in_force.named():
        return list(waits)
    named = []
    earliest = in_force.at_the_earliest()
    for wait in waits:
        if wait.until_seq is None and wait.never_sent and wait.positions and wait.left_out_by is None:
            never_held = all(reason in _NO_RULE for reason, _ in wait.shares)
            until_us = min(passed_us(wait), end.as_of_us) if never_held else end.as_of_us
            what = left_out_by(in_force, wait.from_t_us, until_us)
            if what is None and never_held and wait.reason != NO_READ:
                # A behaviour that came into force behind the moment does not hold it either.
                free = ((None, wait.waited_us),)
                wait = replace(wait, reason=None, shares=free, limited=False, maybe_limited=False)  # noqa: PLW2901
            if what is None and left_out_by(earliest, wait.from_t_us, until_us) is not None:
                named.append(replace(wait, uncertain=True, doubt=LIMIT_LATE))
                continue
            replaced = what != COMPACTED_READ or not wait.never_passed
            if what is not None and not replaced:
                named.append(replace(wait, uncertain=True, doubt=COMPACTED_READ))
                continue
            if what is not None and (end.closed or wait.waited_us > 1000 * limits.never_delivered_ms):
                named.append(replace(wait, left_out_by=what))
                continue
        named.append(wait)
    return named


def left_out(waits: Sequence[SampledWait], end: End) -> list[Finding]:
    """Make one finding ``skipped`` for each behaviour of ``waits`` that left entries out."""
    groups: dict[str, list[SampledWait]] = {}
    for wait in waits:
        if wait.left_out_by is not None:
            groups.setdefault(wait.left_out_by, []).append(wait)
    return [_finding(what, members, end) for what, members in groups.items()]


def _finding(what: str, waits: Sequence[SampledWait], end: End) -> Finding:
    count = sum(wait.never_sent for wait in waits)
    positions = sorted({position for wait in waits for position in wait.positions}, key=_place)
    which = positions[0] if count == 1 else f"the first {positions[0]}"
    return Finding(
        kind="skipped",
        severity=KINDS["skipped"].severity,
        key=None,
        key_b64=False,
        hash=None,
        positions=positions[:MOST_POSITIONS],
        consumers=[],
        seqs=[end.seq],
        t_us=end.as_of_us,
        cause=what,
        reason=None,
        uncertain=False,
        explanation=(
            f"{LEAVE_OUT[what]}: {counted(count, 'entry', 'entries')}, {which}, {plural(count, 'was', 'were')} stored and "
            f"not sent by {clock(end.as_of_us)}"
        ),
        place=0,
        unsent=count,
    )


def _place(position: str) -> tuple[int, int]:
    ledger, _, entry = position.rpartition(":")
    return int(ledger), int(entry)
