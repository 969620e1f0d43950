"""Take the names out of a log that is given to others: keys, consumers, producers, addresses, the topic.

A key is replaced by four other bytes with the same murmur hash, so every rule treats it as before; equal keys stay equal.
Names of consumers are replaced in the order of their appearance. Under consistent hashing a consumer's name decides what
it owns, so the caller has to see whether the log still has the finding.

>>> from dispatch_core.broker.hashing import h31
>>> h31(key_with_hash(h31(b"customer 4711"))) == h31(b"customer 4711")
True
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import pyarrow as pa

from dispatch_core.arrays.columns import replaced
from dispatch_core.broker.hashing import entry_h31
from dispatch_core.recording.log import DispatcherLog

_MASK: Final = 0xFFFFFFFF
#: Constants of MurmurHash3 x86 32 bit.
_C1: Final = 0xCC9E2D51
_C2: Final = 0x1B873593
_ADDED: Final = 0xE6546B64
_MIX_1: Final = 0x85EBCA6B
_MIX_2: Final = 0xC2B2AE35


#: Fields that a header keeps: those that decide. What else it has may name machines and people.
_KEPT: Final = (
    *("format", "format_version", "broker_version", "subscription_type", "config"),
    *("partition_index", "partitions", "records"),
)
_TOPIC: Final = "public/default/topic"
#: What remains of a topic's name in any case: it tells the rules.
_PARTS_KEPT: Final = re.compile(r"^(?P<domain>[a-z-]+://)?.*?(?P<partition>-partition-\d+)?$", re.DOTALL)
_SUBSCRIPTION: Final = "subscription"


def disguised(log: DispatcherLog, *, consumers: bool = True, topic: bool = True) -> DispatcherLog:
    """Return the log without its names; ``consumers``, ``topic``: without those of its consumers and its topic, too."""
    name = _topic_like(log.topic) if topic else log.topic
    columns: dict[str, list[str | None]] = {
        "topic": [name] * log.events.num_rows,
        "subscription": [_SUBSCRIPTION] * log.events.num_rows,
        **{name: [None] * log.events.num_rows for name in ("broker", "address", "note", "source_file")},
    }
    if consumers:
        columns["name"] = _numbered(log.events["name"].to_pylist(), "consumer")
    return replace(
        log,
        recording="",
        topic=name,
        subscription=_SUBSCRIPTION,
        broker=None,
        header={name: value for name, value in log.header.items() if name in _KEPT},
        messages=_disguised_messages(log.messages, name),
        events=replaced(log.events, columns),
    )


def _topic_like(topic: str) -> str:
    """Return another name with the domain and partition of a topic.

    >>> _topic_like("non-persistent://shop/eu/orders-partition-3"), _topic_like("orders")
    ('non-persistent://public/default/topic-partition-3', 'persistent://public/default/topic')
    """
    found = _PARTS_KEPT.match(topic)
    domain, partition = found.groups() if found is not None else (None, None)
    return f"{domain or 'persistent://'}{_TOPIC}{partition or ''}"


def _disguised_messages(messages: pa.Table, topic: str) -> pa.Table:
    """Replace keys and producers. The producer of an entry without a key stays: the entry is hashed by it."""
    given = zip(*(messages[name].to_pylist() for name in ("key", "ordering_key_b64", "key_h31")), strict=True)
    keyed = [any(value is not None for value in values) for values in given]
    hashes = entry_h31(messages, fallback=False).tolist()
    keys = [base64.b64encode(key_with_hash(value)).decode() for value in hashes]
    producers = messages["producer"].to_pylist()
    renamed = _numbered(producers, "producer")
    nothing = [None] * messages.num_rows
    return replaced(
        messages,
        {
            "topic": [topic] * messages.num_rows,
            "key": [key if has_key else None for key, has_key in zip(keys, keyed, strict=True)],
            "key_b64": [True if has_key else None for has_key in keyed],
            "producer": [
                new if has_key else old for new, old, has_key in zip(renamed, producers, keyed, strict=True)
            ],
            **dict.fromkeys(("ordering_key_b64", "key_h31", "source_file"), nothing),
        },
    )


def _numbered(names: Iterable[str | None], word: str) -> list[str | None]:
    """Replace each name by the word and a number, equal names by the same."""
    numbers: dict[str, int] = {}
    return [
        None if name is None else f"{word}-{numbers.setdefault(name, len(numbers) + 1)}" for name in names
    ]


def key_with_hash(h31_value: int) -> bytes:
    """Return the four bytes whose murmur hash is ``h31_value``: the steps of the hash, backwards."""
    value = h31_value
    value ^= value >> 16
    value = value * _inverse(_MIX_2) & _MASK
    value ^= value >> 13 ^ value >> 26
    value = value * _inverse(_MIX_1) & _MASK
    value ^= value >> 16
    value ^= 4  # the length
    value = (value - _ADDED) * _inverse(5) & _MASK
    value = _rotated(value, 32 - 13)
    value = value * _inverse(_C2) & _MASK
    value = _rotated(value, 32 - 15)
    return (value * _inverse(_C1) & _MASK).to_bytes(4, "little")


def _inverse(factor: int) -> int:
    return pow(factor, -1, _MASK + 1)


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK
