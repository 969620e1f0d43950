"""Write the log that a recorder would have written while a schedule is played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dispatch_core.broker.profiles import Dispatcher, Profile

TOPIC: Final = "persistent://public/default/hunt"
SUBSCRIPTION: Final = "audit"
#: The first moment of a log, and the time between two lines, microseconds.
_BEGIN_US: Final = 1_767_225_600_000_000
_LINE_US: Final = 1_000
#: Time that passes at the end of a log, in which what is left could have been delivered, microseconds.
_END_US: Final = 120_000_000
_TYPES: Final = {
    Dispatcher.SINGLE_ACTIVE: "Failover",
    Dispatcher.SHARED: "Shared",
    Dispatcher.SHARED_CLASSIC: "Shared",
}


def type_of(profile: Profile) -> str:
    """Return the type of the subscription that rules are of."""
    return _TYPES.get(profile.dispatcher, "Key_Shared")


@dataclass(slots=True)
class Line:
    """An event of the log: its kind and its fields."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)


class WrittenLog:
    """The lines of a log so far. ``keys``, ``sizes``: of each entry that is ever stored, its key and number of messages."""

    def __init__(self, profile: Profile, keys: Sequence[str], sizes: Sequence[int]) -> None:
        self.profile = profile
        self.keys = [*keys]
        self.sizes = [*sizes]
        self.lines: list[Line] = []
        self._stored_at: list[int] = []  # lines written before each entry

    @property
    def _stored(self) -> int:
        return len(self._stored_at)

    def _store(self) -> None:
        """Note that the next entry is stored, if there is one."""
        if self._stored < len(self.keys):
            self._stored_at.append(len(self.lines))

    def _positions(self, entries: Sequence[int]) -> list[str]:
        return [f"1:{entry}" for entry in entries]

    def _write(self, kind: str, consumer: int | None, **fields: Any) -> None:
        who = {} if consumer is None else {"consumer": consumer}
        self.lines.append(Line(kind, {**who, **fields}))

    def _write_join(self, number: int, called: str, priority_level: int, **key_shared: Any) -> None:
        self._write(
            "consumer_added",
            number,
            name=called,
            consumer_id=number,
            address="127.0.0.1",
            priority_level=priority_level,
            **key_shared,
        )

    def _write_move(self, by: str, before: int, after: int) -> None:
        passed = {"entries": after - before} if after > before else {}
        self._write("cursor_moved", None, by=by, **{"from": f"1:{before}", "to": f"1:{after}"}, **passed)

    def _time_us(self, line: int) -> int:
        return _BEGIN_US + (line + 1) * _LINE_US

    def events(self) -> list[dict[str, Any]]:
        """Return the event log, its header first; it ends two minutes behind its last line."""
        lines = [{"format": "pulsar-consumer-events", **self._header()}]
        for at, line in enumerate(self.lines):
            lines.append({"seq": at + 1, "t_us": self._time_us(at), "kind": line.kind, **line.fields})
        end_us = self._time_us(len(self.lines)) + _END_US
        return [*lines, {"seq": len(self.lines) + 1, "t_us": end_us, "kind": "end"}]

    def messages(self) -> list[dict[str, Any]]:
        """Return the message log, its header first."""
        lines: list[dict[str, Any]] = [{"format": "pulsar-message-log", **self._header()}]
        for entry, key in enumerate(self.keys[: self._stored]):
            lines.append(
                {
                    "topic": TOPIC,
                    "position": f"1:{entry}",
                    "key": key,
                    "producer": "p",
                    "sequence_id": entry,
                    "publish_time_ms": self._time_us(self._stored_at[entry]) // 1000,
                    "num_messages": self.sizes[entry],
                    "size_bytes": 20,
                }
            )
        return lines

    def _header(self) -> dict[str, Any]:
        return {
            "format_version": "1.1",
            "broker_version": self.profile.broker_version,
            "subscription_type": type_of(self.profile),
            "partition_index": -1,
            "config": {name: value for name, value in self.profile.settings.items() if value is not None},
            "topic": TOPIC,
            "subscription": SUBSCRIPTION,
        }
