"""Read the anomalies behind a verdict, as one finding per identity.

The identity is (cluster, topic, subscription, kind, key or consumer). A day may have a million anomalies of one key:
they are counted batch by batch, and only the evidence of the first (by ``seq``) is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from dispatch_core.audit.catalogue import DOCUMENTED, KIND_ORDER, KINDS, SEVERITIES
from dispatch_core.audit.root_causes import RootCause, identity_of
from dispatch_core.audit.waits.findings import LEFT_WAITING
from dispatch_expectations.frames import KEY, Dispatcher
from dispatch_expectations.table_rows import interval_dataset, read_batches
from spark_jobs.warehouse.delta_tables import Place

#: Kinds of what may go on for several intervals: what waits as of an interval's end, permits that are off, and balance over
#: a day.
LASTING: Final = (
    *(*LEFT_WAITING, "ack_hole", "permit_leak", "permit_drift"),
    *("imbalance", "hot_consumer", "hot_key"),
)
#: Maximum number of findings per dispatcher; further identities are left out (the verdict counts every anomaly).
MAX_IDENTITIES: Final = 10_000

_COLUMNS: Final = [
    *KEY,
    "incarnation",
    "kind",
    "severity",
    "key",
    "key_b64",
    "hash",
    "positions",
    "consumers",
    "seqs",
    "t_us",
    "cause",
    "reason",
    "uncertain",
    "explanation",
]


@dataclass(slots=True)
class Finding:
    """All anomalies of one identity in one interval: how many, how bad, and the first one's evidence."""

    cluster: str
    topic: str
    subscription: str
    kind: str
    subject: str  # "key <key>", "hash <hash>" or "consumer <number>"
    severity: str
    uncertain: bool
    count: int
    incarnation: int
    began_seq: int  # the first of the lines that prove it
    first_seq: int
    first_t_us: int | None
    positions: tuple[str, ...]
    consumers: tuple[int, ...]
    cause: str | None
    explanation: str
    #: What has caused its anomalies, each with all anomalies of the same promise that it has caused.
    root_causes: dict[tuple[Any, ...], RootCause] = field(default_factory=dict, compare=False, repr=False)

    @property
    def dispatcher(self) -> Dispatcher:
        """(cluster, topic, subscription)"""
        return self.cluster, self.topic, self.subscription

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        """Dispatcher, kind and subject; anomalies with the same identity are one finding of an alert."""
        return self.cluster, self.topic, self.subscription, self.kind, self.subject

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """Sort key: certain before uncertain, worst first, then in the order of the log."""
        severity = SEVERITIES.index(self.severity) if self.severity in SEVERITIES else len(SEVERITIES)
        return int(self.uncertain), severity, self.first_seq, self.subject


def read_findings(warehouse: Place, interval_start: datetime, kinds: Collection[str]) -> list[Finding]:
    """Read the findings of some kinds in one interval, sorted by dispatcher and rank."""
    dataset = interval_dataset(warehouse, "anomalies", interval_start)
    found: dict[tuple[str, str, str, str, str], Finding] = {}
    per_dispatcher: dict[Dispatcher, int] = {}
    causes: dict[tuple[Any, ...], RootCause] = {}
    for row in _rows(dataset, kinds):
        finding = _finding(row)
        cause = finding.dispatcher, KINDS[finding.kind].promise, *identity_of(row)
        finding.root_causes[cause] = causes.setdefault(cause, RootCause(row))
        uncertain, severity, *place = finding.rank
        finding.root_causes[cause].add(row, (uncertain, severity, KIND_ORDER[finding.kind], *place))
        earlier = found.get(finding.identity)
        if earlier is not None:
            _merge(earlier, finding)
        elif per_dispatcher.get(finding.dispatcher, 0) < MAX_IDENTITIES:
            per_dispatcher[finding.dispatcher] = per_dispatcher.get(finding.dispatcher, 0) + 1
            found[finding.identity] = finding
    return sorted(found.values(), key=lambda finding: (finding.dispatcher, finding.rank))


def first_lines(
    warehouse: Place, interval_start: datetime, topics: Collection[str]
) -> dict[tuple[Dispatcher, int], int]:
    """Read the ``seq`` of the first line that each incarnation of the dispatchers of some topics has in an interval."""
    events = interval_dataset(warehouse, "consumer_events", interval_start)
    wanted = ds.field("topic").isin(sorted(topics)) & ds.field("seq").is_valid()
    first: dict[tuple[Dispatcher, int], int] = {}
    log = [*KEY, "incarnation"]
    for batch in read_batches(events if topics else None, [*log, "seq"], wanted):
        lowest = pa.Table.from_batches([batch]).group_by(log, use_threads=False).aggregate([("seq", "min")])
        for row in lowest.to_pylist():
            of = (row["cluster"], row["topic"], row["subscription"]), row["incarnation"] or 0
            first[of] = min(row["seq_min"], first.get(of, row["seq_min"]))
    return first


def top(findings: Collection[Finding], number: int) -> list[str]:
    """Write sentences about the worst findings: one for each root cause.

    Findings of kinds that no sentence before is about come first, so that many of one kind do not hide the others.
    """
    kinds: set[str] = set()
    said: set[int] = set()
    first: list[str] = []
    later: list[str] = []
    for finding in sorted(findings, key=lambda finding: finding.rank):
        for cause in finding.root_causes.values():
            if id(cause) in said:
                continue
            said.add(id(cause))
            (later if cause.kinds.keys() <= kinds else first).append(cause.sentence())
            kinds |= cause.kinds.keys()
    return [*first, *later][:number]


def _rows(dataset: ds.Dataset | None, kinds: Collection[str]) -> Iterator[dict[str, Any]]:
    promised = ds.field("reason").is_null() | ~ds.field("reason").isin(DOCUMENTED)
    wanted = ds.field("kind").isin(sorted(kinds)) & promised
    for batch in read_batches(dataset, _COLUMNS, wanted):
        yield from batch.to_pylist()


def _finding(row: dict[str, Any]) -> Finding:
    if row["key"] is not None:
        subject = f"key {row['key']}" + (" (base64)" if row["key_b64"] else "")
    elif row["hash"] is not None:
        subject = f"hash {row['hash']}"
    elif row["consumers"]:
        subject = f"consumer {row['consumers'][0]}"
    else:
        subject = "subscription"
    return Finding(
        cluster=row["cluster"],
        topic=row["topic"],
        subscription=row["subscription"],
        kind=row["kind"],
        subject=subject,
        severity=row["severity"],
        uncertain=bool(row["uncertain"]),
        count=1,
        incarnation=row["incarnation"],
        began_seq=row["seqs"][0] if row["seqs"] else 0,
        first_seq=row["seqs"][-1] if row["seqs"] else 0,
        first_t_us=row["t_us"],
        positions=tuple(row["positions"]),
        consumers=tuple(row["consumers"]),
        cause=row["cause"] or row["reason"],
        explanation=row["explanation"],
    )


def _merge(into: Finding, other: Finding) -> None:
    """Add the count of ``other`` to ``into``, and take over its evidence if it ranks before that of ``into``."""
    count = into.count + other.count
    into.root_causes |= other.root_causes
    if other.rank < into.rank:
        for name in (
            *(
                "severity",
                "uncertain",
                "incarnation",
                "began_seq",
                "first_seq",
                "first_t_us",
                "positions",
                "consumers",
            ),
            *("cause", "explanation"),
        ):
            setattr(into, name, getattr(other, name))
    into.count = count
