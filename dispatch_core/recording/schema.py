"""Log format 1.1: the only definition of the contents of message logs, event logs and client logs.

Everything that reads, validates, writes, converts or documents logs takes names, types and levels from here.

Shapes
------
* A *message* is one stored entry (``MESSAGES``).
* An *event* is one line of a consumer-event log (level ``E``) or of a dispatcher trace (levels ``E`` and
  ``T``); all kinds share one wide, sparse table (``EVENTS``), so that a dispatcher's log is one sorted run of
  rows.
* A *client event* is one line of a client log (level ``C``): what one consumer's client saw. Such lines become events of
  level ``E`` when the logs of all clients are merged (``client_log``), so they have no table of their own.
* A log's header becomes the event row ``kind = "header"`` with ``seq = 0`` and the header itself, unchanged,
  in ``header_json``; everything a replay needs then travels in the one table.

Positions are structs ``{ledger_id, entry_id}``; in JSON they are the text ``"<ledger_id>:<entry_id>"``.
Units stand at the end of names; times are microseconds since the epoch, UTC.

Source: the recordings' own README (kinds, fields, levels); file formats 1.0 and 1.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

FORMAT_VERSION: Final = (1, 1)

POSITION: Final = pa.struct(
    [pa.field("ledger_id", pa.int64(), nullable=False), pa.field("entry_id", pa.int64(), nullable=False)]
)
POSITIONS: Final = pa.list_(POSITION)
HASH_RANGES: Final = pa.list_(pa.struct([("start", pa.int64()), ("end", pa.int64())]))

_SOURCE: Final = [
    # Where the row came from, for findings and for the counts of input quality.
    pa.field("source_file", pa.string()),
    pa.field("source_line", pa.int64()),
]

MESSAGES: Final = pa.schema(
    [
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("entry_id", pa.int64(), nullable=False),
        # null = no key; base64 text when key_b64. Null, with key_b64 and no key_h31: it has a key that could not be read.
        pa.field("key", pa.string()),
        pa.field("key_b64", pa.bool_()),
        pa.field("ordering_key_b64", pa.string()),
        pa.field("key_h31", pa.int64()),  # masked murmur3-32 of the key bytes, instead of the key itself
        pa.field("producer", pa.string()),
        pa.field("sequence_id", pa.int64()),
        pa.field("publish_time_ms", pa.int64()),
        pa.field("num_messages", pa.int32(), nullable=False),  # 0 = cannot be read (``batch_sizes``)
        pa.field("size_bytes", pa.int64()),
        *_SOURCE,
        # Since format 1.1; behind all others, so that the tables of an older home get them by adding columns.
        pa.field("keys", pa.int64()),
        pa.field("deliver_at_ms", pa.int64()),
        pa.field("txn", pa.string()),
    ]
)

EVENTS: Final = pa.schema(
    [
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("subscription", pa.string(), nullable=False),
        pa.field("broker", pa.string()),
        pa.field("incarnation", pa.int64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
        pa.field("t_us", pa.int64()),  # null only in a header row
        pa.field("kind", pa.string(), nullable=False),
        # who
        pa.field("consumer", pa.int64()),
        pa.field("name", pa.string()),
        pa.field("consumer_id", pa.int64()),
        pa.field("address", pa.string()),
        pa.field("priority_level", pa.int32()),
        pa.field("key_shared_mode", pa.string()),
        pa.field("key_shared_allow_out_of_order", pa.bool_()),
        pa.field("ranges", HASH_RANGES),
        # what, level E
        pa.field("permits", pa.int64()),
        pa.field("blocked", pa.bool_()),
        pa.field("positions", POSITIONS),
        pa.field("batch_sizes", pa.list_(pa.int64())),
        pa.field("ack_type", pa.string()),
        pa.field("ack_sets", pa.list_(pa.list_(pa.int64()))),
        pa.field("error", pa.string()),
        pa.field("active", pa.int64()),
        # what, level T
        pa.field("hashes", pa.list_(pa.int64())),
        pa.field("permits_before", pa.int64()),
        pa.field("permits_after", pa.int64()),
        pa.field("blocked_after", pa.bool_()),
        pa.field("selector", pa.string()),
        pa.field("total_permits", pa.int64()),
        pa.field("usable", pa.list_(pa.list_(pa.int64()))),
        pa.field("pending_read", pa.bool_()),
        pa.field("pending_replay", pa.bool_()),
        pa.field("value", pa.int64()),
        pa.field("max_entries", pa.int64()),
        pa.field("read_position", POSITION),
        pa.field("mark_delete", POSITION),
        pa.field("cancelled", pa.bool_()),
        pa.field("type", pa.string()),
        pa.field("retry", pa.bool_()),
        pa.field("in_replay", pa.int64()),
        pa.field("look_ahead", pa.bool_()),
        pa.field("has_more", pa.bool_()),
        pa.field("written", pa.bool_()),
        pa.field("hash", pa.int64()),
        pa.field("closing", pa.bool_()),
        pa.field("ref_count_before", pa.int64()),
        pa.field("changed", pa.bool_()),
        pa.field("sorted", pa.list_(pa.int64())),
        pa.field("partition_index", pa.int64()),
        pa.field("note", pa.string()),
        # the log about itself
        pa.field("gap_from_seq", pa.int64()),
        pa.field("gap_to_seq", pa.int64()),
        pa.field("gap_lines", pa.int64()),
        pa.field("checkpoint_json", pa.string()),
        pa.field("footer_json", pa.string()),
        pa.field("header_json", pa.string()),
        *_SOURCE,
        # Since format 1.1: moves of the cursor and limits.
        pa.field("by", pa.string()),
        pa.field("moved_from", POSITION),
        pa.field("moved_to", POSITION),
        pa.field("entries", pa.int64()),
        pa.field("what", pa.string()),
        pa.field("limit_active", pa.bool_()),
        # Operations on the cursor, level T.
        pa.field("op", pa.string()),
        pa.field("target", POSITION),
        pa.field("after", pa.string()),
        pa.field("individually_deleted", pa.string()),
    ]
)

QUARANTINE: Final = pa.schema(
    [
        pa.field("source_file", pa.string(), nullable=False),
        pa.field("source_line", pa.int64()),  # null: the whole file
        pa.field("field", pa.string()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("raw", pa.binary()),  # the line as it was, cut at a limit
        pa.field("raw_truncated", pa.bool_(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of event: its level, the columns a valid line of it must fill, those it may fill, and its meaning."""

    name: str
    level: str  # "C" client, "E" without a trace, "T" trace, "-" lines about the log itself and marks of a driver
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    trace_only: tuple[str, ...] = ()  # optional, and only a trace can know them
    meaning: str = ""


