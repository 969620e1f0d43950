"""Limits that a trace shows in force, beside the broker's own settings: policies and properties that hold deliveries back.

A ``limit`` line says when one begins and ends. A recorder that writes none may leave marks of the program that drove it
(``step``): ``limit unacked_namespace 8 set``, ``limit dispatch_rate removed``, ``compaction``. They stand for such lines
here, and nothing else in a mark is read.

=======================  ============================================================================================
``what``                 what ``verify`` does while it is in force
=======================  ============================================================================================
``unacked_namespace``,   Replayed: it takes the place of ``maxUnackedMessagesPerConsumer``. A topic's limit counts
``unacked_topic``        before a namespace's.
``dispatch_rate``        A read of fewer entries than the rules ask for, or none, is *not judged*: how many the rate
                         allows depends on the broker's clock. One of more entries is divergent.
``delayed_delivery``     What follows the first entry that is read before its time is *not judged*: the tracker
                         goes by the broker's clock. ``deliver_at_ms`` of the message shows it, no ``limit`` line.
``compacted_read``       What follows is *not judged*: such reads come from the compacted ledger, and have no lines.
=======================  ============================================================================================

A line or mark and the effect of its policy are not at the same time. A recorder asks for policies once a second: a policy
may have held ``SEEN_WITHIN_US`` before its line. A mark says when an administrator's call returned, and the policy may
reach the dispatcher later. So a limit of unacknowledged messages is taken as in force from its mark on, until a decision
shows that it is not. Then it *may begin* until another one shows it in force, at the latest ``REACHES_WITHIN_US`` behind
the mark. The same holds for its end. After its end a rate *may hold* until a read of more entries than it allowed shows
that it is gone.

>>> of_mark("limit unacked_namespace 8 set"), of_mark("limit dispatch_rate removed"), of_mark("drain")
(Limit(what='unacked_namespace', active=True, value=8), Limit(what='dispatch_rate', active=False, value=None), None)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import has, ints, valid
from dispatch_core.arrays.growing import Growing
from dispatch_core.verify.inputs import Line

DISPATCH_RATE: Final = "dispatch_rate"
COMPACTED_READ: Final = "compacted_read"
#: Limits of unacknowledged messages per consumer, the first that is in force counts.
UNACKED: Final = ("unacked_topic", "unacked_namespace")

REASON_OF_RATE: Final = (
    "a dispatch rate was in force: how many entries a read may have depends on the broker's clock"
)
REASON_OF_DELAY: Final = (
    "an entry was read before its deliver-at time: its tracker goes by the broker's clock"
)
REASON_OF_CHANCE: Final = (
    "preciseDispatcherFlowControl: the broker sizes a read by a consumer that it picks at random; the size is one of those "
    "that its consumers give"
)
REASON_OF_COMPACTED: Final = "compacted data was read: such reads have no lines"

#: The longest time from the beginning of a policy to the line that a recorder writes of it, microseconds.
SEEN_WITHIN_US: Final = 2_000_000
#: The longest time from the mark of a policy to its beginning at the dispatcher, microseconds.
REACHES_WITHIN_US: Final = 2_000_000

_MARK: Final = re.compile(r"limit (\w+)(?: (\d+))?\b.*\b(set|removed)")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that begins (``active``) or ends. ``value``: its number, where it has one."""

    what: str
    active: bool
    value: int | None = None


def of_line(line: Line) -> Limit | None:
    """Return the limit that a ``limit`` line or a mark names."""
    if line.kind == "limit":
        return Limit(line.inputs["what"], bool(line.inputs["limit_active"]), line.inputs["value"])
    return of_mark(line.inputs["note"] or "")


def of_mark(note: str) -> Limit | None:
    """Return the limit that a mark of a recording's driver stands for; ``None`` for other marks."""
    if note == "compaction":
        return Limit(COMPACTED_READ, active=True)
    found = _MARK.match(note)
    if found is None:
        return None
    return Limit(found[1], found[3] == "set", None if found[2] is None else int(found[2]))


