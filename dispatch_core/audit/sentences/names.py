"""Display names of consumers, and foreign text made fit to be shown.

Names and keys come out of logs: invisible characters are escaped and long texts are cut before they are shown.

A consumer is called by the name its client gave it. Two connections with one name are distinguished by their numbers in the
log; a consumer without a name is called by its number. The column ``consumer_name`` of ``balance`` does the same
(``connections_in``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import Ints, codes_with_null

_LONGEST_NAME: Final = 100
#: Characters of a name on a page or in a mail.
LONGEST_ON_PAGES: Final = 300
#: Word before the number of a consumer without a name.
NAMELESS: Final = "consumer"
NOBODY: Final = "nobody"


def printable(text: str, limit: int | None = None) -> str:
    r"""``text`` on one line, with escapes for what is invisible, cut to ``limit`` characters.

    >>> printable("order-17"), printable("a\x1b[2J\u202eb"), printable("abcdef", 4)
    ('order-17', 'a\\x1b[2J\\u202eb', 'abc…')
    """
    beyond = limit is not None and len(text) > limit
    visible = text[: limit + 1] if beyond and limit is not None else text
    if not visible.isprintable():
        visible = "".join(
            c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in visible
        )
    return visible if limit is None or len(visible) <= limit else f"{visible[: limit - 1]}…"


def shown(text: str) -> str:
    """Return a name or key as it may stand in a sentence."""
    return printable(text, _LONGEST_NAME)


def consumer_name(number: int | None, name: str | None) -> str:
    """Return the name of a consumer; one without a name is called by its number, ``None`` is nobody.

    The name is returned as it stands in the log, not yet ``shown``.

    >>> consumer_name(7, "worker-1"), consumer_name(7, None), consumer_name(7, ""), consumer_name(None, None)
    ('worker-1', 'consumer 7', 'consumer 7', 'nobody')
    """
    return name or (NOBODY if number is None else f"{NAMELESS} {number}")


def numbered(number: int | None, name: str | None) -> str:
    """Return number and name of a consumer, for text that calls consumers by their numbers.

    >>> numbered(7, "worker-1"), numbered(7, None), numbered(None, None)
    ('consumer 7 (worker-1)', 'consumer 7', 'nobody')
    """
    plain = consumer_name(number, None)
    return f"{plain} ({shown(name)})" if name and number is not None else plain


class Named(Protocol):
    """A connection of a consumer: its number in the log and its name."""

    @property
    def number(self) -> int:
        """The log's number of the connection."""
        ...

    @property
    def name(self) -> str | None:
        """The name that the client gave itself."""
        ...


def display_names(consumers: Sequence[Named]) -> list[str]:
    """Return the display name of each connection, in their order."""
    return _distinct_names([(consumer.number, consumer.name) for consumer in consumers])


def _distinct_names(consumers: Sequence[tuple[int, str | None]]) -> list[str]:
    names = [shown(consumer_name(number, name)) for number, name in consumers]
    connections = Counter(names)
    return [
        f"{shown_name} (connection {number})" if connections[shown_name] > 1 else shown_name
        for shown_name, (number, _) in zip(names, consumers, strict=True)
    ]


def rules_called(profile_name: str | None) -> str:
    """Return the release and the rules of a log as a headline names them; ``None`` = they are not known.

    >>> rules_called("4.2.4 single active consumer, ring"), rules_called(None)
    ('Pulsar 4.2.4 single active consumer, ring', 'release unknown')
    """
    return "release unknown" if profile_name is None else f"Pulsar {shown(profile_name)}"


class ConsumerNames:
    """Display names by number of the connection.

    >>> names = ConsumerNames({1: "worker-1", 2: "worker-2", 3: "worker-2", 4: None})
    >>> [names.of(number) for number in (1, 2, 3, 4, 5, None)]
    ['worker-1', 'worker-2 (connection 2)', 'worker-2 (connection 3)', 'consumer 4', 'consumer 5', 'nobody']
    """

    def __init__(self, names: Mapping[int, str] | Mapping[int, str | None]) -> None:
        self._names = dict(zip(names, _distinct_names(list(names.items())), strict=True))

    def of(self, number: int | None) -> str:
        """Return the display name of a connection; without a name in the log it is called by its number."""
        if number is None:
            return NOBODY
        return self._names.get(number) or consumer_name(number, None)


class ConnectionNumbers(ConsumerNames):
    """Names where the log's names are not at hand: each connection is called by its number.

    >>> ConnectionNumbers().of(7)
    'connection 7'
    """

    def __init__(self) -> None:
        super().__init__({})

    def of(self, number: int | None) -> str:
        """Return the number of a connection, in words."""
        return NOBODY if number is None else f"connection {number}"


@dataclass(frozen=True, slots=True)
class Connections:
    """The connections that the rows of a table name.

    Attributes:
        of_row: index of the connection of each row.
        numbers: number of each connection in the log.
        names: display name of each: its own, or its number in place of a missing one (``consumer_name``).
    """

    of_row: Ints
    numbers: list[int | None]
    names: list[str]

    def by_name(self) -> tuple[list[str], Ints]:
        """Return the different names, in the order of their first connections, and the index of each connection's name."""
        index = {name: at for at, name in enumerate(dict.fromkeys(self.names))}
        return list(index), np.array([index[name] for name in self.names], np.int64)


def connections_in(table: pa.Table) -> Connections:
    """Find the connections in the columns ``consumer`` and ``consumer_name``, in the order of their first rows.

    >>> found = connections_in(pa.table({"consumer": [7, 8, 7], "consumer_name": ["a", None, "a"]}))
    >>> found.of_row.tolist(), found.numbers, found.names
    ([0, 1, 0], [7, 8], ['a', 'consumer 8'])
    """
    if not table.num_rows:
        return Connections(np.empty(0, np.int64), [], [])
    number, numbers = codes_with_null(table["consumer"])
    name, names = codes_with_null(table["consumer_name"])
    pairs = pa.array(number * len(names) + name).dictionary_encode()
    index: dict[tuple[int | None, str], int] = {}
    of_pair = []
    for pair in pairs.dictionary.to_pylist():
        consumer = numbers[pair // len(names)]
        of_pair.append(
            index.setdefault((consumer, consumer_name(consumer, names[pair % len(names)])), len(index))
        )
    of_row = np.array(of_pair, np.int64)[np.asarray(pairs.indices)]
    return Connections(of_row, [consumer for consumer, _ in index], [shown_name for _, shown_name in index])
