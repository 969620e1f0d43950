"""Find the subject of an explanation in a log: a key, an entry or a consumer.

A key is given as text, as ``base64:…`` of its bytes, or as ``h31:…``, its masked murmur hash. Keys are compared by their
bytes. If the log holds only hashes (``key_h31``), the hash of the given key is compared.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Final

import numpy as np

from dispatch_core.arrays.columns import Ints, valid
from dispatch_core.arrays.positions import locate
from dispatch_core.audit.sentences.lists import listed
from dispatch_core.audit.sentences.names import consumer_name, shown
from dispatch_core.broker import hashing
from dispatch_core.errors import DispatchAuditError
from dispatch_core.explain.record import Record, h31_of
from dispatch_core.times import TIME_FORMS, clock, from_micros, micros

KEY: Final = "key"
ENTRY: Final = "entry"
CONSUMER: Final = "consumer"

_BASE64: Final = "base64:"
_H31: Final = "h31:"
_NUMBER: Final = re.compile(r"\d{1,18}", re.ASCII)
_POSITION: Final = re.compile(r"(\d{1,18}):(\d{1,18})", re.ASCII)
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?", re.ASCII)
_DAY_US: Final = 86_400_000_000
_MOST_NEAR: Final = 5
#: How many names or keys are searched for one that is near.
_MOST_COMPARED: Final = 20_000


class NothingMatchedError(DispatchAuditError):
    """The log does not hold what was asked for. ``near``: similar names, ready for display."""

    def __init__(self, message: str, near: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.near = tuple(near)


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of an explanation.

    ``ordinals``: its entries; of a consumer, all that were sent to it. ``mates``: all entries of their hash, these
    included (of a consumer: none). ``keys``: pairs of the text as the tables hold it and a flag, true for base64.
    ``places``: the places of a consumer's connections in ``Record.names``. ``also``: further keys that share the hash.
    """

    kind: str
    title: str
    ordinals: Ints = field(repr=False)
    mates: Ints = field(repr=False)
    hash: int | None = None
    keys: tuple[tuple[str, bool], ...] = ()
    places: tuple[int, ...] = ()
    also: tuple[str, ...] = ()


def subject_of(
    record: Record, *, key: str | None = None, position: str | None = None, consumer: str | None = None
) -> Subject:
    """Find the subject that exactly one of ``key``, ``position`` (``"L:E"``) and ``consumer`` (name or number) names.

    Raises ``NothingMatchedError`` where the log does not hold it.
    """
    if sum(given is not None for given in (key, position, consumer)) != 1:
        raise DispatchAuditError("ask for one of: a key, a position, a consumer")
    if key is not None:
        return _of_key(record, key)
    if position is not None:
        return _of_position(record, position)
    return _of_consumer(record, consumer or "")


# keys ----------------------------------------------------------------------------------------------------------------


def _of_key(record: Record, asked: str) -> Subject:
    wanted, h31 = _wanted(asked)
    rows = np.flatnonzero(_keyed(record) & (h31_of(record) == h31))
    messages = record.log.messages
    ledger, entry = (np.asarray(messages[name], dtype=np.int64)[rows] for name in ("ledger_id", "entry_id"))
    ordinals = np.unique(locate(record.history.ledger, record.history.entry, ledger, entry)).astype(np.int64)
    keys = np.unique(record.history.entry_key[ordinals]) if len(ordinals) else np.empty(0, np.int32)
    if wanted is not None:
        keys = np.array([k for k in keys.tolist() if k >= 0 and _is_key(record, k, wanted, h31)], np.int32)
    ordinals = np.flatnonzero(np.isin(record.history.entry_key, keys)) if len(keys) else ordinals[:0]
    if not len(ordinals):
        raise NothingMatchedError(f"no entry has the key {shown(asked)}", _near_keys(record, asked))
    identities = tuple(_identity(record, k) for k in keys.tolist())
    names = [shown(text) for text, _ in identities]
    title = f"key {names[0]}" if len(names) == 1 else f"keys {listed(names, most=4)}"
    return _with_mates(record, KEY, title, ordinals, identities)


