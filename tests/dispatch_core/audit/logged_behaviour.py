"""Make logs of format 1.1 of the shared cases and recordings whose behaviour a log of format 1.0 cannot show.

Each form comes in two: with the lines or fields that say what happened, and with ``records`` that list them while none is
there, so that it did not happen.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.dispatch_core.audit.cursor_moves import RECORDS, Line, level_e, lines_of

#: Event lines of each file of events, and lines of the message log, both to be changed in place.
Change = Callable[[list[list[Line]], list[Line]], None]


@dataclass(frozen=True)
class Form:
    """The lines that a case is missing, and the kinds of findings of which one is certain without them."""

    change: Change
    without: tuple[str, ...]


def limit(what: str, value: int | None = None) -> Change:
    """A limit that is in force from the first line on."""

    def change(events: list[list[Line]], _messages: list[Line]) -> None:
        first = events[0][1]
        line: Line = {"t_us": first["t_us"], "kind": "limit", "what": what, "active": True}
        events[0][1:1] = [line | ({} if value is None else {"value": value})]

    return change


def fields(**of_position: Mapping[str, Any]) -> Change:
    """Fields of message lines: by name of the field, a value for each position."""

    def change(_events: list[list[Line]], messages: list[Line]) -> None:
        for line in messages:
            for name, values in of_position.items():
                if line.get("position") in values:
                    line[name] = values[line["position"]]

    return change


def deleted(events: list[list[Line]], _messages: list[Line]) -> None:
    """The subscription is deleted behind the last line of the first load."""
    log = events[0]
    end = next((at for at, line in enumerate(log) if at and "format" in line), len(log))
    log.insert(end, {"t_us": log[end - 1]["t_us"] + 1000, "kind": "subscription_deleted"})


_STUCK: Final = ("stuck_key", "stuck_consumer", "stuck_subscription")
_BEGIN_MS: Final = 1_795_249_200_000
_DELAYED: Final = fields(deliver_at_ms={"5:0": _BEGIN_MS + 150})
_UNACKED: Final = limit("unacked_namespace", 5)

CASES: Final[Mapping[str, Form]] = {
    "01-delayed-delivery": Form(_DELAYED, ("out_of_order",)),
    "01b-delayed-delivery-shared": Form(
        fields(deliver_at_ms={"5:0": _BEGIN_MS + 3_600_000}), ("never_delivered",)
    ),
    "01c-delayed-still-pending-ks": Form(
        fields(deliver_at_ms={"5:0": _BEGIN_MS + 3_600_000}), ("never_delivered",)
    ),
    "42-delayed-with-checkpoint": Form(_DELAYED, ("out_of_order",)),
    "04-aborted-transaction": Form(fields(txn={"5:3": "(1,7)", "5:4": "(1,7)"}), ("never_delivered",)),
    "04b-transaction-acks-left-out": Form(limit("transactions"), ("ack_hole",)),
    "05-read-compacted": Form(limit("compacted_read"), ("never_delivered",)),
    "06-replicated-subscription": Form(limit("replicated_subscription"), ("never_delivered",)),
    "23-entry-filter": Form(limit("entry_filter"), ("never_delivered",)),
    "20-dispatch-rate-limit": Form(limit("dispatch_rate", 1), _STUCK),
    "20b-dispatch-rate-limit-drained": Form(limit("dispatch_rate", 1), _STUCK),
    "21-namespace-max-unacked": Form(_UNACKED, _STUCK),
    "21-namespace-max-unacked-flow-blocked": Form(_UNACKED, _STUCK),
    "21b-namespace-max-unacked-at-end": Form(_UNACKED, ("never_delivered", *_STUCK)),
    "21b-namespace-max-unacked-at-end-flow-blocked": Form(_UNACKED, ("never_delivered", *_STUCK)),
    **{
        f"{number}-{kind}": Form(deleted, ("never_delivered", *_STUCK))
        for number in ("61-unsubscribed", "62-unsubscribed-and-made-again")
        for kind in ("Exclusive", "Key_Shared", "Shared")
    },
}


def write_case(case: Path, folder: Path, *, lines: bool) -> Path:
    """Write the 1.1 form of a case, with its lines or without any of them."""
    files = sorted(case.glob("events*"))
    events = [_read(file) for file in files]
    stored = sorted(case.glob("messages*"))
    messages = [_read(file) for file in stored]
    for log in (*events, *messages):
        for line in log:
            if "format" in line:
                line["format_version"] = "1.1"
                if "events" in line["format"]:
                    line["records"] = list(RECORDS)
    if lines:
        CASES[case.name].change(events, [line for log in messages for line in log])
    for log in events:
        number(log)
    folder.mkdir(parents=True, exist_ok=True)
    for file, log in zip((*files, *stored), (*events, *messages), strict=True):
        write_lines(folder / file.name, log)
    return folder


def number(lines: Iterable[Line]) -> None:
    """Number the events of each load from 1 on."""
    seq = 0
    for line in lines:
        if "format" in line:
            seq = 0
        elif "kind" in line and line["kind"] != "footer":
            seq += 1
            line["seq"] = seq


def write_lines(file: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    """Write lines as the file's ending says."""
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)


def _read(file: Path) -> list[Line]:
    if file.suffix == ".gz":
        return lines_of(file)
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


# recordings of real brokers ----------------------------------------------------------------------------------------------


def with_behaviour(trace: Iterable[Mapping[str, Any]], *, lines: bool) -> list[Line]:
    """Reduce a trace to its log of level E; ``lines``: with those that its marks (``step``) stand for."""
    header, *rows = map(dict, trace)
    rows = _of_the_subscription(rows)
    marks = {id(row): line for row in rows if row["kind"] == "step" and (line := _of_mark(row))}
    kept = level_e([header, *({**row, "mark": id(row)} for row in rows)], moves=True, records=RECORDS)
    made, events = [kept[0]], iter(kept[1:])
    by_row = {line.pop("mark"): line for line in events if "mark" in line}
    moves = [line for line in kept[1:] if "mark" not in line and line["kind"] == "cursor_moved"]
    for row in rows:
        if id(row) in by_row:
            made.append(by_row[id(row)])
        elif lines and id(row) in marks:
            made.append(marks[id(row)])
        else:
            made += [move for move in moves if row["kind"] == "cursor_op" and move["t_us"] == row["t_us"]]
    number(made)
    return made


def _of_the_subscription(rows: list[Line]) -> list[Line]:
    """Leave out what a trace of a compacted topic has of the broker's own reader, which compacts it."""
    own = {
        row["consumer"]
        for row in rows
        if row["kind"] == "consumer_added" and re.fullmatch(r"c\d+", row["name"])
    }
    return [row for row in rows if row.get("consumer") is None or row["consumer"] in own]


def _of_mark(row: Line) -> Line | None:
    words = row["note"].split()
    if row["note"] == "subscription deleted":
        return {"t_us": row["t_us"], "kind": "subscription_deleted"}
    if row["note"] == "compaction":
        return {"t_us": row["t_us"], "kind": "limit", "what": "compacted_read", "active": True}
    if words[0] != "limit":
        return None
    line: Line = {"t_us": row["t_us"], "kind": "limit", "what": words[1], "active": words[-1] == "set"}
    return line | ({"value": int(words[2])} if words[2].isdecimal() else {})
