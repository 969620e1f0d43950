"""Build the two tables of an audit: deliveries and anomalies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.arrays.batches import no_rows, nulls
from dispatch_core.arrays.columns import Ints, Mask
from dispatch_core.audit.deliveries.findings import CAUSE_OF, Finding
from dispatch_core.audit.deliveries.scan import Scanned
from dispatch_core.audit.deliveries.window import LogWindow
from dispatch_core.audit.key_totals import Pairs
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.tables import ANOMALIES, DELIVERIES, IDENTITY

#: Findings that are kept as objects of Python until they become rows.
_ROWS_AT_ONCE: Final = 5_000
_IDENTITY: Final = frozenset(field.name for field in IDENTITY)


@dataclass(frozen=True, slots=True)
class Audit:
    """Result of an audit: ``deliveries`` (schema ``DELIVERIES``) and ``anomalies`` (schema ``ANOMALIES``).

    ``pairs``: connection and key of each delivery, as the audit's window numbers them.
    """

    deliveries: pa.Table
    anomalies: pa.Table
    pairs: Pairs


class Rows:
    """Build the rows of one incarnation; columns with one value are made once and shared by the tables."""

    def __init__(self, log: DispatcherLog, interval_start: datetime) -> None:
        self._same: dict[str, Any] = {
            "interval_start": interval_start,
            "cluster": log.cluster,
            "topic": log.topic,
            "subscription": log.subscription,
            "incarnation": log.incarnation,
            "judgement": "not_judged",
            "expected_consumer": None,
            "cause": None,
        }
        self._repeated: dict[str, pa.Array] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the columns, which are made again."""
        return self.__dict__ | {"_repeated": {}}

    def deliveries(
        self, window: LogWindow, state: npt.NDArray[np.int32], scanned: Scanned
    ) -> tuple[pa.Table, Pairs]:
        """Return the deliveries of one pass that belong to the last log; ``state`` as in ``Scan.deliveries``."""
        earlier = int(np.searchsorted(state[scanned.first :, 2], window.first_op_of_last_log))
        ordinal, consumer, op = (state[scanned.first + earlier :, column].copy() for column in range(3))
        count = len(ordinal)
        key, hashes = window.entry_key[ordinal], window.entry_hash[ordinal]
        names = pa.array([c.name for c in window.consumers], pa.string())
        numbers = np.array([c.number for c in window.consumers], dtype=np.int64)
        base64 = np.append(window.keys.base64, False)  # -1 = no key: the last
        columns = {
            **{name: self._repeat(name, count) for name in self._same if name != "cause"},
            "seq": window.op_seq[op],
            "index_in_send": _index_in_run(op),
            "t_us": window.op_t_us[op],
            "consumer": numbers[consumer],
            "consumer_name": names.take(pa.array(consumer)),
            "ledger_id": window.ledger[ordinal],
            "entry_id": window.entry[ordinal],
            "key": window.keys.texts.take(_known(key, key >= 0)),
            "key_b64": base64[key],
            "hash": _known(hashes, hashes >= 0),
            "num_messages": _known(window.num_messages[ordinal], window.stored[ordinal]),
            "size_bytes": _of(window.size_bytes, ordinal),
            "publish_time_ms": _of(window.publish_time_ms, ordinal),
            "delivery_number": scanned.number[earlier:],
            "cause": self._causes(scanned.ended[earlier:]),
        }
        table = pa.table([columns[name] for name in DELIVERIES.names], schema=DELIVERIES)
        return table, Pairs(consumer, key)

    def anomalies(self, findings: list[Finding]) -> pa.Table:
        """Return the findings as rows, in the order of ``Finding.order``."""
        if not findings:
            return no_rows(ANOMALIES)
        ordered = sorted(findings, key=lambda finding: finding.order)
        values = dict(zip(Finding._fields, zip(*ordered, strict=True), strict=True))
        return pa.table(
            [
                self._repeat(field.name, len(ordered))
                if field.name in _IDENTITY
                else pa.array(values[field.name], field.type)
                for field in ANOMALIES
            ],
            schema=ANOMALIES,
        )

    def anomalies_in_parts(self, parts: Iterable[list[Finding]]) -> pa.Table:
        """Return the findings of all ``parts`` as rows, in the order of ``Finding.order``."""
        tables: list[pa.Table] = []
        orders: list[npt.NDArray[np.int64]] = []
        waiting: list[Finding] = []
        for part in parts:
            if waiting and len(waiting) + len(part) > _ROWS_AT_ONCE:
                tables.append(self.anomalies(waiting))
                orders.append(_order_of(waiting))
                waiting = []
            waiting += part
        if not tables:
            return self.anomalies(waiting)
        tables.append(self.anomalies(waiting))
        orders.append(_order_of(waiting))
        waiting = []
        order = np.lexsort(np.concatenate(orders).T[::-1])
        whole = pa.concat_tables(tables)
        in_order = np.array_equal(order, np.arange(len(order)))
        return whole if in_order else whole.take(pa.array(order))

    def _causes(self, ended: npt.NDArray[np.int8]) -> pa.Array:
        if not len(ended) or int(ended.max()) < 0:
            return self._repeat("cause", len(ended))
        cause_at = np.full(max(CAUSE_OF) + 2, -1, dtype=np.int32)  # -1 = no delivery before: the last
        cause_at[list(CAUSE_OF)] = np.arange(len(CAUSE_OF))
        at = cause_at[ended]
        return pa.array(list(CAUSE_OF.values()), pa.string()).take(_known(at, at >= 0))

    def _repeat(self, name: str, count: int) -> pa.Array:
        if self._same[name] is None:
            return nulls(count, DELIVERIES.field(name).type)
        repeated = self._repeated.get(name)
        if repeated is None or len(repeated) < count:
            value = pa.scalar(self._same[name], DELIVERIES.field(name).type)
            repeated = self._repeated[name] = pa.repeat(value, count)
        return repeated.slice(0, count)


def _order_of(findings: list[Finding]) -> npt.NDArray[np.int64]:
    """Return ``Finding.order`` of findings, sorted."""
    return np.array(sorted(finding.order for finding in findings), dtype=np.int64).reshape(-1, 3)


def _index_in_run(op: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Number the places of each run of equal values from 0."""
    at = np.arange(len(op), dtype=np.int32)
    new = np.ones(len(op), dtype=np.bool_)
    new[1:] = op[1:] != op[:-1]
    return at - np.maximum.accumulate(np.where(new, at, 0)) if len(op) else at


def _known(values: npt.NDArray[np.generic], known: Mask) -> pa.Array:
    return pa.array(values) if known.all() else pa.array(values, mask=~known)


def _of(column: tuple[Ints, Mask], ordinal: npt.NDArray[np.int32]) -> pa.Array:
    values, known = column
    return _known(values[ordinal], known[ordinal])
