"""Verify one trace batch by batch: lines in, compared decisions out, in memory that does not grow with the log.

A decision may look at the lines that follow it (``lines_ahead``), so a batch comes with the lines behind it. Facts about the
whole log (``facts``) are found before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pyarrow as pa

from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.errors import IllegalTransitionError, ProfileError, UnsupportedRuleError
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import profile_of, rebuilt_at
from dispatch_core.tables import NO_TRACE
from dispatch_core.verify.inputs import Entries, Line, lines
from dispatch_core.verify.tally import Finding, Tally
from dispatch_core.verify.trace.collections_of_garbage import rare_full_collections
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.key_shared import KeySharedVerifier
from dispatch_core.verify.trace.key_shared_classic import ClassicKeySharedVerifier, ReadPositionVerifier
from dispatch_core.verify.trace.key_shared_preview import PreviewVerifier
from dispatch_core.verify.trace.legality import Illegal, IllegalLines, where_of
from dispatch_core.verify.trace.lines_ahead import LOOK_AHEAD
from dispatch_core.verify.trace.shared import SharedVerifier, SharedWithUnloggedAcksVerifier
from dispatch_core.verify.trace.single_active import SingleActiveVerifier

Verifier = KeySharedVerifier | SharedVerifier | SingleActiveVerifier

#: Entries kept behind the last one that still matters: later lines may name them.
KEEP_BEHIND: Final = 65_536
#: So many entries are not worth cutting.
TRIM_ABOVE: Final = 131_072
#: Number of lines that are split into fields at a time.
_SPLIT_ROWS: Final = 8_192


class TraceVerification:
    """Compare every decision of one incarnation's trace with the core's.

    For each batch in order ``extend`` with its entries and ``feed`` its lines, then ``finish``.

    Attributes:
        profile: the rules in force; ``None`` = unknown.
        not_judged: the reason why nothing is compared; ``None`` = decisions are compared.
        entries: the entries in memory: from ``KEEP_BEHIND`` before the first one that still matters, to the last one fed.
        driver: the state of the comparison: the core, the lines ahead, the open windows and commands under way, the tally;
            ``None`` before the first batch.
        log_findings: lines that cannot have happened, in the order of the rows; see ``take_findings``.

    Further state between two batches: the lines that are known and not fed yet, with the findings about them, and the
    counts of rows known and fed.
    """

    def __init__(
        self,
        log: DispatcherLog,
        facts: TraceFacts,
        *,
        watch: Callable[[Line, Verifier], None] | None = None,
        before: Callable[[Line, Verifier], None] | None = None,
        strict: bool = False,
    ) -> None:
        """Begin before the first line.

        Args:
            log: its identity and header. Of its ``events`` only joins, leaves and checkpoints are read, which must be those
                of the whole log; its ``messages`` are not read.
            facts: of the whole log.
            watch: called after each line with the line and the driver.
            before: the same before each line.
            strict: raise for the first line that cannot have happened.
        """
        self.profile: Profile | None = None
        self.not_judged: str | None = None
        self.entries = Entries()
        self.driver: Verifier | None = None
        self.log_findings: list[Illegal] = []
        self._log = log
        self._facts = facts
        self._watch = watch
        self._before = before
        self._strict = strict
        self._illegal = IllegalLines(log, self.entries)
        self._ahead: deque[Line] = deque()  # known, not fed
        self._refused: dict[int, IllegalTransitionError] = {}  # row of one of them → why it is not fed
        self._found_ahead: deque[Illegal] = deque()
        self._pieces: deque[tuple[int, pa.Table]] = (
            deque()
        )  # the events of ``_ahead``, and the first row of each
        self._known = 0  # rows
        self._fed = 0  # rows
        self._row_is_known = False  # the present row has a finding
        try:
            self.profile = profile_of(log)
        except ProfileError as error:
            self.not_judged = str(error)
        else:
            self.not_judged = _not_replayed(log, self.profile, facts)

    def extend(self, messages: pa.Table) -> int:
        """Take the next entries of the topic; returns how many of the first ones were dropped, to lower ordinals by."""
        if self.not_judged is not None or self.profile is None:
            return 0
        drop = self._droppable()
        self.entries.drop(drop)
        self.entries.add(messages)
        try:
            if self.driver is None:
                log = replace(self._log, messages=messages)
                self.driver = _driver_class(self.profile, self._facts)(
                    log, self.profile, self.entries, self._facts
                )
                self.driver.on_illegal = self._note
            elif drop or messages.num_rows:
                self.driver.extend(drop, messages)
        except UnsupportedRuleError as error:
            self.not_judged = str(error)
        return drop

    def feed(self, events: pa.Table, ahead: pa.Table | None = None) -> None:
        """Take the next lines.

        Args:
            events: the lines; ``extend`` has taken the entries that they and the lines ``ahead`` name.
            ahead: the lines that follow: ``LOOK_AHEAD`` of them or more, or all there are; ``None`` = there are none.

        Raises:
            IllegalTransitionError: for a line that cannot have happened, named by file, line, event and rule; only if
                ``strict``. Else such a line is a finding: the core is left as it was before the line.
        """
        driver = self.driver
        if self.not_judged is not None or driver is None:
            return
        last = self._fed + events.num_rows
        with rare_full_collections():
            for piece in self._unknown(events, ahead):
                self._look_ahead(driver, piece)
                self._feed(driver, min(last, self._known - LOOK_AHEAD))
            self._feed(driver, last)

    def finish(self, *, goes_on: bool = False) -> Tally:
        """End the log; returns the tally. ``goes_on``: see ``RacingDriver.finish``."""
        if self.not_judged is not None or self.driver is None:
            return Tally()
        self.log_findings = sorted(
            [*self.log_findings, *self._illegal.finish()], key=lambda finding: finding.row
        )
        if self._strict and self.log_findings:
            raise self.log_findings[0].error
        return self.driver.finish(goes_on=goes_on)

    def take_findings(self) -> list[Finding]:
        """Return the decisions that differ, and forget them and ``log_findings``: a long log may have many."""
        self.log_findings = []
        return [] if self.driver is None else self.driver.tally.take_findings()

    # -----------------------------------------------------------------------------------------------------------------

    def _droppable(self) -> int:
        """Count the entries to drop at the front; 0 while there are few, as a drop copies the others."""
        count = len(self.entries)
        if self.driver is None or count <= TRIM_ABOVE:
            return 0
        spare = max(self.driver.droppable() - KEEP_BEHIND, 0)
        return spare if 2 * spare > count or not TRIM_ABOVE else 0

    def _unknown(self, events: pa.Table, ahead: pa.Table | None) -> Iterator[pa.Table]:
        """Yield the lines that are not known yet, some at a time."""
        known = self._known - self._fed
        following = events.slice(0, 0) if ahead is None else ahead.slice(0, LOOK_AHEAD)
        for table in (events.slice(known), following.slice(max(known - events.num_rows, 0))):
            for start in range(0, table.num_rows, _SPLIT_ROWS):
                yield table.slice(start, _SPLIT_ROWS)

    def _look_ahead(self, driver: Verifier, events: pa.Table) -> None:
        """Split the next lines, and tell the driver of those that it will be fed."""
        found = self._illegal.take(events)
        refused = {finding.row: finding.error for finding in reversed(found) if finding.refused}
        following = lines(events, self.entries)
        self._ahead.extend(following)
        if refused:
            self._refused |= refused
            following = [line for row, line in enumerate(following, self._known) if row not in refused]
        driver.look_ahead(following)
        self._pieces.append((self._known, events))
        self._found_ahead.extend(found)
        self._known += events.num_rows

    def _feed(self, driver: Verifier, stop: int) -> None:
        """Feed the lines before row ``stop``."""
        ahead, found, before, watch = self._ahead, self._found_ahead, self._before, self._watch
        while self._fed < stop:
            line = ahead.popleft()
            error = None
            self._row_is_known = bool(found) and found[0].row <= self._fed
            if self._row_is_known:
                error = self._refused.pop(self._fed, None)
                while found and found[0].row <= self._fed:
                    self.log_findings.append(found.popleft())
                    if self._strict:
                        raise self.log_findings[-1].error
            if error is not None:
                driver.refuse(line, error)
            else:
                if before is not None:
                    before(line, driver)
                driver.feed(line)
                if watch is not None:
                    watch(line, driver)
            self._fed += 1
        driver.forget_lines()
        while self._pieces and self._pieces[0][0] + self._pieces[0][1].num_rows <= self._fed:
            self._pieces.popleft()

    def _note(self, line: Line, error: IllegalTransitionError) -> None:
        """Note a line that the core refused."""
        if self._row_is_known:
            return
        first, events = next(piece for piece in reversed(self._pieces) if piece[0] <= self._fed)
        where = where_of(events, self._fed - first)
        found = Illegal(self._fed, line.seq, error.at(where, line.kind), refused=True)
        if self._strict:
            raise found.error
        self.log_findings.append(found)


def _not_replayed(log: DispatcherLog, profile: Profile, facts: TraceFacts) -> str | None:
    """Return the reason why a log with these rules is not replayed; None = it is."""
    if profile.is_non_persistent:
        return "the topic is non-persistent: audit compares its deliveries, a trace of its dispatcher is not read"
    if not facts.reads_logged:
        return NO_TRACE
    missing = log.header.get("missing")
    if missing:
        return f"the trace lacks lines of kind {', '.join(missing)}, which its recorder could not write in this build"
    rebuilt = rebuilt_at(log, profile)
    if rebuilt is not None:
        seq, policy = rebuilt
        order = "out of order allowed" if policy.allow_out_of_order else "in order"
        return (
            f"at seq {seq} the broker built a new dispatcher for consumers with another Key_Shared policy "
            f"({policy.mode}, {order}): cut the log there and verify each part by itself"
        )
    return None


def _driver_class(profile: Profile, facts: TraceFacts) -> type[Verifier]:
    """Return the driver for the profile's dispatcher; it may raise ``UnsupportedRuleError`` for a rule."""
    if profile.dispatcher is Dispatcher.SINGLE_ACTIVE:
        return SingleActiveVerifier
    if profile.is_shared:
        unlogged = "draining_hashes" not in profile.changes and not facts.removals_logged
        return SharedWithUnloggedAcksVerifier if unlogged else SharedVerifier
    if profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC:
        # A trace of 4.x by the rules of 3.x (``--broker-version``) has lines for the effect of acks.
        unlogged = "classic_dispatchers" not in profile.changes and not facts.removals_logged
        return ReadPositionVerifier if unlogged else ClassicKeySharedVerifier
    if "last_sent_position" in profile.changes:
        return PreviewVerifier
    return KeySharedVerifier
