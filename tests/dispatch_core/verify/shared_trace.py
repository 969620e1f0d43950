"""A made trace of a Shared dispatcher: its lines in the order of the broker's source, with one message per entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dispatch_core.verify.trace.runner import Verification
from tests.dispatch_core.verify import tampering as t

#: A made trace has its header, its topic and its messages: classic Shared of 4.2.4.
HEADER: Final = (
    Path(__file__).resolve().parents[2] / "data" / "races" / "4.2.4" / "soak-6012-classic-shared-quiet"
)
LEDGER: Final = 39


def places(*entries: int) -> list[str]:
    return [f"{LEDGER}:{entry}" for entry in entries]


class SharedTrace:
    """Lines of a made trace, and what their fields of the cursor show."""

    def __init__(self) -> None:
        raw = t.raw(HEADER)
        first = next(at for at, line in enumerate(raw) if line.get("seq") == 1)
        self.lines = [*raw[:first], raw[first]]
        self.read_position, self.mark_delete = 0, -1

    def add(self, kind: str, consumer: int | None = None, **fields: Any) -> None:
        last = self.lines[-1]
        line = {name: last[name] for name in ("topic", "subscription", "incarnation")}
        line |= {"seq": last["seq"] + 1, "t_us": last["t_us"] + 100, "kind": kind}
        if consumer is not None:
            line["consumer"] = consumer
        for name in ("read_position", "mark_delete"):
            if fields.pop(name, False):
                line[name] = f"{LEDGER}:{getattr(self, name)}"
        self.lines.append(line | fields)

    def join(self, consumer: int, permits: int) -> None:
        place = {"consumer_id": 0, "address": "127.0.0.1", "priority_level": 0}
        self.add(
            "consumer_added", consumer, name=f"c{consumer}", **place, read_position=True, mark_delete=True
        )
        self.add("flow", consumer, permits=permits, blocked=False)
        self.add("flow_counted", consumer, permits_after=permits, blocked_after=False)
        self.add("flow_applied", consumer, permits=permits)

    def attempt(self, usable: list[list[int]], *reads: dict[str, Any], normal: bool, replay: bool) -> None:
        self.add("read_attempt")
        for read in reads:
            self.add(**read)
        total = sum(row[2] for row in usable)
        self.add(
            "read_attempt_end", total_permits=total, usable=usable, pending_read=normal, pending_replay=replay
        )

    def done(self, kind: str, *entries: int) -> None:
        if kind == "Normal":
            self.read_position = max(entries) + 1
        self.add("read_done", type=kind, positions=places(*entries), read_position=True)

    def round_begins(self, kind: str, *entries: int) -> None:
        self.add("round_begin", type=kind, positions=places(*entries), read_position=True, mark_delete=True)

    def send(self, consumer: int, before: int, *entries: int) -> None:
        sizes = [1] * len(entries)
        self.add("sent", consumer, positions=places(*entries), batch_sizes=sizes, permits_before=before)
        self.add("send_returned", consumer, written=False, permits_after=before - len(entries))

    def round_ends(self, in_replay: int) -> None:
        self.add("round_end", retry=True, in_replay=in_replay, has_more=True)

    def round(self, kind: str, entry: int, consumer: int, before: int, in_replay: int) -> None:
        self.round_begins(kind, entry)
        self.send(consumer, before, entry)
        self.round_ends(in_replay)

    def ack(self, by: int, entry: int, holder: int) -> None:
        self.add("ack", by, ack_type="Individual", positions=places(entry))
        self.add("pending_ack_removed", holder, positions=places(entry), hash=0)


def normal_read(size: int) -> dict[str, Any]:
    return {"kind": "read_issued", "max_entries": size, "read_position": True}


def replay_read(*entries: int) -> dict[str, Any]:
    return {"kind": "replay_read_issued", "positions": places(*entries)}


def verified(trace: list[dict[str, Any]], where: Path) -> Verification:
    return t.verified(t.copy_with(HEADER, trace, where))
