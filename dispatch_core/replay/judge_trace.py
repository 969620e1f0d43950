"""Judge a dispatcher trace: compare every decision that it records with the broker's rules (``verify.trace``).

A trace shows what was read, so nothing is inferred. It comes as one batch.
"""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.deliveries.fold import AuditFold
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.waits.never_sent import SkippedEntries
from dispatch_core.audit.waits.tracker import SampledWait
from dispatch_core.broker import state as st_
from dispatch_core.broker.ownership import OwnershipSpans
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.judge import COUNTS, DispatcherPosition, Judge, Judged, shown_position
from dispatch_core.replay.ownership_history import History, ownership_alone
from dispatch_core.replay.statistics import clients_of, subscription_stats
from dispatch_core.replay.traced_waits import TracedWaits
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.tally import Tally
from dispatch_core.verify.trace.key_shared import KeySharedVerifier
from dispatch_core.verify.trace.runner import Verification, verify
from dispatch_core.verify.trace.verification import Verifier


class TraceJudge(Judge):
    """One incarnation of one dispatcher whose log is a trace."""

    def __init__(
        self, log: DispatcherLog, limits: Limits, *, start_us: int, tick_us: int | None = None
    ) -> None:
        """Begin before the first line.

        Args:
            log: the trace up to the end of the interval.
            limits: how long is too long.
            start_us: start of the interval.
            tick_us: how often to look at what waits, 0 = at every line; by default as often as the limits need it.
        """
        self._log = log
        self._limits = limits
        self._start_us = start_us
        self._tick_us = tick_us
        before = log.events.filter(pc.less(log.events["t_us"], start_us))["seq"]
        self._last_seq_before: int | None = before[-1].as_py() if len(before) else None
        self._counted_before = dict.fromkeys(("rounds", *COUNTS), 0)  # in earlier intervals
        self._owned = History()
        self._driver: Verifier | None = None
        self._waits: TracedWaits | None = None
        self._verification: Verification | None = None
        self.profile = None

    @property
    def not_judged(self) -> str | None:
        """See ``Judge``."""
        return None if self._verification is None else self._verification.not_judged

    def never_sent(self, *, single_active: bool) -> SkippedEntries | None:
        """See ``Judge``: the rules of Key_Shared tell of entries that were skipped; nothing else does."""
        if not self._log.events.num_rows or (self.not_judged is None and not single_active):
            return None
        return SkippedEntries(certain=single_active)

    def take(self, audit: AuditFold, deliveries: pa.Table, ahead: pa.Table | None) -> Judged | None:
        """See ``Judge``: the batch is the whole log."""
        waits = TracedWaits(self._log, audit, self._limits, start_us=self._start_us, tick_us=self._tick_us)
        self._waits = waits
        # What the interval's end cuts through is judged with the interval in which it ends.
        verification = verify(self._log, watch=self._after, before=waits.before, goes_on=True)
        self._verification, self.profile = verification, verification.profile
        if verification.not_judged is not None:
            return None
        seqs = np.asarray(deliveries["seq"].combine_chunks())
        judgement = np.full(deliveries.num_rows, "exact", dtype=object)
        for status in ("uncertain", "divergent"):
            differing = [
                finding.seq
                for finding in verification.tally.findings
                if finding.status == status and finding.decision_class == "dispatch"
            ]
            judgement[np.isin(seqs, differing)] = status
        expected = pc.if_else(pa.array(judgement == "exact"), deliveries["consumer"].combine_chunks(), None)
        return Judged(
            pa.array(judgement, pa.string()), expected.cast(pa.int64()), verification.tally.findings
        )

    def _after(self, line: Line, driver: Verifier) -> None:
        """Gather what the result tables need behind each line."""
        self._driver = driver
        if line.seq == self._last_seq_before and line.t_us < self._start_us:
            self._counted_before = _counts(driver.tally)
        if isinstance(driver, KeySharedVerifier):
            self._owned.key_shared(line, driver.core)
        else:
            self._owned.single_active(line, driver.core)
        assert self._waits is not None
        self._waits.after(line, driver)

    def waits(self, seq: int, as_of_us: int) -> list[SampledWait]:
        """See ``Judge``."""
        return [] if self._waits is None else self._waits.finish(seq, as_of_us)

    def ownership(self) -> OwnershipSpans:
        """See ``Judge``: by joins and leaves alone where the rules are not replayed."""
        if self._driver is None and self.profile is not None:
            return ownership_alone(self._log, self.profile)
        return self._owned.ownership

    def counts(self) -> dict[str, int]:
        """See ``Judge``."""
        if self._verification is None:
            return self._counted_before
        totals = _counts(self._verification.tally)
        return {name: total - self._counted_before[name] for name, total in totals.items()}

    def position(self, audit: AuditFold) -> DispatcherPosition:
        """See ``Judge``."""
        if self._driver is None:
            return DispatcherPosition()
        entries, core = Entries(self._log.messages), self._driver.core
        # Everybody's hash ranges are a table of their own.
        shown = subscription_stats(core, entries, clients_of(self._log), ranges=False)
        scalars = core.state.s
        return shown_position(
            entries,
            int(scalars[st_.MARK_DELETE]),
            int(scalars[st_.READ_POSITION]),
            json.dumps(shown, sort_keys=True),
        )


def _counts(tally: Tally) -> dict[str, int]:
    return {"rounds": tally.rounds} | {name: tally.total(name) for name in COUNTS}
