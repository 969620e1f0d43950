"""Schemas of the result tables that replay and audit write.

One schema per table of the warehouse. The core fills these tables, ``spark_jobs`` derives its Spark schemas from them, and
``dispatch_expectations`` reads them. Every table starts with the same identity columns (``IDENTITY``) and is partitioned by
``interval_start``. Times are microseconds UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from dispatch_core.errors import DispatchAuditError

#: Version of the tables, ``MAJOR.MINOR``, kept in every table of the warehouse under ``VERSION_KEY``. A minor step leaves
#: existing columns as they are; a major step changes the meaning of rows or their layout, and earlier code refuses such
#: tables.
VERSION: Final = "1.0"
VERSION_KEY: Final = "dispatchAudit.tablesVersion"

INTERVAL_START: Final = pa.field("interval_start", pa.timestamp("us", tz="UTC"), nullable=False)

IDENTITY: Final = [
    INTERVAL_START,
    pa.field("cluster", pa.string(), nullable=False),
    pa.field("topic", pa.string(), nullable=False),
    pa.field("subscription", pa.string(), nullable=False),
    pa.field("incarnation", pa.int64(), nullable=False),
]


class TablesVersionError(DispatchAuditError):
    """A table made by another major version: its rows may have another meaning."""


def check_version(configuration: Mapping[str, Any], where: str) -> None:
    """Raise ``TablesVersionError`` if a table's configuration names another major version; none named means 1.0."""
    found = str(configuration.get(VERSION_KEY) or "1.0")
    if found.partition(".")[0] != VERSION.partition(".")[0]:
        raise TablesVersionError(
            f"{where}: made in version {found[:40]!r} of the tables, this code reads {VERSION}; nothing was read or "
            "written. Use the release that made it, or run the intervals again in another home"
        )


def _table(*fields: pa.Field) -> pa.Schema:
    return pa.schema([*IDENTITY, *fields])


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


#: One row per delivery of an entry to a consumer's connection, in the order of the log.
DELIVERIES: Final = _table(
    _required("seq", pa.int64()),
    _required("index_in_send", pa.int32()),
    _required("t_us", pa.int64()),
    _required("consumer", pa.int64()),
    pa.field("consumer_name", pa.string()),
    _required("ledger_id", pa.int64()),
    _required("entry_id", pa.int64()),
    pa.field("key", pa.string()),  # text, or base64 with key_b64
    _required("key_b64", pa.bool_()),
    pa.field("hash", pa.int64()),  # sticky key hash under the recorded release; null for Failover/Exclusive
    pa.field("num_messages", pa.int32()),
    pa.field("size_bytes", pa.int64()),
    pa.field("publish_time_ms", pa.int64()),
    _required("delivery_number", pa.int32()),  # 1 = first time this entry was sent
    pa.field(
        "cause", pa.string()
    ),  # of a repeated delivery: disconnect, nack, rewind, all_left, topic_reload
    _required("judgement", pa.string()),  # exact, uncertain, divergent, not_judged
    pa.field("expected_consumer", pa.int64()),
)

#: Owners of closed ranges of the hash space over time; Failover: one range, the whole topic.
OWNERSHIP: Final = _table(
    _required("epoch", pa.int64()),
    _required("from_seq", pa.int64()),
    _required("from_t_us", pa.int64()),
    pa.field("until_seq", pa.int64()),  # null: still owned at the end
    pa.field("until_t_us", pa.int64()),
    _required("consumer", pa.int64()),
    pa.field("consumer_name", pa.string()),
    _required("range_start", pa.int64()),
    _required("range_end", pa.int64()),
)

#: Work that a rule held back without a break: of one hash, or of all (``hash`` null).
BLOCKED: Final = _table(
    pa.field("hash", pa.int64()),
    _required("reason", pa.string()),  # catalogue.STALL_REASONS, LIMIT_REASONS
    pa.field("consumer", pa.int64()),  # that should get the work; null: none in particular
    pa.field("consumer_name", pa.string()),
    pa.field("holder", pa.int64()),  # that holds it back: drains, pins a position, has no permits
    pa.field("holder_name", pa.string()),
    _required("from_seq", pa.int64()),
    _required("from_t_us", pa.int64()),
    pa.field("until_seq", pa.int64()),
    pa.field("until_t_us", pa.int64()),
    _required("blocked_attempts", pa.int64()),  # dispatch attempts that were refused; 0 without a trace
    _required("entries", pa.int64()),  # that waited at any time of the row
    _required("messages", pa.int64()),
    _required("message_ms", pa.int64()),  # sum over messages of their milliseconds of waiting
    _required("needless_ms", pa.int64()),  # of these: while nothing of the hash was outstanding elsewhere
    _required("uncertain", pa.bool_()),
)

#: Decisions in which broker and rule differ (``divergent``) or in which the log shows a race (``uncertain``).
DIVERGENCES: Final = _table(
    _required("seq", pa.int64()),
    _required("t_us", pa.int64()),
    _required("decision_class", pa.string()),
    _required("status", pa.string()),
    _required("expected", pa.string()),
    _required("recorded", pa.string()),
    pa.field("racing_seq", pa.int64()),
    pa.field("reason", pa.string()),
)

#: The reason why ``verify`` compares nothing of a log of level E. It is no fault: ``replay`` judges the deliveries of such
#: logs.
NO_TRACE: Final = "no dispatcher trace (level T) in the log: reads are unseen, decisions were not compared"
#: The reason why nothing of a Shared subscription is judged but duplicates, loss and stalls, where its log has no trace.
SHARED_WITHOUT_TRACE: Final = (
    "a Shared subscription without a dispatcher trace is audited for duplicates, loss and stalls; who gets a message is "
    "not replayed"
)

