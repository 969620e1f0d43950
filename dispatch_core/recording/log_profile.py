"""Derive the rules that a log was recorded under (its ``Profile``), for ``verify``, ``audit`` and the replay.

A log's header names release, settings and subscription type. Its first consumer brings the Key_Shared policy, which every
consumer that joins while another is connected must share (AbstractSubscription). Release and settings can be replaced from
the command line: ``with_overrides`` puts them into the header, so that all later code sees one log.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from dispatch_core.arrays.columns import has, rows_at
from dispatch_core.arrays.line_kinds import rows_of_kind
from dispatch_core.broker import settings as settings_
from dispatch_core.broker.profiles import (
    Dispatcher,
    Profile,
    is_non_persistent,
    partition_index,
    resolve,
)
from dispatch_core.broker.versions import parse_version
from dispatch_core.errors import ProfileError
from dispatch_core.recording.checkpoint import leading
from dispatch_core.recording.log import DispatcherLog

#: Kinds that only a dispatcher with one active consumer writes.
_SINGLE_ACTIVE: Final = ("active_picked", "active_notified", "handover_scheduled")
_MEMBERSHIP: Final = ("consumer_added", "consumer_removed", "checkpoint")


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy that the consumers of a Key_Shared dispatcher agree on (KeySharedMeta)."""

    mode: str = "AUTO_SPLIT"
    allow_out_of_order: bool = False


@dataclass(frozen=True, slots=True)
class Overrides:
    """A release and settings that replace those of the logs' headers for a whole run; stages pass them on as JSON."""

    broker_version: str | None = None
    settings: Mapping[str, settings_.Value | str] = field(default_factory=dict)

    def of(self, log: DispatcherLog) -> DispatcherLog:
        """The log under these rules."""
        return with_overrides(log, self.broker_version, self.settings) if self else log

    def __bool__(self) -> bool:
        return self.broker_version is not None or bool(self.settings)

    @property
    def texts(self) -> list[str]:
        """The replaced settings as text, ``NAME=VALUE`` each.

        >>> Overrides("4.0.6", {"dispatcherMaxReadBatchSize": 16, "preciseDispatcherFlowControl": False}).texts
        ['broker version 4.0.6', 'dispatcherMaxReadBatchSize=16', 'preciseDispatcherFlowControl=false']
        """
        version = [] if self.broker_version is None else [f"broker version {self.broker_version}"]
        values = {n: str(v).lower() if isinstance(v, bool) else v for n, v in sorted(self.settings.items())}
        return [*version, *(f"{name}={value}" for name, value in values.items())]

    def json(self) -> str:
        """One line of JSON, the same text for the same overrides."""
        return json.dumps(
            {"broker_version": self.broker_version, "settings": dict(self.settings)}, sort_keys=True
        )

    @classmethod
    def of_json(cls, text: str) -> Overrides:
        """Read overrides written by ``json``. Raises ``ProfileError`` for other text and for values no rule can use."""
        try:
            document: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ProfileError(f"overrides are not JSON ({error}): {text[:80]!r}") from error
        if not (isinstance(document, dict) and set(document) == {"broker_version", "settings"}):
            raise ProfileError(
                f"overrides must be an object of broker_version and settings, not {text[:80]!r}"
            )
        version, given = document["broker_version"], document["settings"]
        if not (isinstance(version, str | None) and isinstance(given, dict)):
            raise ProfileError(f"overrides have a text and an object, not {text[:80]!r}")
        if version is not None:
            parse_version(version)
        for name, value in given.items():
            settings_.check_name(name)
            if name in settings_.SETTINGS:
                settings_.SETTINGS[name].read(value)
        return cls(version, given)


#: The rules that the headers name.
RECORDED: Final = Overrides()


def with_overrides(
    log: DispatcherLog, broker_version: str | None = None, settings: Mapping[str, Any] | None = None
) -> DispatcherLog:
    """The log with another release or other settings in its header; settings that are not named stay as recorded."""
    header = dict(log.header)
    if broker_version is not None:
        header["broker_version"] = broker_version
    if settings:
        recorded = header.get("config")
        header["config"] = {**(recorded if isinstance(recorded, Mapping) else {}), **settings}
    return replace(log, header=header)


