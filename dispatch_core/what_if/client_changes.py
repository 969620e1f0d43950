"""Change settings of the recorded clients that an operator can turn.

These are the subscription type, the Key_Shared policy, the size of the receiver queues, how long acknowledgements are
grouped, the number of consumers and their names. A setting of a broker is in the log's header; these are in what clients
sent: the subscribe commands, permits and acknowledgements. So both the log that a profile is derived from and the load of a
simulation are changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import listed
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.selectors.node_ranges import equal_ranges
from dispatch_core.errors import DispatchAuditError, UnsupportedRuleError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type
from dispatch_core.recording.schema import EVENTS
from dispatch_core.simulation.world import PART, UP_TO, WHOLE
from dispatch_core.what_if.clients import covered_by
from dispatch_core.what_if.connections import Join, refused
from dispatch_core.what_if.recorded import Acks, RecordedLoad

AUTO_SPLIT: Final = "AUTO_SPLIT"
STICKY: Final = "STICKY"
KEY_SHARED: Final = "Key_Shared"
FAILOVER: Final = "Failover"
SHARED: Final = "Shared"
#: Subscription types of which one consumer at a time gets everything; Failover's rules hold for both.
_SINGLE_ACTIVE: Final = ("Failover", "Exclusive")


_MOST_CONSUMERS: Final = 10_000
_LONGEST_QUEUE: Final = 1_000_000
_LONGEST_GROUP_US: Final = 3_600_000_000


class ClientChangeError(DispatchAuditError):
    """A setting of clients that cannot be simulated, or a value that it cannot have."""


@dataclass(frozen=True, slots=True)
class ClientChanges:
    """Settings of consumers in place of the recorded ones; ``None`` = as recorded.

    ``key_shared_policy``: with STICKY every consumer name gets an equal part of the hash space, in the order of the names,
    unless the consumers had ranges already. ``consumers``: the number of names that are connected; further ones come and go
    with recorded ones and answer as they do. ``names``: recorded name → name.
    """

    subscription_type: str | None = None
    key_shared_policy: str | None = None
    receiver_queue_size: int | None = None
    acknowledgements_group_us: int | None = None
    consumers: int | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self != AS_RECORDED

    @property
    def settings(self) -> dict[str, str]:
        """The changes by the names of their settings, as ``changes_given`` reads them."""
        found = {
            "subscriptionType": self.subscription_type,
            "keySharedPolicy": self.key_shared_policy,
            "receiverQueueSize": self.receiver_queue_size,
            "acknowledgementsGroupTimeMicros": self.acknowledgements_group_us,
            "consumers": self.consumers,
        }
        texts = {name: str(value) for name, value in found.items() if value is not None}
        return texts | {f"consumerName:{old}": new for old, new in self.names.items()}

    def applied_to(self, log: DispatcherLog) -> DispatcherLog:
        """Return the log with the header and the subscribe commands of these clients."""
        policy = self._policy(log)
        if policy is None and not self._changes_type(log):
            return log
        header = dict(log.header)
        if self._changes_type(log):
            header["subscription_type"] = self.subscription_type
        if policy is None:
            return replace(log, header=header)
        events = log.events
        added = pc.equal(events["kind"].cast(pa.string()), "consumer_added")
        mode = pc.if_else(added, pa.scalar(policy), events["key_shared_mode"].cast(pa.string()))
        at = events.column_names.index("key_shared_mode")
        field = EVENTS.field("key_shared_mode")
        return replace(log, header=header, events=events.set_column(at, field, mode.cast(field.type)))

    def describe(self, log: DispatcherLog) -> tuple[str, ...]:
        """Say in sentences what these clients would do differently from the recorded ones; nothing if they would not."""
        found = []
        if self._changes_type(log):
            found.append(
                f"the consumers would subscribe as {self.subscription_type} instead of {subscription_type(log)}"
            )
        policy = self._policy(log)
        if policy is not None and not self._changes_type(log):
            other = STICKY if policy == AUTO_SPLIT else AUTO_SPLIT
            parts = ", each name with an equal part of the hash space" if policy == STICKY else ""
            found.append(f"the consumers would subscribe with {policy} instead of {other}{parts}")
        if self.receiver_queue_size is not None:
            found.append(f"every consumer would have a receiver queue of {self.receiver_queue_size}")
        if self.acknowledgements_group_us is not None:
            found.append(
                f"acknowledgements would be grouped for {duration(self.acknowledgements_group_us)} at least"
            )
        if self.consumers is not None:
            found.append(f"{self.consumers} consumers would be connected, by name")
        if self.names:
            renamed = listed(f"{old} {new}" for old, new in self.names.items())
            found.append(f"consumers would be called otherwise: {renamed}")
        return tuple(found)

    def of_load(self) -> ClientChanges:
        """These changes without those that are in a profile."""
        return replace(self, subscription_type=None, key_shared_policy=None)

    def on(self, load: RecordedLoad) -> RecordedLoad:
        """Return the load of these clients. Raises ``ClientChangeError`` for a name that no consumer has."""
        if self.consumers is not None:
            load = _with_consumers(load, self.consumers)
        if self.names:
            load = _renamed(load, self.names)
        if self.receiver_queue_size is not None:
            load = _with_queues(load, self.receiver_queue_size)
        if self.acknowledgements_group_us:
            load = _with_grouped_acks(load, self.acknowledgements_group_us)
        return load

    def _changes_type(self, log: DispatcherLog) -> bool:
        wanted, recorded = self.subscription_type, subscription_type(log)
        if wanted is None or wanted == recorded:
            return False
        return not (wanted in _SINGLE_ACTIVE and recorded in _SINGLE_ACTIVE)

    def _policy(self, log: DispatcherLog) -> str | None:
        """Return the policy that the subscribe commands would bring instead of the recorded one; ``None`` = the same."""
        if self.key_shared_policy is None:
            return None
        kind = self.subscription_type if self._changes_type(log) else subscription_type(log)
        if kind != KEY_SHARED:
            return None
        return None if recorded_policy(log) == self.key_shared_policy else self.key_shared_policy


#: The clients as they were recorded.
AS_RECORDED: Final = ClientChanges()


def changes_given(texts: Iterable[str], known: ClientChanges | None = None) -> ClientChanges:
    """Read changes as a command line gives them: ``NAME=VALUE``, by the names of Pulsar's Java client.

    Raises ``ClientChangeError``.

    >>> changes_given(["receiverQueueSize=10", "consumerName:w1=worker-1"]).settings
    {'receiverQueueSize': '10', 'consumerName:w1': 'worker-1'}
    """
    changes = known or AS_RECORDED
    for text in texts:
        name, sign, value = text.rpartition("=")
        if name.startswith("consumerName:") and value:
            changes = replace(changes, names={**changes.names, name.removeprefix("consumerName:"): value})
        elif name == "subscriptionType" and value in (KEY_SHARED, FAILOVER):
            changes = replace(changes, subscription_type=value)
        elif name == "keySharedPolicy" and value in (AUTO_SPLIT, STICKY):
            changes = replace(changes, key_shared_policy=value)
        elif name == "receiverQueueSize":
            changes = replace(changes, receiver_queue_size=_number(text, value, 1, _LONGEST_QUEUE))
        elif name == "acknowledgementsGroupTimeMicros":
            changes = replace(changes, acknowledgements_group_us=_number(text, value, 0, _LONGEST_GROUP_US))
        elif name == "consumers":
            changes = replace(changes, consumers=_number(text, value, 1, _MOST_CONSUMERS))
        else:
            raise ClientChangeError(
                f"--client {text[:80]}: {'' if sign else 'no value; '}give subscriptionType={KEY_SHARED} or {FAILOVER}, "
                f"keySharedPolicy={AUTO_SPLIT} or {STICKY}, receiverQueueSize=N, acknowledgementsGroupTimeMicros=N, "
                "consumers=N or consumerName:OLD=NEW"
            )
    return changes


def _number(text: str, value: str, least: int, most: int) -> int:
    if not (value.isascii() and value.isdigit() and least <= int(value[:12]) <= most):
        raise ClientChangeError(f"--client {text[:80]}: give a number from {least} to {most}")
    return int(value)


def needed_by(subscription_type: str) -> ClientChanges:
    """Return the clients that rules of a subscription type are about; those of Key_Shared with AUTO_SPLIT."""
    return ClientChanges(subscription_type, AUTO_SPLIT if subscription_type == KEY_SHARED else None)


def recorded_policy(log: DispatcherLog) -> str:
    """Return the Key_Shared policy of the log's first consumer."""
    events = log.events
    if "key_shared_mode" not in events.column_names:
        return AUTO_SPLIT
    added = events.filter(pc.equal(events["kind"].cast(pa.string()), "consumer_added"))
    modes = added["key_shared_mode"].slice(0, 1).to_pylist()
    return STICKY if modes == [STICKY] else AUTO_SPLIT


