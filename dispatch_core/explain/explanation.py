"""The explanation of a key, an entry or a consumer: everything that a log records about it, in the order of the log.

The message log and level E give the entries' moments (stored, sent, acknowledged, requested again, lost with a connection,
redelivered), joins and leaves, the owners of the hash, and the waits with their reasons (``waits``). A trace adds the reads.
An anomaly that concerns the subject stands at the line that proves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.catalogue import CRITICAL, INFO, KINDS, MAJOR, SEVERITIES
from dispatch_core.audit.deliveries import layout as at
from dispatch_core.audit.waits.tracker import SampledWait
from dispatch_core.explain.beginning import at_checkpoint
from dispatch_core.explain.moments import Moment, Moments
from dispatch_core.explain.owners import Owner, Share, owners_of, shares_of
from dispatch_core.explain.record import Record
from dispatch_core.explain.subject import CONSUMER, Subject
from dispatch_core.explain.waits import Episode, KeptWaiting, Unheld, Wait, episodes_of, kept_by, waits_of
from dispatch_core.recording.log import DispatcherLog

#: In a log of up to ``_EVERY_LINE`` lines the audit looks at the waiting entries at every line; in a longer log about
#: ``_SAMPLES`` times.
_EVERY_LINE: Final = 20_000
_SAMPLES: Final = 2_000
_SHORTEST_TICK_US: Final = 10_000


class Audited(Protocol):
    """The parts of a ``WholeAudit`` that an explanation needs."""

    @property
    def anomalies(self) -> pa.Table:
        """Findings."""

    @property
    def ownership(self) -> pa.Table:
        """The owners of the ranges over time."""

    @property
    def sampled_waits(self) -> Sequence[SampledWait]:
        """The waits and their reasons."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """All that a log records about ``subject``. ``anomalies``: rows of the findings that concern it, worst first.

    Of consumers only: ``shares`` of the hash space, and ``kept``, the work of others that they kept waiting.
    """

    record: Record = field(repr=False)
    subject: Subject
    moments: list[Moment]
    waits: list[Wait]
    episodes: list[Episode]
    unheld: Unheld | None
    owners: list[Owner]
    shares: list[Share]
    kept: list[KeptWaiting]
    anomalies: list[dict[str, Any]]

    @property
    def found(self) -> int:
        """The number of findings that are faults: severe ones, and those that a promise does not tolerate at all."""
        grave = (CRITICAL, MAJOR)
        return sum(
            row["severity"] in grave
            or (row["severity"] != INFO and KINDS[row["kind"]].default_tolerated is not None)
            for row in self.anomalies
        )


def tick_for(log: DispatcherLog) -> int:
    """Interval (``audit_whole``'s ``tick_us``) at which the audit samples waits so that they can be explained."""
    if log.events.num_rows <= _EVERY_LINE:
        return 1
    ends = pc.min_max(log.events["t_us"]).as_py()
    span_us = 0 if ends["min"] is None else ends["max"] - ends["min"]
    return max(_SHORTEST_TICK_US, int(span_us) // _SAMPLES)


def explanation_of(
    record: Record, subject: Subject, audit: Audited, from_us: int | None = None
) -> Explanation:
    """Explain ``subject`` from the log that ``record`` and ``audit`` were made of.

    ``from_us``: leave out moments, and waits that ended, before this time.
    """
    waits = [
        wait
        for wait in waits_of(record, subject)
        if from_us is None or wait.until_us is None or wait.until_us >= from_us
    ]
    episodes, unheld = episodes_of(record, subject, waits, audit.sampled_waits)
    numbers = frozenset(n for n in (record.number_of(place) for place in subject.places) if n is not None)
    hashed = subject.hash is not None or record.history.single_active
    owners = owners_of(record, audit.ownership, subject.hash) if hashed and not numbers else []
    shares = shares_of(record, audit.ownership, numbers) if numbers else []
    anomalies = touching_anomalies(record, subject, audit.anomalies)
    story = Moments(record, subject, owners, shares, waits)
    moments = sorted(
        (
            *at_checkpoint(record, subject),
            *story.moments(),
            *story.held_back(episodes),
            *story.found(anomalies),
        ),
        key=lambda moment: moment.order,
    )
    if from_us is not None:
        moments = [moment for moment in moments if moment.t_us >= from_us]
    kept = kept_by(record, subject, audit.sampled_waits) if numbers else []
    return Explanation(record, subject, moments, waits, episodes, unheld, owners, shares, kept, anomalies)


def touching_anomalies(record: Record, subject: Subject, anomalies: pa.Table) -> list[dict[str, Any]]:
    """Findings about the subject or its entries, worst first; also ``log_gap``, since lost lines may concern anything."""
    if not anomalies.num_rows:
        return []
    names = ["kind", "severity", "key", "key_b64", "hash", "positions", "consumers", "seqs"]
    names += ["t_us", "cause", "reason", "uncertain", "explanation"]
    numbers = {record.number_of(place) for place in subject.places}
    positions = set(record.positions(subject.ordinals.tolist())) if not subject.places else set()
    keys = set(subject.keys)
    own_lines = _lines_of(record, subject)
    touched = []
    for row in anomalies.select(names).to_pylist():
        about_log = row["kind"] == "log_gap"
        if subject.kind == CONSUMER:
            hit = not numbers.isdisjoint(row["consumers"])
        elif len(subject.ordinals) == 1 and row["positions"]:
            hit = not positions.isdisjoint(row["positions"])
        else:
            hit = (row["key"], row["key_b64"]) in keys or not positions.isdisjoint(row["positions"])
            hit |= row["key"] is None and row["hash"] is not None and row["hash"] == subject.hash
        names_nobody = row["key"] is None and not row["positions"] and not row["consumers"]
        hit |= row["kind"] == "divergence" and names_nobody and row["seqs"][-1] in own_lines
        if hit or about_log:
            touched.append(row)
    return sorted(
        touched, key=lambda row: (SEVERITIES.index(row["severity"]), row["uncertain"], row["t_us"] or 0)
    )


def _lines_of(record: Record, subject: Subject) -> set[int]:
    """The ``sent`` lines that deliver entries of the subject."""
    d = record.deliveries
    own = d[np.isin(d[:, at.ENTRY], subject.ordinals) & (d[:, at.OPERATION] >= record.first_op)]
    return {record.seq(op) for op in np.unique(own[:, at.OPERATION]).tolist()}
