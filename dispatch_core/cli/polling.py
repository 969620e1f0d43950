"""Options and steps of the commands that poll a broker for statistics: ``diagnose`` and ``watch-stats``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from dispatch_core.cli.broker_admin import AdminError, BrokerAdmin, token_of

T = TypeVar("T")

#: Settings of a broker that no policy of a namespace or topic replaces, and that the rules use.
_USED_SETTINGS: Final = (
    "keySharedLookAheadMsgInReplayThresholdPerConsumer",
    "keySharedLookAheadMsgInReplayThresholdPerSubscription",
    "activeConsumerFailoverDelayTimeMillis",
)


def add_broker_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup, *, needed: bool) -> None:
    """Add ``--admin-url``, ``--token-file`` and ``--tls-trust-file``."""
    parser.add_argument(
        "--admin-url",
        required=needed,
        metavar="URL",
        help="http://HOST:8080 or https://HOST:8443; needs --topic",
    )
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file that holds a token")
    parser.add_argument(
        "--tls-trust-file", type=Path, metavar="FILE", help="certificates of trusted authorities"
    )


def numbers(config: Mapping[str, Any]) -> dict[str, int | bool]:
    """Return the settings that are numbers, or true or false."""
    found: dict[str, int | bool] = {}
    for name, value in config.items():
        text = str(value).strip().lower()
        if text in ("true", "false"):
            found[name] = text == "true"
        elif text.removeprefix("-").isdecimal():
            found[name] = int(text)
    return found


@dataclass(slots=True)
class Polled:
    """A broker that is polled. ``problems``: what it refused, one line each; it is answered without."""

    admin: BrokerAdmin
    broker_version: str | None = None
    settings: dict[str, int | bool] = field(default_factory=dict)
    topics: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, options: argparse.Namespace, broker_version: str | None, settings: Mapping[str, int | bool]
    ) -> Polled:
        """Make it of the options of ``add_broker_arguments``; what is given is not asked. Raises ``AdminError``."""
        admin = BrokerAdmin(options.admin_url, token_of(options.token_file), options.tls_trust_file)
        return cls(admin, broker_version, dict(settings))

    def ask(self, topics: Sequence[str]) -> None:
        """Ask for the partitions of the topics, and for release and settings. Raises ``AdminError``."""
        self.topics = [partition for topic in topics for partition in self.admin.partitions(topic)]
        if self.broker_version is None:
            self.broker_version = self._without(self.admin.version)
        found = self._without(self.admin.settings) or {}
        used: dict[str, str] = {name: found[name] for name in _USED_SETTINGS if name in found}
        self.settings = numbers(used) | self.settings

    def moment(self) -> str:
        """Ask for the statistics of all topics: JSON Lines, as ``--save`` keeps them. Raises ``AdminError``."""
        lines = [self.admin.statistics(topic) for topic in self.topics]
        return "".join(json.dumps(line | {"broker_version": self.broker_version}) + "\n" for line in lines)

    def _without(self, ask: Callable[[], T]) -> T | None:
        """Return the answer to a question that can be done without."""
        try:
            return ask()
        except AdminError as error:
            if error.status == 0:
                raise
            self.problems.append(f"{error}; it is answered without")
            return None
