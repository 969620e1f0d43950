"""``dispatch-audit ranges``: the ranges of nodes, and the share of the hash space that other numbers of nodes move."""

from __future__ import annotations

import json

import numpy as np
import pytest

from dispatch_core.broker.selectors.node_ranges import moved_share, node_ranges
from dispatch_core.cli.main import main


def test_the_ranges_of_all_nodes_are_the_hash_space(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranges", "--nodes", "5", "--points", "9", "--to-nodes", "6", "--json"]) == 0
    *nodes, move = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [node["node"] for node in nodes] == list(range(5))
    slots = sorted(slot for node in nodes for start, end in node["ranges"] for slot in range(start, end + 1))
    assert slots == list(range(65536))
    assert sum(node["share"] for node in nodes) == pytest.approx(1, abs=0.001)
    assert move == {
        "nodes": 5,
        "points": 9,
        "to_nodes": 6,
        "moved_share": round(moved_share(5, 6, points=9), 4),
    }


def test_a_single_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranges", "--nodes", "4", "--index", "1"]) == 0
    assert capsys.readouterr().out == "node 1: 25.0% of the hashes: 16384-32767\n"


@pytest.mark.parametrize("points", [None, 1, 7, 100])
def test_what_moves_is_what_has_another_owner(points: int | None) -> None:
    def owners(nodes: int) -> list[int]:
        found = np.full(65536, -1)
        for node in range(nodes):
            for start, end in node_ranges(nodes, node, points):
                found[start : end + 1] = node
        return found.tolist()

    before, after = owners(3), owners(4)
    moved = [(first, second) for first, second in zip(before, after, strict=True) if first != second]
    assert moved_share(3, 4, points=points) == len(moved) / 65536
    assert moved_share(4, 3, points=points) == len(moved) / 65536
    if points is not None:  # points of the others stay where they are, but for those that meet
        assert sum(second != 3 for _, second in moved) <= 0.01 * 65536


@pytest.mark.parametrize(
    "numbers",
    [
        ["--nodes", "0"],
        ["--nodes", "4", "--index", "4"],
        ["--nodes", "4", "--index", "-1"],
        ["--nodes", "4", "--points", "0"],
        ["--nodes", "70000"],
        ["--nodes", "4", "--to-nodes", "0"],
        ["--nodes", "4", "--points", "16000", "--to-nodes", "5"],
    ],
)
def test_numbers_that_make_no_ranges(numbers: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranges", *numbers]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("dispatch-audit ranges: ")
