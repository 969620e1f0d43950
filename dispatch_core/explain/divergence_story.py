"""List the log lines around a divergence, for people who check it by hand.

The lines are those of all entries that share the decision's sticky key hash, in order: stored, read, sent, acknowledged,
requested again, held back, draining; and the joins and leaves between them. Only the log is read, so the list shows what
was recorded and not what the core computed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.sentences.lists import listed, positions_listed
from dispatch_core.audit.sentences.names import numbered
from dispatch_core.broker import hashing
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.explain.log_lines import (
    SeqAt,
    key_of,
    message_row,
    position_of,
    row_at,
    touching,
)
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.replay.result_rows import names_of
from dispatch_core.times import clock
from dispatch_core.verify.tally import Finding

MAX_BEFORE: Final = 24
MAX_AFTER: Final = 4
_MAX_KEYS: Final = 4

_POSITION: Final = re.compile(r"\b(\d+):(\d+)\b")
_NUMBER: Final = re.compile(r"\b\d{1,10}\b")
_CONSUMER: Final = re.compile(r"consumer (\d+)")

#: Kinds that carry positions, and how they read.
_OF_ENTRIES: Final = {
    "read_done": "read",
    "replay_read_issued": "asked for in a replay read",
    "replay_already_deleted": "was acknowledged already, not read",
    "sent": "sent to",
    "ack": "acknowledged by",
    "redeliver": "requested again by",
    "pending_ack_removed": "no more pending on",
    "pending_ack_refused": "refused by the last check before delivery to",
}
_OF_HASH: Final = {
    "draining_add": "begins to drain on",
    "draining_release": "one entry less to drain on",
    "draining_blocked": "held back from",
}
#: Classes of decision that are about a consumer rather than about a key.
_ABOUT_CONSUMERS: Final = frozenset(("permits", "active", "subscribe"))
_OF_CONSUMER: Final = ("sent", "ack", "redeliver", "flow")
_MEMBERSHIP: Final = {"consumer_added": "joins", "consumer_removed": "leaves"}


@dataclass(frozen=True, slots=True)
class Story:
    """``title``: the subject; ``lines``: one event each, in order, with time, seq and consumer names."""

    title: str
    lines: tuple[str, ...]


def story_of(log: DispatcherLog, profile: Profile, finding: Finding) -> Story:
    """List the log's events about the key of ``finding``: up to ``MAX_BEFORE`` up to it and ``MAX_AFTER`` after it."""
    subject = _subject(log, profile, finding)
    about_somebody = bool(len(subject.rows) or subject.consumers)
    events = _events(log, subject, finding.seq) if about_somebody else _around(log, finding.seq)
    ordered = sorted(events, key=lambda event: event[:2])
    at = sum(event[0] <= finding.seq for event in ordered)
    first, last = max(at - MAX_BEFORE, 0), at + MAX_AFTER
    lines = []
    for seq, is_line, t_us, text in ordered[first:last]:
        mark = ">" if is_line and seq == finding.seq else " "
        lines.append(f"{mark} {clock(t_us)}  {f'seq {seq}' if is_line else '':<10}  {text}")
    if first:
        lines.insert(0, "  … and before that more of the same")
    return Story(subject.title, tuple(lines))


@dataclass(frozen=True, slots=True)
class _Subject:
    """The subject of a story: entries (rows of the message log), a hash, or consumers."""

    title: str
    rows: npt.NDArray[np.int64]
    hash: int | None
    consumers: frozenset[int]


def _subject(log: DispatcherLog, profile: Profile, finding: Finding) -> _Subject:
    hashes = _hashes(log, profile)
    if finding.decision_class in _ABOUT_CONSUMERS:
        return _consumers(log, finding)
    row = _first_entry(log, finding)
    sticky = None if hashes is None else _hash_of(log, finding, hashes)
    if hashes is not None and sticky is None and row is not None:
        sticky = int(hashes[row])
    if hashes is not None and sticky is not None:
        rows = np.flatnonzero(hashes == sticky)
        keys = sorted({key_of(log, at) for at in rows[:200].tolist()})
        named = listed(keys, most=_MAX_KEYS) if keys else "unknown"
        return _Subject(f"key {named} (hash {sticky})", rows, sticky, frozenset())
    if row is not None:
        return _Subject(
            f"entry {position_of(log, row)} ({key_of(log, row)})", np.array([row]), None, frozenset()
        )
    return _consumers(log, finding)


def _consumers(log: DispatcherLog, finding: Finding) -> _Subject:
    named = frozenset(int(number) for number in _CONSUMER.findall(f"{finding.expected} {finding.recorded}"))
    event = row_at(log, finding.seq)
    if event is not None and event["consumer"] is not None:
        named |= {event["consumer"]}
    names = names_of(log.events)
    title = ", ".join(_who(names, number) for number in sorted(named)) if named else "the lines around it"
    return _Subject(title, np.zeros(0, np.int64), None, named)


