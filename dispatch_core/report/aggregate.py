"""Reduce the result tables of one dispatcher and interval to the data of its report, of bounded size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.catalogue import KIND_ORDER, SEVERITIES
from dispatch_core.audit.root_causes import RootCause, identity_of
from dispatch_core.audit.sentences.names import ConsumerNames, consumer_name, numbered, printable
from dispatch_core.report.active import Activity, activity
from dispatch_core.report.advice import AdviceShown
from dispatch_core.report.blocked_hashes import BlockedHashes, blocked_hashes
from dispatch_core.report.flow import Flow, Lines
from dispatch_core.report.hash_shares import HashShares, hash_shares
from dispatch_core.report.ring import Change, Ring, owned_ranges, ring_of
from dispatch_core.report.statistics import StatisticsShown

#: Findings that the page lists; it gives only the number of the others.
MAX_ANOMALIES: Final = 10_000
#: Bars of a picture; further consumers share one bar.
MAX_BARS: Final = 40
_MAX_EVIDENCE: Final = 20
_MAX_TEXT: Final = 2_000
_ANOMALY_COLUMNS: Final = (
    "incarnation",
    "kind", "severity", "key", "key_b64", "hash", "positions", "consumers", "seqs", "t_us", "cause", "reason",
    "uncertain", "explanation",
)  # fmt: skip
EVERYBODY: Final = "everybody"


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Entries that one rule held back from one consumer.

    ``message_s``: message-seconds; ``needless_s``: those while no other consumer had an entry of the hash pending;
    ``clock_s``: seconds in which at least one entry was held back; ``holds``: their number, ``uncertain`` of them.
    """

    consumer: str
    reason: str
    message_s: float
    needless_s: float
    clock_s: float
    holds: int
    uncertain: int


@dataclass(frozen=True, slots=True)
class Share:
    """A consumer's share of the messages and its share of the hash space (``None``: it has none)."""

    consumer: str
    messages: int
    entries: int
    size_bytes: int
    keys: int
    message_share: float
    hash_share: float | None


@dataclass(frozen=True, slots=True)
class Cause:
    """Findings of one severity that one event has caused.

    ``count``: all of them, listed or not; ``sentence``: what happened, as ``root_causes`` says it.
    """

    severity: str
    uncertain: bool
    count: int
    sentence: str


@dataclass(frozen=True, slots=True)
class Anomalies:
    """Findings for the list, worst first, and the number of all findings by kind.

    ``causes``: worst first; ``cause`` of a row is an index into it.
    """

    rows: tuple[Mapping[str, Any], ...]
    counts: Mapping[str, int]
    causes: tuple[Cause, ...]

    @property
    def total(self) -> int:
        """All findings, listed or not."""
        return sum(self.counts.values())


@dataclass(frozen=True, slots=True)
class ReportData:
    """The data of a page.

    Attributes:
        facts: pairs of label and text.
        view_us: begin and end of the time in which something happened, which the pictures show at first.
        hash_shares: ``None`` where the owners' ranges themselves can be read.
        activity: ``None`` unless one consumer is active at a time.
        statistics: ``None`` = the page has none.
        advice: what would have prevented order violations; ``None`` = there are none.
    """

    title: str
    subscription: str
    interval: str
    verdicts: tuple[Mapping[str, Any], ...]
    facts: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    subscription_type: str
    view_us: tuple[int, int]
    ring: Ring
    hash_shares: HashShares | None
    blocked_hashes: BlockedHashes
    activity: Activity | None
    held_back: tuple[HeldBack, ...]
    flow: Lines
    shares: tuple[Share, ...]
    anomalies: Anomalies
    statistics: StatisticsShown | None = None
    advice: AdviceShown | None = None


