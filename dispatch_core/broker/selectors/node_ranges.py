"""Ranges that *clients* of a STICKY subscription announce: equal parts, or many small ones placed by hashing.

The broker sees only disjoint range lists. All nodes have to use the same numbers: to add or remove a node, stop all
consumers, change number and indexes, and start again. While a node restarts its ranges belong to nobody. Small interleaved
ranges even out the load where many keys hash into one part of the space; about 100 points per node are advised. Such lists
are accepted since #7231.

>>> [equal_ranges(4, node) for node in range(4)]
[[(0, 16383)], [(16384, 32767)], [(32768, 49151)], [(49152, 65535)]]
>>> hashed_ranges(2, 0, points=2)
[(4707, 7673), (7674, 23096)]
>>> hashed_ranges(2, 1, points=2)
[(0, 4706), (23097, 24679), (24680, 65535)]

A fifth node moves half of the hashes between equal parts, and about a fifth of them between hashed ones:

>>> [round(moved_share(4, 5, points=points), 2) for points in (None, 100)]
[0.5, 0.2]
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import hashing
from dispatch_core.broker.selectors.assignments import Range

_SIZE = hashing.DEFAULT_RANGE_SIZE


def equal_ranges(nodes: int, index: int) -> list[Range]:
    """Return the ``index``-th of ``nodes`` equal parts of 0..65535. Raises ``ValueError`` for impossible numbers."""
    _check(nodes, index, points=1)
    return [(index * _SIZE // nodes, (index + 1) * _SIZE // nodes - 1)]


def hashed_ranges(nodes: int, index: int, *, points: int) -> list[Range]:
    """Return the ranges of node ``index``: each node puts ``points`` points on 0..65535 and owns the arcs that end at them.

    A point whose slot is taken moves on to the next free slot, so that every node has all its points. The arc above the
    highest point belongs to the owner of the lowest. Lists of all nodes are disjoint and cover 0..65535.
    Raises ``ValueError`` for impossible numbers.
    """
    _check(nodes, index, points)
    owners: dict[int, int] = {}
    for node in range(nodes):
        for point in range(points):
            slot = hashing.h31(f"{node}\0{point}".encode()) % _SIZE
            while slot in owners:
                slot = (slot + 1) % _SIZE
            owners[slot] = node
    ends = sorted(owners)
    ranges = [(below + 1, end) for below, end in pairwise([-1, *ends]) if owners[end] == index]
    if owners[ends[0]] == index and ends[-1] < _SIZE - 1:
        ranges.append((ends[-1] + 1, _SIZE - 1))
    return ranges


def node_ranges(nodes: int, index: int, points: int | None) -> list[Range]:
    """Return the ranges of node ``index``: hashed ones, or its equal part where ``points`` is None."""
    return equal_ranges(nodes, index) if points is None else hashed_ranges(nodes, index, points=points)


def moved_share(nodes: int, to_nodes: int, *, points: int | None) -> float:
    """Return the share of the hash space that has another owner with ``to_nodes`` nodes than with ``nodes``.

    Nodes are numbered from 0; those above the lower number join or leave. Raises ``ValueError`` for impossible numbers.
    """
    before, after = _owners(nodes, points), _owners(to_nodes, points)
    return float((before != after).mean())


def _owners(nodes: int, points: int | None) -> npt.NDArray[np.int64]:
    """Return the node of every slot."""
    owners = np.full(_SIZE, -1, np.int64)
    for node in range(nodes):
        for start, end in node_ranges(nodes, node, points):
            owners[start : end + 1] = node
    return owners


def _check(nodes: int, index: int, points: int) -> None:
    if not (0 <= index < nodes and points > 0 and nodes * points <= _SIZE):
        raise ValueError(
            f"node {index} of {nodes} with {points} points: index counts from 0, and nodes times points is at most {_SIZE}"
        )
