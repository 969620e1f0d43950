"""Clients that divide the hash space among themselves (STICKY), instead of the clients of a recorded log.

Each consumer name is a *node*. Node *i* of *n* announces its part of the hash space, equal or hashed (``node_ranges``). All
nodes have to use the same *n*, so a node that is added or removed makes all of them stop and start again with new indexes:

* nodes that join within ``stop_us`` of the first one are there from the beginning;
* a node that joins later for the first time is *added*: all stop at its join, and start together ``stop_us`` later;
* a node that leaves and comes back is *restarting*: meanwhile its ranges belong to nobody, and nobody is stopped;
* a node that leaves for good is *removed*, and all others stop and start as for one that is added, unless nothing is
  published and nobody joins any more.

A consumer that joins while another of its name is connected is a node of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import hashing
from dispatch_core.broker.selectors.node_ranges import node_ranges
from dispatch_core.what_if.connections import Join
from dispatch_core.what_if.recorded import NotSimulableError, RecordedLoad, Request

Ints = npt.NDArray[np.int64]
#: A name, and its number among the connected consumers of the name.
Node = tuple[str, int]

#: All nodes are stopped for so long, by default.
STOP_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class ClientRanges:
    """Division of the hash space among nodes. ``points`` of each node on it; None = equal parts."""

    points: int | None = None
    stop_us: int = STOP_US


@dataclass(slots=True)
class _Connections:
    """The connections of the nodes: parts of recorded ones, each with the ranges that it announces."""

    load: RecordedLoad
    rules: ClientRanges
    nodes: list[Node] = field(default_factory=list)  # by index
    started: dict[int, tuple[Node, int]] = field(default_factory=dict)  # recorded number → node, number
    waiting: dict[int, Node] = field(default_factory=dict)  # recorded numbers that start when the stop ends
    stopped_until: int | None = None
    joins: list[Join] = field(default_factory=list)
    leaves: list[tuple[int, int]] = field(default_factory=list)
    parts: dict[int, list[tuple[int, int]]] = field(default_factory=dict)  # recorded number → begin, number
    reindexed: int = 0

    def start(self, at_us: int, join: Join, node: Node) -> None:
        """Connect a node: with the number of the recorded connection first, with numbers of their own later."""
        index, count = self.nodes.index(node), len(self.nodes)
        if count * (self.rules.points or 1) > hashing.DEFAULT_RANGE_SIZE:
            raise NotSimulableError(
                f"{count} nodes with {self.rules.points} points each do not fit: give fewer points"
            )
        ranges = tuple(node_ranges(count, index, self.rules.points))
        parts = self.parts.setdefault(join.number, [])
        known = len(self.load.joins) + sum(map(len, self.parts.values()))
        number = join.number if not parts else max(each.number for each in self.load.joins) + known
        parts.append((at_us, number))
        self.started[join.number] = node, number
        self.joins.append(replace(join, at_us=at_us, number=number, ranges=ranges))

    def end(self, at_us: int, recorded: int) -> Node:
        """Disconnect a node."""
        node, number = self.started.pop(recorded)
        self.leaves.append((at_us, number))
        return node

    def reindex(self, at_us: int) -> None:
        """Stop all nodes; they start again with new indexes when the stop ends."""
        self.reindexed += 1
        for recorded in [*self.started]:
            self.waiting[recorded] = self.end(at_us, recorded)
        self.stopped_until = at_us + self.rules.stop_us

    def go_on(self, now_us: int, joins: dict[int, Join]) -> None:
        """Start what waits, if the stop has ended before now: what comes at its end still belongs to it."""
        if self.stopped_until is None or now_us <= self.stopped_until:
            return
        at_us, self.stopped_until = self.stopped_until, None
        for recorded, node in sorted(self.waiting.items(), key=lambda item: self.nodes.index(item[1])):
            self.start(at_us, joins[recorded], node)
        self.waiting.clear()

    def node_of(self, name: str) -> Node:
        """Return the node of a consumer that joins."""
        used = {node for node, _ in self.started.values()} | {*self.waiting.values()}
        return next((name, at) for at in range(len(used) + 1) if (name, at) not in used)


def with_client_ranges(load: RecordedLoad, rules: ClientRanges) -> tuple[RecordedLoad, int]:
    """Return the load with the connections of nodes that announce ranges, and how often all nodes were stopped for it."""
    joins = {join.number: join for join in load.joins}
    changes = [(join.at_us, 0, join.number) for join in load.joins]
    changes += [(at_us, 1, number) for at_us, number in load.leaves]
    changes.sort(key=lambda change: change[:2])
    found = _Connections(load, rules)
    first_us = changes[0][0]
    for join in load.joins:  # known before anybody starts
        if join.at_us < first_us + rules.stop_us and (join.name, 0) not in found.nodes:
            found.nodes.append((join.name, 0))
    last_us = max([*(join.at_us for join in load.joins), int(load.published_us.max(initial=0))])
    last_join = {join.name: join.at_us for join in load.joins}  # by time, so the last one stays
    for at_us, leaves, number in changes:
        found.go_on(at_us, joins)
        if leaves:
            node = found.waiting.pop(number, None) or found.end(at_us, number)
            if last_join[node[0]] < at_us < last_us:
                found.nodes.remove(node)
                if found.stopped_until is None:
                    found.reindex(at_us)
            continue
        node = found.node_of(joins[number].name)
        if node not in found.nodes:
            found.nodes.append(node)
            if found.stopped_until is None:
                found.reindex(at_us)
        if found.stopped_until is None:
            found.start(at_us, joins[number], node)
        else:
            found.waiting[number] = node
    found.go_on(load.until_us, joins)
    return (
        replace(
            load,
            joins=found.joins,
            leaves=found.leaves,
            flows=_flows(load, found.parts),
            requests=_requests(load.requests, found.parts),
        ),
        found.reindexed,
    )


def _flows(load: RecordedLoad, parts: dict[int, list[tuple[int, int]]]) -> tuple[Ints, Ints, Ints]:
    """Return the permits of the connections: each part of a recorded one begins with the first grant of that.

    All grants are repeated in each part, since a client that receives more than in the log grants more. They come when what
    it received justifies them (``simulation.answers.flows_due``).
    """
    columns: list[tuple[Ints, Ints, Ints]] = []
    at_us, consumer, permits = load.flows
    for recorded, connections in parts.items():
        rows = np.flatnonzero(consumer == recorded)
        delay = int(at_us[rows[0]]) - _joined(load, recorded) if len(rows) else 0
        for begin, number in connections:
            shifted = np.maximum(at_us[rows], begin + delay)
            columns.append((shifted, np.full(len(rows), number, np.int64), permits[rows]))
    if not columns:
        return at_us, consumer, permits
    times, numbers, counts = (np.concatenate([part[i] for part in columns]) for i in range(3))
    return times, numbers, counts


def _joined(load: RecordedLoad, number: int) -> int:
    return next(join.at_us for join in load.joins if join.number == number)


def _requests(requests: Sequence[Request], parts: dict[int, list[tuple[int, int]]]) -> list[Request]:
    """Return the redelivery requests, each by the part of its connection that was there at the time."""
    found = []
    for request in requests:
        begun = [number for begin, number in parts.get(request.consumer, ()) if begin <= request.at_us]
        if begun:
            found.append(replace(request, consumer=begun[-1]))
    return found
