"""The anomalies of a replay with its divergences as findings about entries: one way for every road through a log.

A replay judges decision by decision. What its readers get is the folded form of ``audit.divergence``: one finding per
sending that the rules did not allow, consequences left out, and of a trace the first decision that differs.
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
#: Sendings that are told one by one, and other findings that are looked at for what they explain: so many, from the first
#: on. A log read by the wrong rules differs everywhere; all rows of it are in ``divergences``.
MOST_TOLD: Final = 10_000


def with_divergences(
    log: DispatcherLog,
    interval_start: datetime,
    found: Mapping[str, pa.Table],
    by_sending: Mapping[str, pa.Table],
) -> pa.Table:
    """The anomalies of ``found`` with its divergences as findings.

    Args:
        log: whose replay it is; its events name the consumers.
        interval_start: of the interval that was replayed.
        found: the tables of the replay.
        by_sending: the same log judged by who was sent each entry; ``found`` itself where that is how it was judged.
    """
    others = _others(found["anomalies"])
    return pa.concat_tables([others, _told(log, interval_start, found, by_sending, others)])


def _others(anomalies: pa.Table) -> pa.Table:
    return anomalies.filter(pc.not_equal(anomalies["kind"], "divergence"))


def _told(
    log: DispatcherLog,
    interval_start: datetime,
    found: Mapping[str, pa.Table],
    by_sending: Mapping[str, pa.Table],
    others: pa.Table,
    unseen: int = 0,
) -> pa.Table:
    """``unseen``: sendings that differ behind those of ``by_sending``."""
    state = found["dispatcher_state"].to_pylist()[0]
    if not state["divergent"]:
        return found["anomalies"].slice(0, 0)
    beside = others.slice(0, MOST_TOLD).to_pylist()
    rule, names = state["profile"], ConsumerNames(result_rows.names_of(log.events))
    wrong = {name: _differing(name, by_sending[name]) for name in _MARKS}
    told = divergence_findings.of_deliveries(
        wrong["deliveries"].slice(0, MOST_TOLD), wrong["divergences"].slice(0, MOST_TOLD), names, rule, beside
    )
    told += divergence_findings.of_the_rest(wrong["deliveries"].slice(MOST_TOLD), unseen, rule, beside)
    if by_sending is not found:
        decisions = divergence_findings.of_decisions(found["divergences"], found["deliveries"], rule, beside)
        told = divergence_findings.of_trace(decisions, told)
    return Rows(log, interval_start).anomalies(told)


def _differing(name: str, table: pa.Table) -> pa.Table:
    return table.filter(pc.equal(table[_MARKS[name]], "divergent"))


def in_pieces(
    head: DispatcherLog, interval_start: datetime, pieces: Iterable[dict[str, pa.Table]]
) -> Iterator[dict[str, pa.Table]]:
    """The tables of a replay that comes in pieces, the last of which has its state: the same findings, at the end.

    Kept until then are the sendings that differ, and the other findings without their words; of each the first
    ``MOST_TOLD`` and the piece that brings more.
    """
    kept: dict[str, list[pa.Table]] = {"deliveries": [], "divergences": [], "anomalies": []}
    counted = dict.fromkeys(kept, 0)

    def keep(name: str, table: pa.Table) -> None:
        # Without dictionaries: few rows would keep the texts of a whole piece.
        if not kept[name]:
            kept[name].append(plain(no_rows(table.schema)))
        if table.num_rows and counted[name] <= MOST_TOLD:
            kept[name].append(plain(table))
        counted[name] += table.num_rows

    last: dict[str, pa.Table] = {}
    for last in pieces:
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
        yield {"anomalies": _told(head, interval_start, found, found, whole["anomalies"], unseen)}
