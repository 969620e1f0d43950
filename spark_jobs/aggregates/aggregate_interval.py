"""Find what only shows over all topics of a subscription, and over several intervals.

All that one dispatcher's log shows in an interval is found by its replay. This stage reads who was connected and who was
active, and ``dispatch_core.audit.active_topics`` judges how Failover's active consumers are spread (PIP-392). Of an interval
shorter than a day it judges balance over the 24 hours that end with it (``rolling_balance``). That reads little, so it needs
no Spark.
Run as ``python -m spark_jobs.aggregates --interval-start 2026-11-21 --warehouse DIR``.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit import active_topics
from dispatch_core.audit.active_topics import active_times
from dispatch_core.audit.limit_rules import LimitRules
from dispatch_core.audit.limits import DEFAULT_LIMITS
from dispatch_core.errors import names_disk_errors
from dispatch_core.tables import ANOMALIES
from spark_jobs import stage_command
from spark_jobs.aggregates import rolling_balance as rolling
from spark_jobs.intervals import Interval, is_short
from spark_jobs.progress import say
from spark_jobs.warehouse.balance_window import BalanceWindow, added_kinds
from spark_jobs.warehouse.contracts import conform
from spark_jobs.warehouse.delta_tables import (
    Place,
    Publication,
    PublishedMeanwhileError,
    data_files,
    files_until,
    publishing,
    read_table,
    record_run,
    write_rows,
)
from spark_jobs.warehouse.file_rows import file_rows
from spark_jobs.warehouse.run_ledger import Ledger

#: The limits that hold where no policy is given.
NO_RULES: Final = LimitRules()

_TOPIC: Final = ["cluster", "topic", "subscription"]
_CONNECTION: Final = [*_TOPIC, "incarnation", "consumer"]
#: Attempts while a replay of the same interval publishes.
_ATTEMPTS: Final = 3


@names_disk_errors("aggregates")
def aggregate(warehouse: Place, span: Interval, *, limits: LimitRules = NO_RULES) -> dict[str, Any]:
    """Add the findings over all topics, and over a day, to the interval's ``anomalies``; doing it again changes nothing.

    An interval shorter than a day gets its rows of ``rolling_balance``, too.
    ``limits``: how much is too much, for which topics. Returns a summary with the rows of each table that was written.
    """
    for _attempt in range(_ATTEMPTS - 1):
        try:
            return _aggregate(warehouse, span, limits)
        except PublishedMeanwhileError as error:
            say(f"aggregates {span.name}: {error}; doing it again")
    return _aggregate(warehouse, span, limits)


def _aggregate(warehouse: Place, span: Interval, limits: LimitRules) -> dict[str, Any]:
    began, started_at = time.monotonic(), datetime.now(UTC)
    window = BalanceWindow.of(Ledger(warehouse), span) if is_short(span) else None
    published = ["anomalies"] if window is None else ["anomalies", "rolling_balance"]
    kinds = added_kinds(span)
    with publishing(warehouse, span, published) as run:
        states = failover_states(
            file_rows(
                data_files(warehouse, "dispatcher_state", span), [*_TOPIC, "subscription_type", "last_t_us"]
            )
        )
        found = []
        if enough_topics(states, limits):
            found = uneven_topics(activity(warehouse, states, span), span, limits)
        rows = {}
        if window is not None:
            balance = rolling.rolling_balance(warehouse, window, limits)
            found += balance.findings
            rows["rolling_balance"] = run.replace(
                "rolling_balance", [write_rows(warehouse, "rolling_balance", span, balance.rows)]
            )
        if found or _has_kinds(warehouse, span, kinds):
            rows["anomalies"] = _publish(run, found, kinds)
        summary: dict[str, Any] = {
            "stage": "aggregates",
            "interval_start": span.start.isoformat(),
            "limits": limits.digest,
            "rows": rows,
            "publication": run.number,
            "seconds": round(time.monotonic() - began, 3),
        }
        if window is not None:
            summary |= {"window_digest": window.digest, "window": window.in_words}
        record_run(warehouse, "aggregates", span, started_at, summary)
    return summary


def failover_states(states: Iterable[pa.Table]) -> pa.Table:
    """Return the Failover topics among rows of ``dispatcher_state``, each with the time of its last line."""
    parts = [
        _plain(rows.filter(pc.equal(rows["subscription_type"], "Failover")), [*_TOPIC, "last_t_us"])
        for rows in states
    ]
    wanted = pa.schema([*(pa.field(name, pa.string()) for name in _TOPIC), pa.field("last_t_us", pa.int64())])
    found = pa.concat_tables([wanted.empty_table(), *(part.cast(wanted) for part in parts)])
    latest = found.group_by(_TOPIC, use_threads=False).aggregate([("last_t_us", "max")])
    return latest.rename_columns([*_TOPIC, "last_t_us"])


def _plain(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Select columns, texts without dictionaries."""
    arrays = [rows[name] for name in columns]
    return pa.table(
        [array.cast(pa.string()) if pa.types.is_dictionary(array.type) else array for array in arrays],
        names=list(columns),
    )


def enough_topics(states: pa.Table, limits: LimitRules) -> bool:
    """Tell if there are enough Failover topics to judge; in most intervals of most clusters there are not."""
    least = min(DEFAULT_LIMITS.min_topics, *(rule.limits.min_topics for rule in limits.rules), 1 << 30)
    return bool(states.num_rows >= max(least, 1))


