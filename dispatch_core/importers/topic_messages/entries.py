"""Join the messages that a client's reader returns to the entries that the broker stores and dispatches.

The broker stores, dispatches and acknowledges *entries*; a client unpacks each into the messages of its batch. The messages
of one entry are consecutive and share ledger and entry id; the serialized message id also gives their number. An entry's key
is the one in its metadata, that of its first message. With a key-based batcher, and without batching, all messages of an
entry have the same key.

The client does not show sequence ids, the stored size (compressed, with metadata), and whether a key was given as bytes:
then the metadata hold it in base64, and ``keys_are_base64`` has to be set.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from dispatch_core.broker.hashing import h31, utf8
from dispatch_core.errors import DispatchAuditError

Keys = Literal["key", "key_h31"]
Position = tuple[int, int]

#: Fields of Pulsar's ``MessageIdData`` (protobuf): number of messages in the batch, first chunk of a chunked message.
_BATCH_SIZE: Final = 6
_FIRST_CHUNK: Final = 7
_VARINT, _LENGTH_DELIMITED = 0, 2


class MessageIdError(DispatchAuditError):
    """A serialized message id of an unknown form."""


class MessageId(Protocol):
    """The part of ``pulsar``'s message ids that is used here."""

    def ledger_id(self) -> int: ...  # noqa: D102
    def entry_id(self) -> int: ...  # noqa: D102
    def batch_index(self) -> int: ...  # noqa: D102
    def serialize(self) -> bytes: ...  # noqa: D102


class Message(Protocol):
    """The part of ``pulsar.Message`` that is used here."""

    def message_id(self) -> MessageId: ...  # noqa: D102
    def partition_key(self) -> str: ...  # noqa: D102
    def ordering_key(self) -> str: ...  # noqa: D102
    def producer_name(self) -> str: ...  # noqa: D102
    def publish_timestamp(self) -> int: ...  # noqa: D102
    def data(self) -> bytes: ...  # noqa: D102
    def encryption_context(self) -> Any: ...  # noqa: D102


@dataclass(slots=True)
class Entry:
    """One entry. Keys are the bytes in its metadata, None without a key; ``size_bytes``: the payloads of its messages.

    ``more_keys``: its messages have several keys. ``chunked``: the last entry of a chunked message, of which the client does
    not name the other entries.
    """

    position: Position
    key: bytes | None
    ordering_key: bytes | None
    producer: str
    publish_time_ms: int
    num_messages: int
    size_bytes: int
    more_keys: bool = False
    chunked: bool = False


def batch_of(serialized: bytes) -> tuple[int, bool]:
    r"""The number of messages in the entry of a serialized message id (0 = not given), and true if it was chunked.

    Raises ``MessageIdError`` for bytes that are no protobuf message.

    >>> batch_of(b"\x08\x11\x10\x05\x18\x00 \x020\x03")
    (3, False)
    """
    size, chunked, at = 0, False, 0
    while at < len(serialized):
        tag, at = _varint(serialized, at)
        value, at = _varint(serialized, at)
        if tag & 7 == _LENGTH_DELIMITED:
            at += value
        elif tag & 7 != _VARINT:
            raise MessageIdError(
                f"a message id with a field of wire type {tag & 7}: this client is not known here"
            )
        if tag >> 3 == _BATCH_SIZE:
            size = value
        chunked = chunked or tag >> 3 == _FIRST_CHUNK
    return size, chunked


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise MessageIdError("a message id that ends too early: this client is not known here")


class Entries:
    """Joins messages to entries; ``push`` yields an entry as soon as it is complete."""

    def __init__(self) -> None:
        self._open: Entry | None = None
        self._seen = self._size = 0

    def push(self, message: Message) -> Iterator[Entry]:
        """Add the next message; yields the entries that are now complete, up to two."""
        message_id = message.message_id()
        position = (message_id.ledger_id(), message_id.entry_id())
        if self._open is not None and self._open.position != position:
            yield from self.flush()
        if self._open is None:
            self._open, self._seen = _first(message, position), 0
            self._size = self._open.num_messages
        elif not self._open.more_keys:
            same = _text_bytes(message.partition_key) == self._open.key
            self._open.more_keys = not (same and _text_bytes(message.ordering_key) == self._open.ordering_key)
        self._seen += 1
        self._open.size_bytes += len(message.data())
        self._open.num_messages = max(self._size, self._seen)
        if self._seen == self._size:
            yield from self.flush()

    def flush(self) -> Iterator[Entry]:
        """Yield the open entry: no more messages will come."""
        if self._open is not None:
            entry, self._open = self._open, None
            yield entry


def _first(message: Message, position: Position) -> Entry:
    """The entry that a message begins; ``num_messages`` is the client's, 0 = a batch of unknown size."""
    message_id = message.message_id()
    size, chunked = batch_of(message_id.serialize())
    if not size and message_id.batch_index() < 0:
        size = 1
    context = message.encryption_context()
    if context is not None and context.is_decryption_failed():
        size = max(context.batch_size(), 1)  # the client returns the whole entry as one message
    return Entry(
        position,
        _text_bytes(message.partition_key),
        _text_bytes(message.ordering_key),
        message.producer_name(),
        message.publish_timestamp(),
        size,
        0,
        chunked=chunked,
    )


def _text_bytes(text: Callable[[], str]) -> bytes | None:
    """The bytes of the text that a call returns, even if they are not UTF-8. None = empty: the client's "not set"."""
    try:
        found = utf8(text())
    except UnicodeDecodeError as error:
        found = error.object
    return found or None


class Lines:
    """Entries as lines of the message log. ``base64_failed`` counts keys that should be base64 and are not."""

    def __init__(self, topic: str, keys: Keys, *, keys_are_base64: bool = False) -> None:
        """``keys``: the key itself, or only its hash. ``keys_are_base64``: producers set keys as bytes."""
        self._topic = topic
        self._keys = keys
        self._keys_are_base64 = keys_are_base64
        self.base64_failed = 0

    def line(self, entry: Entry) -> bytes:
        """One line, with its line end."""
        row: dict[str, Any] = {"topic": self._topic, "position": "{}:{}".format(*entry.position)}
        row |= self._key_fields(entry)
        row |= {
            "producer": entry.producer,
            "publish_time_ms": entry.publish_time_ms,
            "num_messages": entry.num_messages,
            "size_bytes": entry.size_bytes,
        }
        return (
            json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "backslashreplace")
            + b"\n"
        )

    def _key_fields(self, entry: Entry) -> dict[str, Any]:
        key, binary = self._decoded(entry.key)
        if self._keys == "key_h31":
            dispatched = key if entry.ordering_key is None else entry.ordering_key
            return {"key": None} if dispatched is None else {"key_h31": h31(dispatched)}
        fields: dict[str, Any] = {"key": None}
        if key is not None:
            text = None if binary else _utf8_or_none(key)
            fields = {"key": _base64(key), "key_b64": True} if text is None else {"key": text}
        if entry.ordering_key is not None:
            fields["ordering_key_b64"] = _base64(entry.ordering_key)
        return fields

    def _decoded(self, key: bytes | None) -> tuple[bytes | None, bool]:
        """The key's bytes, and true if the key is binary."""
        if key is None or not self._keys_are_base64:
            return key, False
        try:
            return base64.b64decode(key, validate=True), True
        except binascii.Error:
            self.base64_failed += 1
            return key, False


def _utf8_or_none(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def entries_of(messages: Iterable[Message]) -> list[Entry]:
    """The entries of a complete sequence of messages."""
    joined = Entries()
    found = [entry for message in messages for entry in joined.push(message)]
    return [*found, *joined.flush()]
