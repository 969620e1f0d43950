"""Decide which channel is told of which subscription, from how bad a finding on: the section ``alerts`` of the policy. Pure.

A *channel* is a connection of Airflow; its type decides how it is sent to. A *route* gives the alerts of some topics to a
team and its channels. A finding that a channel has reported is cleared there, whatever the routes say by then.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from dispatch_core.audit.catalogue import INFO, SEVERITIES

#: More messages than this of one interval are sent to a channel as one digest.
DIGEST_ABOVE: Final = 50


@dataclass(frozen=True, slots=True)
class Channel:
    """A place where alerts go.

    ``connection``: id of the Airflow connection. ``min_severity``: new findings that are less severe are not sent.
    ``digest_above``: greatest number of messages of one interval that are sent one by one; None = any. ``required``: the
    connection must exist; the two channels of a policy without channels are used only if theirs do.
    """

    name: str
    connection: str
    min_severity: str = INFO
    digest_above: int | None = DIGEST_ABOVE
    required: bool = True

    def is_severe(self, severity: str) -> bool:
        """True if a new finding of this severity is sent. Severities that are not known are."""
        return severity not in SEVERITIES or SEVERITIES.index(severity) <= SEVERITIES.index(self.min_severity)


@dataclass(frozen=True, slots=True)
class Route:
    """Channels for the topics and subscriptions that match two shell-style patterns, and the team that they belong to."""

    topics: str
    subscriptions: str
    channels: tuple[str, ...]
    team: str | None = None

    def matches(self, topic: str, subscription: str) -> bool:
        """True if alerts about this subscription take this route."""
        return fnmatchcase(topic, self.topics) and fnmatchcase(subscription, self.subscriptions)


#: Used by a policy that names no channels, where their connections exist.
DEFAULT_CHANNELS: Final = (
    Channel("mail", "dispatch_audit_smtp", required=False),
    Channel("webhook", "dispatch_audit_webhook", required=False),
)


@dataclass(frozen=True, slots=True)
class AlertRules:
    """Channels, and routes in the order in which they are tried.

    ``operations``: the channels of operational messages (None = all). ``upgrade_risk``: those that are told of releases
    under which something gets worse.
    """

    channels: tuple[Channel, ...] = DEFAULT_CHANNELS
    routes: tuple[Route, ...] = ()
    operations: tuple[str, ...] | None = None
    upgrade_risk: tuple[str, ...] = ()

    def takes(self, channel: str, topic: str, subscription: str) -> bool:
        """True if new findings of this subscription go to a channel: by the first route that matches, else to all."""
        route = self._route(topic, subscription)
        return route is None or channel in route.channels

    def team(self, topic: str, subscription: str) -> str | None:
        """Return the team of the subscription's route."""
        route = self._route(topic, subscription)
        return route.team if route is not None else None

    def of_operations(self) -> tuple[str, ...]:
        """Return the names of the channels that are told of failed and late runs, and of other channels' outages."""
        return self.operations or tuple(channel.name for channel in self.channels)

    def _route(self, topic: str, subscription: str) -> Route | None:
        return next((route for route in self.routes if route.matches(topic, subscription)), None)


#: Those of a policy without the section ``alerts``.
DEFAULT_RULES: Final = AlertRules()
