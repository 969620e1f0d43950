"""Judge a dispatcher trace: compare every decision that it records with the broker's rules (``verify.trace``).

A trace shows what was read, so nothing is inferred.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import ints, valid
from dispatch_core.audit.deliveries.delayed_delivery import DelayedDelivery
from dispatch_core.audit.deliveries.fold import AuditFold
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.waits.held_by_limits import HeldByLimits
from dispatch_core.audit.waits.never_sent import SkippedEntries
from dispatch_core.audit.waits.tracker import SampledWait
from dispatch_core.broker import state as st_
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.ownership import OwnershipSpans
from dispatch_core.recording.checkpoint import Position
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.unread_keys import with_readable_keys
from dispatch_core.replay.judge import DispatcherPosition, Judge, Judged, LogLines, shown_position
from dispatch_core.replay.ownership_history import History, ownership_alone
from dispatch_core.replay.statistics import WhenJoining, clients_of, subscription_stats
from dispatch_core.replay.traced_waits import TracedWaits
from dispatch_core.verify.inputs import Line
from dispatch_core.verify.tally import COUNTS, Finding, Tally
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.key_shared import KeySharedVerifier
from dispatch_core.verify.trace.single_active import SingleActiveVerifier
from dispatch_core.verify.trace.verification import TraceVerification, Verifier


class TraceJudge(Judge):
    """One incarnation of one dispatcher whose log is a trace.

    State between two batches: the verification (``TraceVerification``), the waits (``TracedWaits``), who owned what, and
    the counts of earlier intervals.
    """

    def __init__(
        self,
        head: DispatcherLog,
        limits: Limits,
        facts: TraceFacts,
        *,
        start_us: int,
        tick_us: int | None = None,
    ) -> None:
        """Begin before the first line.

        Args:
            head: the log's identity and header; its ``events`` hold the rare lines of the whole log (joins, leaves).
            limits: how long is too long.
            facts: of the whole log up to the end of the interval.
            start_us: start of the interval.
            tick_us: how often to look at what waits, 0 = at every line; by default as often as the limits need it.
        """
        self._head = head
        self._start_us = start_us
        self._last_seq_before: int | None = None  # of the lines before the interval, by now
        self._counted_before = dict.fromkeys(("rounds", *COUNTS), 0)  # in earlier intervals
        self._tally: Tally | None = None
        self._owned = History()
        self._driver: Verifier | None = None
        self._has_lines = False
        self._when_joining = WhenJoining()
        delays = DelayedDelivery.of(head)
        self._waits = TracedWaits(facts, limits, start_us=start_us, tick_us=tick_us, delays=delays)
        self._verification = TraceVerification(head, facts, watch=self._after, before=self._before)
        self.profile = self._verification.profile

    @property
    def not_judged(self) -> str | None:
        """See ``Judge``."""
        driver = self._verification.driver
        if driver is not None and driver.stopped is not None:
            return driver.stopped[0]
        return self._verification.not_judged

    @property
    def knows_waits(self) -> bool:
        """See ``Judge``: of Shared it is known why everything waits, and not why one entry does while others are sent."""
        return self.not_judged is None and not self._is_shared

    @property
    def knows_stalls(self) -> bool:
        """See ``Judge``."""
        return self.not_judged is None

    def never_sent(self, *, single_active: bool) -> SkippedEntries | None:
        """See ``Judge``. A comparison that ends within the log tells of no later entry, so each log is searched."""
        return SkippedEntries(certain=single_active) if self._has_lines else None

    def tells_of_skipped(self, *, single_active: bool) -> bool:
        """See ``Judge``: the rules of Key_Shared do, as long as decisions are compared; no others do."""
        return self.knows_waits and not single_active

    def take_limits(self, held_by: HeldByLimits, not_replayed_from_us: int) -> None:
        """See ``Judge``: the comparison of a trace reads the ``limit`` lines itself."""
        self._waits.held_by(held_by)

    def take(self, audit: AuditFold, lines: LogLines, deliveries: pa.Table) -> Judged | None:
        """See ``Judge``. ``lines.ahead`` holds ``LOOK_AHEAD`` lines or more, or all there are."""
        events = lines.events
        self._has_lines = self._has_lines or events.num_rows > 0
        before = np.flatnonzero(valid(events["t_us"]) & (ints(events["t_us"]) < self._start_us))
        if len(before):
            self._last_seq_before = events["seq"][int(before[-1])].as_py()
        verification = self._verification
        messages = with_readable_keys(lines.messages)
        dropped = verification.extend(messages)
        if verification.not_judged is None:
            self._waits.go_on(dropped, verification.entries, messages, audit)
        verification.feed(events, lines.ahead)
        if verification.not_judged is not None or verification.driver is None:
            return None
        core = verification.driver.core
        if isinstance(core, KeySharedDispatcher):
            self._when_joining.note(core, verification.entries)
        findings = verification.take_findings()
        # A finding about a line may come with a later one, when its critical section has ended.
        known = [*findings, *verification.driver.findings_to_come()]
        seqs = ints(deliveries["seq"])
        judgement = np.full(deliveries.num_rows, "exact", dtype=object)
        for status in ("uncertain", "divergent"):
            differing = [
                finding.seq
                for finding in known
                if finding.status == status and finding.decision_class == "dispatch"
            ]
            judgement[np.isin(seqs, differing)] = status
        if verification.driver.stopped is not None:
            judgement[seqs >= verification.driver.stopped[1]] = "not_judged"
        consumers = deliveries["consumer"].combine_chunks()
        expected = pc.if_else(pa.array(judgement == "exact"), consumers, None)
        return Judged(pa.array(judgement, pa.string()), expected.cast(pa.int64()), findings)

    def finish(self) -> Sequence[Finding]:
        """See ``Judge``. What the interval's end cuts through is judged with the interval in which it ends."""
        self._tally = self._verification.finish(goes_on=True)
        return self._verification.take_findings()

    def _before(self, line: Line, driver: Verifier) -> None:
        """Look at what waits before a line."""
        self._waits.before(line, driver)

    def _after(self, line: Line, driver: Verifier) -> None:
        """Gather what the result tables need behind each line."""
        self._driver = driver
        if line.seq == self._last_seq_before and line.t_us < self._start_us:
            self._counted_before = _counts(driver.tally)
        if isinstance(driver, KeySharedVerifier):
            self._owned.key_shared(line, driver.core)
        elif isinstance(driver, SingleActiveVerifier):
            self._owned.single_active(line, driver.core)
        self._waits.after(line, driver)

    def waits(self, seq: int, as_of_us: int) -> list[SampledWait]:
        """See ``Judge``."""
        return self._waits.finish(seq, as_of_us)

    def beyond(self) -> Position | None:
        """See ``Judge``."""
        return self._waits.beyond

    def ownership(self) -> OwnershipSpans:
        """See ``Judge``: by joins and leaves alone where the rules are not replayed."""
        if self._driver is None and self.profile is not None:
            return ownership_alone(self._head, self.profile)
        return self._owned.ownership

    def counts(self) -> dict[str, int]:
        """See ``Judge``."""
        if self._tally is None:
            return self._counted_before
        totals = _counts(self._tally)
        return {name: total - self._counted_before[name] for name, total in totals.items()}

    def position(self, audit: AuditFold) -> DispatcherPosition:
        """See ``Judge``."""
        if self._driver is None:
            return DispatcherPosition()
        entries, core = self._verification.entries, self._driver.core
        # Everybody's hash ranges are a table of their own.
        shown = subscription_stats(
            core, entries, clients_of(self._head), ranges=False, when_joining=self._when_joining
        )
        scalars = core.state.s
        return shown_position(
            entries,
            int(scalars[st_.MARK_DELETE]),
            int(scalars[st_.READ_POSITION]),
            json.dumps(shown, sort_keys=True),
        )


def _counts(tally: Tally) -> dict[str, int]:
    counts = {name: tally.total(name) for name in COUNTS}
    return {"rounds": tally.rounds} | counts | {"decisions": tally.compared()}
