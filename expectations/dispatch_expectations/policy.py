"""Read the audit policy, a YAML file with limits per topic pattern.

The ``defaults`` of the shipped ``audit-policy.yaml`` define the names of all promises and limits; any other file may
leave out what it does not change. Errors name file, line and field, and all errors of a file are reported at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path
from typing import Final

import yaml

from dispatch_core.audit.assumptions import BEHAVIOURS
from dispatch_core.audit.catalogue import INFO, SEVERITIES
from dispatch_core.audit.limit_rules import LimitRule, LimitRules
from dispatch_core.audit.limits import Limits as CoreLimits
from dispatch_core.audit.limits import LimitsError
from dispatch_expectations.alert_routes import (
    DEFAULT_CHANNELS,
    DEFAULT_RULES,
    DIGEST_ABOVE,
    AlertRules,
    Channel,
    Route,
)
from dispatch_expectations.yaml_file import YamlFileError, YamlReader, shown

#: Policy file that a run uses instead of the shipped one.
POLICY_VARIABLE: Final = "DISPATCH_AUDIT_POLICY"
SHIPPED_POLICY: Final = Path(__file__).with_name("audit-policy.yaml")
DEFAULT_RULE: Final = "default"

_MOST_RULES: Final = 1000
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_UNLIMITED: Final = "any"
_SECTIONS: Final = ("version", "defaults", "rules", "expectations", "alerts")
#: Ids that Airflow takes for connections.
_CONNECTION: Final = re.compile(r"[A-Za-z0-9_.\-]{1,200}")
#: The channel that every alert is kept by; ``*`` and an empty name cannot be written.
FILE_CHANNEL: Final = "file"
_ALERT_KEYS: Final = ("channels", "routes", "operations", "digest_above")
_ASSUME_ABSENT: Final = "assume_absent"
#: Greatest possible limit, by the ending of its name.
_WHOLES: Final = {"_percent": 100, "_share": 1}

#: Limits by promise and name; ``None`` = any number is tolerated (and counted).
Limits = Mapping[str, Mapping[str, float | None]]


class PolicyError(YamlFileError):
    """A policy file that cannot be used."""

    headline = "the audit policy cannot be used; nothing was judged:"
    next_step = f"Correct the file, or unset {POLICY_VARIABLE} to use the shipped policy."


@dataclass(frozen=True, slots=True)
class Rule:
    """Limits for the topics and subscriptions that match two shell-style patterns.

    ``assume_absent``: behaviours that the operator rules out; ``None`` = as for ``dispatch_core.audit.limits.Limits``.
    """

    name: str
    topics: str
    subscriptions: str
    limits: Limits
    assume_absent: tuple[str, ...] | None = None

    def matches(self, topic: str, subscription: str) -> bool:
        """True if this rule judges the dispatcher of ``topic`` and ``subscription``."""
        return fnmatchcase(topic, self.topics) and fnmatchcase(subscription, self.subscriptions)

    def limit(self, promise: str, name: str) -> float | None:
        """Return the greatest tolerated value, or None for any. Raises ``KeyError`` for an unknown name."""
        return self.limits[promise][name]

    def tolerated(self, limit: str | None) -> float | None:
        """Return the limit named ``section.name``, None for any number; without a name nothing is tolerated."""
        return 0.0 if limit is None else self.limit(*limit.split(".", 1))


@dataclass(frozen=True, slots=True)
class Policy:
    """All rules in the order in which they are tried; the last one, ``default``, matches everything.

    ``expectations``: file of the user's own expectations (``own_expectations``), relative to the policy's folder.
    ``alerts``: the channels that findings are sent to.
    """

    rules: tuple[Rule, ...]
    source: str
    expectations: Path | None = None
    alerts: AlertRules = DEFAULT_RULES

    def rule_for(self, topic: str, subscription: str) -> Rule:
        """Return the first rule that matches the dispatcher."""
        return next(rule for rule in self.rules if rule.matches(topic, subscription))

    def limit_rules(self) -> LimitRules:
        """Return the limits for the stages that make findings: the same rules in the same order."""
        return LimitRules(
            tuple(
                LimitRule(
                    rule.topics,
                    rule.subscriptions,
                    replace(CoreLimits.of_policy(rule.limits), assume_absent=rule.assume_absent),
                )
                for rule in self.rules
            )
        )


def load_policy(path: Path | None = None) -> Policy:
    """Read the policy of a file, or the shipped one. Raises ``PolicyError`` with every problem of the file."""
    defaults = _shipped_defaults()
    if path is None:
        path = SHIPPED_POLICY
    reader = _Reader(path, defaults)
    return reader.policy()


def current_policy() -> Policy:
    """Read the policy that ``DISPATCH_AUDIT_POLICY`` names, else the shipped one. Raises ``PolicyError``."""
    given = os.environ.get(POLICY_VARIABLE)
    return load_policy(Path(given) if given else None)


def current_alert_rules() -> AlertRules:
    """Read the section ``alerts`` alone: mistakes elsewhere in the file do not keep its news from the channels.

    Raises ``PolicyError`` if the file cannot be read, or that section has mistakes.
    """
    given = os.environ.get(POLICY_VARIABLE)
    return _Reader(Path(given) if given else SHIPPED_POLICY, _shipped_defaults()).alert_rules()


@lru_cache(maxsize=1)
def _shipped_defaults() -> dict[str, dict[str, float | None]]:
    """Read names and limits of the shipped file; any other file may use only these names."""
    document = yaml.safe_load(SHIPPED_POLICY.read_text(encoding="utf-8"))
    return {
        promise: {name: None if value == _UNLIMITED else float(value) for name, value in limits.items()}
        for promise, limits in document["defaults"].items()
    }


class _Reader(YamlReader):
    """Read one policy file."""

    error = PolicyError

    def __init__(self, path: Path, vocabulary: dict[str, dict[str, float | None]]) -> None:
        super().__init__(path)
        self._vocabulary = vocabulary

    def policy(self) -> Policy:
        root = self.parse()
        defaults = {promise: dict(limits) for promise, limits in self._vocabulary.items()}
        rules: list[Rule] = []
        alerts = DEFAULT_RULES
        assume_absent: tuple[str, ...] | None = None
        top = self.mapping(root, "(file)", _SECTIONS)
        self.check_version(root, top)
        if "defaults" in top:
            head = self._limits(top["defaults"], "defaults", defaults, extra=(_ASSUME_ABSENT,))
            assume_absent = self._behaviours(head, "defaults", None)
        if "rules" in top:
            rules = self._rules(top["rules"], defaults, assume_absent)
        if "alerts" in top:
            alerts = self._alerts(top["alerts"])
        own = self.text(root, top, "(file)", "expectations", "")
        if self.problems:
            raise PolicyError(self.problems)
        rules.append(Rule(DEFAULT_RULE, "*", "*", defaults, assume_absent))
        return Policy(tuple(rules), str(self.path), self.path.parent / own if own else None, alerts)

    def alert_rules(self) -> AlertRules:
        """Read the section ``alerts``, and nothing else of the file."""
        root = self.parse()
        top = self.mapping(root, "(file)", _SECTIONS)
        self.problems.clear()
        rules = self._alerts(top["alerts"]) if "alerts" in top else DEFAULT_RULES
        if self.problems:
            raise PolicyError(self.problems)
        return rules

    def _limits(
        self,
        node: yaml.Node,
        field: str,
        limits: dict[str, dict[str, float | None]],
        extra: tuple[str, ...],
    ) -> dict[str, yaml.Node]:
        """Override ``limits`` in place from a mapping promise → name → limit; return the ``extra`` keys' nodes."""
        top = self.mapping(node, field, (*extra, *self._vocabulary))
        for promise, names in self._vocabulary.items():
            if promise not in top:
                continue
            for name, value in self.mapping(top[promise], f"{field}.{promise}", tuple(names)).items():
                ok, limit = self._limit(value, f"{field}.{promise}.{name}")
                if ok:
                    limits[promise][name] = limit
        return {name: top[name] for name in extra if name in top}

    def _limit(self, node: yaml.Node, field: str) -> tuple[bool, float | None]:
        """Return (usable, limit). A ``min_*`` cannot be ``any``, as it is the least number to judge at all.

        A percentage is at most 100 and a share at most 1: a greater limit would never be exceeded.
        """
        name = field.rsplit(".", 1)[-1]
        threshold = name.startswith("min_")
        most = next((whole for ending, whole in _WHOLES.items() if name.endswith(ending)), None)
        if isinstance(node, yaml.ScalarNode):
            if node.value == _UNLIMITED and not threshold:
                return True, None
            if re.fullmatch(r"\d{1,15}(\.\d{1,6})?", node.value) and not node.style:
                limit = float(node.value)
                if most is None or limit <= most:
                    return True, limit
        allowed = "a number from 0" if most is None else f"a number from 0 to {most}"
        allowed += "" if threshold else f" or {_UNLIMITED}"
        self.complain(node, field, f"must be {allowed}, not {shown(node)}")
        return False, None

    def _behaviours(
        self, head: dict[str, yaml.Node], field: str, default: tuple[str, ...] | None
    ) -> tuple[str, ...] | None:
        """Read ``assume_absent``, a list of behaviours."""
        node = head.get(_ASSUME_ABSENT)
        if node is None:
            return default
        try:
            if not isinstance(node, yaml.SequenceNode):
                raise LimitsError(f"must be a list of {', '.join(BEHAVIOURS)}")
            return CoreLimits.of({_ASSUME_ABSENT: [item.value for item in node.value]}).assume_absent
        except LimitsError as error:
            self.complain(node, f"{field}.{_ASSUME_ABSENT}", str(error))
            return default

    def _rules(
        self,
        node: yaml.Node,
        defaults: dict[str, dict[str, float | None]],
        assume_absent: tuple[str, ...] | None,
    ) -> list[Rule]:
        if not isinstance(node, yaml.SequenceNode):
            self.complain(node, "rules", "must be a list")
            return []
        if len(node.value) > _MOST_RULES:
            self.complain(node, "rules", f"are {len(node.value)}; the limit is {_MOST_RULES}")
            return []
        rules: list[Rule] = []
        seen: set[str] = {DEFAULT_RULE}
        for index, item in enumerate(node.value):
            field = f"rules[{index}]"
            limits = {promise: dict(values) for promise, values in defaults.items()}
            head = self._limits(
                item, field, limits, extra=("name", "topics", "subscriptions", _ASSUME_ABSENT)
            )
            name = self.text(item, head, field, "name", None)
            topics = self.text(item, head, field, "topics", None)
            subscriptions = self.text(item, head, field, "subscriptions", "*")
            if name and not _NAME.fullmatch(name):
                self.complain(head["name"], f"{field}.name", "must be lower-case letters, digits, - or _")
            elif name in seen:
                self.complain(head.get("name", item), f"{field}.name", f"{name!r} is taken; names are unique")
            seen.add(name)
            hidden_by = next((rule for rule in rules if _covers(rule, topics, subscriptions)), None)
            if topics and hidden_by is not None:
                self.complain(
                    head["topics"],
                    f"{field}.topics",
                    f"is never reached: rule {hidden_by.name!r} matches before it",
                )
            absent = self._behaviours(head, field, assume_absent)
            rules.append(Rule(name, topics, subscriptions, limits, absent))
        return rules

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
        return AlertRules(channels, routes, operations)

    def _channels(self, node: yaml.Node, digest_above: int | None) -> tuple[Channel, ...]:
        if not isinstance(node, yaml.MappingNode) or not node.value:
            self.complain(node, "alerts.channels", "must be a mapping from names to channels")
            return ()
        channels: dict[str, Channel] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            field = f"alerts.channels.{name or '?'}"
            if not _NAME.fullmatch(name):
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
            if node.value == _UNLIMITED:
                return None
            if re.fullmatch(r"[1-9]\d{0,5}", node.value):
                return int(node.value)
        self.complain(
            node, f"{field}.digest_above", f"must be a number from 1 or {_UNLIMITED}, not {shown(node)}"
        )
        return default

    def _routes(self, node: yaml.Node, channels: tuple[str, ...]) -> tuple[Route, ...]:
        if not isinstance(node, yaml.SequenceNode) or len(node.value) > _MOST_RULES:
            self.complain(node, "alerts.routes", f"must be a list of at most {_MOST_RULES}")
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
                (n for n, route in enumerate(routes) if _covers(route, topics, subscriptions)), None
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


def _covers(rule: Rule | Route, topics: str, subscriptions: str) -> bool:
    """True if the patterns of a rule or route are equal to these or ``*``, so that it matches everything they match."""
    return rule.topics in ("*", topics) and rule.subscriptions in ("*", subscriptions)
