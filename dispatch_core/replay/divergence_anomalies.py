"""Turn a replay's divergences into anomaly rows.

A replay compares decision by decision. Its readers get the folded form of ``verify.divergence_findings``: one finding per
delivery that the rules did not allow, without consequences, and of a trace the first decision that differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.batches import no_rows
from dispatch_core.arrays.columns import plain
from dispatch_core.audit.deliveries.rows import Rows
from dispatch_core.audit.sentences.names import ConsumerNames
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay import result_rows
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
    return anomalies.filter(pc.not_equal(anomalies["kind"], "divergence"))


def _reported(
    log: DispatcherLog,
    interval_start: datetime,
    found: Mapping[str, pa.Table],
    by_deliveries: Mapping[str, pa.Table],
    others: pa.Table,
    unseen: int = 0,
) -> pa.Table:
    """Return the divergences as findings; ``unseen``: deliveries that differ behind those of ``by_deliveries``."""
    state = found["dispatcher_state"].to_pylist()[0]
    if not state["divergent"]:
        return found["anomalies"].slice(0, 0)
    beside = others.slice(0, MOST_REPORTED).to_pylist()
    rule, names = state["profile"], ConsumerNames(result_rows.names_of(log.events))
    wrong = {name: _differing(name, by_deliveries[name]) for name in _MARKS}
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
        decisions = divergence_findings.of_decisions(found["divergences"], found["deliveries"], rule, beside)
        reported = divergence_findings.of_trace(decisions, reported)
    return Rows(log, interval_start).anomalies(reported)


def _differing(name: str, table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(table[_MARKS[name]], "divergent"))


def in_batches(
    head: DispatcherLog, interval_start: datetime, batches: Iterable[dict[str, pa.Table]]
) -> Iterator[dict[str, pa.Table]]:
    """Yield the tables of a replay that comes in batches, then the rows of ``with_divergences``.

    The last batch has the replay's state. Kept until then are the deliveries that differ, and the other findings without
    their explanations: of each the first ``MOST_REPORTED`` and the batch that brings more.
    """
    kept: dict[str, list[pa.Table]] = {"deliveries": [], "divergences": [], "anomalies": []}
    counted = dict.fromkeys(kept, 0)

    def keep(name: str, table: pa.Table) -> None:
        # Without dictionaries: few rows would keep the texts of a whole batch.
        if not kept[name]:
            kept[name].append(plain(no_rows(table.schema)))
        if table.num_rows and counted[name] <= MOST_REPORTED:
            kept[name].append(plain(table))
        counted[name] += table.num_rows

    last: dict[str, pa.Table] = {}
    for last in batches:
        for name in _MARKS:
            if name in last:
                keep(name, _differing(name, last[name]))
        others = _others(last["anomalies"])
        keep("anomalies", others.drop_columns("explanation"))
        yield last | {"anomalies": others}
    if "dispatcher_state" in last:
        whole = {name: pa.concat_tables(tables) for name, tables in kept.items()}
        unseen = counted["deliveries"] - whole["deliveries"].num_rows
        whole["dispatcher_state"] = last["dispatcher_state"]
        found = whole | {"anomalies": last["anomalies"]}
        yield {"anomalies": _reported(head, interval_start, found, found, whole["anomalies"], unseen)}