_POLICY: Final = ("key_shared_mode", "key_shared_allow_out_of_order", "ranges")
_CURSOR: Final = ("read_position", "mark_delete")

_KINDS: Final = (
    Kind(
        "header",
        "-",
        ("header_json",),
        meaning="the header of the log, as a row; in JSON it is a line with `format`",
    ),
    Kind(
        "consumer_added",
        "E",
        ("consumer", "name"),
        ("consumer_id", "address", "priority_level", *_POLICY),
        _CURSOR,
        "the dispatcher has the consumer in its list; its selector follows with an event of its own",
    ),
    Kind("consumer_removing", "T", ("consumer",), meaning="a consumer's removal begins"),
    Kind("consumer_removed", "E", ("consumer",), (), _CURSOR, "a consumer's removal has ended"),
    Kind(
        "all_disconnecting",
        "T",
        meaning="Failover, Exclusive: the broker begins to disconnect all consumers, because the topic is unloaded or the "
        "subscription deleted",
    ),
    Kind(
        "flow",
        "E",
        ("consumer", "permits"),
        ("blocked",),
        (),
        "the client granted permits (on arrival); `blocked`: the consumer was blocked on unacknowledged messages then",
    ),
    Kind(
        "sent",
        "E",
        ("consumer", "positions", "batch_sizes"),
        (),
        ("hashes", "permits_before"),
        "entries delivered to the consumer's connection, in order; `batch_sizes` = messages per entry",
    ),
    Kind(
        "ack",
        "E",
        ("consumer", "ack_type", "positions"),
        ("ack_sets",),
        (),
        "an acknowledgement as it arrived, before it is applied; `ack_sets` (64-bit words per position) only for "
        "acknowledgements of single messages of a batch",
    ),
    Kind(
        "redeliver",
        "E",
        ("consumer",),
        ("positions",),
        (),
        "negative acknowledgements and acknowledgement time-outs; no `positions` = all unacknowledged of this consumer",
    ),
    Kind("subscribe_rejected", "E", (), ("name", "ranges", "error"), (), "the broker refused the subscribe"),
    Kind(
        "active_notified",
        "E",
        ("consumer", "active"),
        meaning="Failover, Exclusive: the broker notified the consumer that consumer `active` is the active one",
    ),
    Kind(
        "cursor_moved",
        "E",
        ("by",),
        ("moved_from", "moved_to", "entries"),
        (),
        "the cursor was moved by something else than acknowledgements: the mark-delete position was `from` and is `to`, see "
        "below; `entries` = number of entries passed",
    ),
    Kind("subscription_deleted", "E", meaning="the subscription was deleted, and its cursor with it"),
    Kind(
        "limit",
        "E",
        ("what", "limit_active"),
        ("value",),
        (),
        "from here on a policy holds deliveries back or leaves entries out (`active` true), or no longer; `value` = the "
        "limit's number, where it has one",
    ),
    Kind("selector_added", "T", ("consumer",), ("selector",), (), "the selector has added the consumer"),
    Kind("selector_refused", "T", ("consumer",), ("selector",), (), "the selector refused the consumer"),
    Kind("selector_removed", "T", ("consumer",), ("selector",), (), "the selector has removed the consumer"),
    Kind(
        "flow_counted",
        "T",
        ("consumer", "permits_after"),
        ("blocked_after",),
        (),
        "the consumer counted the permits",
    ),
    Kind("flow_applied", "T", ("consumer",), ("permits",), (), "the permits have reached the dispatcher"),
    Kind("read_attempt", "T", (), ("consumer",), (), "`readMoreEntries` entered"),
    Kind(
        "read_attempt_end",
        "T",
        (),
        ("total_permits", "usable", "pending_read", "pending_replay"),
        (),
        "`readMoreEntries` left; `usable` = `[consumer, usable permits, permits, unacknowledged messages]` each",
    ),
    Kind(
        "usable_seen",
        "T",
        ("consumer", "value"),
        meaning="the number of usable permits differs from the last one recorded",
    ),
    Kind(
        "read_issued",
        "T",
        ("max_entries",),
        ("read_position",),
        (),
        "normal read given to the cursor (may wait)",
    ),
    Kind("replay_read_issued", "T", ("positions",), meaning="replay read given to the cursor"),
    Kind(
        "replay_already_deleted",
        "T",
        ("positions",),
        meaning="those of a replay read that were acknowledged already",
    ),
    Kind("read_cancelled", "T", ("cancelled",), meaning="a waiting read was cancelled, or could not be"),
    Kind(
        "read_done",
        "T",
        ("type", "positions"),
        ("hashes", "read_position", "consumer"),
        (),
        "the result of a read reaches the dispatcher; `hashes` = sticky key hash of each entry; Failover: `consumer` = the "
        "one it was read for",
    ),
    Kind("round_begin", "T", ("type", "positions"), ("consumer", *_CURSOR), (), "a dispatch round begins"),
    Kind(
        "round_end",
        "T",
        (),
        ("retry", "in_replay", "look_ahead", "has_more"),
        (),
        "a dispatch round ends; `in_replay` = size of the replay set; `look_ahead` = the next replay scan is skipped once",
    ),
    Kind(
        "send_returned",
        "T",
        ("consumer",),
        ("written", "permits_after"),
        (),
        "the call that sent has returned",
    ),
    Kind(
        "mark_delete",
        "T",
        ("mark_delete",),
        meaning="an applied acknowledgement moved the mark-delete position",
    ),
    Kind("rewind", "T", (), _CURSOR, (), "the cursor was rewound"),
    Kind(
        "cursor_op",
        "T",
        ("op",),
        ("target", "entries", *_CURSOR),
        (),
        "an operation reaches the cursor; `op` = `skip` (of so many `entries`), `clear_backlog`, `reset` (also a seek) or "
        "`mark_delete` (how skip, clear, expiry and cumulative acknowledgements move the cursor) to `target`; "
        "`read_position` and `mark_delete` are those before it",
    ),
    Kind(
        "cursor_state",
        "T",
        ("mark_delete",),
        ("after", "read_position", "individually_deleted"),
        (),
        "positions of the cursor when all was quiet `after` an operation; `individually_deleted` = ranges of acknowledged "
        "entries above `mark_delete`, as the broker prints them",
    ),
    Kind(
        "pending_ack_removed",
        "T",
        ("consumer", "positions"),
        ("hash",),
        (),
        "a pending ack was removed: the acknowledgement takes effect",
    ),
    Kind("draining_add", "T", ("consumer", "hash"), meaning="PIP-379: a hash begins to drain"),
    Kind(
        "draining_release",
        "T",
        ("consumer", "hash", "ref_count_before"),
        ("closing",),
        (),
        "PIP-379: one reference less; `ref_count_before` 0 = the hash was not draining",
    ),
    Kind(
        "draining_blocked",
        "T",
        ("consumer", "hash"),
        meaning="PIP-379: an entry was held back by a draining hash",
    ),
    Kind("draining_clear", "T", meaning="PIP-379: the tracker was emptied"),
    Kind(
        "pending_ack_refused",
        "T",
        ("consumer", "positions"),
        meaning="the last check at send time refused the entry",
    ),
    Kind(
        "recently_joined_pruned",
        "T",
        (),
        _CURSOR,
        (),
        "read-position rules: consumers were removed from the recently joined ones",
    ),
    Kind(
        "active_picked",
        "T",
        ("changed",),
        ("consumer", "sorted", "partition_index"),
        (),
        "Failover: outcome of one choice; no `consumer` = none; `sorted` = consumers in the dispatcher's order",
    ),
    Kind(
        "handover_scheduled",
        "T",
        (),
        ("pending_read",),
        (),
        "Failover: a change of the active consumer begins",
    ),
    Kind(
        "gap",
        "-",
        ("gap_from_seq", "gap_to_seq"),
        ("gap_lines",),
        (),
        "lines were lost: `from` and `to` are the first and last lost `seq`, `lost` how many (default: all of them). "
        "`seq` defaults to `from`",
    ),
    Kind(
        "checkpoint",
        "-",
        ("checkpoint_json",),
        (),
        (),
        "the state at this point, kept whole as JSON: connected consumers in join order, mark-delete, acknowledgement "
        "holes, pending acks where known",
    ),
    Kind("footer", "-", ("footer_json",), meaning="the end of a file: counts and checksum, see below"),
    Kind(
        "step",
        "-",
        (),
        ("note",),
        (),
        "a mark of the program that drove the recording; only `verify` reads those that stand for a limit or a deletion",
    ),
    Kind("end", "-", (), ("note",), (), "the same, at the end"),
)