@dataclass(slots=True)
class Collected:
    """Collect any number of findings: all are counted, the most important are kept.

    Every kind gets an equal part of the ``limit``; places that a kind does not need go to the worst findings of the others.
    """

    limit: int = MAX_ANOMALIES
    counts: Counter[str] = field(default_factory=Counter)
    _kept: list[dict[str, Any]] = field(default_factory=list)
    _causes: dict[tuple[Any, ...], RootCause] = field(default_factory=dict)

    def add(self, rows: pa.Table) -> None:
        """Add rows of ``anomalies``."""
        counted = rows["kind"].value_counts().to_pylist()
        self.counts.update({count["values"]: count["counts"] for count in counted})
        for batch in rows.select(_ANOMALY_COLUMNS).to_batches(max_chunksize=self.limit):
            found = batch.to_pylist()
            self._kept += found
            for row in found:
                cause = self._causes.setdefault(_cause_of(row), RootCause(row))
                cause.add(row, _rank(row))
            if len(self._kept) > 2 * self.limit:
                self._kept = self._chosen()

    def found(self, names: Mapping[tuple[int, int], str]) -> Anomalies:
        """The findings for the table; ``names``: of consumers by incarnation and number."""
        worst_first = sorted(self._causes.items(), key=lambda item: _rank(item[1].worst))
        index = {identity: at for at, (identity, _cause) in enumerate(worst_first)}
        rows = tuple(_finding(row, names) | {"cause": index[_cause_of(row)]} for row in self._chosen())
        causes = tuple(
            Cause(
                cause.worst["severity"],
                cause.worst["uncertain"],
                cause.count,
                cause.sentence(
                    ConsumerNames(
                        {
                            number: names.get((cause.worst["incarnation"], number))
                            for number in cause.consumers
                        }
                    )
                ),
            )
            for _identity, cause in worst_first
        )
        return Anomalies(rows, dict(self.counts), causes)

    def _chosen(self) -> list[dict[str, Any]]:
        rows = sorted(self._kept, key=_rank)
        if len(rows) <= self.limit:
            return rows
        part = self.limit // len(self.counts)
        turn: Counter[str] = Counter()
        first: list[dict[str, Any]] = []
        rest: list[dict[str, Any]] = []
        for row in rows:
            turn[row["kind"]] += 1
            (first if turn[row["kind"]] <= part else rest).append(row)
        return sorted(first + rest[: self.limit - len(first)], key=_rank)


def _rank(row: Mapping[str, Any]) -> tuple[Any, ...]:
    severity = SEVERITIES.index(row["severity"]) if row["severity"] in SEVERITIES else len(SEVERITIES)
    order = KIND_ORDER.get(row["kind"], len(KIND_ORDER))
    return severity, row["uncertain"], order, row["t_us"] or 0, row["seqs"], row["explanation"]


def _cause_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["severity"], *identity_of(row)


def _finding(row: Mapping[str, Any], names: Mapping[tuple[int, int], str]) -> dict[str, Any]:
    consumers = [
        numbered(number, names.get((row["incarnation"], number)))
        for number in row["consumers"][:_MAX_EVIDENCE]
    ]
    return {
        "kind": row["kind"],
        "severity": row["severity"],
        "uncertain": row["uncertain"],
        "t_us": row["t_us"],
        "key": None if row["key"] is None else printable(row["key"], _MAX_TEXT),
        "key_b64": row["key_b64"],
        "hash": row["hash"],
        "consumers": consumers,
        "positions": row["positions"][:_MAX_EVIDENCE],
        "more_positions": max(0, len(row["positions"]) - _MAX_EVIDENCE),
        "seqs": row["seqs"][:_MAX_EVIDENCE],
        "more_seqs": max(0, len(row["seqs"]) - _MAX_EVIDENCE),
        "why": row["cause"] or row["reason"],
        "explanation": printable(row["explanation"], _MAX_TEXT),
    }


