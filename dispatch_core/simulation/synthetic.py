"""Draw a scenario's input for one dispatcher: its messages, its clients, and their membership changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.broker.selectors.assignments import Range
from dispatch_core.errors import DispatchAuditError
from dispatch_core.simulation import answers
from dispatch_core.simulation.churn import JOIN_GAP_US, LEAST_PAUSE_US, Change, changes
from dispatch_core.simulation.dispatcher_run import Connecting, Given
from dispatch_core.simulation.publishing import KeySpace, Publishing
from dispatch_core.simulation.scenario import Scenario, ScenarioError
from dispatch_core.simulation.tables import Client
from dispatch_core.simulation.world import NEVER

_FIRST_FLOW_US: Final = 500  # from the subscription to the client's first permits
#: Slow consumers take so many times as long, spread over this range.
_SLOW: Final = (10, 50)
#: … and those that are stuck so many times, which is longer than any run.
_STUCK: Final = 1 << 30
_HASH_SLOTS: Final = 65536


@dataclass(frozen=True, slots=True)
class Common:
    """The draws that all dispatchers of a simulation share."""

    keys: KeySpace
    latency_us: npt.NDArray[np.int64]
    refuses: npt.NDArray[np.uint8]


def common(scenario: Scenario) -> Common:
    """Draw what all dispatchers of the scenario share."""
    random = np.random.default_rng([scenario.seed, 0])
    return Common(
        KeySpace(scenario.keys, scenario.key_skew),
        answers.latencies(random, scenario.ack_us),
        answers.refusals(random, scenario.nack_share),
    )


def given_by(scenario: Scenario, dispatcher: int, shared: Common) -> Given:
    """Draw the input of a dispatcher's run. Raises ``ProfileError`` for rules that no release has."""
    start_us = scenario.start_us + scenario.consumers * JOIN_GAP_US + LEAST_PAUSE_US
    joins_and_leaves = changes(scenario, dispatcher, start_us)
    return Given(
        profile=scenario.profile_of(dispatcher),
        topic=scenario.topic_of(dispatcher),
        partition_index=scenario.partition_of(dispatcher),
        changes=joins_and_leaves,
        publishing=Publishing(scenario, dispatcher, shared.keys, start_us),
        clients=SyntheticClients(scenario, shared),
        trace=scenario.trace,
        salt=dispatcher,
        timers=scenario.settings,
        until_us=joins_and_leaves[-1].at_us + 1 if scenario.stuck_consumers else NEVER,
    )


class SyntheticClients:
    """Consumers ``consumer-0``, ``consumer-1`` … of a dispatcher."""

    acts = None

    def __init__(self, scenario: Scenario, shared: Common) -> None:
        self._scenario = scenario
        self.latency_us = shared.latency_us
        self.refuses = shared.refuses
        self._parts: dict[int, int] = {}  # STICKY: consumer → part of the hash space

    def connecting(self, change: Change, now_us: int) -> Connecting:
        """See ``Clients``."""
        who = change.who
        return Connecting(
            Client(f"consumer-{who}", who, self._ranges(who) or (), self._scenario.priority_level_of(who)),
            self._scenario.queue,
            flow_us=now_us + _FIRST_FLOW_US,
            slowness=self._slowness(who),
        )

    def left(self, change: Change) -> None:
        """See ``Clients``."""
        self._parts.pop(change.who, None)

    def refused(self, change: Change, error: DispatchAuditError) -> None:
        """Raise ``ScenarioError``: no client of a scenario may be refused."""
        raise ScenarioError(f"consumer {change.who} of {self._scenario.consumers}: {error}") from error

    def _ranges(self, who: int) -> list[Range] | None:
        """Return the part of the hash space a consumer announces (STICKY): the first free one of equal parts."""
        if self._scenario.key_shared_mode != "STICKY":
            return None
        parts = self._scenario.consumers
        at = next(part for part in range(parts) if part not in self._parts.values())
        self._parts[who] = at
        return [(_HASH_SLOTS * at // parts, _HASH_SLOTS * (at + 1) // parts - 1)]

    def _slowness(self, who: int) -> int:
        if who < self._scenario.stuck_consumers:
            return _STUCK
        slow = self._scenario.slow_consumers
        if who >= slow:
            return 1
        least, most = _SLOW
        return least + (most - least) * who // max(slow - 1, 1)
