"""Names in sentences: they are foreign, so nothing invisible may act, and nothing may be endless."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

_LONGEST_NAME: Final = 100


def shown(text: str) -> str:
    r"""``text`` as it may stand in a sentence: names and keys are foreign, so nothing invisible and nothing endless.

    >>> shown("order-17")
    'order-17'
    >>> shown("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    short = text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "…"
    if short.isprintable():
        return short
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in short
    )


class Named(Protocol):
    """A connection of a consumer: its number in the log and its name."""

    @property
    def number(self) -> int:
        """The log's number of the connection."""
        ...

    @property
    def name(self) -> str | None:
        """What the client called itself."""
        ...


@dataclass(frozen=True, slots=True)
class _Connection:
    number: int
    name: str | None


def names_of(consumers: Sequence[Named]) -> list[str]:
    """How each connection is called in a sentence."""
    names = [shown(c.name) if c.name else f"connection {c.number}" for c in consumers]
    counted = Counter(names)
    # two connections of one name can only be told apart by their numbers
    return [
        f"{name} (connection {consumer.number})" if counted[name] > 1 else name
        for name, consumer in zip(names, consumers, strict=True)
    ]


def names_by_number(names: Mapping[int, str]) -> dict[int, str]:
    """The same by number of the connection."""
    consumers = [_Connection(number, name) for number, name in sorted(names.items())]
    called = names_of(consumers)
    return {consumer.number: name for consumer, name in zip(consumers, called, strict=True)}