def _with_consumers(load: RecordedLoad, count: int) -> RecordedLoad:
    """The load with so many consumer names: the last to join are left out, or the first ones have copies."""
    names = list(dict.fromkeys(join.name for join in load.joins))
    if count <= len(names):
        return _without(load, set(names[count:]))
    joins, leaves = list(load.joins), list(load.leaves)
    at_us, consumer, permits = load.flows
    number = max(join.number for join in joins)
    for extra in range(count - len(names)):
        copied = names[extra % len(names)]
        for join in [join for join in load.joins if join.name == copied]:
            number += 1
            name = f"{copied}+{extra // len(names) + 1}"
            joins.append(replace(join, number=number, name=name, like=join.number, ranges=()))
            leaves += [(time_us, number) for time_us, left in load.leaves if left == join.number]
            first = np.flatnonzero(load.flows[1] == join.number)[:1]
            at_us, permits = np.append(at_us, load.flows[0][first]), np.append(permits, load.flows[2][first])
            consumer = np.append(consumer, np.full(len(first), number, np.int64))
    joins.sort(key=lambda join: join.at_us)
    return replace(load, joins=joins, leaves=leaves, flows=(at_us, consumer, permits))


def _without(load: RecordedLoad, names: set[str]) -> RecordedLoad:
    """The load without the consumers of these names. Their acknowledgements stay: they show when entries were done."""
    joins = [join for join in load.joins if join.name not in names]
    numbers = {join.number for join in joins}
    at_us, consumer, permits = load.flows
    left = np.isin(consumer, list(numbers))
    return replace(
        load,
        joins=joins,
        flows=(at_us[left], consumer[left], permits[left]),
        leaves=[(time_us, number) for time_us, number in load.leaves if number in numbers],
        requests=[request for request in load.requests if request.consumer in numbers],
    )


