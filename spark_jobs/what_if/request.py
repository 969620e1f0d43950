"""Check a request for a comparison of rules before anything is read: logs, rules, number of simulations.

Turns the texts of a form or a command line into a ``Request``. Uses neither Spark nor files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from dispatch_core.broker import settings
from dispatch_core.broker.profiles import NEWEST_KNOWN
from dispatch_core.broker.versions import parse_version, text_of
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.what_if.rules import (
    RECORDED,
    SEEDS,
    VARIANTS,
    RuleSet,
    Settings,
    asked_for,
    matrix_for,
)

#: Stands for all rules that a log's subscription can have.
MATRIX: Final = "matrix"
#: Rules that a form offers. Any other RELEASE-VARIANT is accepted, too.
KNOWN_RULES: Final = (
    RECORDED.name,
    MATRIX,
    *VARIANTS,
    *(f"{release}-{variant}" for release in ("3.0.17", text_of(NEWEST_KNOWN)) for variant in ("ch", "range")),
)
MOST_SEEDS: Final = 100


class RequestError(DispatchAuditError):
    """A request that no log can satisfy."""


@dataclass(frozen=True, slots=True)
class Request:
    """The dispatchers (patterns with shell wildcards) and the rules to predict them under.

    ``matrix``: add all rules that the log's subscription can have to ``rules``. ``broker_version`` and ``given`` (settings)
    apply to the rules that do not name their own.
    """

    rules: tuple[RuleSet, ...] = (RECORDED,)
    matrix: bool = False
    broker_version: str | None = None
    given: Settings = field(default_factory=dict)
    topics: str = "*"
    subscriptions: str = "*"
    seeds: int = SEEDS

    @classmethod
    def checked(cls, topics: str, subscriptions: str, seeds: int) -> Request:
        """Make a request for the recorded rules. Raises ``RequestError`` for an empty pattern or a number out of range."""
        if not 1 <= seeds <= MOST_SEEDS:
            raise RequestError(
                f"{seeds} simulations per rules: give a number from 1 to {MOST_SEEDS}; nothing was simulated"
            )
        for name, pattern in (("topics", topics), ("subscriptions", subscriptions)):
            if not pattern.strip():
                raise RequestError(
                    f"the pattern of {name} is empty and matches none; * matches all. Nothing was simulated"
                )
        return cls(topics=topics.strip(), subscriptions=subscriptions.strip(), seeds=seeds)

    def wants(self, dispatcher: Mapping[str, Any]) -> bool:
        """True if the patterns match this topic and subscription."""
        return fnmatchcase(dispatcher["topic"], self.topics) and fnmatchcase(
            dispatcher["subscription"], self.subscriptions
        )

    def rules_for(self, log: DispatcherLog) -> list[RuleSet]:
        """List the rules for a log, each once. Raises ``ProfileError`` if the log's header allows no matrix."""
        found = {rule.name: rule for rule in self.rules}
        if self.matrix:
            found |= {rule.name: rule for rule in matrix_for(log, self.broker_version, self.given)}
        return list(found.values())

    def as_json(self) -> dict[str, Any]:
        """Write the request as JSON values, for the page and for programs."""
        return {
            "topics": self.topics,
            "subscriptions": self.subscriptions,
            "rules": [rule.name for rule in self.rules] + ([MATRIX] if self.matrix else []),
            "broker_version": self.broker_version,
            "settings": dict(self.given),
            "seeds": self.seeds,
        }


def request(
    rules: Sequence[str] = (),
    *,
    broker_version: str | None = None,
    assignments: Iterable[str] = (),
    topics: str = "*",
    subscriptions: str = "*",
    seeds: int = SEEDS,
) -> Request:
    """Make a request from texts; ``assignments`` are ``NAME=VALUE`` of ``broker.conf``.

    ``as recorded`` stands for the log's own rules. With settings or a release as well, the recorded rules are compared with
    those. Raises ``DispatchAuditError`` for an unknown rule or setting (the message names the nearest), an unknown release,
    an empty pattern or a number of seeds out of range.

    >>> [rule.name for rule in request(["as recorded", "range"]).rules]
    ['as recorded', 'range']
    """
    version = (broker_version or "").strip() or None
    if version is not None:
        parse_version(version)
    given = settings.given(list(assignments))
    names = [name.strip().lower() for name in rules]
    own = RECORDED.name in names
    matrix = MATRIX in names
    named = [name for name in names if name not in (RECORDED.name, MATRIX)]
    found = (
        asked_for(named, version, given, matrix=False)
        if named or (not matrix and (version or given or not own))
        else []
    )
    if own and RECORDED not in found:
        found = [RECORDED, *found]
    asked = Request.checked(topics, subscriptions, seeds)
    return replace(asked, rules=tuple(found), matrix=matrix, broker_version=version, given=given)


def assignments_of(text: str | None) -> list[str]:
    r"""List the ``NAME=VALUE`` lines of a text in the format of ``broker.conf``, without comments and empty lines.

    >>> assignments_of("# smaller reads\ndispatcherMaxReadBatchSize=16\n")
    ['dispatcherMaxReadBatchSize=16']
    """
    lines = (line.strip() for line in (text or "").splitlines())
    return [line for line in lines if line and not line.startswith("#")]
