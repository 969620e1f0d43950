"""Write client logs for tests: one list of lines per client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

T_US: Final = 1_795_249_463_000_000
TOPIC: Final = "persistent://public/default/orders"


def header(consumer: str = "w1", **values: Any) -> dict[str, Any]:
    """Return a header; each consumer is on a host of its own unless ``host`` is given."""
    return {
        "format": "pulsar-client-log",
        "format_version": "1.1",
        "topic": TOPIC,
        "subscription": "audit",
        "subscription_type": "Key_Shared",
        "consumer": consumer,
        "host": f"host of {consumer}",
    } | values


def received(at_s: float, position: str, key: str = "k", **values: Any) -> dict[str, Any]:
    """Return a line: a message was received so many seconds after ``T_US``."""
    return _line("client_received", at_s, position=position, key=key, **values)


def acked(at_s: float, position: str, **values: Any) -> dict[str, Any]:
    """Return a line: a message was acknowledged."""
    return _line("client_acked", at_s, position=position, **values)


def nacked(at_s: float, position: str, **values: Any) -> dict[str, Any]:
    """Return a line: redelivery was asked for."""
    return _line("client_nacked", at_s, position=position, **values)


def closed(at_s: float) -> dict[str, Any]:
    """Return the last line of a consumer that was closed."""
    return _line("footer", at_s)


def write(folder: Path, *clients: list[dict[str, Any]]) -> Path:
    """Write one file for each client; returns ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, lines in enumerate(clients, start=1):
        text = "".join(f"{json.dumps(line)}\n" for line in lines)
        (folder / f"client-{number}.jsonl").write_text(text, "utf-8")
    return folder


def _line(kind: str, at_s: float, **values: Any) -> dict[str, Any]:
    return {"kind": kind, "t_us": T_US + round(at_s * 1_000_000), **values}
