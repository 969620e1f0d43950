"""Read the audit policy with the sections that only the pipeline uses: own expectations, and where alerts go.

The rules are those of ``dispatch_core.audit.policy``, which the command line uses too.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from dispatch_core.audit.catalogue import INFO, SEVERITIES
from dispatch_core.audit.policy.reader import (
    MOST_RULES,
    NAME,
    POLICY_VARIABLE,
    SHIPPED_POLICY,
    UNLIMITED,
    PolicyReader,
    covers,
    shipped_text,
)
from dispatch_core.audit.policy.rules import PolicyRules
from dispatch_core.audit.policy.yaml_reader import shown
from dispatch_core.cli.policy_file import content_of
from dispatch_expectations.alert_routes import (
    DEFAULT_CHANNELS,
    DEFAULT_RULES,
    DIGEST_ABOVE,
    AlertRules,
    Channel,
    Route,
)

#: Ids that Airflow takes for connections.
_CONNECTION: Final = re.compile(r"[A-Za-z0-9_.\-]{1,200}")
#: The channel that every alert is kept by; ``*`` and an empty name cannot be written.
FILE_CHANNEL: Final = "file"
_ALERT_KEYS: Final = ("channels", "routes", "operations", "upgrade_risk", "digest_above")


@dataclass(frozen=True, slots=True)
class Policy(PolicyRules):
    """The rules of a policy file, and what only the pipeline reads of it.

    ``expectations``: file of the user's own expectations (``own_expectations``), relative to the policy's folder.
    ``alerts``: the channels that findings are sent to.
    """

    expectations: Path | None = None
    alerts: AlertRules = DEFAULT_RULES


def load_policy(path: Path | None = None) -> Policy:
    """Read the policy of a file, or the shipped one. Raises ``PolicyError`` with every problem of the file."""
    return _reader(path).policy()


def current_policy() -> Policy:
    """Read the policy that ``DISPATCH_AUDIT_POLICY`` names, else the shipped one. Raises ``PolicyError``."""
    return load_policy(_current())


def current_text() -> str:
    """Return the text of that policy, for a process that has no such file. Raises ``PolicyError`` for one with mistakes."""
    current_policy()
    path = _current()
    return (shipped_text() if path is None else content_of(path)).decode()


def current_alert_rules() -> AlertRules:
    """Read the section ``alerts`` alone: mistakes elsewhere in the file do not keep its news from the channels.

    Raises ``PolicyError`` if the file cannot be read, or that section has mistakes.
    """
    return _reader(_current()).alert_rules()


def _current() -> Path | None:
    given = os.environ.get(POLICY_VARIABLE)
    return Path(given) if given else None


def _reader(path: Path | None) -> _Reader:
    return _Reader(SHIPPED_POLICY, shipped_text()) if path is None else _Reader(str(path), content_of(path))


class _Reader(PolicyReader):
    """Read all sections of one policy file."""

    def policy(self) -> Policy:
        """Return the policy; raise ``PolicyError`` with every problem of the file."""
        root, top = self.sections()
        rules = self.rules_of(top)
        alerts = self._alerts(top["alerts"]) if "alerts" in top else DEFAULT_RULES
        own = self.text(root, top, "(file)", "expectations", "")
        self.checked(rules)
        return Policy(rules, self.path, Path(self.path).parent / own if own else None, alerts)

    def alert_rules(self) -> AlertRules:
        """Read the section ``alerts``, and nothing else of the file."""
        _, top = self.sections()
        self.problems.clear()
        alerts = self._alerts(top["alerts"]) if "alerts" in top else DEFAULT_RULES
        self.checked(())
        return alerts

    def _alerts(self, node: yaml.Node) -> AlertRules:
        """Read the channels, routes and thresholds of alerts."""
        top = self.mapping(node, "alerts", _ALERT_KEYS)
        digest_above = self._digest_above(top, "alerts", DIGEST_ABOVE)
        channels = tuple(replace(channel, digest_above=digest_above) for channel in DEFAULT_CHANNELS)
        if "channels" in top:
            channels = self._channels(top["channels"], digest_above)
        names = tuple(channel.name for channel in channels)
        routes = self._routes(top["routes"], names) if "routes" in top else ()
        operations = None
        if "operations" in top:
            operations = self._names(top["operations"], "alerts.operations", names)
        risks: tuple[str, ...] = ()
        if "upgrade_risk" in top:
            risks = self._names(top["upgrade_risk"], "alerts.upgrade_risk", names)
        return AlertRules(channels, routes, operations, risks)

    def _channels(self, node: yaml.Node, digest_above: int | None) -> tuple[Channel, ...]:
        if not isinstance(node, yaml.MappingNode) or not node.value:
            self.complain(node, "alerts.channels", "must be a mapping from names to channels")
            return ()
        channels: dict[str, Channel] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            field = f"alerts.channels.{name or '?'}"
            if not NAME.fullmatch(name):
                self.complain(key, field, "must be lower-case letters, digits, - or _")
            elif name == FILE_CHANNEL:
                self.complain(key, field, "is the name of the files that are always written; choose another")
            elif name in channels:
                self.complain(key, field, "is given twice; keep one")
            head = self.mapping(value, field, ("connection", "min_severity", "digest_above"))
            connection = self.text(value, head, field, "connection", None)
            if connection and not _CONNECTION.fullmatch(connection):
                self.complain(head["connection"], f"{field}.connection", "is no id of an Airflow connection")
            severity = self.text(value, head, field, "min_severity", INFO)
            if severity not in SEVERITIES:
                self.complain(
                    head["min_severity"],
                    f"{field}.min_severity",
                    f"must be one of {', '.join(SEVERITIES)}, not {severity[:60]!r}",
                )
            channels[name] = Channel(
                name, connection, severity, self._digest_above(head, field, digest_above)
            )
        return tuple(channels.values())

    def _digest_above(self, head: dict[str, yaml.Node], field: str, default: int | None) -> int | None:
        node = head.get("digest_above")
        if node is None:
            return default
        if isinstance(node, yaml.ScalarNode) and not node.style:
            if node.value == UNLIMITED:
                return None
            if re.fullmatch(r"[1-9]\d{0,5}", node.value):
                return int(node.value)
        self.complain(
            node, f"{field}.digest_above", f"must be a number from 1 or {UNLIMITED}, not {shown(node)}"
        )
        return default

    def _routes(self, node: yaml.Node, channels: tuple[str, ...]) -> tuple[Route, ...]:
        if not isinstance(node, yaml.SequenceNode) or len(node.value) > MOST_RULES:
            self.complain(node, "alerts.routes", f"must be a list of at most {MOST_RULES}")
            return ()
        routes: list[Route] = []
        for index, item in enumerate(node.value):
            field = f"alerts.routes[{index}]"
            head = self.mapping(item, field, ("topics", "subscriptions", "team", "channels"))
            topics = self.text(item, head, field, "topics", None)
            subscriptions = self.text(item, head, field, "subscriptions", "*")
            team = self.text(item, head, field, "team", "") or None
            names: tuple[str, ...] = ()
            if "channels" in head:
                names = self._names(head["channels"], f"{field}.channels", channels)
            else:
                self.complain(item, f"{field}.channels", "is missing")
            hidden_by = next(
                (n for n, route in enumerate(routes) if covers(route, topics, subscriptions)), None
            )
            if topics and hidden_by is not None:
                self.complain(
                    head["topics"],
                    f"{field}.topics",
                    f"is never reached: routes[{hidden_by}] matches before it",
                )
            routes.append(Route(topics, subscriptions, names, team))
        return tuple(routes)

    def _names(self, node: yaml.Node, field: str, channels: tuple[str, ...]) -> tuple[str, ...]:
        """Read a list of channels that there are."""
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self.complain(node, field, f"must be a list of channels: {', '.join(channels)}")
            return ()
        names = []
        for item in node.value:
            name = item.value if isinstance(item, yaml.ScalarNode) else ""
            if name not in channels:
                self.complain(item, field, f"{name[:60]!r} is no channel; there are: {', '.join(channels)}")
            names.append(name)
        return tuple(dict.fromkeys(names))