#: One row per dispatcher and interval: the fold's position, its counts, and the state as JSON.
DISPATCHER_STATE: Final = _table(
    pa.field("subscription_type", pa.string()),
    pa.field("broker_version", pa.string()),
    pa.field("profile", pa.string()),
    _required("last_seq", pa.int64()),
    pa.field("last_t_us", pa.int64()),
    _required("events", pa.int64()),
    _required("entries_stored", pa.int64()),
    _required("entries_sent", pa.int64()),
    _required("rounds", pa.int64()),
    _required("decisions", pa.int64()),
    _required("exact", pa.int64()),
    _required("uncertain", pa.int64()),
    _required("divergent", pa.int64()),
    pa.field("not_judged_reason", pa.string()),  # set when the rule could not be replayed
    pa.field("mark_delete", pa.string()),
    pa.field("read_position", pa.string()),
    _required("core_version", pa.string()),
    _required("settings_digest", pa.string()),
    pa.field("state_json", pa.string()),
)

#: Named findings with their evidence.
ANOMALIES: Final = _table(
    _required("kind", pa.string()),
    _required("severity", pa.string()),
    pa.field("key", pa.string()),
    _required("key_b64", pa.bool_()),
    pa.field("hash", pa.int64()),
    _required("positions", pa.list_(pa.string())),
    _required("consumers", pa.list_(pa.int64())),
    _required("seqs", pa.list_(pa.int64())),
    pa.field("t_us", pa.int64()),  # of the event that proves it
    pa.field("cause", pa.string()),
    pa.field("reason", pa.string()),
    _required("uncertain", pa.bool_()),
    _required("explanation", pa.string()),
    # never sent by then, listed in ``positions`` or not; each entry is counted in one finding; null: not of that kind
    pa.field("unsent", pa.int64()),
)

#: Messages of each consumer against its share of the hash space.
BALANCE: Final = _table(
    _required("consumer_name", pa.string()),
    _required("connections", pa.int64()),
    _required("entries", pa.int64()),
    _required("messages", pa.int64()),
    _required("size_bytes", pa.int64()),
    _required("keys", pa.int64()),
    _required("message_share", pa.float64()),
    # of the messages, by the hashes it owned when they were sent (audit.hash_share); null for Failover/Exclusive
    pa.field("hash_share", pa.float64()),
    # of the messages, by equal parts of the connections that owned hashes then; null as ``hash_share`` is
    pa.field("equal_share", pa.float64()),
)

#: Columns of ``audit.key_totals`` that name the first and the last delivery of a row.
EVIDENCE: Final = ("number", "seq", "t_us", "ledger_id", "entry_id", "hash")

#: Sums of the deliveries of an interval that is too short for its balance to be judged, by connection and key; entries
#: without a key have one row with a null ``key``. ``number`` counts the deliveries of the interval.
KEY_TOTALS: Final = _table(
    pa.field("consumer", pa.int64()),
    pa.field("consumer_name", pa.string()),
    pa.field("key", pa.string()),
    pa.field("key_b64", pa.bool_()),
    *(pa.field(name, pa.int64()) for name in ("entries", "messages", "size_bytes")),
    *(pa.field(f"{end}_{name}", pa.int64()) for end in ("first", "last") for name in EVIDENCE),
)

#: Balance over the day that ends with an interval shorter than a day: sums of the rows of ``balance``.
ROLLING_BALANCE: Final = _table(
    _required("consumer_name", pa.string()),
    _required("entries", pa.int64()),
    _required("messages", pa.int64()),
    _required("size_bytes", pa.int64()),
    pa.field("keys", pa.int64()),  # null: too few messages to be judged, so they were not counted
    _required("message_share", pa.float64()),
    pa.field("hash_share", pa.float64()),
    pa.field("equal_share", pa.float64()),
    _required("window_start", pa.timestamp("us", tz="UTC")),
    _required("window_end", pa.timestamp("us", tz="UTC")),
    _required(
        "left_out_s", pa.int64()
    ),  # of the window, in intervals that were not audited, or reach beyond it
)

#: Waits of entries from being stored to being sent first, and sums of what rules held back, per dispatcher.
WAITS: Final = _table(
    _required("entries", pa.int64()),
    _required("never_delivered", pa.int64()),
    pa.field("wait_ms_p50", pa.float64()),
    pa.field("wait_ms_p99", pa.float64()),
    pa.field("wait_ms_max", pa.float64()),
    _required("blocked_message_ms", pa.int64()),  # sums of ``blocked``
    _required("needless_message_ms", pa.int64()),
)

#: One row per dispatcher and promise.
VERDICTS: Final = _table(
    _required(
        "promise", pa.string()
    ),  # per_key_order, duplicate_delivery, balance, completeness, input_quality, conformance, all
    _required("verdict", pa.string()),  # PASS, FAIL, UNKNOWN
    _required("findings", pa.int64()),
    _required("tolerated", pa.int64()),
    _required("reason", pa.string()),
    _required("top_findings", pa.list_(pa.string())),
)

#: Tables that the replay of one dispatcher fills, by name.
REPLAY_TABLES: Final[dict[str, pa.Schema]] = {
    "deliveries": DELIVERIES,
    "ownership": OWNERSHIP,
    "blocked": BLOCKED,
    "divergences": DIVERGENCES,
    "dispatcher_state": DISPATCHER_STATE,
    "anomalies": ANOMALIES,
    "balance": BALANCE,
    "waits": WAITS,
    "key_totals": KEY_TOTALS,
}

ALL_TABLES: Final[dict[str, pa.Schema]] = {
    **REPLAY_TABLES,
    "rolling_balance": ROLLING_BALANCE,
    "verdicts": VERDICTS,
}
