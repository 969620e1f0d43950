"""Verify one dispatcher's log with the driver for its profile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.errors import IllegalTransitionError, ProfileError, UnsupportedRuleError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of, rebuilt_at
from dispatch_core.tables import NO_TRACE
from dispatch_core.verify.inputs import Entries, Line, lines
from dispatch_core.verify.tally import Tally
from dispatch_core.verify.trace.key_shared import KeySharedVerifier
from dispatch_core.verify.trace.key_shared_classic import ClassicKeySharedVerifier
from dispatch_core.verify.trace.key_shared_preview import PreviewVerifier
from dispatch_core.verify.trace.legality import Illegal, illegal_lines, where_of
from dispatch_core.verify.trace.single_active import SingleActiveVerifier

#: How many findings about the log one JSON object lists.
MAX_LOG_FINDINGS: Final = 20

Verifier = KeySharedVerifier | SingleActiveVerifier


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
    try:
        profile = profile_of(log)
    except ProfileError as error:
        return Verification(log, None, not_judged=str(error))
    reason = _not_replayed(log, profile)
    if reason is not None:
        return Verification(log, profile, not_judged=reason)
    entries = Entries(log.messages)
    illegal = illegal_lines(log, entries)
    refused = {finding.row: finding.error for finding in reversed(illegal) if finding.refused}
    trace = list(lines(log, entries))
    taken = [line for row, line in enumerate(trace) if row not in refused]
    try:
        driver = _driver(log, profile, entries, taken)
    except UnsupportedRuleError as error:
        return Verification(log, profile, not_judged=str(error))
    known = {finding.row for finding in illegal}
    row = 0

    def note(line: Line, error: IllegalTransitionError) -> None:
        if row in known:
            return
        found = Illegal(row, line.seq, error.at(where_of(log, row), line.kind), refused=True)
        if strict:
            raise found.error
        illegal.append(found)

    driver.on_illegal = note
    for row, line in enumerate(trace):
        if until is not None and line.seq > until:
            break
        if strict and row in known:
            raise next(finding.error for finding in illegal if finding.row == row)
        if row in refused:
            driver.refuse(line, refused[row])
            continue
        if before is not None:
            before(line, driver)
        driver.feed(line)
        if watch is not None:
            watch(line, driver)
    illegal.sort(key=lambda finding: finding.row)
    return Verification(log, profile, driver.finish(goes_on=goes_on), log_findings=illegal)


def _not_replayed(log: DispatcherLog, profile: Profile) -> str | None:
    """Return the reason why a log with these rules is not replayed; None = it is."""
    if not is_trace(log):
        return NO_TRACE
    if profile.dispatcher is Dispatcher.SHARED:
        return f"{profile.name}: Shared subscriptions are audited for duplicates and loss only, not replayed"
    rebuilt = rebuilt_at(log, profile)
    if rebuilt is not None:
        seq, policy = rebuilt
        order = "out of order allowed" if policy.allow_out_of_order else "in order"
        return (
            f"at seq {seq} the broker built a new dispatcher for consumers with another Key_Shared policy "
            f"({policy.mode}, {order}): cut the log there and verify each part by itself"
        )
    return None


def _driver(log: DispatcherLog, profile: Profile, entries: Entries, trace: list[Line]) -> Verifier:
    """Make the driver for the profile's dispatcher; raises ``UnsupportedRuleError`` for a rule that is not replayed."""
    if profile.dispatcher is Dispatcher.SINGLE_ACTIVE:
        return SingleActiveVerifier(log, profile, entries, trace)
    if profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC:
        return ClassicKeySharedVerifier(log, profile, entries, trace)
    if "last_sent_position" in profile.changes:
        return PreviewVerifier(log, profile, entries, trace)
    return KeySharedVerifier(log, profile, entries, trace)


def is_trace(log: DispatcherLog) -> bool:
    """Check whether a log is a dispatcher trace: it shows what was read."""
    return log.events.filter(_kind_is(log, "read_done")).num_rows > 0


def _kind_is(log: DispatcherLog, kind: str) -> pa.ChunkedArray:
    return pc.equal(log.events["kind"], kind)