def _wanted(asked: str) -> tuple[bytes | None, int]:
    """The bytes of the key (None if only its hash is given), and the hash."""
    if asked.startswith(_H31):
        number = asked[len(_H31) :]
        if not _NUMBER.fullmatch(number) or int(number) > 0x7FFFFFFF:
            raise NothingMatchedError(f"{shown(asked)} is no hash: h31: is followed by a number below 2^31")
        return None, int(number)
    if asked.startswith(_BASE64):
        try:
            decoded = base64.b64decode(asked[len(_BASE64) :], validate=True)
        except (binascii.Error, ValueError) as error:
            raise NothingMatchedError(f"{shown(asked)} is no base64: {error}") from None
    else:
        decoded = hashing.utf8(asked)
    return decoded, hashing.h31(decoded)


def _keyed(record: Record) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    messages = record.log.messages
    return valid(messages["key"]) | valid(messages["ordering_key_b64"]) | valid(messages["key_h31"])


def _is_key(record: Record, key: int, wanted: bytes, h31: int) -> bool:
    """Check that a key with the right hash has the right bytes, as far as the log knows them."""
    text, is_base64 = _identity(record, key)
    if not is_base64 and text == f"{_H31}{h31}":
        return True  # the log holds hashes instead of keys
    if is_base64:
        try:
            return base64.b64decode(text, validate=True) == wanted
        except (binascii.Error, ValueError):
            return False
    return hashing.utf8(text) == wanted


def _identity(record: Record, key: int) -> tuple[str, bool]:
    return record.history.keys.text(key), bool(record.history.keys.base64[key])


def _near_keys(record: Record, asked: str) -> list[str]:
    texts = record.history.keys.texts.slice(0, _MOST_COMPARED).to_pylist()
    flags = record.history.keys.base64[: len(texts)].tolist()
    spelled = [f"{_BASE64}{text}" if flag else text for text, flag in zip(texts, flags, strict=True)]
    return _near(asked, spelled)


# positions and consumers ---------------------------------------------------------------------------------------------


def _of_position(record: Record, asked: str) -> Subject:
    parts = _POSITION.fullmatch(asked.strip())
    if parts is None:
        raise NothingMatchedError(f"{shown(asked)} is no position: give ledger and entry, as in 17:42")
    ledger, entry = int(parts[1]), int(parts[2])
    ordinal = record.ordinal(ledger, entry)
    if ordinal < 0:
        raise NothingMatchedError(
            f"no entry {ledger}:{entry} is in the log", _near_positions(record, ledger, entry)
        )
    key = int(record.history.entry_key[ordinal])
    keys: tuple[tuple[str, bool], ...] = () if key < 0 else (_identity(record, key),)
    named = "no key" if key < 0 else f"key {shown(keys[0][0])}"
    if not record.history.stored[ordinal]:
        named = "not in the message log"
    return _with_mates(record, ENTRY, f"{ledger}:{entry} ({named})", np.array([ordinal], np.int64), keys)


def _near_positions(record: Record, ledger: int, entry: int) -> list[str]:
    """The entries before and after the place where the position would be."""
    ledgers, entries = record.history.ledger, record.history.entry
    before = int(np.count_nonzero((ledgers < ledger) | ((ledgers == ledger) & (entries < entry))))
    return [record.position(at) for at in (before - 1, before) if 0 <= at < len(ledgers)]


