"""A second opinion on the audit: brute force over the raw lines of a log, importing nothing from the product.

It uses only the definitions, with sets, lists and loops, and is meant to be read beside them:

* *outstanding* at a connection: sent to it and not since acked, requested for redelivery, or lost with the connection;
* the *key* of an entry: the bytes that dispatch hashes, ordering key before partition key; key-less entries have none;
* it reads the lines of level E, acks at their arrival; of a trace it uses only ``rewind``.

``check`` returns the findings as a list of (kind, key, position); ``check_log`` the faults of the log itself, as a list of
(kind, seq of the proving line); ``open_at_end`` the entries never sent, and those never acknowledged.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
from pathlib import Path
from typing import Any

Position = tuple[int, int]
SINGLE_ACTIVE = ("Failover", "Exclusive")


def lines(path: str) -> list[dict[str, Any]]:
    data = Path(path).read_bytes()
    text = gzip.decompress(data) if path.endswith(".gz") else data
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def position(text: str) -> Position:
    ledger, entry = text.split(":")
    return int(ledger), int(entry)


def key_of(message: dict[str, Any]) -> bytes | None:
    if message.get("ordering_key_b64") is not None:
        return base64.b64decode(message["ordering_key_b64"])
    if message.get("key") is None:
        return b"h31:%d" % message["key_h31"] if message.get("key_h31") is not None else None
    return base64.b64decode(message["key"]) if message.get("key_b64") else message["key"].encode()


def check(messages_path: str, events_path: str) -> list[tuple[str, bytes | None, str]]:
    keys = {position(m["position"]): key_of(m) for m in lines(messages_path) if "position" in m}
    events = lines(events_path)
    header = next((e for e in events if "format" in e), {})
    return Checker(header.get("subscription_type", "Key_Shared"), keys).run(
        [e for e in events if "kind" in e]
    )


def check_log(messages: list[dict[str, Any]], events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    stored = {m["position"] for m in messages if "position" in m}
    events = sorted((e for e in events if "kind" in e and "seq" in e), key=lambda e: e["seq"])
    added: set[int] = set()
    removed_us: dict[int, int] = {}
    found = []
    for before, event in zip([None, *events], events, strict=False):
        kind, seq, consumer = event["kind"], event["seq"], event.get("consumer", -1)
        reported = "gap" in (kind, before["kind"] if before else kind)
        late = seq > 1 and kind != "checkpoint" if before is None else seq - before["seq"] > 1
        twice = before is not None and seq == before["seq"]
        if kind == "gap" or (late and not reported) or twice:
            found.append(("log_gap", seq))
        if before is not None and event["t_us"] < before["t_us"]:
            found.append(("clock_step", seq))
        if kind == "consumer_added":
            added.add(consumer)
        named = kind in ("flow", "sent", "ack", "redeliver", "consumer_removing", "consumer_removed")
        # A connection goes on with commands for a while when another thread has removed its consumer, and may close it
        # again.
        in_time = event["t_us"] <= removed_us.get(consumer, 0) + 1_000_000
        may_follow = kind != "sent" and in_time
        if named and (consumer not in added or (consumer in removed_us and not may_follow)):
            found.append(("unknown_consumer", seq))
        if kind == "consumer_removed":
            removed_us.setdefault(consumer, event["t_us"])
        if kind in ("sent", "ack", "redeliver") and set(event.get("positions") or ()) - stored:
            found.append(("unknown_position", seq))
    return found


def open_at_end(messages_path: str, events_path: str) -> tuple[list[str], list[str]]:
    """Return entries never sent behind the first sent one, and entries sent, never acked, and below an acked one."""
    keys = {position(m["position"]): key_of(m) for m in lines(messages_path) if "position" in m}
    events = lines(events_path)
    header = next((e for e in events if "format" in e), {})
    checker = Checker(header.get("subscription_type", "Key_Shared"), keys)
    checker.run([e for e in events if "kind" in e])
    sent, highest = checker.sent_before, max([checker.acked_up_to, *checker.acked])
    unsent = [p for p in sorted(keys) if sent and p >= min(sent) and p not in sent]
    holes = [p for p in sorted(sent) if p < highest and not checker.is_acked(p)]
    return [f"{ledger}:{entry}" for ledger, entry in unsent], [f"{ledger}:{entry}" for ledger, entry in holes]


class Checker:
    def __init__(self, subscription_type: str, keys: dict[Position, bytes | None]) -> None:
        self.type = subscription_type
        self.keys = keys
        self.now = 0  # counts events and sent entries, to order any two of them
        self.sends: dict[bytes, list[tuple[int, int, Position]]] = {}  # key: [(when, consumer, entry)]
        self.sent_before: set[Position] = set()
        self.outstanding: dict[Position, set[int]] = {}
        self.acked: set[Position] = set()
        self.acked_up_to: Position = (-1, -1)
        self.batch_bits: dict[Position, list[int]] = {}
        self.requested: dict[
            tuple[int, Position], list[int]
        ] = {}  # when a connection requested redelivery of an entry
        self.rewinds: list[int] = []  # Failover and Exclusive: times of consumer changes and rewinds
        self.rewind_due = False
        self.last_sent_to: int | None = None
        self.found: list[tuple[str, bytes | None, str]] = []

    def run(self, events: list[dict[str, Any]]) -> list[tuple[str, bytes | None, str]]:
        for event in sorted(events, key=lambda e: e["seq"]):
            self.now += 1
            kind, consumer = event["kind"], event.get("consumer", -1)
            positions = [position(p) for p in event.get("positions") or []]
            if kind in ("active_notified", "rewind", "redeliver"):
                self.rewinds.append(self.now)
            if kind in ("consumer_added", "consumer_removed", "active_notified", "rewind", "redeliver"):
                self.rewind_due = self.type in SINGLE_ACTIVE and bool(self.sent_before)
            if kind == "sent":
                if positions and self.rewind_due and positions[0] <= max(self.sent_before):
                    # an active-consumer change rewinds some time after its cause: this line shows it, if another consumer
                    # gets it, or if it begins with the first entry that was sent and is not acknowledged
                    waiting = [p for p in self.sent_before if not self.is_acked(p)]
                    if consumer != self.last_sent_to or min(waiting, default=positions[0]) >= positions[0]:
                        self.rewinds.append(self.now)
                    self.rewind_due = False
                self.last_sent_to = consumer if positions else self.last_sent_to
                for entry in positions:
                    self.now += 1
                    self.send(consumer, entry)
            elif kind == "consumer_removed":
                for holders in self.outstanding.values():
                    holders.discard(consumer)
            elif kind == "redeliver":
                if event.get("positions") is None:
                    positions = [p for p, holders in self.outstanding.items() if consumer in holders]
                for entry in positions:
                    self.requested.setdefault((consumer, entry), []).append(self.now)
                    self.outstanding.get(entry, set()).discard(consumer)
            elif kind == "ack":
                self.ack(event, positions)
        return self.found

    def ack(self, event: dict[str, Any], positions: list[Position]) -> None:
        if event["ack_type"] == "Cumulative":
            if self.type in SINGLE_ACTIVE:
                reached, sets = max(positions), event.get("ack_sets")
                if sets and sets[0]:  # of the entry itself only a part
                    self.ack(event | {"ack_type": "Individual"}, positions)
                    reached = (reached[0], reached[1] - 1)
                self.acked_up_to = max(self.acked_up_to, reached)
                for entry in self.outstanding:
                    if entry <= reached:
                        self.outstanding[entry] = set()
            return
        sets = event.get("ack_sets") or [[]] * len(positions)
        for entry, words in zip(positions, sets, strict=True):
            if words:  # one bit per message of the batch, 1 = not acked yet
                old = self.batch_bits.get(entry, [-1] * len(words))
                self.batch_bits[entry] = [a & b for a, b in zip(old, words, strict=True)]
                if any(self.batch_bits[entry]):
                    continue
            self.acked.add(entry)
            self.outstanding[entry] = set()

    def send(self, consumer: int, entry: Position) -> None:
        key = self.keys.get(entry)
        if key is not None and self.type != "Shared":
            self.order(consumer, entry, key)
            earlier = {p for _, _, p in self.sends.get(key, []) if p <= entry}
            if any(self.outstanding[p] - {consumer} for p in earlier):
                self.find("split_key", entry)
        if self.outstanding.get(entry, set()) - {consumer}:
            self.find("double_outstanding", entry)
        elif entry in self.sent_before and not self.is_acked(entry):
            self.find("redelivered", entry)
        if self.is_acked(entry):
            self.find("duplicate_after_ack", entry)
        self.sent_before.add(entry)
        self.outstanding.setdefault(entry, set()).add(consumer)
        if key is not None:
            self.sends.setdefault(key, []).append((self.now, consumer, entry))

    def order(self, consumer: int, entry: Position, key: bytes) -> None:
        later = [(when, to) for when, to, p in self.sends.get(key, []) if p > entry]
        here = [when for when, to in later if to == consumer]
        requests = self.requested.get((consumer, entry), [])
        excuses = requests + self.rewinds if self.type in SINGLE_ACTIVE else requests
        # "between the two": after the connection first got a later entry, and before this delivery
        excused = any(min(here) < excuse for excuse in excuses) if here else True
        if not excused or (later and entry not in self.sent_before):
            self.find("out_of_order", entry)
        elif here and any(min(here) < when for when in requests):
            self.find("overtaken_redelivery", entry)

    def is_acked(self, entry: Position) -> bool:
        return entry in self.acked or entry <= self.acked_up_to

    def find(self, kind: str, entry: Position) -> None:
        self.found.append((kind, self.keys.get(entry), f"{entry[0]}:{entry[1]}"))


if __name__ == "__main__":
    for finding in check(sys.argv[1], sys.argv[2]):
        print(*finding)
