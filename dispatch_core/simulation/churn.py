"""Membership changes of a dispatcher, drawn before its run begins.

Consumers are numbered (0 … ``consumers`` - 1, and further numbers for those that replace others); a consumer that comes back
is a new connection under the same name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dispatch_core.simulation.scenario import Scenario

#: Between the first consumers' joins.
JOIN_GAP_US: Final = 200
#: The shortest time after which a consumer that left comes back; all events under way for it are over by then.
LEAST_PAUSE_US: Final = 10_000
_LONGEST_PAUSE_US: Final = 2_000_000
_LEAST_GAP_US: Final = 1_000
_CRASHES_EACH: Final = 3


@dataclass(frozen=True, slots=True)
class Change:
    """A consumer joins or leaves. ``finishes``: it acknowledges what it holds before it leaves.

    ``who``: the consumer; it has one connection at a time. ``number``: the log's number of a connection that joins; 0 =
    the next one.
    """

    at_us: int
    joins: bool
    who: int
    finishes: bool = False
    number: int = 0


def changes(scenario: Scenario, dispatcher: int, start_us: int) -> list[Change]:
    """Draw all membership changes, by time, the first consumers' joins first; publishing begins with ``start_us``."""
    random = np.random.default_rng([scenario.seed, dispatcher, 2])
    span_us = scenario.span_us_of(dispatcher)
    first = start_us - scenario.consumers * JOIN_GAP_US
    made = [Change(first + who * JOIN_GAP_US, True, who) for who in range(scenario.consumers)]
    plan = _PLANS[scenario.churn](scenario, random)
    gap_us = max(span_us // (len(plan) + 1), _LEAST_GAP_US)
    pause_us = min(max(gap_us // 2, LEAST_PAUSE_US), _LONGEST_PAUSE_US)
    schedule = _Schedule(made)
    for number, (joins, who) in enumerate(plan, start=1):
        schedule.add(start_us + number * gap_us, joins, who, pause_us, bool(random.random() < 0.5))
    for who in range(scenario.consumers - scenario.crashing_consumers, scenario.consumers):
        for share in np.sort(random.random(_CRASHES_EACH)).tolist():
            schedule.crash(start_us + int(share * span_us), who, pause_us)
    if scenario.stuck_consumers:
        schedule.end(start_us + span_us)
    return schedule.in_order()


class _Schedule:
    """Changes made so far; joins and leaves of a consumer alternate, with a pause between two of them."""

    def __init__(self, made: list[Change]) -> None:
        self._of: dict[int, list[Change]] = {}
        for change in made:
            self._of.setdefault(change.who, []).append(change)

    def add(self, at_us: int, joins: bool, who: int, pause_us: int, finishes: bool) -> None:
        """Add a change after all changes of this consumer so far."""
        changes = self._of.setdefault(who, [])
        if changes:
            at_us = max(at_us, changes[-1].at_us + pause_us)
        changes.append(Change(at_us, joins, who, finishes))

    def crash(self, at_us: int, who: int, pause_us: int) -> None:
        """Add a leave with all entries unacknowledged, and a join; only if connected for a while before and after."""
        changes = self._of[who]
        before = [change for change in changes if change.at_us <= at_us - pause_us]
        near = [change for change in changes if at_us - pause_us < change.at_us < at_us + 2 * pause_us]
        if before and before[-1].joins and not near:
            changes += [Change(at_us, False, who), Change(at_us + pause_us, True, who)]
            changes.sort(key=lambda change: change.at_us)

    def end(self, at_us: int) -> None:
        """Let everybody leave at a time, or behind their last change, one shortly after the other."""
        for place, (who, changes) in enumerate(self._of.items()):
            if changes[-1].joins:
                last_us = max(at_us, max(change.at_us for change in changes) + LEAST_PAUSE_US)
                changes.append(Change(last_us + place * JOIN_GAP_US, False, who))

    def in_order(self) -> list[Change]:
        """Return all changes, by time."""
        return sorted(
            (change for changes in self._of.values() for change in changes),
            key=lambda change: (change.at_us, change.who),
        )


Plan = list[tuple[bool, int]]


def _none(_scenario: Scenario, _random: np.random.Generator) -> Plan:
    return []


def _rolling_restart(scenario: Scenario, _random: np.random.Generator) -> Plan:
    """Let each consumer in turn leave and come back."""
    wanted = _wanted(scenario)
    return [(joins, at % scenario.consumers) for at in range((wanted + 1) // 2) for joins in (False, True)][
        : wanted - wanted % 2
    ]


def _scale(scenario: Scenario, _random: np.random.Generator) -> Plan:
    """Shrink the group to half of its size and grow it again, one consumer at a time; those that join are new."""
    connected, spare, shrinking = list(range(scenario.consumers)), scenario.consumers, True
    plan: Plan = []
    for left in range(_wanted(scenario), 0, -1):
        missing = scenario.consumers - len(connected)
        if not missing or len(connected) <= scenario.consumers // 2:
            shrinking = not missing
        if shrinking and _time_to_come_back(left, missing):
            plan.append((False, connected.pop()))
        elif missing:
            plan.append((True, spare))
            connected.append(spare)
            spare += 1
    return plan


def _random_changes(scenario: Scenario, random: np.random.Generator) -> Plan:
    """Let any consumer leave while another stays; a consumer that left comes back, or a new one joins."""
    connected, gone, spare = list(range(scenario.consumers)), list[int](), scenario.consumers
    plan: Plan = []
    for left in range(_wanted(scenario), 0, -1):
        missing = scenario.consumers - len(connected)
        may_leave = _time_to_come_back(left, missing) and len(connected) > min(scenario.consumers - 1, 1)
        if may_leave and (not missing or random.random() < 0.5):
            who = connected.pop(int(random.integers(len(connected))))
            gone.append(who)
            plan.append((False, who))
        elif missing:
            if gone and random.random() < 0.7:
                who = gone.pop(int(random.integers(len(gone))))
            else:
                who, spare = spare, spare + 1
            connected.append(who)
            plan.append((True, who))
    return plan


def _wanted(scenario: Scenario) -> int:
    return 2 * scenario.consumers if scenario.membership_changes is None else scenario.membership_changes


def _time_to_come_back(left: int, missing: int) -> bool:
    """True if one more consumer may leave: in the end all are connected, and ``left`` changes are to come."""
    return left >= missing + 2


_PLANS: Final = {
    "none": _none,
    "rolling-restart": _rolling_restart,
    "scale": _scale,
    "random": _random_changes,
}
