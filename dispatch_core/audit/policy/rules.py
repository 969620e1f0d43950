"""The rules of an audit policy: limits of the verdicts on the topics and subscriptions that patterns match.

There are two sorts of limits: how many findings of a kind are tolerated, and what becomes a finding at all
(``dispatch_core.audit.limits``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from dispatch_core.audit.limit_rules import LimitRule, LimitRules
from dispatch_core.audit.limits import NO_LIMIT
from dispatch_core.audit.limits import Limits as FindingLimits

#: Limits by promise and name; ``None`` = any number is tolerated (and counted).
Limits = Mapping[str, Mapping[str, float | None]]


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

    @property
    def finding_limits(self) -> FindingLimits:
        """The limits that decide what becomes a finding."""
        return replace(FindingLimits.of_policy(self.limits), assume_absent=self.assume_absent)

    def with_finding_limits(self, given: Mapping[str, str]) -> Rule:
        """Return the rule with other limits of findings, by the names of ``dispatch_core.audit.limits.Limits``.

        Raises ``LimitsError`` as ``Limits.of`` does.
        """
        if not given:
            return self
        read = FindingLimits.of(given)
        values = {name: getattr(read, name) for name in given}
        absent = values.pop("assume_absent", self.assume_absent)
        # "any" of a least number: there is never enough to judge.
        values = {
            "max_share_ratio" if name == "share_ratio" else name: None
            if value == NO_LIMIT and not name.startswith("min_")
            else value
            for name, value in values.items()
        }
        limits = {
            promise: {name: values.get(name, limit) for name, limit in thresholds.items()}
            for promise, thresholds in self.limits.items()
        }
        return replace(self, limits=limits, assume_absent=absent)


@dataclass(frozen=True, slots=True)
class PolicyRules:
    """All rules in the order in which they are tried; the last one, ``default``, matches everything.

    ``source``: the name of the file.
    """

    rules: tuple[Rule, ...]
    source: str

    def rule_for(self, topic: str, subscription: str) -> Rule:
        """Return the first rule that matches the dispatcher."""
        return next(rule for rule in self.rules if rule.matches(topic, subscription))

    def limit_rules(self) -> LimitRules:
        """Return the limits for the stages that make findings: the same rules in the same order."""
        return LimitRules(
            tuple(LimitRule(rule.topics, rule.subscriptions, rule.finding_limits) for rule in self.rules)
        )

    def with_finding_limits(self, given: Mapping[str, str]) -> PolicyRules:
        """Return the rules with other limits of findings, for all topics. Raises ``LimitsError``."""
        return replace(self, rules=tuple(rule.with_finding_limits(given) for rule in self.rules))
