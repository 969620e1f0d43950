"""Legal logs of forms that once cost far more than an ordinary log of as many lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

_T_US: Final = 1_795_249_200_000_000
_TOPIC: Final = "persistent://public/default/extreme"
_AT_ONCE: Final = 100
_AUTO_SPLIT: Final = {"mode": "AUTO_SPLIT", "allow_out_of_order": False, "ranges": []}
_Line = dict[str, Any]


def _header(kind: str = "Key_Shared", **more: Any) -> _Line:
    return {
        "format": "pulsar-consumer-events",
        "format_version": "1.0",
        "broker_version": "4.2.4",
        "topic": _TOPIC,
        "subscription": "s",
        "subscription_type": kind,
        "partition_index": -1,
        "config": {},
        **more,
    }


def _numbered(lines: Iterator[_Line], t_us: int = _T_US) -> Iterator[_Line]:
    for seq, line in enumerate(lines, start=1):
        yield {"seq": seq, "t_us": t_us + 10 * seq, **line}


def _added(consumer: int, *, free: bool = False, policy: bool = True) -> _Line:
    key_shared = {"key_shared": _AUTO_SPLIT | {"allow_out_of_order": free}} if policy else {}
    return {"kind": "consumer_added", "consumer": consumer, "name": f"c{consumer}", **key_shared}


def _flow(consumer: int) -> _Line:
    return {"kind": "flow", "consumer": consumer, "permits": 10_000_000}


def _sent(consumer: int, entries: range) -> _Line:
    return {
        "kind": "sent",
        "consumer": consumer,
        "positions": _positions(entries),
        "batch_sizes": [1] * len(entries),
    }


def _ack(consumer: int, entries: range, kind: str = "Individual") -> _Line:
    return {"kind": "ack", "consumer": consumer, "ack_type": kind, "positions": _positions(entries)}


def _positions(entries: range) -> list[str]:
    return [f"5:{entry}" for entry in entries]


def _runs(count: int) -> list[range]:
    return [range(start, min(count, start + _AT_ONCE)) for start in range(0, count, _AT_ONCE)]


def incarnations(count: int) -> Iterator[_Line]:
    """``count`` loads of a topic, each with five messages."""
    for load in range(count):
        yield _header(broker="b", incarnation=load + 1)
        yield from _numbered(_of_load(5 * load), _T_US + load * 2_000_000)


def _of_load(first: int) -> Iterator[_Line]:
    yield {
        "kind": "checkpoint",
        "consumers": [],
        "mark_delete": f"5:{first - 1}",
        "ack_holes": [],
        "read_position": f"5:{first}",
    }
    yield _added(1)
    yield _flow(1)
    for entry in range(first, first + 5):
        yield _sent(1, range(entry, entry + 1))
        yield _ack(1, range(entry, entry + 1))
    yield {"kind": "consumer_removed", "consumer": 1}


def subs(count: int) -> Iterator[_Line]:
    """``count`` subscriptions of a topic, four lines each."""
    yield {name: value for name, value in _header().items() if name not in ("topic", "subscription")}
    for number in range(count):
        lines = [_added(1), _flow(1), _sent(1, range(5)), _ack(1, range(5))]
        for line in _numbered(iter(lines)):
            yield {"topic": _TOPIC, "subscription": f"s{number}", **line}


def cumulative(count: int) -> Iterator[_Line]:
    """``count`` / 4 consumers of a Failover subscription join; ``count`` messages are acked one by one, cumulatively."""
    yield _header("Failover")
    yield from _numbered(_of_failover(count))


def _of_failover(count: int) -> Iterator[_Line]:
    for consumer in range(count // 4):
        yield _added(consumer + 1, policy=False)
    yield _flow(1)
    for entry in range(count):
        yield _sent(1, range(entry, entry + 1))
        yield _ack(1, range(entry, entry + 1), "Cumulative")


def nackall(count: int) -> Iterator[_Line]:
    """``count`` messages of one key are all sent, asked for again at once, and sent again."""
    yield _header()
    runs = _runs(count)
    first = [_added(1), _flow(1), *(_sent(1, run) for run in runs), {"kind": "redeliver", "consumer": 1}]
    yield from _numbered(iter([*first, *(_sent(1, run) for run in runs), *(_ack(1, run) for run in runs)]))


def twoholders(count: int) -> Iterator[_Line]:
    """``count`` messages of one key are pending at two consumers that allow delivery out of order."""
    yield _header()
    runs = list(enumerate(_runs(count)))
    joins = [line for consumer in (1, 2) for line in (_added(consumer, free=True), _flow(consumer))]
    sent = [_sent(1 + number % 2, run) for number, run in runs]
    yield from _numbered(iter([*joins, *sent, *(_ack(1 + number % 2, run) for number, run in runs)]))


def garbage(count: int) -> Iterator[str]:
    """``count`` lines that cannot be read."""
    for _ in range(count):
        yield "x"


#: Name → the lines of its events, and the number of its messages.
CASES: Final[dict[str, tuple[Callable[[int], Iterator[_Line | str]], Callable[[int], int]]]] = {
    "incarnations": (incarnations, lambda count: 5 * count),
    "subs": (subs, lambda _count: 5),
    "cumulative": (cumulative, lambda count: count),
    "nackall": (nackall, lambda count: count),
    "twoholders": (twoholders, lambda count: count),
    "garbage": (garbage, lambda _count: 0),
}


def write(name: str, count: int, folder: Path) -> Path:
    """Write a case as a recording below ``folder``; returns its path."""
    lines, messages = CASES[name]
    path = folder / f"{name}-{count}"
    path.mkdir(parents=True)
    keys = 50 if name == "cumulative" else 1
    with (path / "messages.jsonl").open("w") as file:
        _write(file.write, {"format": "pulsar-message-log", "format_version": "1.0", "topic": _TOPIC})
        for entry in range(messages(count)):
            _write(
                file.write,
                {
                    "position": f"5:{entry}",
                    "key": f"k{entry % keys}",
                    "producer": "p",
                    "sequence_id": entry,
                    "publish_time_ms": _T_US // 1000,
                    "num_messages": 1,
                    "size_bytes": 1,
                },
            )
    with (path / "events.jsonl").open("w") as file:
        for line in lines(count):
            _write(file.write, line)
    return path


def _write(to: Callable[[str], Any], line: _Line | str) -> None:
    to((line if isinstance(line, str) else json.dumps(line, separators=(",", ":"))) + "\n")
