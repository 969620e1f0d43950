"""Choose the limits of a dispatcher by the policy's patterns of topics and subscriptions, handed down as JSON.

The policy file is read once, at the begin of a run; every stage gets the same text, and its summary has the text's digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from typing import Any

from dispatch_core.audit.limits import DEFAULT_LIMITS, Limits, LimitsError


@dataclass(frozen=True, slots=True)
class LimitRule:
    """Limits for the dispatchers whose topic and subscription match two shell-style patterns."""

    topics: str
    subscriptions: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class LimitRules:
    """Rules in the order in which they are tried; a dispatcher that none of them matches has the default limits."""

    rules: tuple[LimitRule, ...] = ()

    def limits_for(self, topic: str, subscription: str) -> Limits:
        """Return the limits of the first rule that matches.

        >>> strict = LimitRule("persistent://shop/*", "*", Limits(stuck_key_ms=500))
        >>> rules = LimitRules.of_json(LimitRules((strict,)).json())
        >>> [rules.limits_for(topic, "s").stuck_key_ms for topic in ("persistent://shop/a/b", "persistent://x/y/z")]
        [500, 10000]
        """
        for rule in self.rules:
            if fnmatchcase(topic, rule.topics) and fnmatchcase(subscription, rule.subscriptions):
                return rule.limits
        return DEFAULT_LIMITS

    @property
    def digest(self) -> str:
        """Digest of the rules: 16 hexadecimal digits of SHA-256 of ``json``."""
        return hashlib.sha256(self.json().encode()).hexdigest()[:16]

    def json(self) -> str:
        """Write the rules as one line of JSON, the same text for the same rules."""
        return json.dumps([asdict(rule) for rule in self.rules], sort_keys=True)

    @classmethod
    def of_json(cls, text: str) -> LimitRules:
        """Read rules written by ``json``. Raises ``LimitsError`` for any other text."""
        try:
            rows: Any = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise LimitsError(f"rules of limits are not JSON ({error}): {text[:80]!r}") from error
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise LimitsError(f"rules of limits must be a JSON list of objects, not {text[:80]!r}")
        return cls(tuple(_rules(rows)))


def _rules(rows: Iterable[dict[str, Any]]) -> Iterable[LimitRule]:
    for row in rows:
        patterns = row.get("topics"), row.get("subscriptions")
        limits = row.get("limits")
        if (
            not all(isinstance(pattern, str) for pattern in patterns)
            or not isinstance(limits, dict)
            or len(row) != 3
        ):
            raise LimitsError(
                f"a rule of limits has topics, subscriptions and limits, not {sorted(map(str, row))}: {str(row)[:80]}"
            )
        yield LimitRule(str(patterns[0]), str(patterns[1]), Limits.of(limits))
