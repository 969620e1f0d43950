"""Writes small traces of a single-active dispatcher line by line, as the broker would. Test only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.trace.runner import Verification, verify

TOPIC = "persistent://public/default/t"


class Trace:
    """A trace written line by line, as the broker would."""

    def __init__(
        self, version: str = "4.2.4", kind: str = "Failover", entries: int = 10, **config: Any
    ) -> None:
        self.header = {
            "format": "pulsar-dispatch-trace",
            "format_version": 1,
            "broker_version": version,
            "topic": TOPIC,
            "subscription": "audit",
            "subscription_type": kind,
            "partition_index": 0,
            "config": {"activeConsumerFailoverDelayTimeMillis": 0, **config},
        }
        self.lines: list[dict[str, Any]] = []
        self.permits: dict[int, int] = {}  # of each consumer
        self.keys = [f"k{entry}" for entry in range(entries)]
        self.num_messages: dict[int, int] = {}  # of entries that are batches

    def __call__(self, kind: str, **fields: Any) -> int:
        """Write a line; returns its seq."""
        seq = len(self.lines) + 1
        if kind in ("flow", "sent"):
            change = fields["permits"] if kind == "flow" else -sum(fields["batch_sizes"])
            self.permits[fields["consumer"]] = self.permits.get(fields["consumer"], 0) + change
        elif kind == "flow_counted":
            fields["permits_after"] = self.permits[fields["consumer"]]
        for name in ("positions", "read_position"):
            if isinstance(fields.get(name), int):
                fields[name] = f"1:{fields[name]}"
            elif fields.get(name) is not None:
                fields[name] = [f"1:{entry}" for entry in fields[name]]
        self.lines.append({"seq": seq, "t_us": 1_700_000_000_000_000 + 1000 * seq, "kind": kind, **fields})
        return seq

    def added(self, consumer: int, name: str, ranges: list[list[int]] | None = None) -> None:
        policy = {"mode": "AUTO_SPLIT", "allow_out_of_order": False, "ranges": ranges or []}
        self("consumer_added", consumer=consumer, name=name, consumer_id=consumer, address="a", priority_level=0,
             key_shared=policy)  # fmt: skip

    def picked(self, active: int, order: list[int], *, changed: bool = True) -> None:
        self("active_picked", consumer=active, changed=changed, sorted=order, partition_index=0)

    def notified(self, active: int, *consumers: int) -> None:
        for consumer in consumers:
            self("active_notified", consumer=consumer, active=active)

    def flow(self, consumer: int, permits: int, *, counted: bool = True) -> int:
        seq = self("flow", consumer=consumer, permits=permits, blocked=False)
        if counted:
            self("flow_counted", consumer=consumer, blocked_after=False)
        return seq

    def first(self, consumer: int, name: str, *, ranges: list[list[int]] | None = None, at: int = 0) -> None:
        """A first consumer joins, without a failover delay; ``at``: the read position behind mark-delete."""
        self("handover_scheduled", pending_read=False)
        self("rewind", read_position=at)
        if self.header["subscription_type"] == "Failover":
            self.notified(consumer, consumer)
        self("read_attempt", consumer=consumer)
        self.picked(consumer, [consumer])
        self.added(consumer, name, ranges)

    def reads(self, consumer: int, size: int, at: int = 0) -> None:
        self("read_attempt", consumer=consumer)
        self("read_issued", max_entries=size, read_position=at)

    def reads_all(self, consumer: int) -> None:
        """A flow of 9, a read of it, an empty result."""
        self.flow(consumer, 9)
        self("flow_applied", consumer=consumer)
        self.reads(consumer, 9)
        self.done(consumer, [])
        self.round(consumer, [], 9)

    def round(self, consumer: int, entries: list[int], permits: int, sent: list[int] | None = None) -> None:
        out = entries if sent is None else sent
        self("round_begin", type="Normal", consumer=consumer, positions=out)
        if out:
            self("sent", consumer=consumer, positions=out, batch_sizes=[1] * len(out), permits_before=permits)

    def done(self, consumer: int, entries: list[int]) -> None:
        self("read_done", type="Normal", consumer=consumer, positions=entries)

    def verified(self, folder: Path) -> Verification:
        self("end")
        messages = [
            {"topic": TOPIC, "position": f"1:{entry}", "key": key, "producer": "p", "sequence_id": entry,
             "publish_time_ms": 1, "num_messages": self.num_messages.get(entry, 1), "size_bytes": 1}
            for entry, key in enumerate(self.keys)
        ]  # fmt: skip
        for name, rows in (("trace", [self.header, *self.lines]), ("messages", messages)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return verified(folder)


def verified(folder: Path) -> Verification:
    (source,) = find_recordings([str(folder)])
    (log,) = read_recording(source).logs
    return verify(log)
