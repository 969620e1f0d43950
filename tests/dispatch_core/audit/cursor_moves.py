"""Make and judge logs of format 1.1 of traces of real brokers that name each operation on the cursor (``cursor_op``)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from dispatch_core.cli.main import main

#: What a recorder that sees every operation on the cursor lists.
RECORDS: Final = ("cursor_moved", "subscription_deleted", "limit", "keys", "deliver_at_ms", "txn")
_BY: Final = {
    "skip": "skip",
    "clear": "clear_backlog",
    "expire": "expiry",
    "expire-to": "expiry",
    "reset-back": "reset_cursor",
    "reset-forward": "reset_cursor",
    "seek-back": "seek",
    "seek-earliest": "seek",
    "seek-end": "seek",
}
_LEVEL_E: Final = (
    "consumer_added",
    "consumer_removed",
    "flow",
    "sent",
    "ack",
    "redeliver",
    "active_notified",
)
_OF_TRACE: Final = ("read_position", "mark_delete", "hashes", "permits_before")

Line = dict[str, Any]


def lines_of(file: Path) -> list[Line]:
    """Read the lines of a log."""
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def level_e(trace: Iterable[Mapping[str, Any]], *, moves: bool, records: Iterable[str] | None) -> list[Line]:
    """Reduce a trace to its log of level E; ``moves``: with ``cursor_moved`` lines; ``records``: for the header."""
    header, *rows = map(dict, trace)
    header |= {"format": "pulsar-consumer-events", "format_version": "1.1"}
    if records is not None:
        header["records"] = list(records)
    lines = [header]
    for at, row in enumerate(rows):
        if row["kind"] in _LEVEL_E:
            lines.append({name: value for name, value in row.items() if name not in _OF_TRACE})
        elif moves and row["kind"] == "cursor_op" and (move := _move(rows, at)) is not None:
            lines.append(move)
    for seq, line in enumerate(lines[1:], 1):
        line["seq"] = seq
    return lines


def _move(rows: list[Line], at: int) -> Line | None:
    """Return the ``cursor_moved`` line of a ``cursor_op`` line; ``None`` if it is a part of another, or moved nothing."""
    row = rows[at]
    step = next((line["note"] for line in reversed(rows[:at]) if line["kind"] == "step"), None)
    by = _BY.get(step or "")
    after = next((line for line in rows[at:] if line["kind"] == "cursor_state"), None)
    if by is None or after is None or after["after"] != step:
        return None
    if row["op"] == "mark_delete":
        to = row["target"]
        before = rows[at - 1]
        called = before["kind"] == "cursor_op" and before["op"] in ("skip", "clear_backlog")
        # A cumulative ack moves the cursor by the same call.
        if not called and (by != "expiry" or before["kind"] == "ack" or to == row["mark_delete"]):
            return None
    elif row["op"] == "reset":
        to = _before(row["target"]) if row["target"] != LATEST else row["target"]
    else:
        return None  # its mark_delete line follows
    return {"t_us": row["t_us"], "kind": "cursor_moved", "by": by, "from": row["mark_delete"], "to": to}


LATEST: Final = "9223372036854775807:9223372036854775807"


def _before(position: str) -> str:
    ledger, entry = map(int, position.split(":"))
    return position if ledger < 0 else f"{ledger}:{entry - 1}"


@dataclass(frozen=True)
class Fault:
    """A log with one fault: its name, the kinds of which one must be found, the position at fault, and the lines."""

    name: str
    kinds: tuple[str, ...]
    position: str
    lines: list[Line]


def faults(lines: list[Line], keys: Mapping[str, str | None], rng: Random) -> Iterator[Fault]:
    """Put one fault of each kind into a log: ``keys`` by position. No two faults are in one log."""
    sent: dict[str, list[tuple[int, int]]] = {}
    acked: dict[str, list[int]] = {}
    passed = {}  # by line: the highest position that a move from there on passes
    highest = (-1, -1)
    for at in range(len(lines) - 1, 0, -1):
        if lines[at]["kind"] == "cursor_moved":
            highest = max(highest, _place(lines[at]["to"]))
        passed[at] = highest
    connected: set[int] = set()
    others: dict[int, list[int]] = {}
    for at, line in enumerate(lines[1:], 1):
        if line["kind"] == "consumer_added":
            connected.add(line["consumer"])
        elif line["kind"] == "consumer_removed":
            connected.discard(line["consumer"])
        elif line["kind"] == "sent":
            others[at] = sorted(connected - {line["consumer"]})
            for index, position in enumerate(line["positions"]):
                sent.setdefault(position, []).append((at, index))
        elif line["kind"] == "ack" and line["ack_type"] == "Individual" and "ack_sets" not in line:
            for position in line["positions"]:
                acked.setdefault(position, []).append(at)
    once = [
        position
        for position, places in sent.items()
        if len(places) == 1 and len(acked.get(position, ())) == 1 and acked[position][0] > places[0][0]
    ]
    rng.shuffle(once)
    low = min(map(_place, sent))
    for position in once:
        at, index = sent[position][0]
        alone = len(lines[at]["positions"]) == 1
        if _place(position) <= max(passed[at], low) or alone:
            continue
        made = _copied(lines)
        for name in ("positions", "batch_sizes"):
            del made[at][name][index]
        made[acked[position][0]]["positions"].remove(position)
        yield Fault("lost", ("never_delivered",), position, _numbered(made))
        break
    for position in once:
        at, index = sent[position][0]
        if not others[at]:
            continue
        made = _copied(lines)
        again = made[at] | {"consumer": others[at][0], "positions": [position]}
        again |= {"batch_sizes": [lines[at]["batch_sizes"][index]]}
        made.insert(at + 1, again)
        yield Fault("split", ("double_outstanding", "split_key"), position, _numbered(made))
        break
    for position in once:
        at, index = sent[position][0]
        ack = acked[position][0]
        later = [
            row
            for row in range(ack + 1, len(lines))
            if lines[row]["t_us"] > lines[ack]["t_us"] + 30_000
            and lines[row]["kind"] in ("sent", "flow")
            and lines[row]["consumer"] == lines[at]["consumer"]
        ]
        between = (line["kind"] for line in lines[ack : later[0]]) if later else ()
        if not later or "cursor_moved" in between:
            continue
        made = _copied(lines)
        again = made[at] | {"positions": [position], "batch_sizes": [lines[at]["batch_sizes"][index]]}
        again["t_us"] = lines[later[0]]["t_us"]
        made.insert(later[0], again)
        yield Fault("doubled", ("duplicate_after_ack",), position, _numbered(made))
        break
    single = set(once)
    last: dict[tuple[int, str], str] = {}
    pairs = []
    for line in lines[1:]:
        for position in line["positions"] if line["kind"] == "sent" else ():
            key = keys.get(position)
            if key is None:
                continue
            earlier = last.get((line["consumer"], key))
            if earlier is not None and {earlier, position} <= single and _place(earlier) < _place(position):
                pairs.append((earlier, position))
            last[line["consumer"], key] = position
    pairs = [
        (first, second)
        for first, second in pairs
        if sent[second][0][0] < min(acked[first][0], acked[second][0])
    ]
    if pairs:
        first, second = rng.choice(pairs)
        made = _copied(lines)
        for (at, index), position in ((sent[first][0], second), (sent[second][0], first)):
            made[at]["positions"][index] = position
        yield Fault("reordered", ("out_of_order",), first, _numbered(made))


def _place(position: str) -> tuple[int, int]:
    ledger, entry = map(int, position.split(":"))
    return ledger, entry


def _copied(lines: list[Line]) -> list[Line]:
    return [
        {name: list(value) if isinstance(value, list) else value for name, value in line.items()}
        for line in lines
    ]


def _numbered(lines: list[Line]) -> list[Line]:
    kept = [line for line in lines if line.get("positions") != []]
    for seq, line in enumerate(kept[1:], 1):
        line["seq"] = seq
    return kept


def write(folder: Path, messages: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    """Write a recording: these event lines beside a copy of the message log."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / messages.name).write_bytes(messages.read_bytes())
    with gzip.open(folder / "events.jsonl.gz", "wt", encoding="utf-8") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
    return folder


def name_of(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


def judged(
    folder: Path, capsys: pytest.CaptureFixture[str], *options: str
) -> tuple[str, list[dict[str, Any]]]:
    """The verdict and the findings of the command line."""
    main(["audit", "--json", *options, str(folder)])
    *findings, verdict = map(json.loads, capsys.readouterr().out.splitlines())
    return verdict["verdict"], findings
