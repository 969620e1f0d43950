"""Read the audit policy, a YAML file with limits per topic pattern.

The ``defaults`` of the shipped ``audit-policy.yaml`` define the names of all promises and limits; any other file may
leave out what it does not change. Errors name file, line and field, and all errors of a file are reported at once.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
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
from dispatch_core.errors import DispatchAuditError
from dispatch_expectations.alert_routes import (
    DEFAULT_CHANNELS,
    DEFAULT_RULES,
    DIGEST_ABOVE,
    AlertRules,
    Channel,
    Route,
)

#: Policy file that a run uses instead of the shipped one.
POLICY_VARIABLE: Final = "DISPATCH_AUDIT_POLICY"
SHIPPED_POLICY: Final = Path(__file__).with_name("audit-policy.yaml")
DEFAULT_RULE: Final = "default"

_MAX_BYTES: Final = 1 << 20
_MOST_RULES: Final = 1000
_MOST_PROBLEMS: Final = 100
_LONGEST_SHOWN: Final = 500
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_SECTIONS: Final = ("version", "defaults", "rules", "alerts")
_UNLIMITED: Final = "any"
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


class PolicyError(DispatchAuditError):
    """A policy file that cannot be used. ``problems`` holds one ``file:line: field: what is wrong`` each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "the audit policy cannot be used; nothing was judged:\n  "
            + "\n  ".join(self.problems)
            + f"\nCorrect the file, or unset {POLICY_VARIABLE} to use the shipped policy."
        )


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


@dataclass(frozen=True, slots=True)
class Policy:
    """All rules in the order in which they are tried; the last one, ``default``, matches everything.

    ``alerts``: the channels that findings are sent to.
    """

    rules: tuple[Rule, ...]
    source: str
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