def gather(
    tables: Mapping[str, pa.Table],
    *,
    title: str,
    subscription: str,
    interval: str,
    span_us: tuple[int, int],
    verdicts: Sequence[Mapping[str, Any]],
    changes: Sequence[Change],
    flow: Flow,
    never_sent: int = 0,
    anomalies: Collected | None = None,
    names: Mapping[tuple[int, int], str] | None = None,
    notes: Sequence[str] = (),
    statistics: StatisticsShown | None = None,
    advice: AdviceShown | None = None,
) -> ReportData:
    """Gather the data of one subscription's report.

    Args:
        tables: ``ownership``, ``blocked``, ``balance``, ``dispatcher_state``, and ``anomalies`` unless they were
            collected already; rows of this dispatcher and interval only.
        title: the topic.
        subscription: its subscription.
        interval: the name of the interval for people.
        span_us: begin and end of the pictures.
        verdicts: rows with ``promise, verdict, reason, findings, tolerated, top_findings``, the overall one (``all``)
            first.
        changes: joins and leaves, by time.
        flow: deliveries and stored entries.
        never_sent: entries still waiting at the interval's end.
        anomalies: findings that were collected in batches.
        names: of consumers by incarnation and number, if the tables do not have them.
        notes: further remarks, as sentences.
        statistics: of the dispatcher at the interval's end, where its log was replayed for them.
        advice: what would have prevented its order violations.
    """
    names = _names(tables) | dict(names or {})
    if anomalies is None:
        anomalies = Collected()
        anomalies.add(tables["anomalies"])
    lines = flow.lines(never_sent)
    owners, ranges = owned_ranges(tables["ownership"], span_us)
    ring = ring_of(owners, ranges, changes, span_us)
    types = tables["dispatcher_state"]["subscription_type"].to_pylist()
    single_active = types[-1:] in (["Failover"], ["Exclusive"])
    return ReportData(
        title=title,
        subscription=subscription,
        interval=interval,
        verdicts=tuple(verdicts),
        facts=tuple(
            _facts(tables, lines, never_sent, len({change.name for change in changes if change.joined}))
        ),
        notes=(*_doubts(tables), *notes),
        subscription_type=types[-1] if types else "",
        view_us=_view(span_us, lines, ring.changes),
        ring=ring,
        hash_shares=hash_shares(owners, ranges) if ring.scattered and not single_active else None,
        blocked_hashes=blocked_hashes(tables["blocked"], span_us),
        activity=activity(ring, changes, span_us) if single_active else None,
        held_back=held_back_of(tables["blocked"], span_us),
        flow=lines,
        shares=shares_of(tables["balance"]),
        anomalies=anomalies.found(names),
        statistics=statistics,
        advice=advice,
    )


def _view(span_us: tuple[int, int], lines: Lines, changes: Sequence[Change]) -> tuple[int, int]:
    """Begin and end of the time in which something was sent, or somebody joined or left; else the whole interval."""
    times = [change.t_us for change in changes]
    if lines.t_us.size:
        times += [int(lines.t_us[0]), int(lines.t_us[-1]) + lines.step_us]
    start_us, end_us = span_us
    if not times or min(times) == max(times):
        return span_us
    margin = (max(times) - min(times)) // 100
    return max(start_us, min(times) - margin), min(end_us, max(times) + margin)


def _names(tables: Mapping[str, pa.Table]) -> dict[tuple[int, int], str]:
    names: dict[tuple[int, int], str] = {}
    for table, number, name in (
        ("deliveries", "consumer", "consumer_name"),
        ("ownership", "consumer", "consumer_name"),
        ("blocked", "consumer", "consumer_name"),
        ("blocked", "holder", "holder_name"),
    ):
        if table in tables:
            columns = ["incarnation", number, name]
            seen = tables[table].group_by(columns, use_threads=False).aggregate([]).select(columns)
            for incarnation, consumer, text in zip(*seen.to_pydict().values(), strict=True):
                if consumer is not None and text is not None:
                    names.setdefault((incarnation, consumer), text)
    return names


def held_back_of(blocked: pa.Table, span_us: tuple[int, int]) -> tuple[HeldBack, ...]:
    """Sums of ``blocked`` by waiting consumer and rule, most first; consumers beyond ``MAX_BARS`` as one."""
    start_us, end_us = span_us
    columns = ["consumer", "consumer_name", "reason", "message_ms", "needless_ms", "uncertain"]
    rows = blocked.select(columns).to_pylist()
    from_us = np.maximum(np.asarray(blocked["from_t_us"], dtype=np.int64), start_us).tolist()
    until_us = np.minimum(
        np.asarray(blocked["until_t_us"].fill_null(end_us), dtype=np.int64), end_us
    ).tolist()
    waiting = [
        EVERYBODY if row["consumer"] is None else consumer_name(row["consumer"], row["consumer_name"])
        for row in rows
    ]
    message_ms: Counter[str] = Counter()
    for name, row in zip(waiting, rows, strict=True):
        message_ms[name] += row["message_ms"]
    ranked = sorted(message_ms, key=lambda name: (-message_ms[name], name))
    kept = set(ranked if len(ranked) <= MAX_BARS else ranked[: MAX_BARS - 1])
    others = f"{len(ranked) - len(kept):,} others"
    sums: dict[tuple[str, str], list[int]] = {}
    spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for name, row, since, until in zip(waiting, rows, from_us, until_us, strict=True):
        who = name if name in kept else others, row["reason"]
        totals = sums.setdefault(who, [0, 0, 0, 0])
        for at, more in enumerate((row["message_ms"], row["needless_ms"], 1, int(row["uncertain"]))):
            totals[at] += more
        spans.setdefault(who, []).append((since, max(since, until)))
    found = [
        HeldBack(
            consumer,
            reason,
            ms / 1000,
            needless / 1000,
            _covered(spans[consumer, reason]) / 1e6,
            holds,
            uncertain,
        )
        for (consumer, reason), (ms, needless, holds, uncertain) in sums.items()
    ]
    order = {name: at for at, name in enumerate(ranked)}
    return tuple(
        sorted(found, key=lambda work: (order.get(work.consumer, len(order)), -work.message_s, work.reason))
    )