def _of_consumer(record: Record, asked: str) -> Subject:
    here = range(record.first_consumer, len(record.history.consumers))
    places = [at for at in here if record.history.consumers[at].name == asked]
    if not places and _NUMBER.fullmatch(asked):
        places = [at for at in here if record.history.consumers[at].number == int(asked)]
    if not places:
        names = [consumer.name or str(consumer.number) for consumer in record.history.consumers]
        raise NothingMatchedError(
            f"no consumer is called {shown(asked)} or has this number",
            _near(asked, names) or sorted(set(map(shown, names)))[:_MOST_NEAR],
        )
    ordinals = np.unique(record.deliveries[np.isin(record.deliveries[:, 1], places), 0]).astype(np.int64)
    first = record.history.consumers[places[0]]
    title = f"consumer {shown(first.name)}" if first.name else consumer_name(first.number, None)
    if len(places) > 1:
        numbers = ", ".join(str(record.history.consumers[at].number) for at in places)
        title += f" (connections {numbers})"
    return Subject(CONSUMER, title, ordinals, ordinals[:0], places=tuple(places))


def _with_mates(
    record: Record, kind: str, title: str, ordinals: Ints, keys: tuple[tuple[str, bool], ...]
) -> Subject:
    history = record.history
    hashes = np.unique(history.entry_hash[ordinals])
    sticky = int(hashes[0]) if len(hashes) == 1 and hashes[0] >= 0 else None
    if sticky is not None:
        mates = np.flatnonzero(history.entry_hash == sticky).astype(np.int64)
        title += f", hash {sticky}"
    else:
        of_key = history.entry_key[ordinals]
        mates = np.flatnonzero(np.isin(history.entry_key, of_key[of_key >= 0])).astype(np.int64)
        mates = np.union1d(mates, ordinals)
    own = set(np.unique(history.entry_key[ordinals]).tolist())
    others = [k for k in np.unique(history.entry_key[mates]).tolist() if k >= 0 and k not in own]
    also = tuple(shown(history.keys.text(k)) for k in others[:_MOST_NEAR])
    return Subject(kind, title, ordinals, mates, sticky, keys, also=also)


def _near(asked: str, known: Iterable[str]) -> list[str]:
    """The texts of ``known`` most similar to ``asked``, ready for display."""
    distinct = list(dict.fromkeys(known))[:_MOST_COMPARED]
    by_lower = {text[:100].lower(): text for text in reversed(distinct)}
    near = get_close_matches(asked[:100].lower(), by_lower, n=_MOST_NEAR, cutoff=0.6)
    return [shown(by_lower[text]) for text in near]


# times ---------------------------------------------------------------------------------------------------------------


def moment_of(text: str, span_us: tuple[int, int], option: str = "--at") -> int:
    """The time that an option names, in microseconds since the epoch, UTC.

    A clock time (``08:21:07.355``) is the first of that kind since the log begins; else ISO 8601 with a date (UTC unless it
    says otherwise), or microseconds as in the log. Raises ``DispatchAuditError`` for anything else.

    >>> begin = 1795249218_000_000
    >>> clock(moment_of("08:20:20.5", (begin, begin + 60_000_000)))
    '08:20:20.500'
    >>> clock(moment_of("2026-11-21T10:20:20+02:00", (begin, begin)))
    '08:20:20.000'
    """
    stripped = text.strip()
    of_day = _CLOCK.fullmatch(stripped)
    if of_day is not None:
        hours, minutes, seconds = int(of_day[1]), int(of_day[2]), int(of_day[3] or 0)
        if hours < 24 and minutes < 60 and seconds < 60:
            wanted = (hours * 60 + minutes) * 60_000_000 + seconds * 1_000_000
            wanted += int((of_day[4] or "").ljust(6, "0"))
            # a given time may have fewer digits than the times of the log
            least = span_us[0] - (999_999 if of_day[3] else 59_999_999)
            days = -(-(least - wanted) // _DAY_US)
            return days * _DAY_US + wanted
    if _NUMBER.fullmatch(stripped):
        return int(stripped)
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        raise DispatchAuditError(
            f"{option} {shown(text)}: give a UTC time as {TIME_FORMS}; this log runs "
            f"from {_date(span_us[0])}{clock(span_us[0])} to {clock(span_us[1])}"
        ) from None
    return micros(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def _date(t_us: int) -> str:
    try:
        return from_micros(t_us).strftime("%Y-%m-%dT")
    except (OverflowError, ValueError):
        return ""