class _Reader:
    """Read one file as a tree of YAML nodes, so that every problem can name its line."""

    def __init__(self, path: Path, vocabulary: dict[str, dict[str, float | None]]) -> None:
        self._path = path
        self._vocabulary = vocabulary
        self._problems: list[str] = []

    def policy(self) -> Policy:
        root = self._parse()
        defaults = {promise: dict(limits) for promise, limits in self._vocabulary.items()}
        rules: list[Rule] = []
        alerts = DEFAULT_RULES
        assume_absent: tuple[str, ...] | None = None
        if root is not None:
            top = self._mapping(root, "(file)", _SECTIONS)
            version = top.get("version")
            if version is None:
                self._complain(root, "version", "is missing; write: version: 1")
            elif not (isinstance(version, yaml.ScalarNode) and version.value == "1"):
                self._complain(version, "version", f"must be 1, not {_shown(version)}")
            if "defaults" in top:
                head = self._limits(top["defaults"], "defaults", defaults, extra=(_ASSUME_ABSENT,))
                assume_absent = self._behaviours(head, "defaults", None)
            if "rules" in top:
                rules = self._rules(top["rules"], defaults, assume_absent)
            if "alerts" in top:
                alerts = self._alerts(top["alerts"])
        if self._problems:
            raise PolicyError(self._problems)
        rules.append(Rule(DEFAULT_RULE, "*", "*", defaults, assume_absent))
        return Policy(tuple(rules), str(self._path), alerts)

    def alert_rules(self) -> AlertRules:
        """Read the section ``alerts``, and nothing else of the file."""
        root = self._parse()
        top = self._mapping(root, "(file)", _SECTIONS)
        self._problems.clear()
        rules = self._alerts(top["alerts"]) if "alerts" in top else DEFAULT_RULES
        if self._problems:
            raise PolicyError(self._problems)
        return rules

    def _parse(self) -> yaml.Node:
        try:
            raw = self._path.read_bytes()
        except OSError as error:
            raise PolicyError([f"{self._path}: cannot be read: {error.strerror or error}"]) from error
        if len(raw) > _MAX_BYTES:
            raise PolicyError([f"{self._path}: is {len(raw)} bytes long; the limit is {_MAX_BYTES}"])
        try:
            node: yaml.Node | None = yaml.compose(raw.decode("utf-8"), Loader=yaml.SafeLoader)
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            raise PolicyError([f"{self._path}:{line}: (file): is not UTF-8 text"]) from error
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise PolicyError([f"{self._path}:{line}: (file): is not YAML: {error.problem}"]) from error
        except RecursionError as error:
            raise PolicyError([f"{self._path}:1: (file): is nested too deeply"]) from error
        except yaml.YAMLError as error:
            raise PolicyError([f"{self._path}:1: (file): is not YAML: {error}"]) from error
        if node is None:
            raise PolicyError([f"{self._path}:1: (file): is empty; write at least: version: 1"])
        return node

    def _complain(self, node: yaml.Node, field: str, problem: str) -> None:
        where = f"{self._path}:{node.start_mark.line + 1}"
        self._problems.append(f"{where}: {field[:_LONGEST_SHOWN]}: {problem[:_LONGEST_SHOWN]}")
        if len(self._problems) == _MOST_PROBLEMS:
            self._problems.append(f"{where}: (file): has too many problems; the rest was not read")
            raise PolicyError(self._problems)

    def _mapping(self, node: yaml.Node, field: str, known: tuple[str, ...]) -> dict[str, yaml.Node]:
        """Return values by key; unknown and repeated keys and non-mappings become problems."""
        if not isinstance(node, yaml.MappingNode):
            self._complain(node, field, f"must be a mapping with {', '.join(known)}")
            return {}
        found: dict[str, yaml.Node] = {}
        prefix = "" if field == "(file)" else f"{field}."
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
                self._complain(
                    key, f"{prefix}{name or '?'}", f"is unknown; the nearest known name is {near!r}"
                )
            elif name in found:
                self._complain(key, f"{prefix}{name}", "is given twice; keep one")
            else:
                found[name] = value
        return found

    def _limits(
        self,
        node: yaml.Node,
        field: str,
        limits: dict[str, dict[str, float | None]],
        extra: tuple[str, ...],
    ) -> dict[str, yaml.Node]:
        """Override ``limits`` in place from a mapping promise → name → limit; return the ``extra`` keys' nodes."""
        top = self._mapping(node, field, (*extra, *self._vocabulary))
        for promise, names in self._vocabulary.items():
            if promise not in top:
                continue
            for name, value in self._mapping(top[promise], f"{field}.{promise}", tuple(names)).items():
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
        self._complain(node, field, f"must be {allowed}, not {_shown(node)}")
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
            self._complain(node, f"{field}.{_ASSUME_ABSENT}", str(error))
            return default

    def _rules(
        self,
        node: yaml.Node,
        defaults: dict[str, dict[str, float | None]],
        assume_absent: tuple[str, ...] | None,
    ) -> list[Rule]:
        if not isinstance(node, yaml.SequenceNode):
            self._complain(node, "rules", "must be a list")
            return []
        if len(node.value) > _MOST_RULES:
            self._complain(node, "rules", f"are {len(node.value)}; the limit is {_MOST_RULES}")
            return []
        rules: list[Rule] = []
        seen: set[str] = {DEFAULT_RULE}
        for index, item in enumerate(node.value):
            field = f"rules[{index}]"
            limits = {promise: dict(values) for promise, values in defaults.items()}
            head = self._limits(
                item, field, limits, extra=("name", "topics", "subscriptions", _ASSUME_ABSENT)
            )
            name = self._text(item, head, field, "name", None)
            topics = self._text(item, head, field, "topics", None)
            subscriptions = self._text(item, head, field, "subscriptions", "*")
            if name and not _NAME.fullmatch(name):
                self._complain(head["name"], f"{field}.name", "must be lower-case letters, digits, - or _")
            elif name in seen:
                self._complain(
                    head.get("name", item), f"{field}.name", f"{name!r} is taken; names are unique"
                )
            seen.add(name)
            hidden_by = next((rule for rule in rules if _covers(rule, topics, subscriptions)), None)
            if topics and hidden_by is not None:
                self._complain(
                    head["topics"],
                    f"{field}.topics",
                    f"is never reached: rule {hidden_by.name!r} matches before it",
                )
            absent = self._behaviours(head, field, assume_absent)
            rules.append(Rule(name, topics, subscriptions, limits, absent))
        return rules

    def _alerts(self, node: yaml.Node) -> AlertRules:
        """Read the channels, routes and thresholds of alerts."""
        top = self._mapping(node, "alerts", _ALERT_KEYS)
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
            self._complain(node, "alerts.channels", "must be a mapping from names to channels")
            return ()
        channels: dict[str, Channel] = {}
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            field = f"alerts.channels.{name or '?'}"
            if not _NAME.fullmatch(name):
                self._complain(key, field, "must be lower-case letters, digits, - or _")
            elif name == FILE_CHANNEL:
                self._complain(key, field, "is the name of the files that are always written; choose another")
            elif name in channels:
                self._complain(key, field, "is given twice; keep one")
            head = self._mapping(value, field, ("connection", "min_severity", "digest_above"))
            connection = self._text(value, head, field, "connection", None)
            if connection and not _CONNECTION.fullmatch(connection):
                self._complain(head["connection"], f"{field}.connection", "is no id of an Airflow connection")
            severity = self._text(value, head, field, "min_severity", INFO)
            if severity not in SEVERITIES:
                self._complain(
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
        self._complain(
            node, f"{field}.digest_above", f"must be a number from 1 or {_UNLIMITED}, not {_shown(node)}"
        )
        return default

    def _routes(self, node: yaml.Node, channels: tuple[str, ...]) -> tuple[Route, ...]:
        if not isinstance(node, yaml.SequenceNode) or len(node.value) > _MOST_RULES:
            self._complain(node, "alerts.routes", f"must be a list of at most {_MOST_RULES}")
            return ()
        routes: list[Route] = []
        for index, item in enumerate(node.value):
            field = f"alerts.routes[{index}]"
            head = self._mapping(item, field, ("topics", "subscriptions", "team", "channels"))
            topics = self._text(item, head, field, "topics", None)
            subscriptions = self._text(item, head, field, "subscriptions", "*")
            team = self._text(item, head, field, "team", "") or None
            names: tuple[str, ...] = ()
            if "channels" in head:
                names = self._names(head["channels"], f"{field}.channels", channels)
            else:
                self._complain(item, f"{field}.channels", "is missing")
            hidden_by = next(
                (n for n, route in enumerate(routes) if _covers(route, topics, subscriptions)), None
            )
            if topics and hidden_by is not None:
                self._complain(
                    head["topics"],
                    f"{field}.topics",
                    f"is never reached: routes[{hidden_by}] matches before it",
                )
            routes.append(Route(topics, subscriptions, names, team))
        return tuple(routes)

    def _names(self, node: yaml.Node, field: str, channels: tuple[str, ...]) -> tuple[str, ...]:
        """Read a list of channels that there are."""
        if not isinstance(node, yaml.SequenceNode) or not node.value:
            self._complain(node, field, f"must be a list of channels: {', '.join(channels)}")
            return ()
        names = []
        for item in node.value:
            name = item.value if isinstance(item, yaml.ScalarNode) else ""
            if name not in channels:
                self._complain(item, field, f"{name[:60]!r} is no channel; there are: {', '.join(channels)}")
            names.append(name)
        return tuple(dict.fromkeys(names))

    def _text(
        self, item: yaml.Node, head: dict[str, yaml.Node], field: str, name: str, default: str | None
    ) -> str:
        node = head.get(name)
        if node is None:
            if default is None:
                self._complain(item, f"{field}.{name}", "is missing")
            return default or ""
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            self._complain(node, f"{field}.{name}", f"must be a text, not {_shown(node)}")
            return default or ""
        return str(node.value)


def _covers(rule: Rule | Route, topics: str, subscriptions: str) -> bool:
    """True if the patterns of a rule or route are equal to these or ``*``, so that it matches everything they match."""
    return rule.topics in ("*", topics) and rule.subscriptions in ("*", subscriptions)


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return repr(node.value[:60])
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"
