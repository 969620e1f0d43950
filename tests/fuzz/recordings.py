"""Recordings of valid lines that make no sense: the commands must judge them or report an error."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

from dispatch_core.cli.main import main
from tests.fuzz.lines import row

Made = tuple[bytes, Callable[[], int]]

_COMMANDS: Final = (("audit",), ("audit", "--no-rules"), ("verify",), ("explain", "--key", "w1"))
_NAMED: Final = ("topic", "subscription", "cluster", "broker", "incarnation")


def recording(rng: Random) -> Made:
    """Make a recording of one dispatcher, mostly in order and with few consumers."""
    lines: list[dict[str, Any]] = [
        {
            "format": rng.choice(("pulsar-dispatch-trace", "pulsar-consumer-events")),
            "format_version": 1,
            "topic": "t",
            "subscription": "s",
            "broker_version": rng.choice(("4.2.4", "4.0.0-preview.1", "3.0.0", "x")),
            "subscription_type": rng.choice(("Key_Shared", "Failover", "Exclusive", "Shared", "x")),
        }
    ]
    for at in range(1, rng.randrange(2, 40)):
        line, _ = row(rng, "events", at)
        if rng.random() < 0.8:
            line |= {"seq": at, "t_us": 1_700_000_000_000_000 + at * 1000}
        if "consumer" in line and rng.random() < 0.9:
            line["consumer"] = rng.randrange(3)
        lines.append({name: value for name, value in line.items() if name not in _NAMED})
    events = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    stored = [
        row(rng, "messages", at)[0] | {"topic": "t", "cluster": None} for at in range(rng.randrange(20))
    ]
    messages = b"".join(json.dumps(line).encode() + b"\n" for line in stored)
    command = rng.choice(_COMMANDS)
    return events + messages, lambda: _judge(events, messages, command)


def _judge(events: bytes, messages: bytes, command: tuple[str, ...]) -> int:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        (folder / "events.jsonl").write_bytes(events)
        (folder / "messages.jsonl").write_bytes(messages)
        output, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            code = main([command[0], str(folder), *command[1:]])
        assert code in (0, 1, 2), code
        assert output.getvalue() or errors.getvalue(), "the command printed nothing"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 2


READERS: Final[dict[str, Callable[[Random], Made]]] = {"recording": recording}
