"""Stand-in for the Python client's reader: the same methods, the same forms of ids and keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

#: A string on which the client fails, like its binding: bytes that are no UTF-8.
Text = str | bytes


def varint(value: int) -> bytes:
    out = bytearray()
    value &= (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@dataclass(frozen=True)
class FakeId:
    ledger: int
    entry: int
    index: int = -1
    size: int = 0
    chunked: bool = False

    def ledger_id(self) -> int:
        return self.ledger

    def entry_id(self) -> int:
        return self.entry

    def batch_index(self) -> int:
        return self.index

    def serialize(self) -> bytes:
        """Serialize the id as the client does; compared with the client for these fields."""
        out = b"\x08" + varint(self.ledger) + b"\x10" + varint(self.entry) + b"\x18" + varint(-1)
        if self.index >= 0:
            out += b"\x20" + varint(self.index)
        if self.size:
            out += b"\x30" + varint(self.size)
        first = b"\x08" + varint(self.ledger) + b"\x10\x00"
        return out + (b"\x3a" + varint(len(first)) + first if self.chunked else b"")


@dataclass(frozen=True)
class Encrypted:
    size: int

    def is_decryption_failed(self) -> bool:
        return True

    def batch_size(self) -> int:
        return self.size


@dataclass(frozen=True)
class FakeMessage:
    id: FakeId
    key: Text = "k"
    ordering: Text = ""
    payload: bytes = b"0123456789"
    publish_ms: int = 1_000
    encrypted: Encrypted | None = None

    def message_id(self) -> FakeId:
        return self.id

    def partition_key(self) -> str:
        return self.key.decode() if isinstance(self.key, bytes) else self.key

    def ordering_key(self) -> str:
        return self.ordering.decode() if isinstance(self.ordering, bytes) else self.ordering

    def producer_name(self) -> str:
        return "p1"

    def publish_timestamp(self) -> int:
        return self.publish_ms

    def data(self) -> bytes:
        return self.payload

    def encryption_context(self) -> Any:
        return self.encrypted


def batch(ledger: int, entry: int, keys: Sequence[Text], **fields: Any) -> list[FakeMessage]:
    """Make the messages of an entry with a batch."""
    return [
        FakeMessage(FakeId(ledger, entry, index, len(keys)), key, **fields) for index, key in enumerate(keys)
    ]


class NoMessageError(Exception):
    """Stand-in for ``pulsar.Timeout``."""


@dataclass
class FakeReader:
    """A reader that returns ``messages`` in order. ``kept_back``: the broker announces more messages and delivers none."""

    messages: list[FakeMessage]
    kept_back: bool = False
    failure: Exception | None = None
    given: int = field(default=0)

    def has_message_available(self) -> bool:
        return self.kept_back or self.given < len(self.messages)

    def read_next(self, timeout_millis: int | None = None) -> FakeMessage:
        assert timeout_millis, "a reader must not wait for ever"
        if self.given == len(self.messages):
            raise self.failure or NoMessageError
        self.given += 1
        return self.messages[self.given - 1]