def _first_entry(log: DispatcherLog, finding: Finding) -> int | None:
    """Row of the message log that the finding is about: the first position that only ``expected`` or ``recorded`` names."""
    expected, recorded = (_POSITION.findall(text) for text in (finding.expected, finding.recorded))
    parted = [p for p in (*expected, *recorded) if (p in expected) != (p in recorded)]
    swapped = [first for first, second in zip(expected, recorded, strict=False) if first != second]
    event = row_at(log, finding.seq)
    own = [(p["ledger_id"], p["entry_id"]) for p in (event or {}).get("positions") or []]
    for ledger, entry in (*parted, *swapped, *expected, *own):
        at = message_row(log, int(ledger), int(entry))
        if at is not None:
            return at
    return None


def _hash_of(log: DispatcherLog, finding: Finding, hashes: npt.NDArray[np.int64]) -> int | None:
    """The hash a draining decision is about: the core's where some entry has it, else the recorded one."""
    if finding.decision_class != "draining":
        return None
    event = row_at(log, finding.seq) or {}
    numbers = [
        int(number) for number in (*reversed(_NUMBER.findall(finding.expected)), event.get("hash") or 0)
    ]
    return next((number for number in numbers if number in hashes), None)


def _hashes(log: DispatcherLog, profile: Profile) -> npt.NDArray[np.int64] | None:
    if profile.dispatcher not in (Dispatcher.KEY_SHARED, Dispatcher.KEY_SHARED_CLASSIC):
        return None
    return profile.hash_space.sticky_array(hashing.entry_h31(log.messages, fallback=profile.fallback_key))


def _events(log: DispatcherLog, subject: _Subject, seq: int) -> Iterator[tuple[int, int, int, str]]:
    """(seq, order within it, time, text) of the events of the subject near ``seq``."""
    names = names_of(log.events)
    touched: set[int] = set(subject.consumers)
    shown_rows: set[int] = set()
    ledger, entry = (np.asarray(log.messages[name])[subject.rows] for name in ("ledger_id", "entry_id"))
    near = (seq, MAX_BEFORE, MAX_AFTER)
    for event in touching(log, _OF_ENTRIES, ledger, entry, subject.rows, near=near):
        if event.consumer is not None:
            touched.add(event.consumer)
        shown_rows.update(event.rows)
        who = "" if event.consumer is None else f" {_who(names, event.consumer)}"
        positions = positions_listed([position_of(log, row) for row in event.rows])
        yield event.seq, 1, event.t_us, f"{_OF_ENTRIES[event.kind]}{who}: {positions}"
    seq_at = SeqAt(log)
    for row in sorted(shown_rows)[-MAX_BEFORE:]:
        t_ms = log.messages["publish_time_ms"][row].as_py()
        if t_ms is not None:
            size = max(log.messages["num_messages"][row].as_py(), 1)
            batch = f", {size} messages" if size != 1 else ""
            yield (
                seq_at(t_ms * 1000),
                0,
                t_ms * 1000,
                f"stored {position_of(log, row)} (key {key_of(log, row)}{batch})",
            )
    yield from _other_lines(log, subject, touched, names)


def _other_lines(
    log: DispatcherLog, subject: _Subject, touched: set[int], names: Mapping[int, str]
) -> Iterator[tuple[int, int, int, str]]:
    """Lines that name no entry of the subject: joins and leaves, its hash, permits and deliveries of its consumers."""
    columns = ["seq", "t_us", "kind", "consumer", "hash", "positions", "permits", "ref_count_before"]
    kinds = pa.array([*_OF_HASH, *_MEMBERSHIP, *(_OF_CONSUMER if subject.consumers else ("redeliver",))])
    for row in log.events.select(columns).filter(pc.is_in(log.events["kind"], value_set=kinds)).to_pylist():
        kind, consumer = row["kind"], row["consumer"]
        who = _who(names, consumer)
        text = None
        if kind in _MEMBERSHIP:
            text = f"{who} {_MEMBERSHIP[kind]}"
        elif kind in _OF_HASH:
            if row["hash"] == subject.hash and row["ref_count_before"] != 0:  # 0 = it did not drain
                text = f"hash {row['hash']} {_OF_HASH[kind]} {who}"
        elif kind == "redeliver" and row["positions"] is None and consumer in touched:
            text = f"everything unacknowledged requested again by {who}"
        elif consumer in subject.consumers:
            what = f"{row['permits']} permits" if kind == "flow" else f"{len(row['positions'] or ())} entries"
            text = f"{kind} {what}: {who}"
        if text is not None:
            yield row["seq"], 1, row["t_us"] or 0, text


def _around(log: DispatcherLog, seq: int) -> Iterator[tuple[int, int, int, str]]:
    """The neighbouring lines, for a decision that concerns no key and no particular consumer."""
    seqs = np.asarray(log.events["seq"], dtype=np.int64)
    middle = int(np.searchsorted(seqs, seq, side="right"))
    first = max(middle - MAX_BEFORE, 0)
    names = names_of(log.events)
    for row in log.events.slice(first, middle + MAX_AFTER - first).to_pylist():
        who = "" if row["consumer"] is None else f" {_who(names, row['consumer'])}"
        positions = row["positions"]
        which = "" if positions is None else f" {len(positions)} entries"
        yield row["seq"], 1, row["t_us"] or 0, f"{row['kind']}{who}{which}"


def _who(names: Mapping[int, str], consumer: int | None) -> str:
    return numbered(consumer, None if consumer is None else names.get(consumer))
