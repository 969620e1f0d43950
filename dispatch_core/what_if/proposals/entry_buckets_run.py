"""Run of a simulated dispatcher under PIP-486: the hash of an entry is that of its bucket."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.selectors.selector import Selector
from dispatch_core.simulation.churn import Change
from dispatch_core.simulation.dispatcher_run import Connecting, Given
from dispatch_core.simulation.key_shared_run import KeySharedRun
from dispatch_core.simulation.publishing import Published
from dispatch_core.simulation.sink import Sink
from dispatch_core.what_if.proposals.entry_buckets import EntryBucketSelector, canonical


class EntryBucketDispatcher(KeySharedDispatcher):
    """A Key_Shared dispatcher that deals buckets to its consumers."""

    def __init__(
        self,
        profile: Profile,
        hashes: npt.NDArray[np.int64],
        num_messages: npt.NDArray[np.int64],
        max_consumers: int,
        buckets: int,
    ) -> None:
        self._buckets = buckets
        super().__init__(profile, hashes, num_messages, max_consumers)

    def _new_selector(self, profile: Profile) -> Selector:
        return EntryBucketSelector(self._buckets)


class EntryBucketRun(KeySharedRun):
    """The compiled loop over hashes of buckets.

    Clients grant permits for what they answer, and not at the recorded times: with other owners they get other loads, and
    one that gets more than it got would wait for permits of the log.
    """

    def __init__(self, given: Given, sink: Sink, buckets: int) -> None:
        self._buckets = buckets
        super().__init__(given, sink)

    def _new_core(self, first: Published) -> KeySharedDispatcher:
        return EntryBucketDispatcher(
            self.profile, self._hashes(first), first.num_messages, self._connections, self._buckets
        )

    def _connect(self, change: Change, slot: int, number: int, connecting: Connecting) -> None:
        first, end = connecting.flows
        super()._connect(change, slot, number, replace(connecting, flows=(first, min(first + 1, end))))

    def _hashes(self, published: Published) -> npt.NDArray[np.int64]:
        return canonical(published.h31, self._buckets)
