"""Where a simulation's messages and lines go: the tables of one log, appended to the files of a recording."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.simulation.publishing import KeySpace, Published
from dispatch_core.simulation.tables import Client, Log, event_table, header_table, message_table
from dispatch_core.simulation.world import Lines


class Files(Protocol):
    """The two files of a recording."""

    def messages(self, table: pa.Table) -> None:
        """Append rows of ``MESSAGES``."""

    def events(self, table: pa.Table) -> None:
        """Append rows of ``EVENTS``."""


class Sink:
    """Takes what one dispatcher's life brings forth."""

    def __init__(self, log: Log, keys: KeySpace, files: Files) -> None:
        self._log = log
        self._keys = keys
        self._files = files
        files.events(header_table(log))

    def published(self, published: Published, hashes: npt.NDArray[np.int64]) -> None:
        """Entries are published; ``hashes``: their sticky key hashes."""
        if self._log.trace:
            self._log.hashes.append(hashes)
        self._files.messages(message_table(self._log, published, self._keys))

    def client(self, number: int, client: Client) -> None:
        """A connection that a ``consumer_added`` line names."""
        self._log.clients[number] = client

    def lines(self, lines: Lines) -> None:
        """Lines in the order of the log; taken over at once."""
        if lines.n[0]:
            self._files.events(event_table(self._log, lines))
