"""A broker's single-active dispatcher as threads that interleave at random, and the trace it writes.

An independent, literal model of the threads and locks of PersistentDispatcherSingleActiveConsumer, to test the verification
of traces on rare interleavings. It shares no code with the dispatch core.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOPIC = "persistent://public/default/t"
Steps = Generator[None, None, None]


@dataclass(eq=False)
class Read:
    """A read that the cursor has to serve."""

    consumer: int
    size: int
    epoch: int
    waiting: bool


@dataclass
class Broker:
    """State of a dispatcher and its threads; ``run`` runs ``steps`` steps of them."""

    seed: int
    version: str = "4.2.4"
    delayed: bool = True
    redeliveries: bool = True
    lines: list[dict[str, Any]] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    consumers: list[int] = field(default_factory=list)
    permits: dict[int, int] = field(default_factory=dict)
    active: int | None = None
    pending: bool = False
    delay_task: bool = False
    epoch: int = 0
    reads: list[Read] = field(default_factory=list)
    stored: int = 0
    deleted: set[int] = field(default_factory=set)
    mark_delete: int = -1
    read_position: int = 0
    owner: object = None
    depth: int = 0
    me: object = None
    executor: deque[Steps] = field(default_factory=deque)
    commands: dict[int, deque[Steps]] = field(default_factory=dict)
    threads: list[Steps] = field(default_factory=list)
    sent: dict[int, list[int]] = field(default_factory=dict)
    closing: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = 1_700_000_000_000_000
        self.epochs = self.version == "4.2.4"

    def emit(self, kind: str, **fields: Any) -> None:
        for name in ("positions", "read_position"):
            value = fields.get(name)
            if isinstance(value, int):
                fields[name] = f"1:{value}"
            elif value is not None:
                fields[name] = [f"1:{entry}" for entry in value]
        self.lines.append({"seq": len(self.lines) + 1, "t_us": self.clock, "kind": kind, **fields})

    # --- lock --------------------------------------------------------------------------------------------------------

    def lock(self) -> Steps:
        while self.owner is not None and self.owner is not self.me:
            yield
        self.owner = self.me
        self.depth += 1

    def unlock(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.owner = None

    # --- dispatcher --------------------------------------------------------------------------------------------------

    def pick(self) -> Steps:
        self.consumers.sort(key=lambda consumer: self.names[consumer])
        chosen = self.consumers[0]
        changed = chosen != self.active
        if changed:
            self.active = chosen
            yield from self.schedule()
        self.emit(
            "active_picked", consumer=chosen, changed=changed, sorted=list(self.consumers), partition_index=0
        )
        self.changed = changed

    def cancel(self) -> None:
        if self.pending:
            waiting = self.cancel_waiting()
            self.pending = not waiting

    def cancel_waiting(self) -> bool:
        waiting = next((read for read in self.reads if read.waiting), None)
        if waiting is not None:
            self.reads.remove(waiting)
        self.emit("read_cancelled", cancelled=waiting is not None)
        return waiting is not None

    def schedule(self) -> Steps:
        self.emit("handover_scheduled", pending_read=self.pending)
        yield
        self.cancel()
        if self.pending:
            return
        if not self.delayed:
            active = self.active
            self.rewind()
            yield from self.tell_all(active)
            yield from self.read_more(active)
        elif not self.delay_task:
            self.delay_task = True
            self.threads.append(self.delay())

    def delay(self) -> Steps:
        for _ in range(self.random.randrange(0, 60)):
            yield
        active = self.active
        yield
        self.rewind()
        yield
        yield from self.tell_all(active)
        yield from self.read_more(active)
        yield
        yield from self.lock()
        self.delay_task = False
        self.unlock()

    def rewind(self) -> None:
        self.read_position = self.mark_delete + 1
        self.emit("rewind", read_position=self.read_position)

    def tell_all(self, active: int | None) -> Steps:
        if active is None:
            return
        for consumer in list(self.consumers):
            self.emit("active_notified", consumer=consumer, active=active)
            yield

    def read_more(self, consumer: int | None) -> Steps:
        self.emit("read_attempt", consumer=consumer)
        yield
        if consumer is None or self.pending or self.permits[consumer] <= 0:
            return
        yield
        yield from self.lock()
        if consumer == self.active and not self.pending:
            size = max(min(self.permits[consumer], 100), 1)
            yield
            self.pending = True
            self.epoch += 1
            self.emit("read_issued", max_entries=size, read_position=self.read_position)
            self.reads.append(Read(consumer, size, self.epoch, waiting=self.read_position >= self.stored))
        self.unlock()

    def flow_task(self, consumer: int) -> Steps:
        yield from self.lock()
        self.emit("flow_applied", consumer=consumer)
        if not self.pending and self.active == consumer and not self.delay_task:
            yield from self.read_more(consumer)
        self.unlock()

    def redeliver_task(self, consumer: int) -> Steps:
        yield from self.lock()
        if consumer == self.active and not self.delay_task:
            self.cancel_waiting()
            self.pending = False
            self.rewind()
            yield from self.read_more(consumer)
        self.unlock()

    def completed(self, read: Read, entries: list[int]) -> Steps:
        yield from self.lock()
        self.emit("read_done", type="Normal", consumer=read.consumer, positions=entries)
        if self.epochs and read.epoch != self.epoch:
            self.unlock()
            return
        self.pending = False
        active = self.active
        yield
        if read.consumer != active:
            self.rewind()
            if active is not None:
                yield from self.tell_all(active)
                yield from self.read_more(active)
        else:
            self.emit("round_begin", type="Normal", consumer=active, positions=entries)
            yield
            if entries:
                before = self.permits[active]
                if self.random.random() < 0.1:
                    yield
                self.emit(
                    "sent",
                    consumer=active,
                    positions=entries,
                    batch_sizes=[1] * len(entries),
                    permits_before=before,
                )
                self.permits[active] -= len(entries)
                yield
                self.emit("send_returned", consumer=active, written=False, permits_after=self.permits[active])
                self.sent.setdefault(active, []).extend(entries)
            self.threads.append(self.write())
        self.unlock()

    def write(self) -> Steps:
        for _ in range(self.random.randrange(0, 6)):
            yield
        self.executor.append(self.after_write())

    def after_write(self) -> Steps:
        yield from self.read_more(self.active)

    # --- clients -----------------------------------------------------------------------------------------------------

    def add(self, consumer: int) -> Steps:
        yield from self.lock()
        self.consumers.append(consumer)
        yield from self.pick()
        if not self.changed:
            self.emit("active_notified", consumer=consumer, active=self.active)
        policy = {"mode": "AUTO_SPLIT", "allow_out_of_order": False, "ranges": []}
        name = self.names[consumer]
        self.emit("consumer_added", consumer=consumer, name=name, consumer_id=consumer, address="a",
                  priority_level=0, key_shared=policy)  # fmt: skip
        self.unlock()

    def remove(self, consumer: int) -> Steps:
        yield from self.lock()
        self.emit("consumer_removing", consumer=consumer)
        self.consumers.remove(consumer)
        if self.consumers:
            yield from self.pick()
        else:
            self.active = None
            self.cancel()
        self.emit("consumer_removed", consumer=consumer)
        self.unlock()

    def flow(self, consumer: int, permits: int) -> Steps:
        self.emit("flow", consumer=consumer, permits=permits, blocked=False)
        if self.random.random() < 0.3:
            yield
        self.permits[consumer] += permits
        if self.random.random() < 0.3:
            yield
        counted_last = self.random.random() < 0.2
        if not counted_last:
            self.emit(
                "flow_counted", consumer=consumer, permits_after=self.permits[consumer], blocked_after=False
            )
        self.executor.append(self.flow_task(consumer))
        if counted_last:
            yield
            self.emit(
                "flow_counted", consumer=consumer, permits_after=self.permits[consumer], blocked_after=False
            )

    def ack(self, consumer: int, entries: list[int], cumulative: bool) -> Steps:
        self.emit(
            "ack", consumer=consumer, ack_type="Cumulative" if cumulative else "Individual", positions=entries
        )
        if self.random.random() < 0.5:
            yield
        self.deleted.update(range(entries[-1] + 1) if cumulative else entries)
        before = self.mark_delete
        while self.mark_delete + 1 in self.deleted:
            self.mark_delete += 1
        self.read_position = max(self.read_position, self.mark_delete + 1)
        if self.mark_delete != before:
            yield
            self.emit("mark_delete", mark_delete=f"1:{self.mark_delete}")

    def redeliver(self, consumer: int) -> Steps:
        self.emit("redeliver", consumer=consumer, positions=None)
        self.executor.append(self.redeliver_task(consumer))
        yield

    def client_acts(self) -> None:
        free = [c for c, queue in self.commands.items() if len(queue) < 2 and c not in self.closing]
        if len(free) < 4 and self.random.random() < 0.15:
            consumer = len(self.names) + 1
            self.names[consumer] = self.random.choice("abcdef")
            self.permits[consumer] = 0
            self.commands[consumer] = deque([self.add(consumer)])
        elif free:
            consumer = self.random.choice(free)
            kind = self.random.random()
            had = self.sent.get(consumer)
            if kind < 0.5:
                command = self.flow(consumer, self.random.randrange(1, 8))
            elif kind < 0.85 and had:
                if self.random.random() < 0.2:
                    command = self.ack(consumer, [self.random.choice(had)], True)
                else:
                    command = self.ack(consumer, self.random.sample(had, min(len(had), 3)), False)
            elif kind < 0.9 and self.redeliveries:
                command = self.redeliver(consumer)
            elif kind > 0.97:
                self.commands[consumer].append(self.remove(consumer))
                self.closing.add(consumer)
                return
            else:
                return
            self.commands[consumer].append(command)

    # --- threads -----------------------------------------------------------------------------------------------------

    def cursor(self) -> None:
        """Serve a read: collect entries, move the read position, pass the result to the executor."""
        ready = [read for read in self.reads if self.read_position < self.stored or not read.waiting]
        if not ready:
            return
        read = ready[0]
        if read.waiting and not self.epochs and self.random.random() < 0.8:
            self.reads.remove(read)  # before #24898 a read that had to wait completes empty
            self.executor.append(self.completed(read, []))
            return
        read.waiting = False
        self.reads.remove(read)
        entries = [e for e in range(self.read_position, self.stored) if e not in self.deleted][: read.size]
        if entries:
            self.read_position = entries[-1] + 1
        self.executor.append(self.completed(read, entries))

    def run(self, steps: int) -> None:
        current: Steps | None = None
        stacks: dict[object, Steps] = {}
        for _ in range(steps):
            self.clock += self.random.randrange(1, 40)
            if self.random.random() < 0.3:
                self.client_acts()
            if self.random.random() < 0.25:
                self.stored += self.random.randrange(1, 4)
            if self.random.random() < 0.2:
                self.cursor()
            choices: list[object] = ["executor", *self.commands, *self.threads]
            running = [task for task in choices if task in stacks]
            if running and self.random.random() < 0.8:
                choices = running  # prefer threads that have begun: real threads seldom stall
            who = self.random.choice(choices)
            if who == "executor":
                queue: deque[Steps] | None = self.executor
            elif isinstance(who, int):
                queue = self.commands[who]
            else:
                queue = None
            if queue is not None:
                current = stacks.get(who) or (queue[0] if queue else None)
            else:
                current = who  # type: ignore[assignment]
            if current is None:
                continue
            stacks[who] = current
            self.me = who
            try:
                for _ in range(self.random.choice((1, 1, 2, 8))):
                    next(current)
            except StopIteration:
                stacks.pop(who)
                if queue is not None:
                    queue.popleft()
                else:
                    self.threads.remove(who)  # type: ignore[arg-type]

    def write_to(self, folder: Path) -> None:
        header = {
            "format": "pulsar-dispatch-trace", "format_version": 1, "broker_version": self.version, "topic": TOPIC,
            "subscription": "audit", "subscription_type": "Failover", "partition_index": 0,
            "config": {"activeConsumerFailoverDelayTimeMillis": 100 if self.delayed else 0},
        }  # fmt: skip
        messages: Iterable[dict[str, Any]] = (
            {"topic": TOPIC, "position": f"1:{entry}", "key": "k", "producer": "p", "sequence_id": entry,
             "publish_time_ms": 1, "num_messages": 1, "size_bytes": 1}
            for entry in range(self.stored)
        )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in (("trace", [header, *self.lines]), ("messages", messages)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
