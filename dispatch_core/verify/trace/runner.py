"""Verify one dispatcher's log with the driver for its profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dispatch_core.arrays.columns import ints
from dispatch_core.arrays.line_kinds import has_kind
from dispatch_core.broker.profiles import Profile
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.unread_keys import with_readable_keys
from dispatch_core.verify.inputs import Line
from dispatch_core.verify.tally import Tally
from dispatch_core.verify.trace.facts import READ_LINES, TraceFacts
from dispatch_core.verify.trace.legality import Illegal
from dispatch_core.verify.trace.verification import TraceVerification, Verifier

#: How many findings about the log one JSON object lists.
MAX_LOG_FINDINGS: Final = 20


@dataclass(slots=True)
class Verification:
    """Result of verifying one log.

    Attributes:
        log: the log.
        profile: the rules in force; ``None`` = unknown.
        tally: the compared decisions; empty if nothing was compared.
        not_judged: the reason why nothing was compared.
        log_findings: lines of the log that cannot have happened, in order.
    """

    log: DispatcherLog
    profile: Profile | None
    tally: Tally = field(default_factory=Tally)
    not_judged: str | None = None
    log_findings: list[Illegal] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return one object of ``dispatch-audit verify --json``."""
        result: dict[str, Any] = {
            "recording": self.log.recording,
            "topic": self.log.topic,
            "subscription": self.log.subscription,
            "broker_version": self.log.header.get("broker_version"),
            **self.tally.as_json(),
            "warnings": list(self.profile.warnings) if self.profile else [],
            "ignored_settings": list(self.profile.ignored_settings) if self.profile else [],
            "log_findings": [
                {
                    "seq": finding.seq,
                    "where": finding.error.where,
                    "event": finding.error.event,
                    "rule": finding.error.rule,
                    "message": finding.error.message,
                }
                for finding in self.log_findings[:MAX_LOG_FINDINGS]
            ],
        }
        if self.not_judged is not None:
            result["not_judged"] = self.not_judged
        return result


def verify(
    log: DispatcherLog,
    *,
    watch: Callable[[Line, Verifier], None] | None = None,
    before: Callable[[Line, Verifier], None] | None = None,
    strict: bool = False,
    goes_on: bool = False,
    until: int | None = None,
) -> Verification:
    """Compare every decision of ``log`` with the core's.

    Args:
        log: one incarnation of one dispatcher.
        watch: called after each line with the line and the driver.
        before: the same before each line.
        strict: stop at the first line that cannot have happened.
        goes_on: the log has more lines than these; open decisions are neither counted nor reported.
        until: the last ``seq`` to take; later lines show which commands were under way, and are not taken.

    Returns:
        The result. An unusable version or a rule that is not replayed becomes ``not_judged``, a line that cannot have
        happened a finding: the core is left as it was before the line, and the rest is verified.

    Raises:
        IllegalTransitionError: such a line, named by file, line, event and rule; only if ``strict``.
    """
    facts = TraceFacts().with_lines(log.events)
    verification = TraceVerification(log, facts, watch=watch, before=before, strict=strict)
    stop = log.events.num_rows
    if until is not None:
        later = np.flatnonzero(ints(log.events["seq"]) > until)
        stop = int(later[0]) if len(later) else stop
    verification.extend(with_readable_keys(log.messages))
    verification.feed(log.events.slice(0, stop), log.events.slice(stop))
    tally = verification.finish(goes_on=goes_on)
    return Verification(
        log, verification.profile, tally, verification.not_judged, log_findings=verification.log_findings
    )


def is_trace(log: DispatcherLog) -> bool:
    """Check whether a log is a dispatcher trace: it has lines about reads."""
    return has_kind(log.events, *READ_LINES)
