"""``dispatch-audit ranges``: show the hash ranges of the nodes of a STICKY subscription, and what another node moves."""

from __future__ import annotations

import argparse
import json
from typing import Final

from dispatch_core.broker import hashing
from dispatch_core.broker.selectors.assignments import Range
from dispatch_core.broker.selectors.node_ranges import moved_share, node_ranges
from dispatch_core.cli import CLEAN
from dispatch_core.errors import DispatchAuditError

#: Ranges of a node that are shown to people.
_SHOWN: Final = 8


class NodesError(DispatchAuditError):
    """Numbers of nodes or points that give no ranges."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``ranges``."""
    parser.description = (
        "Show the hash ranges that each node of a STICKY subscription announces: equal parts, or with --points as many "
        "small ranges as there are points, placed by hashing. --to-nodes says what share of the hashes another number of "
        "nodes moves. All nodes have to use the same numbers: to change them, stop all nodes first."
    )
    parser.add_argument("--nodes", type=int, required=True, metavar="N", help="the number of nodes")
    parser.add_argument(
        "--index", type=int, metavar="I", help="show this node alone, counted from 0 (default: all)"
    )
    parser.add_argument(
        "--points",
        type=int,
        metavar="P",
        help="points of each node on the hash space; about 100 are usual (default: equal parts)",
    )
    parser.add_argument(
        "--to-nodes", type=int, metavar="M", help="compare with the ranges of M nodes: what moves"
    )
    parser.add_argument("--json", action="store_true", help="JSON Lines on stdout, one object per node")


def run(options: argparse.Namespace) -> int:
    """Print the ranges; returns 0. Raises ``NodesError`` for impossible numbers."""
    indexes = range(options.nodes) if options.index is None else [options.index]
    try:
        found = [(node, node_ranges(options.nodes, node, options.points)) for node in indexes]
        moved = (
            None
            if options.to_nodes is None
            else moved_share(options.nodes, options.to_nodes, points=options.points)
        )
        if not found or (options.to_nodes is not None and options.to_nodes < 1):
            raise ValueError("there is at least one node")
    except ValueError as error:
        raise NodesError(str(error)) from error
    for node, ranges in found:
        if options.json:
            said = {"node": node, "nodes": options.nodes, "points": options.points}
            print(
                json.dumps({**said, "ranges": [list(bounds) for bounds in ranges], "share": _share(ranges)})
            )
        else:
            print(_for_people(node, ranges))
    if moved is not None:
        if options.json:
            said = {"nodes": options.nodes, "to_nodes": options.to_nodes, "points": options.points}
            print(json.dumps({**said, "moved_share": round(moved, 4)}))
        else:
            print(f"{options.nodes} to {options.to_nodes} nodes: {moved:.1%} of the hashes move")
    return CLEAN


def _share(ranges: list[Range]) -> float:
    return round(sum(end - start + 1 for start, end in ranges) / hashing.DEFAULT_RANGE_SIZE, 4)


def _for_people(node: int, ranges: list[Range]) -> str:
    left = len(ranges) - _SHOWN
    shown = ", ".join(f"{start}-{end}" for start, end in ranges[:_SHOWN])
    return f"node {node}: {_share(ranges):.1%} of the hashes: {shown}" + (
        f" … and {left} more" if left > 0 else ""
    )