KINDS: Final[dict[str, Kind]] = {kind.name: kind for kind in _KINDS}

#: Fields of client logs. ``consumer`` is the name of the consumer: a client does not know the broker's number of it.
CLIENT_EVENTS: Final = pa.schema(
    [
        pa.field("cluster", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("subscription", pa.string()),
        pa.field("seq", pa.int64()),
        pa.field("t_us", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("consumer", pa.string()),
        pa.field("position", POSITION),
        pa.field("batch_index", pa.int64()),
        pa.field("batch_size", pa.int64()),
        pa.field("key", pa.string()),
        pa.field("key_b64", pa.bool_()),
        pa.field("ordering_key_b64", pa.string()),
        pa.field("redelivery_count", pa.int64()),
        pa.field("ack_type", pa.string()),
        pa.field("error", pa.string()),
        pa.field("disconnected_us", pa.int64()),
        pa.field("connected", pa.bool_()),
    ]
)
_CLIENT_KINDS: Final = (
    Kind(
        "client_received",
        "C",
        ("position",),
        ("batch_index", "batch_size", "key", "key_b64", "ordering_key_b64", "redelivery_count"),
        meaning="the application received a message",
    ),
    Kind(
        "client_acked",
        "C",
        ("position",),
        ("batch_index", "batch_size", "ack_type", "error"),
        meaning="the application acknowledged it; with an `error`, the client could not send that",
    ),
    Kind(
        "client_nacked",
        "C",
        (),
        ("position", "batch_index", "batch_size"),
        meaning="the client asked for its redelivery: a negative acknowledgement or an acknowledgement time-out; no "
        "`position` = all unacknowledged messages of the line's topic",
    ),
    Kind("footer", "C", meaning="the consumer was closed: from here on it holds nothing"),
)
CLIENT_KINDS: Final[dict[str, Kind]] = {kind.name: kind for kind in _CLIENT_KINDS}

DISPATCHER_KEY: Final = ("cluster", "topic", "subscription")
