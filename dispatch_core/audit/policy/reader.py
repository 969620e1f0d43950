"""Read the rules of an audit policy, a YAML file with limits per topic pattern.

The ``defaults`` of the shipped ``audit-policy.yaml`` define the names of all promises and limits; any other file may
leave out what it does not change. Errors name file, line and field, and all errors of a file are reported at once.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from typing import Final, Protocol

import yaml

from dispatch_core.audit.assumptions import BEHAVIOURS
from dispatch_core.audit.limits import Limits as FindingLimits
from dispatch_core.audit.limits import LimitsError
from dispatch_core.audit.policy.rules import PolicyRules, Rule
from dispatch_core.audit.policy.yaml_reader import YamlFileError, YamlReader, shown

#: The environment variable that names the policy file which a run uses instead of the shipped one.
POLICY_VARIABLE: Final = "DISPATCH_AUDIT_POLICY"
#: The shipped policy file, beside this module.
SHIPPED_POLICY: Final = "audit-policy.yaml"
DEFAULT_RULE: Final = "default"
#: The word for a limit that nothing exceeds.
UNLIMITED: Final = "any"
#: The sections of a file. The last two are the pipeline's alone: own expectations, and where alerts go.
SECTIONS: Final = ("version", "defaults", "rules", "expectations", "alerts")
MOST_RULES: Final = 1000
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_ASSUME_ABSENT: Final = "assume_absent"
#: Greatest possible limit, by the ending of its name.
_WHOLES: Final = {"_percent": 100, "_share": 1}

_Limits = dict[str, dict[str, float | None]]


class PolicyError(YamlFileError):
    """A policy file that cannot be used."""

    headline = "the audit policy cannot be used; nothing was judged:"
    next_step = (
        f"Correct the file, or leave out --policy and unset {POLICY_VARIABLE} to use the shipped policy."
    )


def shipped_text() -> bytes:
    """Return the content of the shipped policy file."""
    return resources.files("dispatch_core.audit.policy").joinpath(SHIPPED_POLICY).read_bytes()


@lru_cache(maxsize=1)
def shipped_rules() -> PolicyRules:
    """Return the rules of the shipped policy file."""
    return PolicyReader(SHIPPED_POLICY, shipped_text()).policy_rules()


@lru_cache(maxsize=1)
def _shipped_defaults() -> _Limits:
    """Read names and limits of the shipped file; any other file may use only these names."""
    document = yaml.safe_load(shipped_text())
    return {
        promise: {name: None if value == UNLIMITED else float(value) for name, value in limits.items()}
        for promise, limits in document["defaults"].items()
    }


class PolicyReader(YamlReader):
    """Read the rules of one policy file."""

    error = PolicyError

    def __init__(self, path: str, raw: bytes) -> None:
        super().__init__(path, raw)
        self._vocabulary = _shipped_defaults()

    def policy_rules(self) -> PolicyRules:
        """Return the rules of the file. Raises ``PolicyError`` with every problem of these sections."""
        _, top = self.sections()
        return self.checked(self.rules_of(top))

    def sections(self) -> tuple[yaml.Node, dict[str, yaml.Node]]:
        """Return the root of the file and its sections by name."""
        root = self.parse()
        top = self.mapping(root, "(file)", SECTIONS)
        self.check_version(root, top)
        return root, top

    def rules_of(self, top: dict[str, yaml.Node]) -> tuple[Rule, ...]:
        """Read the sections ``defaults`` and ``rules``; the last rule is the default one."""
        defaults = {promise: dict(limits) for promise, limits in self._vocabulary.items()}
        rules: list[Rule] = []
        assume_absent: tuple[str, ...] | None = None
        if "defaults" in top:
            head = self._limits(top["defaults"], "defaults", defaults, extra=(_ASSUME_ABSENT,))
            assume_absent = self._behaviours(head, "defaults", None)
        if "rules" in top:
            rules = self._rules(top["rules"], defaults, assume_absent)
        return (*rules, Rule(DEFAULT_RULE, "*", "*", defaults, assume_absent))

    def checked(self, rules: tuple[Rule, ...]) -> PolicyRules:
        """Return the rules of a file without problems; raise ``PolicyError`` if there are any."""
        if self.problems:
            raise PolicyError(self.problems)
        return PolicyRules(rules, self.path)

    def _limits(
        self,
        node: yaml.Node,
        field: str,
        limits: _Limits,
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
            if node.value == UNLIMITED and not threshold:
                return True, None
            if re.fullmatch(r"\d{1,15}(\.\d{1,6})?", node.value) and not node.style:
                limit = float(node.value)
                if most is None or limit <= most:
                    return True, limit
        allowed = "a number from 0" if most is None else f"a number from 0 to {most}"
        allowed += "" if threshold else f" or {UNLIMITED}"
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
            return FindingLimits.of({_ASSUME_ABSENT: [item.value for item in node.value]}).assume_absent
        except LimitsError as error:
            self.complain(node, f"{field}.{_ASSUME_ABSENT}", str(error))
            return default

    def _rules(
        self,
        node: yaml.Node,
        defaults: _Limits,
        assume_absent: tuple[str, ...] | None,
    ) -> list[Rule]:
        if not isinstance(node, yaml.SequenceNode):
            self.complain(node, "rules", "must be a list")
            return []
        if len(node.value) > MOST_RULES:
            self.complain(node, "rules", f"are {len(node.value)}; the limit is {MOST_RULES}")
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
            if name and not NAME.fullmatch(name):
                self.complain(head["name"], f"{field}.name", "must be lower-case letters, digits, - or _")
            elif name in seen:
                self.complain(head.get("name", item), f"{field}.name", f"{name!r} is taken; names are unique")
            seen.add(name)
            hidden_by = next((rule for rule in rules if covers(rule, topics, subscriptions)), None)
            if topics and hidden_by is not None:
                self.complain(
                    head["topics"],
                    f"{field}.topics",
                    f"is never reached: rule {hidden_by.name!r} matches before it",
                )
            absent = self._behaviours(head, field, assume_absent)
            rules.append(Rule(name, topics, subscriptions, limits, absent))
        return rules


class Patterns(Protocol):
    """Patterns of topics and subscriptions, as a rule and a route of alerts have them."""

    @property
    def topics(self) -> str:
        """Shell-style pattern of topics."""

    @property
    def subscriptions(self) -> str:
        """Shell-style pattern of subscriptions."""


def covers(rule: Patterns, topics: str, subscriptions: str) -> bool:
    """True if the patterns of a rule or route are equal to these or ``*``, so that it matches everything they match."""
    return rule.topics in ("*", topics) and rule.subscriptions in ("*", subscriptions)