def activity(warehouse: Place, states: pa.Table, span: Interval) -> pa.Table:
    """Return ``active_topics.active_times`` of the Failover topics (``failover_states``) of an interval."""
    topics = sorted(set(states["topic"].to_pylist()))
    spans = file_rows(
        data_files(warehouse, "ownership", span),
        [*_TOPIC, "from_t_us", "until_t_us", "consumer_name"],
        topics=topics,
    )
    members = file_rows(
        [path for path, _start in files_until(warehouse, "consumer_events", span)],
        [*_CONNECTION, "kind", "t_us", "name", "priority_level"],
        topics=topics,
        kinds=("consumer_added", "consumer_removed"),
    )
    return times(spans, members, states, span)


def times(
    ownership: Iterable[pa.Table], members: Iterable[pa.Table], states: pa.Table, span: Interval
) -> pa.Table:
    """Compute the same from rows of ``ownership`` of the interval, and membership lines of all intervals up to it."""
    return active_times(
        _of_topics(ownership, _SPANS, states),
        connections(_of_topics(members, _MEMBERS, states), span),
        states,
        span.start_us,
        span.end_us,
    )


_SPANS: Final = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in _TOPIC),
        *(pa.field(name, pa.int64()) for name in ("from_t_us", "until_t_us")),
        pa.field("consumer_name", pa.string()),
    ]
)
_MEMBERS: Final = pa.schema(
    [
        *(pa.field(name, pa.string()) for name in _TOPIC),
        *(pa.field(name, pa.int64()) for name in ("incarnation", "consumer")),
        *(pa.field(name, pa.string()) for name in ("kind", "name")),
        *(pa.field(name, pa.int64()) for name in ("t_us", "priority_level")),
    ]
)


def _of_topics(parts: Iterable[pa.Table], wanted: pa.Schema, states: pa.Table) -> pa.Table:
    """Return the rows of the topics of ``states``."""
    rows = [_plain(part, wanted.names).cast(wanted) for part in parts]
    joined = pa.concat_tables([wanted.empty_table(), *rows])
    return joined.join(states.select(_TOPIC), _TOPIC, join_type="left semi", use_threads=False)


def connections(members: pa.Table, span: Interval) -> pa.Table:
    """Return the connections that existed in the interval, from lines of consumers that were added or removed."""
    # A null would match nothing in a join.
    numbers = members["incarnation"].fill_null(0)
    members = members.set_column(members.column_names.index("incarnation"), "incarnation", numbers)
    added = members.filter(pc.equal(members["kind"], "consumer_added"))
    removed = members.filter(pc.equal(members["kind"], "consumer_removed"))
    begun = added.group_by(_CONNECTION, use_threads=False).aggregate(
        [("name", "first"), ("t_us", "min"), ("priority_level", "min")]
    )
    ended = removed.group_by(_CONNECTION, use_threads=False).aggregate([("t_us", "max")])
    rows = begun.rename_columns([*_CONNECTION, "consumer_name", "from_t_us", "priority_level"]).join(
        ended.rename_columns([*_CONNECTION, "until_t_us"]), _CONNECTION, use_threads=False
    )
    inside = pc.and_(
        pc.less(rows["from_t_us"], span.end_us),
        pc.fill_null(pc.greater_equal(rows["until_t_us"], span.start_us), True),
    )
    columns = [*_TOPIC, "consumer_name", "from_t_us", "until_t_us", "priority_level"]
    return rows.filter(inside).select(columns)


def uneven_topics(times: pa.Table, span: Interval, limits: LimitRules) -> list[dict[str, Any]]:
    """Return rows of ``anomalies`` for the subscriptions whose active topics are spread unevenly.

    ``times``: rows of ``active_topics.ACTIVE_TIMES``. A rule of limits holds for the topics that it matches; topics with
    other limits are judged apart.
    """
    return [
        {**finding, "interval_start": span.start, "incarnation": 0}
        for finding in active_topics.uneven_topics(times, limits)
    ]


def _publish(run: Publication, found: list[dict[str, Any]], kinds: Sequence[str]) -> int:
    """Replace the interval's anomalies of some kinds, beside those of the replay; returns how many anomalies there are."""
    rows = read_table(run.warehouse, "anomalies", run.span)
    kept = rows.filter(pc.invert(pc.is_in(rows["kind"], value_set=pa.array(kinds))))
    added = conform(pa.Table.from_pylist(found, schema=ANOMALIES), ANOMALIES)
    staged = [
        write_rows(run.warehouse, "anomalies", run.span, part, name)
        for name, part in (("replayed", kept), ("topics", added))
        if part.num_rows
    ]
    return run.replace("anomalies", staged)


def _has_kinds(warehouse: Place, span: Interval, kinds: Sequence[str]) -> bool:
    return any(True for _rows in file_rows(data_files(warehouse, "anomalies", span), ["kind"], kinds=kinds))


def main(arguments: Sequence[str] | None = None) -> int:
    """Aggregate one interval; see ``--help``."""
    parser = stage_command.parser(
        "python -m spark_jobs.aggregates",
        "findings over all topics of one interval, and its balance over a day, from what replay wrote",
        limits=True,
    )
    options = parser.parse_args(arguments)
    return stage_command.run_here(
        options, lambda span: aggregate(options.warehouse, span, limits=options.limits)
    )
