"""Sticky key hash of a stored entry.

Three steps, as in the broker:

1. *Which bytes* (``dispatch_key``): ordering key, else partition key (base64-decoded when flagged), else, from 4.0.0 on,
   ``<producer>-<sequence id>``, else the ASCII text ``NONE_KEY``. Presence counts, not length: an empty key is zero bytes.
2. *Murmur* (``h31``): MurmurHash3 x86 32 bit, seed 0, masked with ``0x7fffffff``.
3. *Into the selector's range* (``HashSpace.sticky``).

Source: Commands.peekStickyKey, Murmur3_32Hash, StickyKeyConsumerSelectorUtils.makeStickyKeyHash.

>>> h31(b"key-1")
414258592
>>> CONSISTENT_4X.sticky(h31(b"key-1"))
11858
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import mmh3
import numpy as np
import numpy.typing as npt
import pyarrow as pa

NONE_KEY: Final = b"NONE_KEY"
#: The value that means "no hash" in 4.x (StickyKeyConsumerSelector.STICKY_KEY_HASH_NOT_SET).
NOT_SET: Final = 0
DEFAULT_RANGE_SIZE: Final = 65536


@dataclass(frozen=True, slots=True)
class HashSpace:
    """The range of sticky key hashes of a kind of selector.

    ``sticky = h31 % size + start``, and 0 becomes 1 where ``reserve_zero`` (4.x: 0 means "not set").
    """

    start: int
    size: int
    reserve_zero: bool

    @property
    def last(self) -> int:
        """The highest hash of the space, inclusive."""
        return self.start + self.size - 1

    def sticky(self, h31_value: int) -> int:
        """Return the sticky key hash of a masked murmur hash."""
        value = h31_value % self.size + self.start
        return 1 if value == NOT_SET and self.reserve_zero else value

    def sticky_array(self, h31_values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return ``sticky`` of a whole array."""
        values = h31_values % self.size + self.start
        return np.where((values == NOT_SET) & self.reserve_zero, 1, values)


#: 4.x consistent hashing: [1, 65535].
CONSISTENT_4X: Final = HashSpace(1, DEFAULT_RANGE_SIZE - 1, reserve_zero=True)
#: 4.x auto-split range and sticky ranges (classic too): [0, 65535] with 0 mapped to 1.
RANGE_4X: Final = HashSpace(0, DEFAULT_RANGE_SIZE, reserve_zero=True)
#: Consistent hashing of the classic dispatcher of 4.x: [1, 2147483646].
CONSISTENT_CLASSIC: Final = HashSpace(1, 2147483646, reserve_zero=True)
#: 3.x and 4.0.0-preview.1: the murmur value itself.
MURMUR_31: Final = HashSpace(0, 1 << 31, reserve_zero=False)


_MASK_31: Final = 0x7FFFFFFF
#: Number of values of ``h31``.
H31_SIZE: Final = _MASK_31 + 1


def h31(key: bytes) -> int:
    """Return MurmurHash3 x86 32 of ``key``, seed 0, masked to 31 bits (Murmur3_32Hash)."""
    return mmh3.hash(key, 0, signed=False) & _MASK_31


def h31_array(keys: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """Return ``h31`` of many keys."""
    # Without a call of Python for each: dispatchers of few messages have as many keys.
    whole = np.fromiter(map(mmh3.hash, keys, repeat(0), repeat(False)), np.int64, len(keys))
    return whole & _MASK_31


def utf8(text: str) -> bytes:
    r"""Return the bytes of a Java string in UTF-8; half a surrogate pair becomes a question mark.

    >>> utf8("c1"), utf8("\ud83d")
    (b'c1', b'?')
    """
    return text.encode("utf-8", "replace")


def entry_key(key: str | None, key_b64: bool | None, ordering_key_b64: str | None) -> bytes | None:
    """Return the bytes of an entry's own key (ordering key before partition key); ``None`` for a key-less entry.

    Raises ``ValueError`` for text that is flagged base64 and is not.
    """
    if ordering_key_b64 is not None:
        return _decode(ordering_key_b64)
    if key is None:
        return None
    return _decode(key) if key_b64 else utf8(key)


def dispatch_key(
    key: str | None,
    key_b64: bool | None,
    ordering_key_b64: str | None,
    producer: str | None,
    sequence_id: int | None,
    *,
    fallback: bool,
) -> bytes | None:
    """Return the bytes that dispatch hashes, or ``None`` when the broker hashes ``NONE_KEY``.

    ``fallback``: key-less entries are hashed by producer and sequence id (#23219, from 4.0.0).
    """
    own = entry_key(key, key_b64, ordering_key_b64)
    if own is None and fallback and producer is not None and sequence_id is not None:
        return utf8(f"{producer}-{sequence_id}")
    return own


def entry_h31(messages: pa.Table, *, fallback: bool) -> npt.NDArray[np.int64]:
    """Return the masked murmur hash of every row of a ``MESSAGES`` table; each distinct key is hashed once."""
    none = h31(NONE_KEY)
    out = np.full(messages.num_rows, none, dtype=np.int64)
    given = messages["key_h31"].combine_chunks()
    if given.null_count < len(given):
        known = np.asarray(given.is_valid())
        out[known] = np.asarray(given.drop_null())
    else:
        known = np.zeros(messages.num_rows, dtype=bool)
    columns = (
        _Encoded(messages["key"]),
        _Encoded(messages["ordering_key_b64"]),
    )
    flagged = np.asarray(messages["key_b64"].combine_chunks().fill_null(False))
    key, ordering = columns
    # ordering key, then binary key, then text key: the order of precedence, least important first
    for values, decode, rows in (
        (key, False, ~flagged),
        (key, True, flagged),
        (ordering, True, np.ones(messages.num_rows, dtype=bool)),
    ):
        wanted = rows & values.present & ~known
        if wanted.any():
            used = np.unique(values.codes[wanted])
            hashes = np.zeros(len(values.words), dtype=np.int64)
            for code in used:
                word = values.words[code]
                hashes[code] = h31(_decode(word) if decode else utf8(word))
            out[wanted] = hashes[values.codes[wanted]]
    if fallback:
        keyless = ~(known | key.present | ordering.present)
        if keyless.any():
            rows_without_key = np.flatnonzero(keyless)
            producers = messages["producer"].take(pa.array(rows_without_key)).to_pylist()
            ids = messages["sequence_id"].take(pa.array(rows_without_key)).to_pylist()
            for row, producer, sequence_id in zip(rows_without_key, producers, ids, strict=True):
                key_bytes = dispatch_key(None, None, None, producer, sequence_id, fallback=True)
                if key_bytes is not None:
                    out[row] = h31(key_bytes)
    return out


class _Encoded:
    """A string column as codes into its distinct words."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        encoded = column.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        self.words: list[str] = encoded.dictionary.to_pylist()
        self.present = np.asarray(encoded.is_valid())
        self.codes = np.asarray(encoded.indices.fill_null(0))


def _decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"not base64: {text[:80]!r} ({error})") from error
