"""The part of a replay that compares what a log says was sent with the broker's rules.

A replay (``assembler``) audits a log batch by batch, and gives each batch to its judge. There are two: ``judge_trace``
compares every decision of a dispatcher trace, ``judge_without_trace`` every delivery of a log that has none. What both
give is the same, so everything behind them is written once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.audit.deliveries.findings import Finding as StallFinding
from dispatch_core.audit.deliveries.fold import AuditFold
from dispatch_core.audit.waits.findings import End
from dispatch_core.audit.waits.held_by_limits import HeldByLimits
from dispatch_core.audit.waits.never_sent import SkippedEntries
from dispatch_core.audit.waits.tracker import SampledWait
from dispatch_core.broker.ownership import OwnershipSpans
from dispatch_core.broker.profiles import Profile
from dispatch_core.errors import SnapshotError
from dispatch_core.recording.checkpoint import Position
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.stream import EVERY_ENTRY_US
from dispatch_core.replay.statistics import Positions, last_position
from dispatch_core.verify.tally import Finding

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Judged:
    """Per delivery of a batch, in order: its judgement, and the consumer it was for by the rules (null = none).

    ``findings``: the decisions that differ.
    """

    judgement: pa.Array
    expected: pa.Array
    findings: Sequence[Finding]


@dataclass(frozen=True, slots=True)
class LogLines:
    """A batch of a log as it was fed: the next entries of the topic, the next lines, and those that follow.

    ``ahead``: as far as the judge needs them; ``None`` = there are none. ``stored_until_us``: see ``stream.LogBatch``.
    """

    messages: pa.Table
    events: pa.Table
    ahead: pa.Table | None
    stored_until_us: int = EVERY_ENTRY_US


@dataclass(frozen=True, slots=True)
class DispatcherPosition:
    """Position of a dispatcher at a moment: ``"L:E"`` of its mark-delete and read position, and its statistics as JSON."""

    mark_delete: str | None = None
    read_position: str | None = None
    state_json: str | None = None


class Judge(ABC):
    """One incarnation of one dispatcher under the rules of its release.

    ``not_judged``: why nothing is compared (any more); ``None`` = it is. ``profile``: the rules in force, as far as known.
    """

    profile: Profile | None

    @property
    def _is_shared(self) -> bool:
        return self.profile is not None and self.profile.is_shared

    @property
    @abstractmethod
    def not_judged(self) -> str | None:
        """Reason why nothing is compared; ``None`` = it is."""

    @property
    def knows_waits(self) -> bool:
        """True if the rules say of every entry that waits why it does; else ``waits`` is empty."""
        return self.not_judged is None

    @property
    def knows_stalls(self) -> bool:
        """True if the rules say of everything that waits together why it does (``no_read``, ``no_consumer`` and so on)."""
        return self.knows_waits

    def go_on(self, head: DispatcherLog, start_us: int) -> None:
        """Go on with more lines of the log in a later interval, which begins at ``start_us``.

        ``head`` holds the rare lines of all that is known of the log now. Raises ``SnapshotError`` where that cannot be
        done.
        """
        raise SnapshotError("the decisions of a trace are compared from its beginning")

    def droppable(self) -> int | None:
        """Return how many entries at the front of the audit's window are settled by the rules; ``None`` = they need none."""
        return None

    @abstractmethod
    def take_limits(self, held_by: HeldByLimits, not_replayed_from_us: int) -> None:
        """Take the limits in force of the log, before the first batch.

        ``not_replayed_from_us``: from then on a behaviour is in force that the rules do not replay.
        """

    @abstractmethod
    def take(self, audit: AuditFold, lines: LogLines, deliveries: pa.Table) -> Judged | None:
        """Judge the deliveries of the batch that ``audit`` was fed last; ``None`` where nothing is compared.

        Args:
            audit: the audit of the same log.
            lines: this batch.
            deliveries: of this batch.
        """

    def finish(self) -> Sequence[Finding]:
        """End the log; returns the decisions that differ and were not returned yet. The other answers follow it."""
        return ()

    @abstractmethod
    def never_sent(self, *, single_active: bool) -> SkippedEntries | None:
        """Make the search for entries that were skipped; ``None`` where there is none."""

    def tells_of_skipped(self, *, single_active: bool) -> bool:
        """Check whether the rules tell of every entry that was skipped, by the lines so far, so that no search is needed."""
        return False

    @abstractmethod
    def waits(self, seq: int, as_of_us: int) -> list[SampledWait]:
        """Return every wait, ended or not, when the log ends behind the line ``seq``."""

    def dropped(
        self, audit: AuditFold, end: End, names: Mapping[int, str], *, closed: bool
    ) -> list[StallFinding]:
        """Return the findings ``dropped`` of a non-persistent topic, when the log has ended; none of other topics.

        Args:
            audit: the audit of the same log.
            end: the end of the log.
            names: of the consumers, by number.
            closed: no line follows.
        """
        return []

    def beyond(self) -> Position | None:
        """Return the first position of a long backlog that ``waits`` did not look at; ``None`` = it looked at all."""
        return None

    @abstractmethod
    def ownership(self) -> OwnershipSpans:
        """Return who owned what."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Return ``rounds`` and ``tally.COUNTS`` of the interval."""

    @abstractmethod
    def position(self, audit: AuditFold) -> DispatcherPosition:
        """Return where the dispatcher stands at the end of the log."""


def shown_position(
    entries: Positions, mark_delete: int, read_position: int, state_json: str
) -> DispatcherPosition:
    """Name the positions of a dispatcher's state, given as ordinals."""
    return DispatcherPosition(
        last_position(entries, mark_delete) if mark_delete >= 0 or entries.dropped_to is not None else None,
        entries.position(read_position) if read_position < len(entries) else None,
        state_json,
    )
