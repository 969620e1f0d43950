"""Destination of a simulation's messages and lines: tables of a log, appended to the files of a recording."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.simulation import kinds
from dispatch_core.simulation.publishing import KeySpace, Published
from dispatch_core.simulation.tables import Client, Log, event_table, header_table, message_table
from dispatch_core.simulation.world import Lines


class Files(Protocol):
    """The two files of a recording."""

    def messages(self, table: pa.Table) -> None:
        """Append rows of ``MESSAGES``."""

    def events(self, table: pa.Table) -> None:
        """Append rows of ``EVENTS``."""


class Sink(Protocol):
    """Takes the messages and lines of a dispatcher's run."""

    def published(self, published: Published, hashes: npt.NDArray[np.int64]) -> None:
        """Take published entries; ``hashes``: their sticky key hashes."""

    def client(self, number: int, client: Client) -> None:
        """Take a connection that a ``consumer_added`` line names."""

    def noted(self, words: Sequence[int]) -> int:
        """Return a number for the ack set of lines that follow; 0 = none."""

    def lines(self, lines: Lines) -> None:
        """Take lines in the order of the log; their arrays are reused after the call."""


class LastSent:
    """Keeps when each connection was sent something last, and how many entries it was sent, and nothing else."""

    def __init__(self) -> None:
        #: Connection → microseconds since the epoch.
        self.at_us: dict[int, int] = {}
        #: Connection → entries, every time counted.
        self.entries: dict[int, int] = {}

    def published(self, published: Published, hashes: npt.NDArray[np.int64]) -> None:
        """See ``Sink``."""

    def client(self, number: int, client: Client) -> None:
        """See ``Sink``."""

    def noted(self, words: Sequence[int]) -> int:
        """See ``Sink``."""
        return 0

    def lines(self, lines: Lines) -> None:
        """See ``Sink``."""
        count = int(lines.n[0])
        ends = np.append(lines.start[1:count], lines.n[1])
        sent = np.flatnonzero(lines.kind[:count] == kinds.SENT)
        listed = (ends - lines.start[:count])[sent]
        for number, at_us, entries in zip(
            lines.consumer[sent].tolist(), lines.t_us[sent].tolist(), listed.tolist(), strict=True
        ):
            self.at_us[number] = at_us
            self.entries[number] = self.entries.get(number, 0) + entries


class FileSink:
    """Appends to the files of a recording."""

    def __init__(self, log: Log, keys: KeySpace, files: Files) -> None:
        self._log = log
        self._keys = keys
        self._files = files
        files.events(header_table(log))

    def published(self, published: Published, hashes: npt.NDArray[np.int64]) -> None:
        """See ``Sink``."""
        if self._log.trace:
            self._log.hashes.append(hashes)
        self._files.messages(message_table(self._log, published, self._keys))

    def client(self, number: int, client: Client) -> None:
        """See ``Sink``."""
        self._log.clients[number] = client

    def noted(self, words: Sequence[int]) -> int:
        """See ``Sink``; synthetic clients acknowledge whole entries."""
        return 0

    def lines(self, lines: Lines) -> None:
        """See ``Sink``."""
        if lines.n[0]:
            self._files.events(event_table(self._log, lines))
