"""Make the rows of the result tables: one place for the columns, whatever kind of log was replayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core import CORE_VERSION
from dispatch_core.arrays.batches import no_rows, table_of
from dispatch_core.audit.waits.tracker import SampledWait
from dispatch_core.broker.ownership import OPEN, OwnershipSpans
from dispatch_core.broker.profiles import Profile
from dispatch_core.recording.checkpoint import joins
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.tables import OWNERSHIP
from dispatch_core.verify.tally import Finding

#: Rows that are made at a time; as objects of Python they take many times the memory of a table.
_AT_ONCE: Final = 2_000


def identity_of(log: DispatcherLog, interval_start: datetime) -> dict[str, Any]:
    """The columns that every row of a dispatcher's incarnation begins with."""
    return {
        "interval_start": interval_start.astimezone(UTC),
        "cluster": log.cluster,
        "topic": log.topic,
        "subscription": log.subscription,
        "incarnation": log.incarnation,
    }


def rows(schema: pa.Schema, shared: Mapping[str, Any], found: Iterable[Mapping[str, Any]]) -> pa.Table:
    """A table of ``schema``: ``found``, each with the ``shared`` columns."""
    parts = []
    rest = iter(found)
    while part := [{**shared, **row} for row in islice(rest, _AT_ONCE)]:
        parts.append(table_of(part, schema))
    return pa.concat_tables(parts) if parts else no_rows(schema)


def within(table: pa.Table, start_us: int) -> pa.Table:
    """Rows whose proving event lies in the interval; a finding about the log itself without a time is kept."""
    if not table.num_rows:
        return table
    earliest = pc.min(table["t_us"]).as_py()
    if earliest is None or earliest >= start_us:
        return table
    return table.filter(pc.fill_null(pc.greater_equal(table["t_us"], start_us), True))


def judged(
    deliveries: pa.Table, judgement: npt.NDArray[Any] | pa.Array, expected: npt.NDArray[np.int64] | pa.Array
) -> pa.Table:
    """Fill in how each delivery was judged, and who should have got it."""
    deliveries = _set(deliveries, "judgement", pa.array(judgement, pa.string()))
    return _set(deliveries, "expected_consumer", pa.array(expected, pa.int64()))


def _set(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    index = table.schema.get_field_index(name)
    return table.set_column(index, table.schema.field(index), values)


def ownership(
    spans: OwnershipSpans, shared: Mapping[str, Any], names: Mapping[int, str], start_us: int
) -> pa.Table:
    """The table ``ownership``: who owned what, as far as it reaches into the interval."""
    columns = spans.columns()
    reaches = (columns["until_t_us"] == OPEN) | (columns["until_t_us"] >= start_us)
    count = int(reaches.sum())
    if count < len(reaches):
        columns = {name: values[reaches] for name, values in columns.items()}
    owners = pa.array(columns["owner"]).dictionary_encode()
    named = pa.array([names.get(owner) for owner in owners.dictionary.to_pylist()], pa.string())
    still = columns["until_seq"] == OPEN
    found: dict[str, Any] = {
        **{
            name: pa.repeat(pa.scalar(value, OWNERSHIP.field(name).type), count)
            for name, value in shared.items()
        },
        "epoch": columns["epoch"],
        "from_seq": columns["from_seq"],
        "from_t_us": columns["from_t_us"],
        "until_seq": pa.array(columns["until_seq"], mask=still),
        "until_t_us": pa.array(columns["until_t_us"], mask=still),
        "consumer": columns["owner"],
        "consumer_name": named.take(owners.indices),
        "range_start": columns["start"],
        "range_end": columns["end"],
    }
    return pa.table([found[name] for name in OWNERSHIP.names], schema=OWNERSHIP)


def blocked(waits: Iterable[SampledWait], names: Mapping[int, str]) -> Iterable[dict[str, Any]]:
    """Rows of ``blocked``: what rules held back. What no rule held back has none."""
    for wait in waits:
        if wait.reason is None:
            continue
        yield {
            "hash": wait.hash,
            "reason": wait.reason,
            "consumer": wait.waiting,
            "consumer_name": None if wait.waiting is None else names.get(wait.waiting),
            "holder": wait.holder,
            "holder_name": None if wait.holder is None else names.get(wait.holder),
            "from_seq": wait.from_seq,
            "from_t_us": wait.from_t_us,
            "until_seq": wait.until_seq,
            "until_t_us": wait.until_t_us,
            "blocked_attempts": wait.attempts,
            "entries": wait.entries,
            "messages": wait.messages,
            "message_ms": wait.message_us // 1000,
            "needless_ms": wait.needless_us // 1000,
            "uncertain": wait.uncertain,
        }


def difference(finding: Finding) -> dict[str, Any]:
    """A row of ``divergences``."""
    return {
        "seq": finding.seq,
        "t_us": finding.t_us,
        "decision_class": finding.decision_class,
        "status": finding.status,
        "expected": finding.expected,
        "recorded": finding.recorded,
        "racing_seq": finding.racing_seq,
        "reason": finding.reason,
    }


#: Counts of a row of ``dispatcher_state``.
STATE_COUNTS: Final = (
    *("events", "entries_stored", "entries_sent"),
    *("rounds", "decisions", "exact", "uncertain", "divergent"),
)


def state(
    log: DispatcherLog | None,
    profile: Profile | None,
    *,
    last_seq: int,
    last_t_us: int | None,
    not_judged_reason: str | None,
    counts: Mapping[str, int],
    mark_delete: str | None = None,
    read_position: str | None = None,
    state_json: str | None = None,
) -> dict[str, Any]:
    """Make the row of ``dispatcher_state``; counts that are not given are 0.

    ``log``: its header names type and release; ``None`` = no log could be put together.
    """
    header = {} if log is None else log.header
    return {
        "subscription_type": header.get("subscription_type"),
        "broker_version": header.get("broker_version"),
        "profile": profile.name if profile else None,
        "last_seq": last_seq,
        "last_t_us": last_t_us,
        **{name: counts.get(name, 0) for name in STATE_COUNTS},
        "not_judged_reason": not_judged_reason,
        "mark_delete": mark_delete,
        "read_position": read_position,
        "core_version": CORE_VERSION,
        "settings_digest": profile.digest if profile else "",
        "state_json": state_json,
    }


def names_of(events: pa.Table) -> dict[int, str]:
    """Names of the consumers that ``events`` add, and of those that only their checkpoints name."""
    return {row["consumer"]: row["name"] for row in joins(events, ("consumer", "name"))}
