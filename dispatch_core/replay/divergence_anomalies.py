"""Turn a replay's divergences into anomaly rows.

A replay compares decision by decision. Its readers get the folded form of ``verify.divergence_findings``: one finding per
delivery that the rules did not allow, without consequences, and of a trace the first decision that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import ints, marked, plain
from dispatch_core.audit.deliveries.rows import Rows
from dispatch_core.audit.sentences.names import ConsumerNames
from dispatch_core.audit.waits.findings import LEFT_WAITING
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay import result_rows
from dispatch_core.tables import DELIVERIES
from dispatch_core.verify import divergence_findings

#: Which column says that a row differs from the rules.
_MARKS: Final = {"deliveries": "judgement", "divergences": "status"}
#: Deliveries that are reported one by one, and other findings that are searched for what they explain: so many, from the
#: first on. A log read by the wrong rules differs everywhere; all its rows are in ``divergences``.
MOST_REPORTED: Final = 10_000


def with_divergences(
    log: DispatcherLog,
    interval_start: datetime,
    found: Mapping[str, pa.Table],
    by_deliveries: Mapping[str, pa.Table],
) -> pa.Table:
    """Return the anomalies of ``found`` with its divergences as findings.

    Args:
        log: the log that was replayed; its events name the consumers.
        interval_start: start of the interval that was replayed.
        found: the tables of the replay.
        by_deliveries: the tables of the same log without its trace; ``found`` itself where it has none.
    """
    others = _others(found["anomalies"])
    return pa.concat_tables([others, _reported(log, interval_start, found, by_deliveries, others)])


def _others(anomalies: pa.Table) -> pa.Table:
    if not anomalies.num_rows:
        return anomalies
    divergences = marked(anomalies["kind"], "divergence")
    # A filter copies all texts.
    return anomalies.filter(pa.array(~divergences)) if divergences.any() else anomalies


def with_waits(found: Mapping[str, pa.Table], by_deliveries: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """Take the waits of a trace whose decisions differ from the rules from what was delivered, if that was judged.

    By the rules that its decisions were compared with, entries were sent that the broker left out: nothing of them waits.
    """
    if not by_deliveries["dispatcher_state"]["not_judged_reason"].null_count:
        return dict(found)
    of_trace, of_deliveries = (
        (tables["anomalies"], pc.is_in(tables["anomalies"]["kind"], value_set=pa.array(LEFT_WAITING)))
        for tables in (found, by_deliveries)
    )
    anomalies = [of_trace[0].filter(pc.invert(of_trace[1])), of_deliveries[0].filter(of_deliveries[1])]
    return {**found, "blocked": by_deliveries["blocked"], "anomalies": pa.concat_tables(anomalies)}


@dataclass(frozen=True, slots=True)
class ByDeliveries:
    """The replay of a trace as the log without a trace that it contains.

    ``last``: its last tables, with the state. ``differing``: its deliveries that differ, and its divergences; of each the
    first ``MOST_REPORTED`` and some more. ``unseen``: number of deliveries that differ behind those. ``named``: the
    deliveries of the entries that were asked for.
    """

    last: Mapping[str, pa.Table]
    differing: Mapping[str, pa.Table]
    unseen: int
    named: pa.Table


#: Replay the log without its trace; the argument is the entries whose deliveries are needed.
Again = Callable[[Set[str]], ByDeliveries]


def judged_by_deliveries(batches: Iterable[dict[str, pa.Table]], positions: Set[str]) -> ByDeliveries:
    """Gather what is needed of a replay without the trace, which comes in batches."""
    kept, named, last = _Kept(), [DELIVERIES.empty_table()], dict[str, pa.Table]()
    for last in batches:
        kept.add(last)
        if "deliveries" in last:
            named.append(_of_entries(last["deliveries"], positions))
    return ByDeliveries(last, kept.tables(), kept.unseen("deliveries"), pa.concat_tables(named))


def _of_entries(deliveries: pa.Table, positions: Set[str]) -> pa.Table:
    wanted = [tuple(int(part) for part in position.rsplit(":", 1)) for position in positions]
    ledgers, entries = (ints(deliveries[name]) for name in ("ledger_id", "entry_id"))
    hit = np.zeros(deliveries.num_rows, np.bool_)
    for ledger, entry in wanted:
        hit |= (ledgers == ledger) & (entries == entry)
    return plain(deliveries.filter(pa.array(hit)))


class _Kept:
    """Deliveries and decisions that differ, and the other findings without their explanations, over the batches of a replay.

    Kept are of each the first ``MOST_REPORTED`` and the batch that brings more.
    """

    def __init__(self) -> None:
        self._tables: dict[str, list[pa.Table]] = {"deliveries": [], "divergences": [], "anomalies": []}
        self._schemas: dict[str, pa.Schema] = {}
        self._counted = dict.fromkeys(self._tables, 0)

    def add(self, found: Mapping[str, pa.Table]) -> None:
        """Add the tables of a batch."""
        for name in _MARKS:
            if name in found:
                self._keep(name, _differing(name, found[name]))
        self._keep("anomalies", _others(found["anomalies"]).drop_columns("explanation"))

    def _keep(self, name: str, table: pa.Table) -> None:
        self._schemas.setdefault(name, table.schema)
        # Without dictionaries: few rows would keep the texts of a whole batch.
        if table.num_rows and self._counted[name] <= MOST_REPORTED:
            self._tables[name].append(plain(table))
        self._counted[name] += table.num_rows

    def tables(self) -> dict[str, pa.Table]:
        """Return what is kept."""
        return {
            name: pa.concat_tables([plain(schema.empty_table()), *self._tables[name]])
            for name, schema in self._schemas.items()
        }

    def unseen(self, name: str) -> int:
        """Count the rows of a table that were not kept."""
        return self._counted[name] - sum(table.num_rows for table in self._tables[name])


def _reported(
    log: DispatcherLog,
    interval_start: datetime,
    found: Mapping[str, pa.Table],
    by_deliveries: Mapping[str, pa.Table],
    others: pa.Table,
    unseen: int = 0,
    unseen_decisions: int = 0,
) -> pa.Table:
    """Return the divergences as findings.

    ``unseen``: deliveries that differ behind those of ``by_deliveries``. ``unseen_decisions``: the same of ``found``.
    """
    state = found["dispatcher_state"]
    if not state["divergent"][0].as_py():
        return found["anomalies"].slice(0, 0)
    beside = others.select(divergence_findings.ANOMALY_COLUMNS).slice(0, MOST_REPORTED).to_pylist()
    rule, names = state["profile"][0].as_py(), ConsumerNames(result_rows.names_of(log.events))
    wrong = {
        name: _differing(name, by_deliveries[name].select(columns))
        for name, columns in divergence_findings.COLUMNS.items()
    }
    reported = divergence_findings.of_deliveries(
        wrong["deliveries"].slice(0, MOST_REPORTED),
        wrong["divergences"].slice(0, MOST_REPORTED),
        names,
        rule,
        beside,
    )
    reported += divergence_findings.of_the_rest(
        wrong["deliveries"].slice(MOST_REPORTED), unseen, rule, beside
    )
    if by_deliveries is not found:
        decisions = divergence_findings.of_decisions(
            found["divergences"], found["deliveries"], rule, beside, unseen_decisions
        )
        reported = divergence_findings.of_trace(decisions, reported)
    return Rows(log, interval_start).anomalies(reported)


def _differing(name: str, table: pa.Table) -> pa.Table:
    if not table.num_rows:
        return table
    divergent = pc.equal(table[_MARKS[name]], "divergent")
    return table.filter(divergent) if pc.any(divergent).as_py() else table.slice(0, 0)


def in_batches(
    head: DispatcherLog,
    interval_start: datetime,
    batches: Iterable[dict[str, pa.Table]],
    again: Again | None = None,
) -> Iterator[dict[str, pa.Table]]:
    """Yield the tables of a replay that comes in batches, then the rows of ``with_divergences``.

    Args:
        head: the log that is replayed; its events name the consumers.
        interval_start: start of the interval that is replayed.
        batches: tables of the replay; the last have its state.
        again: replays a trace without its trace; called if its decisions differ from the rules.
    """
    kept, last = _Kept(), dict[str, pa.Table]()
    for found in batches:
        last = found | {"anomalies": _others(found["anomalies"])}
        if "dispatcher_state" in last:
            break
        kept.add(last)
        yield last
    if "dispatcher_state" not in last:
        return
    if not last["dispatcher_state"]["divergent"][0].as_py():
        yield last
        return
    beside: ByDeliveries | None = None
    if again is not None:
        beside = again(_positions_of_first(kept, last))
        last = with_waits(last, beside.last)
    kept.add(last)
    yield last
    whole = kept.tables()
    found = whole | {name: last[name] for name in ("anomalies", "dispatcher_state")}
    by_deliveries, unseen = found, kept.unseen("deliveries")
    if beside is not None:
        found = found | {"deliveries": beside.named}
        by_deliveries, unseen = dict(beside.differing), beside.unseen
    reported = _reported(
        head,
        interval_start,
        found,
        by_deliveries,
        whole["anomalies"],
        unseen,
        kept.unseen("divergences"),
    )
    yield {"anomalies": reported}


def _positions_of_first(kept: _Kept, last: Mapping[str, pa.Table]) -> set[str]:
    """Return the entries that the finding about the first decision that differs may need."""
    tables = [kept.tables(), last]
    anomalies = [
        row
        for table in tables
        if table
        for row in table["anomalies"].select(["seqs", "positions"]).to_pylist()
    ]
    divergences = pa.concat_tables(table["divergences"] for table in tables if table)
    return divergence_findings.positions_of_first(divergences, anomalies)
