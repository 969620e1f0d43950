"""The scenario of a simulation: messages, consumers, membership changes, rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from dispatch_core.broker.profiles import Profile, resolve
from dispatch_core.errors import DispatchAuditError

CLUSTER: Final = "generated"
SUBSCRIPTION: Final = "audit"
CHURNS: Final = ("none", "rolling-restart", "scale", "random")
SUBSCRIPTION_TYPES: Final = ("Key_Shared", "Failover", "Shared")
MODES: Final = ("AUTO_SPLIT", "STICKY")

#: The default rate makes a run of so many seconds, within these bounds per dispatcher.
_DEFAULT_RUN_S: Final = 10
_DEFAULT_RATES: Final = (1_000, 100_000)
#: A message in a quarter of an hour.
_LEAST_RATE: Final = 0.001
#: Upper limit of each number: entry numbers, slots and times have limited bits.
MOST: Final[Mapping[str, int]] = {
    "messages": 1 << 36,
    "dispatchers": 1_000_000,
    "partitions": 1_000_000,
    "keys": 100_000_000,
    "consumers": 100_000,
    "rate": 10_000_000,
    "queue": 1_000_000,
    "membership_changes": 1_000_000,
}

#: Upper limit of a priority level: the client's is an int, the log's column has 32 bits.
MOST_PRIORITY_LEVEL: Final = 2**31 - 1


class ScenarioError(DispatchAuditError):
    """A simulation that cannot be run with these parameters."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """The parameters of a simulation: ``messages`` over all dispatchers, ``consumers`` of each.

    ``rate``: messages a second per dispatcher; 0 = by the number of messages. ``ack_us``: mean time a consumer takes for
    an entry. ``stuck_consumers``: so many take what they are sent and never answer; all consumers leave when publishing is
    over. ``nack_share``: share of deliveries that are followed by a redelivery request. ``membership_changes``: per
    dispatcher; None = the default of the churn. ``partitions``: so many dispatchers are partitions of a topic; 0 = all of
    them for Failover, topics without partitions for Key_Shared. ``priority_levels``: of the consumers in turn, 0 = the
    highest; none = all have 0. Raises ``ScenarioError`` for impossible values.
    """

    messages: int = 1_000_000
    dispatchers: int = 1
    partitions: int = 0
    keys: int = 100_000
    key_skew: float = 1.1
    consumers: int = 20
    churn: str = "none"
    membership_changes: int | None = None
    slow_consumers: int = 0
    crashing_consumers: int = 0
    stuck_consumers: int = 0
    priority_levels: tuple[int, ...] = ()
    queue: int = 1000
    ack_us: int = 10_000
    nack_share: float = 0.0
    rate: float = 0
    seed: int = 0
    start_us: int = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
    broker_version: str = "4.2.4"
    settings: Mapping[str, Any] = field(default_factory=dict)
    subscription_type: str = "Key_Shared"
    key_shared_mode: str = "AUTO_SPLIT"
    allow_out_of_order: bool = False
    trace: bool = False

    def __post_init__(self) -> None:
        for name, most in MOST.items():
            value = getattr(self, name)
            least = 0 if name in ("rate", "membership_changes", "messages", "partitions") else 1
            if value is not None and not least <= value <= most:
                raise ScenarioError(f"{name.replace('_', ' ')}: {value} is not within {least} to {most}")
        if 0 < self.rate < _LEAST_RATE:
            raise ScenarioError(
                f"rate: {self.rate} is not 0 (by the number of messages), or {_LEAST_RATE} or more"
            )
        for name in ("slow_consumers", "crashing_consumers", "stuck_consumers"):
            if not 0 <= getattr(self, name) <= self.consumers:
                raise ScenarioError(
                    f"{name.replace('_', ' ')}: {getattr(self, name)} of {self.consumers} consumers: give as many or fewer"
                )
        for name, choices in (
            ("churn", CHURNS),
            ("subscription_type", SUBSCRIPTION_TYPES),
            ("key_shared_mode", MODES),
        ):
            if getattr(self, name) not in choices:
                raise ScenarioError(
                    f"{name.replace('_', ' ')}: {getattr(self, name)!r} is none of {', '.join(choices)}"
                )
        for level in self.priority_levels:
            if not 0 <= level <= MOST_PRIORITY_LEVEL:
                raise ScenarioError(
                    f"priority level: {level} is not within 0 (the highest) to {MOST_PRIORITY_LEVEL}"
                )
        if not 0 <= self.key_skew <= 10:
            raise ScenarioError(f"key skew: {self.key_skew} is not within 0 (all alike) to 10")
        if not 0 <= self.nack_share <= 0.5:
            raise ScenarioError(f"share of negative acks: {self.nack_share} is not within 0 to 0.5")
        if self.is_shared and self.trace:
            raise ScenarioError(
                "Shared: no trace is written of a simulated Shared dispatcher; give --level E"
            )
        if self.ack_us < 1:
            raise ScenarioError("acknowledgement time: it has to be above 0")

    @property
    def is_failover(self) -> bool:
        """True if one consumer at a time is active."""
        return self.subscription_type == "Failover"

    @property
    def is_shared(self) -> bool:
        """True if consumers take turns, whatever the key."""
        return self.subscription_type == "Shared"

    def priority_level_of(self, consumer: int) -> int:
        """Return the priority level of a consumer: the levels go round."""
        return self.priority_levels[consumer % len(self.priority_levels)] if self.priority_levels else 0

    def messages_of(self, dispatcher: int) -> int:
        """Return the number of messages on the topic of a dispatcher."""
        return self.messages // self.dispatchers + int(dispatcher < self.messages % self.dispatchers)

    def span_us_of(self, dispatcher: int) -> int:
        """Return for how long messages are published to the topic of a dispatcher, as their rate has it."""
        return int(self.messages_of(dispatcher) / self.rate_of(dispatcher) * 1_000_000)

    def rate_of(self, dispatcher: int) -> float:
        """Return the messages a second that are published to the topic of a dispatcher."""
        if self.rate:
            return self.rate
        least, most = _DEFAULT_RATES
        return min(max(self.messages_of(dispatcher) // _DEFAULT_RUN_S, least), most)

    def topic_of(self, dispatcher: int) -> str:
        """Return the topic's name. Failover: partitions of a topic, so that the choice of the active consumer differs."""
        if self.partitions:
            topic, partition = divmod(dispatcher, self.partitions)
            return f"persistent://public/default/generated-{topic:05d}-partition-{partition}"
        if self.is_failover:
            return f"persistent://public/default/generated-partition-{dispatcher}"
        return f"persistent://public/default/generated-{dispatcher:05d}"

    def partition_of(self, dispatcher: int) -> int:
        """Return the partition index in the log's header; -1 = not partitioned."""
        if self.partitions:
            return dispatcher % self.partitions
        return dispatcher if self.is_failover else -1

    def profile_of(self, dispatcher: int) -> Profile:
        """Return the rules of a dispatcher. Raises ``ProfileError``."""
        return resolve(
            self.broker_version,
            self.settings,
            subscription_type=self.subscription_type,
            partition_index=self.partition_of(dispatcher),
            key_shared_mode=self.key_shared_mode,
            allow_out_of_order=self.allow_out_of_order,
        )

    def at_level(self, *, trace: bool) -> Scenario:
        """Return the same simulation with another level of log."""
        return replace(self, trace=trace)
