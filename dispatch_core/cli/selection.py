"""Options that choose what a command is about: topics, subscriptions, a time, and only what failed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Final

from dispatch_core.cli.recordings import LAST_LINE, AsOf, dispatchers, moment_us
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import Overrides
from dispatch_core.recording.reader import Recording

#: Names that a complaint about a wrong name lists.
_MOST_NEAR: Final = 5


def add_selection_arguments(parser: argparse.ArgumentParser, failed: str) -> None:
    """Add ``--topic``, ``--subscription`` and ``--failed-only``; ``failed`` says what is left with the last one."""
    add_dispatcher_arguments(parser)
    parser.add_argument("--failed-only", action="store_true", help=failed)


def add_dispatcher_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--topic`` and ``--subscription``."""
    for name, what in (("topic", "topics"), ("subscription", "subscriptions")):
        parser.add_argument(
            f"--{name}",
            action="append",
            default=[],
            dest=what,
            metavar="NAME",
            help=f"only these {what}: a name, its last part, or a pattern such as '*orders*'; may be given again",
        )


def add_time_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--from`` and ``--to``."""
    parser.add_argument(
        "--from",
        dest="from_us",
        type=moment_us,
        metavar="TIME",
        help="only what happened from this time on: ISO 8601 (UTC if it names no zone) or microseconds; earlier lines count "
        "as history",
    )
    parser.add_argument(
        "--to",
        dest="as_of",
        type=moment_us,
        metavar="TIME",
        help="only what happened up to this time; the same as --as-of",
    )


#: Options of other commands that commands which copy recordings refuse.
REFUSED_BY_COPIES: Final = dict.fromkeys(
    ("--topic", "--subscription", "--from", "--to", "--as-of", "--complete", "--policy"),
    "a copy has every line of every dispatcher; give the option to the command that reads the copy",
)


class _Refused(argparse.Action):
    """An option that other commands have, and that means nothing for this one; ``const`` says why."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """End with a usage error."""
        parser.error(f"{option_string} means nothing for this command: {self.const}")


def add_refused_arguments(parser: argparse.ArgumentParser, reasons: Mapping[str, str]) -> None:
    """Refuse options that other commands on recordings have, each with a reason; ``--help`` does not list them."""
    for option, why in reasons.items():
        parser.add_argument(
            option, nargs="?", action=_Refused, const=why, default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def check_times(from_us: int | None, as_of: AsOf) -> None:
    """Raise ``DispatchAuditError`` where ``--from`` lies behind ``--to``."""
    if from_us is not None and as_of.until_us is not None and from_us > as_of.until_us:
        raise DispatchAuditError("--from is later than --to (or --as-of): no line lies between them")


@dataclass(slots=True)
class Selection:
    """The dispatchers that ``--topic`` and ``--subscription`` name.

    >>> chosen = Selection(["orders-*"], [])
    >>> chosen.has("persistent://shop/eu/orders-1", "audit"), chosen.has("persistent://shop/eu/bills", "audit")
    (True, False)
    """

    topics: Sequence[str]
    subscriptions: Sequence[str]
    met: bool = False
    _others: dict[str, dict[str, None]] = field(default_factory=lambda: {"topic": {}, "subscription": {}})

    @classmethod
    def given(cls, options: argparse.Namespace) -> Selection:
        """Return what the options of ``add_selection_arguments`` name."""
        return cls(options.topics, options.subscriptions)

    def has(self, topic: str, subscription: str) -> bool:
        """Check whether a dispatcher is chosen. Names that are not are kept for ``complaint``."""
        of_topic, of_subscription = _named(topic, self.topics), _named(subscription, self.subscriptions)
        if of_topic and of_subscription:
            self.met = True
            return True
        for what, fits, name in (("topic", of_topic, topic), ("subscription", of_subscription, subscription)):
            if not fits:
                self._others[what].setdefault(name)
        return False

    def dispatchers(
        self, recording: Recording, overrides: Overrides, as_of: AsOf = LAST_LINE
    ) -> Iterator[list[DispatcherLog]]:
        """Yield the chosen ones of ``recordings.dispatchers``."""
        for logs in dispatchers(recording, overrides, as_of):
            if self.has(logs[0].topic, logs[0].subscription):
                yield logs

    def merge(self, other: Selection) -> None:
        """Take over what another process has met with the same options."""
        self.met |= other.met
        for what, names in other._others.items():
            self._others[what].update(names)

    def complain(self, command: str) -> bool:
        """Name on stderr what was asked for and not found, with similar names; returns False if something was chosen."""
        if self.met or not (self.topics or self.subscriptions):
            return False
        from dispatch_core.audit.sentences.names import shown

        for what, names in (("topic", self.topics), ("subscription", self.subscriptions)):
            others = self._others[what]
            if names and others:
                near = [match for name in names for match in get_close_matches(name, others, _MOST_NEAR, 0.3)]
                listed = ", ".join(shown(name) for name in list(dict.fromkeys([*near, *others]))[:_MOST_NEAR])
                asked = ", ".join(shown(name) for name in names)
                print(
                    f"dispatch-audit {command}: no {what} is called {asked}; there are: {listed}",
                    file=sys.stderr,
                )
        return True


def _named(name: str, patterns: Sequence[str]) -> bool:
    """Check that a name, or its last part, is one of ``patterns``; without any, every name is."""
    forms = (name, name.rpartition("/")[2])
    return not patterns or any(fnmatchcase(form, pattern) for form in forms for pattern in patterns)
