"""A dispatcher's log as arrays: what the rules of the audit read.

Every entry becomes an *ordinal* (its rank among all positions of the log, in position order), every connection and every
key a small integer, every event that matters one *operation* with a run of ordinals. The rules then compare integers
only; names, keys and times are looked up again when a finding is put into words.

Several logs of one dispatcher (its incarnations, oldest first) become one history, with a ``RELOAD`` between two.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.log_profile import subscription_type
from dispatch_core.recording.log import DispatcherLog

Ints = npt.NDArray[np.int64]

ADDED: Final = 0
REMOVED: Final = 1
SENT: Final = 2
ACK: Final = 3
ACK_CUMULATIVE: Final = 4
REDELIVER: Final = 5
REDELIVER_ALL: Final = 6
REWIND: Final = 7  # Failover and Exclusive: a rewind line, or a notice of who is active
RELOAD: Final = 8

_CODES: Final = {
    "consumer_added": ADDED,
    "consumer_removed": REMOVED,
    "sent": SENT,
    "ack": ACK,
    "redeliver": REDELIVER,
    "rewind": REWIND,
    "active_notified": REWIND,
}
SINGLE_ACTIVE: Final = ("Failover", "Exclusive")

_ENTRY_BITS: Final = 40
_ENTRY_LIMIT: Final = (1 << _ENTRY_BITS) - 2


@dataclass(frozen=True, slots=True)
class Consumer:
    """One connection of a consumer: its number in the log, its name, and what it agreed to when it subscribed."""

    number: int
    name: str | None
    allow_out_of_order: bool


@dataclass(frozen=True, slots=True)
class History:
    """Operations over ordinals. Arrays ``op_*`` have one element per operation, ``entry_*`` one per ordinal."""

    subscription_type: str
    ledger: Ints
    entry: Ints
    entry_key: npt.NDArray[np.int32]  # id of the key, -1 = key-less or unknown
    entry_row: Ints  # row in ``messages``, -1 = not in the message log
    messages: pa.Table
    key_text: list[str]
    key_b64: list[bool]
    op_code: npt.NDArray[np.int8]
    op_consumer: npt.NDArray[np.int32]  # -1 where the operation has none
    op_seq: Ints
    op_t_us: Ints
    op_start: Ints  # ``op_ordinals[op_start[i]:op_start[i + 1]]``; one element more than operations
    op_ordinals: npt.NDArray[np.int32]
    first_op_of_last_log: int
    consumers: list[Consumer]
    unknown_op: Ints  # operations of the last log that name a position the message log does not hold …
    unknown_ordinal: Ints  # … and the ordinal of that position

    @property
    def single_active(self) -> bool:
        """Whether one consumer at a time gets everything (Failover, Exclusive)."""
        return self.subscription_type in SINGLE_ACTIVE

    def position(self, ordinal: int) -> str:
        """The position of an ordinal as text."""
        return f"{self.ledger[ordinal]}:{self.entry[ordinal]}"


def build(logs: Sequence[DispatcherLog]) -> History:
    """Turn the incarnations of one dispatcher, oldest first, into one history."""
    messages = logs[-1].messages if len(logs) == 1 else _all_messages(logs)
    runs = [_Run.of(log) for log in logs]
    ledger, entry, found = _universe(
        (_column(messages, "ledger_id"), _column(messages, "entry_id")), [(r.ledger, r.entry) for r in runs]
    )
    entry_row = np.full(len(ledger), -1, dtype=np.int64)
    # of a position that stands twice in the message log, the first row counts
    entry_row[found[0][::-1]] = np.arange(messages.num_rows, dtype=np.int64)[::-1]
    entry_key, key_text, key_b64 = _keys(messages, entry_row)
    consumers: list[Consumer] = []
    parts: list[_Operations] = []
    for index, (log, run, ordinals) in enumerate(zip(logs, runs, found[1:], strict=True)):
        if index:
            parts.append(_reload())
        parts.append(_operations(log, run, ordinals, consumers))
    first = sum(len(p.code) for p in parts[:-1])
    owner = np.repeat(np.arange(len(runs[-1].lengths)), runs[-1].lengths)
    stray = np.flatnonzero((entry_row[found[-1]] < 0) & (entry[found[-1]] >= 0))
    starts = np.concatenate([[0], np.cumsum(np.concatenate([p.lengths for p in parts]))]).astype(np.int64)
    return History(
        subscription_type=subscription_type(logs[-1]),
        ledger=ledger,
        entry=entry,
        entry_key=entry_key,
        entry_row=entry_row,
        messages=messages,
        key_text=key_text,
        key_b64=key_b64,
        op_code=np.concatenate([p.code for p in parts]),
        op_consumer=np.concatenate([p.consumer for p in parts]),
        op_seq=np.concatenate([p.seq for p in parts]),
        op_t_us=np.concatenate([p.t_us for p in parts]),
        op_start=starts,
        op_ordinals=np.concatenate([p.ordinals for p in parts]),
        first_op_of_last_log=first,
        consumers=consumers,
        unknown_op=owner[stray] + first,
        unknown_ordinal=found[-1][stray],
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """The rows of one log that become operations, with their positions flattened."""

    events: pa.Table
    lengths: Ints
    ledger: Ints
    entry: Ints

    @classmethod
    def of(cls, log: DispatcherLog) -> _Run:
        wanted = pc.is_in(log.events["kind"], value_set=pa.array(list(_CODES)))
        columns = [
            "seq",
            "t_us",
            "kind",
            "consumer",
            "name",
            "key_shared_allow_out_of_order",
            "positions",
            "ack_type",
            "ack_sets",
        ]
        events = log.events.select(columns).filter(wanted)
        # only these kinds name entries that were dispatched
        lists = pc.if_else(
            pc.is_in(events["kind"], value_set=pa.array(["sent", "ack", "redeliver"])),
            events["positions"],
            None,
        )
        lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0), dtype=np.int64)
        flat = pc.list_flatten(lists)
        return cls(
            events,
            lengths,
            _ints(pc.struct_field(flat, "ledger_id")),
            _ints(pc.struct_field(flat, "entry_id")),
        )


@dataclass(frozen=True, slots=True)
class _Operations:
    code: npt.NDArray[np.int8]
    consumer: npt.NDArray[np.int32]
    seq: Ints
    t_us: Ints
    lengths: Ints
    ordinals: npt.NDArray[np.int32]


def _reload() -> _Operations:
    one = np.zeros(1, dtype=np.int64)
    return _Operations(
        np.array([RELOAD], dtype=np.int8),
        np.array([-1], dtype=np.int32),
        one,
        one,
        one,
        np.empty(0, dtype=np.int32),
    )


def _operations(log: DispatcherLog, run: _Run, ordinals: Ints, consumers: list[Consumer]) -> _Operations:
    events = run.events
    kinds = events["kind"].combine_chunks().dictionary_encode()
    if isinstance(kinds, pa.ChunkedArray):
        kinds = kinds.combine_chunks()
    code_of = np.array([_CODES[kind] for kind in kinds.dictionary.to_pylist()] or [0], dtype=np.int8)
    code = code_of[np.asarray(kinds.indices)] if events.num_rows else np.empty(0, dtype=np.int8)
    cumulative = np.asarray(pc.fill_null(pc.equal(events["ack_type"], "Cumulative"), False))
    code = np.where((code == ACK) & cumulative, ACK_CUMULATIVE, code)
    everything = np.asarray(pc.is_null(events["positions"]))
    code = np.where((code == REDELIVER) & everything, REDELIVER_ALL, code).astype(np.int8)
    lengths = run.lengths
    flat = ordinals.astype(np.int32)
    keep = _acking(events, code, lengths, flat)
    if not keep.all():
        owner = np.repeat(np.arange(len(lengths)), lengths)
        lengths = np.bincount(owner[keep], minlength=len(lengths)).astype(np.int64)
        flat = flat[keep]
    return _Operations(
        code=code,
        consumer=_connections(events, log, consumers),
        seq=_column(events, "seq"),
        t_us=_column(events, "t_us"),
        lengths=lengths,
        ordinals=flat,
    )


def _connections(events: pa.Table, log: DispatcherLog, consumers: list[Consumer]) -> npt.NDArray[np.int32]:
    """Number the connections of one log after those of earlier logs; numbers begin anew with every incarnation."""
    numbers = _column(events, "consumer", absent=-1)
    # a rewind concerns no connection; every other operation has one, if only the unnamed one
    nobody = np.asarray(pc.is_null(events["consumer"])) & np.asarray(pc.equal(events["kind"], "rewind"))
    present = np.unique(numbers[~nobody])
    added = log.events.filter(pc.equal(log.events["kind"], "consumer_added"))
    known: dict[int, tuple[str | None, bool]] = {}
    for number, name, free in zip(
        added["consumer"].to_pylist(),
        added["name"].to_pylist(),
        added["key_shared_allow_out_of_order"].to_pylist(),
        strict=True,
    ):
        known.setdefault(number, (name, bool(free)))
    base = len(consumers)
    for number in present.tolist():
        name, free = known.get(number, (None, False))
        consumers.append(Consumer(number, name, free))
    if not len(present):
        return np.full(len(numbers), -1, dtype=np.int32)
    return np.where(nobody, -1, np.searchsorted(present, numbers) + base).astype(np.int32)


def _acking(
    events: pa.Table, code: npt.NDArray[np.int8], lengths: Ints, ordinals: npt.NDArray[np.int32]
) -> npt.NDArray[np.bool_]:
    """Which flattened positions count: all but acks of a part of a batch, until the last of its messages is acked.

    A word of ``ack_sets`` has one bit per message of the batch, 1 = not acked yet; the sets of several acks are ANDed
    (PersistentSubscription, ManagedCursorImpl's batch deleted indexes). Acks without a set ack the whole entry.
    """
    keep = np.ones(len(ordinals), dtype=np.bool_)
    partial = np.flatnonzero((code == ACK) & np.asarray(pc.is_valid(events["ack_sets"])))
    if not len(partial):
        return keep
    starts = np.concatenate([[0], np.cumsum(lengths)])
    rows = events["ack_sets"].take(pa.array(partial)).to_pylist()
    left: dict[int, list[int]] = {}
    for row, sets in zip(partial.tolist(), rows, strict=True):
        for index in range(int(lengths[row])):
            words = sets[index] if index < len(sets) else None
            if not words:
                continue
            at = int(starts[row]) + index
            ordinal = int(ordinals[at])
            before = left.get(ordinal, [-1] * len(words))
            left[ordinal] = [old & new for old, new in zip(before, words, strict=False)]
            keep[at] = not any(left[ordinal])
    return keep


def _universe(stored: tuple[Ints, Ints], runs: list[tuple[Ints, Ints]]) -> tuple[Ints, Ints, list[Ints]]:
    """All positions in order, and the ordinal of every given position (message log first, then each run)."""
    ledgers = np.concatenate([stored[0], *(run[0] for run in runs)])
    entries = np.concatenate([stored[1], *(run[1] for run in runs)])
    words = _unique(ledgers)
    if len(entries) and (entries.max() > _ENTRY_LIMIT or entries.min() < -1 or len(words) >= 1 << 22):
        pairs = np.stack([ledgers, entries], axis=1)
        distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
        ledger, entry, ordinal = distinct[:, 0], distinct[:, 1], inverse.reshape(-1).astype(np.int64)
    else:
        rank = np.searchsorted(words, ledgers) if len(words) > 1 else np.zeros(len(ledgers), dtype=np.int64)
        packed = (rank << _ENTRY_BITS) | (entries + 1)
        known = packed[: len(stored[0])]
        universe = known if len(known) and bool(np.all(known[1:] > known[:-1])) else np.unique(known)
        ordinal, missing = _places(universe, packed)
        if missing.any():
            universe = np.union1d(universe, packed[missing])
            ordinal, _ = _places(universe, packed)
        ledger = words[universe >> _ENTRY_BITS] if len(universe) else np.empty(0, dtype=np.int64)
        entry = (universe & ((1 << _ENTRY_BITS) - 1)) - 1
    sizes = np.cumsum([len(stored[0]), *(len(run[0]) for run in runs)])
    return ledger, entry, np.split(ordinal, sizes[:-1])


def _places(universe: Ints, wanted: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Where each wanted value stands in the sorted distinct ``universe``, and which are not in it.

    Entries of a ledger mostly follow each other without a hole: the place is counted from the ledger's first entry, and
    searched for only where that guess is wrong.
    """
    if not len(universe):
        return np.zeros(len(wanted), dtype=np.int64), np.ones(len(wanted), dtype=np.bool_)
    starts = np.flatnonzero(np.diff(universe >> _ENTRY_BITS, prepend=-1))
    first = np.zeros(int(max(universe[-1], wanted.max(initial=0)) >> _ENTRY_BITS) + 1, dtype=np.int64)
    first[universe[starts] >> _ENTRY_BITS] = starts
    at = first[wanted >> _ENTRY_BITS]
    at = np.clip(at + (wanted - universe[at]), 0, len(universe) - 1)
    wrong = np.flatnonzero(universe[at] != wanted)
    at[wrong] = np.minimum(np.searchsorted(universe, wanted[wrong]), len(universe) - 1)
    missing = np.zeros(len(wanted), dtype=np.bool_)
    missing[wrong] = universe[at[wrong]] != wanted[wrong]
    return at, missing


def _keys(messages: pa.Table, entry_row: Ints) -> tuple[npt.NDArray[np.int32], list[str], list[bool]]:
    """An id per distinct key (the bytes that dispatch hashes, ordering key before key), -1 for key-less entries.

    A log whose keys were replaced by ``key_h31`` is keyed by that hash: colliding keys are one key there.
    """
    ids: dict[bytes | int, int] = {}
    texts: list[str] = []
    binary: list[bool] = []
    row_key = np.full(messages.num_rows, -1, dtype=np.int32)
    flagged = np.asarray(pc.fill_null(messages["key_b64"], False))
    everywhere = np.ones(messages.num_rows, dtype=np.bool_)
    # the last to write wins: masked hash, text key, binary key, ordering key
    sources: tuple[tuple[str, npt.NDArray[np.bool_], bool], ...] = (
        ("key_h31", everywhere, False),
        ("key", ~flagged, False),
        ("key", flagged, True),
        ("ordering_key_b64", everywhere, True),
    )
    for column, rows, is_base64 in sources:
        encoded = messages[column].combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        used = rows & np.asarray(encoded.is_valid())
        if not used.any():
            continue
        codes = np.asarray(pc.fill_null(encoded.indices, 0))
        words = encoded.dictionary.to_pylist()
        id_of = np.full(len(words), -1, dtype=np.int32)
        for code in np.flatnonzero(np.bincount(codes[used], minlength=len(words))).tolist():
            identity, text, shown_as_base64 = _identity(words[code], is_base64)
            if identity not in ids:
                ids[identity] = len(texts)
                texts.append(text)
                binary.append(shown_as_base64)
            id_of[code] = ids[identity]
        row_key[used] = id_of[codes[used]]
    keyed = np.full(len(entry_row), -1, dtype=np.int32)
    stored = entry_row >= 0
    keyed[stored] = row_key[entry_row[stored]]
    return keyed, texts, binary


def _identity(word: Any, is_base64: bool) -> tuple[bytes | int, str, bool]:
    """(what makes the key the same key, how it is shown, whether it is shown as base64)."""
    if isinstance(word, int):
        return word, f"h31:{word}", False
    if not is_base64:
        return word.encode(), word, False
    try:
        return base64.b64decode(word, validate=True), word, True
    except (binascii.Error, ValueError):
        # The reader quarantines such rows. In a table from elsewhere the text itself is the only identity there is.
        return word.encode(), word, True


def _all_messages(logs: Sequence[DispatcherLog]) -> pa.Table:
    seen: list[pa.Table] = []
    for log in logs:
        if not any(log.messages is table for table in seen):
            seen.append(log.messages)
    if len(seen) == 1:
        return seen[0]
    return pa.concat_tables(seen).sort_by([("ledger_id", "ascending"), ("entry_id", "ascending")])


def _unique(values: Ints) -> Ints:
    """Sorted distinct values; hashing first, because a log has few ledgers and many entries."""
    return np.sort(np.asarray(pc.unique(pa.array(values)), dtype=np.int64))


def _column(table: pa.Table, name: str, absent: int = 0) -> Ints:
    return _ints(table[name], absent)


def _ints(values: pa.ChunkedArray | pa.Array, absent: int = 0) -> Ints:
    return np.asarray(pc.fill_null(values, absent), dtype=np.int64)