def _renamed(load: RecordedLoad, names: Mapping[str, str]) -> RecordedLoad:
    unknown = sorted(names.keys() - {join.name for join in load.joins})
    if unknown:
        known = listed(sorted({join.name for join in load.joins}))
        raise ClientChangeError(
            f"no consumer is called {unknown[0][:80]!r}, whose name was changed; there are {known}"
        )
    return replace(load, joins=[replace(join, name=names.get(join.name, join.name)) for join in load.joins])


def _with_queues(load: RecordedLoad, size: int) -> RecordedLoad:
    """The load with this receiver queue of every connection, which grants more permits when half of it is acknowledged."""
    at_us, consumer, _ = load.flows
    order = np.lexsort((at_us, consumer))
    numbers, begin = np.unique(consumer[order], return_index=True)
    return replace(load, flows=(at_us[order][begin], numbers, np.full(len(numbers), size, np.int64)))


def _with_grouped_acks(load: RecordedLoad, group_us: int) -> RecordedLoad:
    """The load whose acknowledgements wait for the end of a group; groups of a connection begin when it joins."""
    joined = {join.number: join.at_us for join in load.joins}
    begin = np.array([joined.get(number, 0) for number in load.acks.consumer.tolist()], np.int64)
    at_us = begin + -(-(load.acks.at_us - begin) // group_us) * group_us
    return replace(load, acks=replace(load.acks, at_us=np.maximum(at_us, load.acks.at_us)))


def fitted(load: RecordedLoad, profile: Profile) -> RecordedLoad:
    """Return the load with clients that subscribe as the rules of ``profile`` are about.

    Other subscription types have other rules, and a consumer of a STICKY subscription brings ranges. Raises
    ``UnsupportedRuleError`` for rules of Shared and a load of another type: what was in order has no order there.
    """
    single = profile.dispatcher is Dispatcher.SINGLE_ACTIVE
    kind = FAILOVER if single else SHARED if profile.is_shared else KEY_SHARED
    if kind == SHARED != load.subscription_type:
        raise UnsupportedRuleError(
            f"{profile.name}: a Shared subscription promises no order, so a {load.subscription_type} one is not simulated "
            "as one; give rules of Key_Shared or Failover"
        )
    if kind != (FAILOVER if load.is_single_active else load.subscription_type):
        acks = individual(load.acks) if load.is_single_active else load.acks
        header = {**load.header, "subscription_type": kind}
        load = replace(load, subscription_type=kind, header=header, acks=acks)
    if kind != KEY_SHARED or profile.key_shared_mode != STICKY or any(join.ranges for join in load.joins):
        return load
    names = sorted({join.name for join in load.joins})
    ranges = {name: tuple(equal_ranges(len(names), at)) for at, name in enumerate(names)}
    return replace(load, joins=[replace(join, ranges=ranges[join.name]) for join in load.joins])


def individual(acks: Acks) -> Acks:
    """Return the acknowledgements of clients that acknowledge each entry by itself, at the time of a cumulative one.

    Shared and Key_Shared subscriptions take no cumulative ones.
    """
    if not (acks.kind == UP_TO).any():
        return acks
    at_us, consumer, _, entry = covered_by(acks.at_us, acks.consumer, acks.kind, acks.entry)
    kind = np.where(acks.kind == UP_TO, WHOLE, acks.kind)
    kind[[row for row in acks.words if acks.kind[row] == UP_TO]] = PART
    return Acks(
        np.concatenate([acks.at_us, at_us]),
        np.concatenate([acks.consumer, consumer]),
        np.concatenate([acks.entry, entry]),
        np.concatenate([kind, np.full(len(entry), WHOLE, np.int64)]),
        acks.words,
    )


def admitted(load: RecordedLoad, profile: Profile) -> list[Join]:
    """Return the connections that the recorded broker refused, and that the rules of ``profile`` accept."""
    if not load.refused:
        return []
    everybody = fitted(replace(load, joins=[*load.joins, *load.refused]), profile)
    by_time: list[tuple[int, Join | int]] = [(join.at_us, join) for join in everybody.joins]
    by_time += everybody.leaves
    changes = [change for _, change in sorted(by_time, key=lambda item: item[0])]
    shut_out = refused(profile, load.topic, everybody.subscription_type, changes)
    return [join for join in load.refused if join.number not in shut_out]
