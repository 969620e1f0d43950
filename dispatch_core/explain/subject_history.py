"""The life of a key, an entry or a consumer: everything that a log says of it, as moments in the order of the log.

From the message log and level E alone: stored, sent, acknowledged, asked for again, lost with a connection, sent again; who
came and went; who owned the hash; what waited and what held it (``waits``). A trace adds what was read. Findings that touch
the subject stand at the line that proves them.
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
from dispatch_core.audit.waits.tracker import Hold
from dispatch_core.explain.beginning import at_checkpoint
from dispatch_core.explain.moments import Moment, Moments
from dispatch_core.explain.owners import Owner, Share, owners_of, shares_of
from dispatch_core.explain.record import Record
from dispatch_core.explain.subject import CONSUMER, Subject
from dispatch_core.explain.waits import Episode, Kept, Wait, episodes_of, kept_by, waits_of
from dispatch_core.recording.log import DispatcherLog

#: Lines up to which the audit looks at what waits at every one of them; of longer logs it takes about so many samples.
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
    def holds(self) -> Sequence[Hold]:
        """The waits and their reasons."""


@dataclass(frozen=True, slots=True)
class Life:
    """The whole story. ``anomalies``: rows of the findings that touch it, worst first.

    Of consumers only: ``shares`` of the hash space, and whom they ``kept`` waiting.
    """

    record: Record = field(repr=False)
    subject: Subject
    moments: list[Moment]
    waits: list[Wait]
    episodes: list[Episode]
    owners: list[Owner]
    shares: list[Share]
    kept: list[Kept]
    anomalies: list[dict[str, Any]]

    @property
    def found(self) -> int:
        """The number of its findings that are faults: grave ones, and those of which a promise bears none."""
        grave = (CRITICAL, MAJOR)
        return sum(
            row["severity"] in grave
            or (row["severity"] != INFO and KINDS[row["kind"]].default_tolerated is not None)
            for row in self.anomalies
        )


def tick_for(log: DispatcherLog) -> int:
    """The interval at which the audit of a log has to sample waits (``audit_whole``'s ``tick_us``) for an explanation."""
    if log.events.num_rows <= _EVERY_LINE:
        return 1
    ends = pc.min_max(log.events["t_us"]).as_py()
    span_us = 0 if ends["min"] is None else ends["max"] - ends["min"]
    return max(_SHORTEST_TICK_US, int(span_us) // _SAMPLES)


def life_of(record: Record, subject: Subject, audit: Audited) -> Life:
    """The life of ``subject`` in the log that ``record`` and ``audit`` were made of."""
    waits = waits_of(record, subject)
    episodes = episodes_of(record, subject, waits, audit.holds)
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
            *story.held(episodes),
            *story.found(anomalies),
        ),
        key=lambda moment: moment.order,
    )
    kept = kept_by(record, subject, audit.holds) if numbers else []
    return Life(record, subject, moments, waits, episodes, owners, shares, kept, anomalies)


def touching_anomalies(record: Record, subject: Subject, anomalies: pa.Table) -> list[dict[str, Any]]:
    """Findings about the subject or its entries, worst first; and lost lines, which may be about anything."""
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
    """The lines that sent something of the subject."""
    d = record.deliveries
    own = d[np.isin(d[:, at.ENTRY], subject.ordinals) & (d[:, at.OPERATION] >= record.first_op)]
    return {record.seq(op) for op in np.unique(own[:, at.OPERATION]).tolist()}