def begins(line: Line) -> bool:
    """Check whether a ``limit`` line or a mark says that a limit begins."""
    limit = of_line(line)
    return limit is not None and limit.active


def begins_rate(line: Line) -> bool:
    """Check whether a ``limit`` line says that a dispatch rate begins."""
    return line.inputs["what"] == DISPATCH_RATE and bool(line.inputs["limit_active"])


def is_deletion(note: str | None) -> bool:
    """Check whether a mark says that the subscription was deleted, as a line ``subscription_deleted`` does."""
    return note == "subscription deleted"


class LimitsInForce:
    """The limits that are in force at a line.

    >>> limits = LimitsInForce()
    >>> limits.take(Limit("unacked_namespace", True, 8))
    >>> limits.unacked(), limits.is_active(DISPATCH_RATE)
    (8, False)

    A dispatch rate of 15 messages ends; reads of 10 and of 20 entries follow:

    >>> limits.take(Limit(DISPATCH_RATE, True, 15))
    >>> limits.take(Limit(DISPATCH_RATE, False))
    >>> limits.full_read(10)
    >>> limits.rate_may_hold()
    True
    >>> limits.full_read(20)
    >>> limits.rate_may_hold()
    False
    """

    def __init__(self) -> None:
        self._values: dict[str, int | None] = {}
        self._ended: dict[str, int | None] = {}  # a rate that has ended, and that may still hold

    def take(self, limit: Limit) -> None:
        """Take a limit that begins or ends."""
        if limit.what == DISPATCH_RATE and limit.what in self._values:
            self._ended = {limit.what: self._values[limit.what]}
        self._values.pop(limit.what, None)
        if limit.active:
            self._values[limit.what] = limit.value
            self._ended.pop(limit.what, None)

    def rate_may_hold(self) -> bool:
        """True if a dispatch rate is in force, or has ended and no read has shown that it is gone."""
        return DISPATCH_RATE in self._values or DISPATCH_RATE in self._ended

    def full_read(self, entries: int) -> None:
        """Take a read of as many entries as the rules ask for: more than a rate that has ended show that it is gone."""
        if self._ended and entries > (self._ended[DISPATCH_RATE] or 0):
            self._ended.clear()

    def is_active(self, what: str) -> bool:
        """True if a limit is in force."""
        return what in self._values

    def now(self, what: str) -> Limit:
        """Return the limit of a kind that is in force; one that is not active if none is."""
        return Limit(what, what in self._values, self._values.get(what))

    def unacked(self, changed: Limit | None = None) -> int | None:
        """Return the limit of unacknowledged messages per consumer that a policy sets; ``None`` = the broker's setting.

        ``changed``: as if this limit had begun or ended, too.
        """
        limits = [
            changed if changed is not None and changed.what == what else self.now(what) for what in UNACKED
        ]
        return next((limit.value for limit in limits if limit.active), None)


class DeliverTimes:
    """The times before which the entries of a log are not delivered (``deliver_at_ms``)."""

    def __init__(self, messages: pa.Table) -> None:
        self._deliver_at_us = Growing(np.int64)  # 0 = at once
        self._latest_us = 0
        self.add(messages)

    def add(self, messages: pa.Table) -> None:
        """Add the next entries."""
        times = np.zeros(messages.num_rows, np.int64)
        if has(messages, "deliver_at_ms") and messages["deliver_at_ms"].null_count < len(times):
            times[:] = np.where(valid(messages["deliver_at_ms"]), ints(messages["deliver_at_ms"]) * 1000, 0)
        self._deliver_at_us.append(times)
        self._latest_us = max(self._latest_us, int(times.max(initial=0)))

    def drop(self, count: int) -> None:
        """Drop the first ``count`` entries."""
        self._deliver_at_us.drop(count)

    def any_later(self, entries: Sequence[int], t_us: int) -> bool:
        """True if the time of any of these entries is after ``t_us``."""
        if self._latest_us <= t_us or not len(entries):
            return False
        return bool((self._deliver_at_us.values[list(entries)] > t_us).any())
