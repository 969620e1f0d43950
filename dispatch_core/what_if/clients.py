"""The clients of a log, as a simulation asks for them: who connects when, and what each does with what it is sent.

A client does with an entry what the log shows, at the time that the log shows: acknowledges it, in whole or in part, or
asks for it again. Permits arrive as recorded, as soon as what was received by then justifies them. Where the log shows
nothing of a client and an entry, because another got it, the client does what it did with the entry that it was sent
nearest to that time (``Sendings``, found by simulating the recorded rules first).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.errors import DispatchAuditError
from dispatch_core.simulation.churn import Change
from dispatch_core.simulation.life import Acts, Connecting
from dispatch_core.simulation.publishing import Published
from dispatch_core.simulation.tables import Client
from dispatch_core.simulation.world import KEEPS, NEVER, REFUSES, REQUEST, UP_TO, WHOLE
from dispatch_core.what_if.recorded import Join, RecordedLoad, Request

Ints = npt.NDArray[np.int64]

#: Entries that are handed to a dispatcher at once.
STRETCH: Final = 1 << 18
_NO_ENTRY: Final = -1


@dataclass(frozen=True, slots=True)
class Sendings:
    """What was sent to whom when, under the recorded rules: columns of equal length, by time."""

    at_us: Ints
    consumer: Ints
    entry: Ints


class RecordedClients:
    """See ``simulation.life.Clients``."""

    def __init__(self, load: RecordedLoad, sendings: Sendings | None = None) -> None:
        self.latency_us = np.ones(1, np.int64)
        self.refuses = np.zeros(1, np.uint8)
        self.rejected: list[str] = []  # names of clients that the broker refused
        self._joins = {join.number: join for join in load.joins}
        names = {name: at for at, name in enumerate(dict.fromkeys(join.name for join in load.joins))}
        self._who = {join.number: names[join.name] for join in load.joins}
        self._until = {number: at_us for at_us, number in load.leaves}
        self._flows = _rows_by_consumer(load.flows[1], load.flows[0])
        self._requests: dict[int, list[tuple[int, int]]] = {}
        self.acts = self._acts(load, len(names), sendings)

    def connecting(self, change: Change, now_us: int) -> Connecting:
        """See ``Clients``."""
        join: Join = self._joins[change.number]
        rows, _ = self._flows
        first, end = rows.get(join.number, (0, 0))
        queue = int(self.acts.flow_permits[first]) if end > first else 0
        return Connecting(
            Client(join.name, join.consumer_id, join.ranges, join.priority_level, join.address),
            queue,
            who=self._who[join.number],
            until_us=self._until.get(join.number, NEVER),
            flows=(first, end),
            requests=self._requests.get(join.number, ()),
        )

    def left(self, change: Change) -> None:
        """See ``Clients``."""

    def refused(self, change: Change, error: DispatchAuditError) -> None:
        """Another rule may refuse a client that was accepted."""
        self.rejected.append(self._joins[change.number].name)

    # --- the arrays ------------------------------------------------------------------------------------------

    def _acts(self, load: RecordedLoad, names: int, sendings: Sendings | None) -> Acts:
        known = np.isin(load.acks.consumer, list(self._who))
        who = np.array([self._who.get(number, -1) for number in load.acks.consumer.tolist()], np.int64)
        us, kind, entry = load.acks.at_us[known], load.acks.kind[known], load.acks.entry[known]
        place = np.cumsum(known) - 1
        words = {int(place[row]): words for row, words in load.acks.words.items() if known[row]}
        who = who[known]
        asked = [
            (request.at_us, self._who[request.consumer], REFUSES, wanted)
            for request in load.requests
            if request.consumer in self._who
            for wanted in request.entries or ()
        ]
        requests = [request for request in load.requests if request.consumer in self._who]
        columns = [us, who, kind, entry]
        extra = np.array(asked, np.int64).reshape(-1, 4)
        columns = [np.concatenate([column, extra[:, at]]) for at, column in enumerate(columns)]
        kept, like = self._likes(load, names, sendings, columns)
        columns = [np.concatenate([column, kept[:, at]]) for at, column in enumerate(columns)]
        order = np.lexsort((np.arange(len(columns[0])), columns[0], columns[3]))
        us, who, kind, entry = (column[order] for column in columns)
        row_of = np.empty(len(order), np.int64)
        row_of[order] = np.arange(len(order))
        acked = np.full(len(load.stored_us), NEVER, np.int64)
        whole = (kind == WHOLE) | (kind == UP_TO)
        np.minimum.at(acked, entry[whole], us[whole])
        _spread_up_to(acked, us, kind, entry)
        start = np.searchsorted(entry, np.arange(len(acked) + 1))
        requested = self._place_requests(requests, len(us))
        count = len(requests)
        flow_order = self._flows[1]
        return Acts(
            start=start.astype(np.int64),
            us=np.concatenate([us, np.array([one.at_us for one in requests], np.int64)]),
            who=np.concatenate([who, np.zeros(count, np.int64)]),
            kind=np.concatenate([kind, np.full(count, REQUEST, np.int64)]),
            entry=np.concatenate([entry, np.full(count, _NO_ENTRY, np.int64)]),
            acked_us=acked,
            flow_us=load.flows[0][flow_order],
            flow_permits=load.flows[2][flow_order],
            like_start=like[0],
            like_us=like[1],
            like_answer_us=like[2],
            requested=requested,
            words={int(row_of[row]): value for row, value in words.items()},
        )

    def _place_requests(self, requests: Sequence[Request], first: int) -> dict[int, tuple[int, ...]]:
        requested = {}
        for row, request in enumerate(requests, first):
            self._requests.setdefault(request.consumer, []).append((request.at_us, row))
            if request.entries is not None:
                requested[row] = request.entries
        return requested

    def _likes(
        self, load: RecordedLoad, names: int, sendings: Sendings | None, columns: Sequence[Ints]
    ) -> tuple[Ints, tuple[Ints, Ints, Ints]]:
        """Rows of what clients kept for themselves, and per name when it was sent something and was done with it."""
        nothing = np.zeros((0, 4), np.int64)
        if sendings is None:
            return nothing, (np.zeros(names + 1, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
        who = np.array([self._who[number] for number in sendings.consumer.tolist()], np.int64)
        until = np.array([self._until.get(number, NEVER) for number in sendings.consumer.tolist()], np.int64)
        answer = np.full(len(who), NEVER, np.int64)
        us, by, kind, entry = columns
        ends = np.isin(kind, (WHOLE, UP_TO))
        # the first answer by this client to this entry from the sending on
        order = np.lexsort((us[ends], entry[ends], by[ends]))
        a_us, a_pair = us[ends][order], (by[ends] * len(load.stored_us) + entry[ends])[order]
        pair = who * len(load.stored_us) + sendings.entry
        first = np.searchsorted(a_pair, pair)
        for at in range(len(pair)):
            row = int(first[at])
            while row < len(a_pair) and a_pair[row] == pair[at]:
                if a_us[row] >= sendings.at_us[at] and a_us[row] <= until[at]:
                    answer[at] = a_us[row]
                    break
                row += 1
        unanswered = answer == NEVER
        kept = np.stack([until, who, np.full(len(who), KEEPS, np.int64), sendings.entry], axis=1)[unanswered]
        by_who = np.lexsort((sendings.at_us, who))
        start = np.searchsorted(who[by_who], np.arange(names + 1)).astype(np.int64)
        return kept, (start, sendings.at_us[by_who].copy(), answer[by_who].copy())


def _spread_up_to(acked: Ints, us: Ints, kind: Ints, entry: Ints) -> None:
    """A cumulative ack acknowledges everything before it."""
    rows = np.flatnonzero(kind == UP_TO)
    if not len(rows):
        return
    best = np.full(len(acked), NEVER, np.int64)
    np.minimum.at(best, entry[rows], us[rows])
    np.minimum(acked, np.minimum.accumulate(best[::-1])[::-1], out=acked)


def _rows_by_consumer(consumer: Ints, at_us: Ints) -> tuple[dict[int, tuple[int, int]], Ints]:
    """Rows of each consumer when sorted by it and time, and that order."""
    order = np.lexsort((at_us, consumer))
    numbers, first, counts = np.unique(consumer[order], return_index=True, return_counts=True)
    rows = {
        int(number): (int(begin), int(begin + count))
        for number, begin, count in zip(numbers, first, counts, strict=True)
    }
    return rows, order


def changes_of(load: RecordedLoad) -> list[Change]:
    """Joins and leaves by time; of equal times what the log has first."""
    changes = [Change(join.at_us, True, join.number, number=join.number) for join in load.joins]
    changes += [Change(at_us, False, number) for at_us, number in load.leaves]
    return sorted(changes, key=lambda change: change.at_us)


class RecordedPublishing:
    """The message log as a dispatcher's storage takes it."""

    def __init__(self, load: RecordedLoad, *, fallback: bool) -> None:
        self._load = load
        self._h31 = load.h31[fallback]
        self._done = 0

    @property
    def left(self) -> int:
        """Entries that are not taken yet."""
        return len(self._h31) - self._done

    def take(self) -> Published:
        """The next entries, none at the end."""
        first, load = self._done, self._load
        some = slice(first, first + STRETCH)
        self._done = min(first + STRETCH, len(self._h31))
        return Published(
            first=first,
            key=np.zeros(0, np.int32),
            h31=self._h31[some],
            publish_us=load.stored_us[some].copy(),
            size_bytes=load.size_bytes[some],
            num_messages=load.num_messages[some],
        )