def _covered(spans: list[tuple[int, int]]) -> int:
    """The number of microseconds that at least one of the spans covers."""
    covered, reached = 0, None
    for since, until in sorted(spans):
        begin = since if reached is None else max(since, reached)
        if until > begin:
            covered += until - begin
        reached = until if reached is None else max(reached, until)
    return covered


def shares_of(balance: pa.Table) -> tuple[Share, ...]:
    """Rows of ``balance`` with incarnations added up, most messages first; consumers beyond ``MAX_BARS`` as one."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in balance.to_pylist():
        rows.setdefault(row["consumer_name"], []).append(row)
    messages = sum(row["messages"] for its_rows in rows.values() for row in its_rows)
    hashes = sum(row["hash_share"] or 0.0 for its_rows in rows.values() for row in its_rows)

    def share(name: str, its_rows: list[dict[str, Any]]) -> Share:
        got = sum(row["messages"] for row in its_rows)
        owned = [row["hash_share"] for row in its_rows if row["hash_share"] is not None]
        return Share(
            consumer=name,
            messages=got,
            entries=sum(row["entries"] for row in its_rows),
            size_bytes=sum(row["size_bytes"] for row in its_rows),
            keys=sum(row["keys"] for row in its_rows),
            message_share=got / messages if messages else 0.0,
            hash_share=sum(owned) / hashes if owned and hashes else None,
        )

    ranked = sorted(rows, key=lambda name: (-sum(row["messages"] for row in rows[name]), name))
    if len(ranked) <= MAX_BARS:
        return tuple(share(name, rows[name]) for name in ranked)
    kept, others = ranked[: MAX_BARS - 1], ranked[MAX_BARS - 1 :]
    together = [row for name in others for row in rows[name]]
    return (*(share(name, rows[name]) for name in kept), share(f"{len(others):,} others", together))


def _facts(
    tables: Mapping[str, pa.Table], lines: Lines, never_sent: int, joined: int
) -> Iterable[tuple[str, str]]:
    states = tables["dispatcher_state"].to_pylist()
    for label, name in (("Type", "subscription_type"), ("Broker", "broker_version"), ("Rules", "profile")):
        values = dict.fromkeys(str(state[name]) for state in states if state[name] is not None)
        if values:
            yield label, ", ".join(values)
    if len(states) > 1:
        yield "Incarnations", f"{len(states):,}"
    yield "Entries sent", f"{lines.total:,}"
    if int(lines.again.sum()):
        yield "of them again", f"{int(lines.again.sum()):,}"
    yield "Never sent", f"{never_sent:,}"
    if joined:
        yield "Consumers joined", f"{joined:,}"
    decisions = sum(state["decisions"] for state in states)
    if decisions:
        exact = sum(state["exact"] for state in states)
        yield (
            "Decisions compared",
            f"{decisions:,}, all exact" if exact == decisions else f"{decisions:,}, {exact:,} exact",
        )
        for name in ("uncertain", "divergent"):
            count = sum(state[name] for state in states)
            if count:
                yield name.capitalize(), f"{count:,}"


def _doubts(tables: Mapping[str, pa.Table]) -> Iterable[str]:
    reasons = tables["dispatcher_state"]["not_judged_reason"].drop_null().unique().to_pylist()
    yield from (f"The rules were not replayed: {reason}" for reason in sorted(reasons))
    uncertain = pc.sum(tables["blocked"]["uncertain"]).as_py() or 0
    if uncertain:
        yield (
            f"{uncertain:,} of {tables['blocked'].num_rows:,} holds are uncertain: without a dispatcher trace "
            "their reason follows from the rules, and the log does not prove it."
        )