def subscription_type(log: DispatcherLog) -> str:
    """The type in the header. Without one: Failover if the log has lines about an active consumer, else Key_Shared."""
    named = log.header.get("subscription_type")
    if named is not None:
        return str(named)
    return "Failover" if _rows(log, _SINGLE_ACTIVE, ["kind"]).num_rows else "Key_Shared"


def profile_of(log: DispatcherLog, key_shared_mode: str | None = None) -> Profile:
    """The profile a log's header and first consumer call for. ``key_shared_mode``: instead of that consumer's.

    Raises ``ProfileError`` for a header from which no rule can be derived.
    """
    version = log.header.get("broker_version")
    if version is None:
        raise ProfileError(
            f"{log.recording or log.topic}: the log's header names no broker_version: give one with --broker-version"
        )
    policies = [policy for _, policy in _dispatcher_starts(log)]
    policy = policies[0] if policies else Policy()
    kind = subscription_type(log)
    profile = resolve(
        version,
        log.header.get("config"),
        subscription_type=kind,
        partition_index=partition_index(log.header, log.topic),
        key_shared_mode=key_shared_mode or policy.mode,
        allow_out_of_order=policy.allow_out_of_order,
        non_persistent=is_non_persistent(log.topic),
    )
    if log.header.get("subscription_type") is None:
        assumed = f"the log's header names no subscription_type: {kind} was assumed"
        profile = replace(profile, warnings=(*profile.warnings, assumed))
    return profile


def rebuilt_at(log: DispatcherLog, profile: Profile) -> tuple[int, Policy] | None:
    """Find the consumer for which the broker built a new dispatcher with another Key_Shared policy: its ``seq``, the policy.

    That can happen only when no consumer is connected (PersistentSubscription.reuseOrCreateDispatcher). None: it did not.
    """
    if profile.dispatcher not in (Dispatcher.KEY_SHARED, Dispatcher.KEY_SHARED_CLASSIC):
        return None
    starts = _dispatcher_starts(log)
    return next(((seq, policy) for seq, policy in starts if policy != starts[0][1]), None)


def _dispatcher_starts(log: DispatcherLog) -> list[tuple[int, Policy]]:
    """For each consumer that joined while no other was connected: the ``seq`` of its line, and its policy.

    Of the consumers that a checkpoint names, the first one with a known policy counts.
    """
    columns = ["seq", "kind", "consumer", "key_shared_mode", "key_shared_allow_out_of_order"]
    rows = _rows(log, _MEMBERSHIP, [*columns, "checkpoint_json"])
    starts: list[tuple[int, Policy]] = []
    connected: set[int | None] = set()
    # A leading checkpoint names the connected consumers, and maybe their policy.
    first = leading(rows)
    for consumer in first.consumers or () if first is not None else ():
        connected.add(consumer.number)
        if consumer.has_policy and not starts:
            policy = Policy(consumer.mode or "AUTO_SPLIT", bool(consumer.allow_out_of_order))
            starts.append((rows["seq"][0].as_py(), policy))
    for row in rows.select(columns).to_pylist():
        if row["kind"] == "checkpoint":
            continue
        if row["kind"] == "consumer_removed":
            connected.discard(row["consumer"])
            continue
        if not connected or not starts:
            mode = row["key_shared_mode"] or "AUTO_SPLIT"
            starts.append((row["seq"], Policy(mode, bool(row["key_shared_allow_out_of_order"]))))
        connected.add(row["consumer"])
    return starts


def _rows(log: DispatcherLog, kinds: tuple[str, ...], columns: Sequence[str]) -> pa.Table:
    """The lines of these kinds, in those of ``columns`` that the log has."""
    there = [name for name in columns if has(log.events, name)]
    return rows_at(log.events.select(there), rows_of_kind(log.events, *kinds))
