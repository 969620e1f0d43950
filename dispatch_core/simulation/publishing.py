"""Published messages: keys, sizes and times, drawn batch by batch so that any number of messages fits in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.broker import hashing
from dispatch_core.simulation.scenario import Scenario

#: Messages that are drawn at once.
BATCH_MESSAGES: Final = 1 << 18
PRODUCERS: Final = 4
_SIZE_MEDIAN: Final = 200
_SIZE_SIGMA: Final = 0.6


class KeySpace:
    """The keys of a simulation: their names, hashes, and how often each is drawn (Zipf by their number)."""

    def __init__(self, count: int, skew: float) -> None:
        names = [f"key-{number}" for number in range(count)]
        #: Key number → name.
        self.names = pa.array(names, pa.string())
        #: Key number → masked murmur hash.
        self.h31 = np.fromiter((hashing.h31(name.encode()) for name in names), np.int64, count)
        weights = np.arange(1, count + 1, dtype=np.float64) ** -skew
        self._up_to = np.cumsum(weights)
        self._up_to /= self._up_to[-1]

    def draw(self, random: np.random.Generator, count: int) -> npt.NDArray[np.int32]:
        """Draw ``count`` key numbers."""
        numbers = np.searchsorted(self._up_to, random.random(count), side="right")
        return np.minimum(numbers, len(self._up_to) - 1).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Published:
    """Entries of a topic in the order in which they are stored, from number ``first`` on."""

    first: int
    key: npt.NDArray[np.int32]  # key number
    h31: npt.NDArray[np.int64]  # masked murmur hash of what dispatch hashes
    publish_us: npt.NDArray[np.int64]
    size_bytes: npt.NDArray[np.int64]
    num_messages: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.h31)


class MessageBatches(Protocol):
    """The messages of a topic, a batch at a time."""

    @property
    def left(self) -> int:
        """Messages that are not taken yet."""

    def take(self) -> Published:
        """Return the next batch, empty at the end."""


class Publishing:
    """The messages of a topic, a Poisson process of the wanted rate from ``start_us`` on."""

    def __init__(self, scenario: Scenario, dispatcher: int, keys: KeySpace, start_us: int) -> None:
        self._keys = keys
        self._left = scenario.messages_of(dispatcher)
        self._done = 0
        self._mean_us = 1_000_000 / scenario.rate_of(dispatcher)
        self._now_us = float(start_us)
        self._random = np.random.default_rng([scenario.seed, dispatcher, 1])

    @property
    def left(self) -> int:
        """Messages that are not drawn yet."""
        return self._left

    def take(self) -> Published:
        """Draw the next batch of messages, empty at the end."""
        count = min(BATCH_MESSAGES, self._left)
        gaps = self._random.exponential(self._mean_us, count)
        times = self._now_us + np.cumsum(gaps)
        sizes = self._random.lognormal(np.log(_SIZE_MEDIAN), _SIZE_SIGMA, count)
        key = self._keys.draw(self._random, count)
        published = Published(
            first=self._done,
            key=key,
            h31=self._keys.h31[key],
            publish_us=times.astype(np.int64),
            size_bytes=sizes.astype(np.int64),
            num_messages=np.ones(count, np.int64),
        )
        if count:
            self._now_us = float(times[-1])
        self._done += count
        self._left -= count
        return published
