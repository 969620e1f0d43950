"""Common parts of the subcommands that simulate recorded logs: the number of simulations, and the loop over recordings."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from dispatch_core.cli.policy_file import policy_given
from dispatch_core.cli.recordings import Recurring, as_of_given, progress, read_all, set_aside
from dispatch_core.cli.selection import Selection, check_times
from dispatch_core.errors import DispatchAuditError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import RECORDED, Overrides
from dispatch_core.recording.reader import Recording
from dispatch_core.what_if.rules import SEEDS

if TYPE_CHECKING:
    from dispatch_core.what_if.compare import OrderLimits

_MOST_SEEDS: Final = 1000


class SeedsError(DispatchAuditError):
    """A number of seeds out of range."""


def add_seeds_argument(parser: argparse.ArgumentParser, simulations: str) -> None:
    """Add ``--seeds``, for ``seeds_given``; ``simulations``: what is simulated so often."""
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, metavar="N", help=f"{simulations} (default %(default)s)"
    )


def seeds_given(options: argparse.Namespace, first: int = 0) -> range:
    """Return the seeds of ``--seeds``, from ``first`` on. Raises ``SeedsError``."""
    if not 1 <= options.seeds <= _MOST_SEEDS:
        raise SeedsError(f"--seeds {options.seeds}: give a number from 1 to {_MOST_SEEDS}")
    return range(first, first + options.seeds)


class SimulatedLogs:
    """The logs that the options name, recording by recording. Raises ``DispatchAuditError`` for wrong options.

    ``incomplete``: something could not be read, which is said on stderr.
    """

    def __init__(self, options: argparse.Namespace, command: str, overrides: Overrides = RECORDED) -> None:
        self.incomplete = False
        self._options, self._command, self._overrides = options, command, overrides
        self._policy, self._as_of = policy_given(options), as_of_given(options)
        check_times(options.from_us, self._as_of)
        self._selection, self._recurring = Selection.given(options), Recurring()

    def __iter__(self) -> Iterator[Iterator[tuple[DispatcherLog, OrderLimits]]]:
        """Yield, for each recording, its logs with the order violations that the policy tolerates."""
        for recording in read_all(self._options.paths, follow_links=self._options.follow_links):
            self._recurring.note(recording)
            yield self._logs_of(recording)
            progress("")
            problem = set_aside(recording)
            if problem is not None:
                print(f"{problem}; the rest was simulated: mend the log and run again", file=sys.stderr)
            if not recording.logs:
                print(
                    f"{recording.name}: no dispatcher's events could be read, nothing to simulate",
                    file=sys.stderr,
                )
            self.incomplete |= problem is not None or not recording.logs

    def _logs_of(self, recording: Recording) -> Iterator[tuple[DispatcherLog, OrderLimits]]:
        from dispatch_core.what_if.compare import (
            OrderLimits,  # late, so that wrong options are refused at once
        )

        for logs in self._selection.dispatchers(recording, self._overrides, self._as_of):
            for log in logs:
                yield log, OrderLimits.of(self._policy.rule_for(log.topic, log.subscription))

    def complain(self) -> bool:
        """Say on stderr which dispatchers recur, and which names were not found; True if nothing was chosen."""
        if (complaint := self._recurring.complaint()) is not None:
            print(complaint, file=sys.stderr)
        return self._selection.complain(self._command)
