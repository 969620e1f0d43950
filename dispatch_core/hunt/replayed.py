"""Play a schedule on the dispatcher of the core, and write the log that a recorder would have written.

The order of the broker's work at each step is that of ``broker_steps``; here every decision is a call of the dispatcher that
``verify`` compares with recordings, so a find is confirmed by it, and has a log that all other commands read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from dispatch_core.broker import hashing
from dispatch_core.broker import state as st_
from dispatch_core.broker.commands import Flows
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.ordering import last_sent_position
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.hunt import schedule as s_
from dispatch_core.hunt.broker_steps import LAST_ROUNDS
from dispatch_core.hunt.world import MAX_ENTRIES

TOPIC: Final = "persistent://public/default/hunt"
SUBSCRIPTION: Final = "audit"
#: The first moment of a log, and the time between two lines, microseconds.
_BEGIN_US: Final = 1_767_225_600_000_000
_LINE_US: Final = 1_000
#: Time that passes at the end of a log, in which what is left could have been delivered, microseconds.
_END_US: Final = 120_000_000
_MANY_PERMITS: Final = 10


@dataclass(slots=True)
class Line:
    """An event of the log: its kind and its fields."""

    kind: str
    fields: dict[str, Any] = field(default_factory=dict)


class Replay:
    """The dispatcher, its clients and reads in flight, and the lines written so far.

    ``sent``: consumer number and entries of each send, in order.
    """

    def __init__(self, profile: Profile, keys: Sequence[str], schedule: Sequence[int]) -> None:
        self.profile = profile
        self.keys = [keys[s_.detail_of(step)] for step in schedule if s_.kind_of(step) == s_.STORE][
            :MAX_ENTRIES
        ]
        hashes = [profile.hash_space.sticky(hashing.h31(key.encode())) for key in self.keys or keys[:1]]
        classic = profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC
        dispatcher = ClassicKeySharedDispatcher if classic else KeySharedDispatcher
        joins = sum(s_.kind_of(step) == s_.JOIN for step in schedule)
        self.core = dispatcher(profile, np.array(hashes, np.int64), np.ones(len(hashes), np.int64), joins + 1)
        self.lines: list[Line] = []
        self.sent: list[tuple[int, list[int]]] = []
        self._numbers: dict[int, int] = {}  # name → number of its connection
        self._joined = 0
        self._stored = 0
        self._stored_at: list[int] = []  # lines written before each entry
        self._limit: int | None = None  # of the normal read in flight
        self._waited = False
        self._replays: list[list[int]] = []
        self._timer = False
        for step in schedule:
            self._take(step)

    def settle(self) -> None:
        """See ``broker_steps.settle``; ends when nothing is left, or nothing moves."""
        for _ in range(LAST_ROUNDS):
            for number in [*self._numbers.values()]:
                for entry in self.core.pending_on(number):
                    self._ack(number, entry)
                if int(self.core.state.permits[self.core.slot(number)]) < 1:
                    self._grant(number, _MANY_PERMITS)
            self._complete_replay()
            self._complete_normal()
            if self._timer:
                self._run_timer()
            if self.core.state.deleted[: self._stored].all():
                return

    def entries_left(self) -> list[int]:
        """List the stored entries that are not acknowledged."""
        return [entry for entry in range(self._stored) if not self.core.state.deleted[entry]]

    # --- steps ---------------------------------------------------------------------------------------------------

    def _take(self, step: int) -> None:
        kind, name = s_.kind_of(step), s_.name_of(step)
        if kind == s_.STORE:
            if self._stored < len(self.keys):
                self._stored += 1
                self._stored_at.append(len(self.lines))
        elif kind == s_.READ:
            self._complete_normal()
        elif kind == s_.REPLAY:
            self._complete_replay()
        elif kind == s_.JOIN:
            if name not in self._numbers:
                self._join(name, s_.PERMITS[s_.detail_of(step)])
        elif name in self._numbers:
            self._command(kind, name, self._numbers[name])

    def _command(self, kind: int, name: int, number: int) -> None:
        pending = self.core.pending_on(number)
        if kind == s_.LEAVE:
            self._leave(name, number)
        elif kind == s_.FLOW:
            self._grant(number, 1)
        elif kind == s_.NACK_ALL:
            self._write("redeliver", number)
            done = self.core.redeliver(number, pending, everything=True)
            self._attempt()
            self._flow(number, done.flows)
        elif not pending:
            return
        elif kind == s_.NACK_FIRST:
            self._write("redeliver", number, positions=self._positions(pending[:1]))
            done = self.core.redeliver(number, pending[:1])
            self._attempt()
            self._flow(number, done.flows)
        else:
            self._ack(number, pending[-1] if kind == s_.ACK_LAST else pending[0])

    def _join(self, name: int, permits: int) -> None:
        self._joined += 1
        number = self._numbers[name] = self._joined
        called = f"c{name + 1}"
        key_shared = {"mode": "AUTO_SPLIT", "allow_out_of_order": False, "ranges": []}
        self._write(
            "consumer_added",
            number,
            name=called,
            consumer_id=number,
            address="127.0.0.1",
            priority_level=0,
            key_shared=key_shared,
        )
        self.core.join(number, called)
        self.core.join_selector(number)
        self._grant(number, permits)

    def _leave(self, name: int, number: int) -> None:
        del self._numbers[name]
        self._write("consumer_removed", number)
        moved = self.core.select_out(number)
        self.core.drop(number, moved)
        if not self._numbers and self._limit is not None and self._waited and not self._readable():
            self.core.read_cancelled()
            self._limit = None
        self._attempt()
        forgets = self._numbers or self.core.state.s[st_.TRACK_LAST_SENT] or self._classic
        if forgets and self.core.forget(number):
            self._attempt()

    def _grant(self, number: int, permits: int) -> None:
        self._write("flow", number, permits=permits, blocked=self.core.is_blocked(number))
        if self.core.flow(number, permits):
            self.core.flow_applied(number, permits)
            self._attempt()

    def _flow(self, number: int, flows: Flows) -> None:
        for at in range(flows.notices):
            self.core.flow_applied(number, flows.permits if at == 0 else 0)
            self._attempt()

    def _ack(self, number: int, entry: int) -> None:
        self._write("ack", number, ack_type="Individual", positions=self._positions([entry]))
        before = self.core.mark_delete()
        was_blocked = bool(self.core.state.s[st_.BLOCKED_ON_UNACKED])
        done = self.core.ack(entry)
        if done is not None:
            self._flow(done.consumer, done.flows)
            if was_blocked and not self.core.state.s[st_.BLOCKED_ON_UNACKED]:
                self._attempt()
        if self.core.mark_delete() != before:
            if self._frees():
                self._attempt()
            self._timer |= self.core.trims_in_attempts()
        if self.core.state.s[st_.DRAIN_NOTICE]:
            self.core.state.s[st_.DRAIN_NOTICE] = 0
            self._timer = True

    def _run_timer(self) -> None:
        self._timer = False
        waits = self._limit is not None and self._waited and not self._readable()
        if waits and not self._classic and self.core.state.s[st_.N_REPLAY] > 0:
            self.core.read_cancelled()
            self._limit = None
        self._attempt()

    def _frees(self) -> bool:
        """Free recently joined consumers that mark-delete has reached; returns whether there were any."""
        if isinstance(self.core, ClassicKeySharedDispatcher):
            return self.core.prune()
        waiting = len(self.core.recently_joined())
        return bool(waiting) and bool(last_sent_position.prune(self.core.state))

    # --- reads ---------------------------------------------------------------------------------------------------

    @property
    def _classic(self) -> bool:
        return self.profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC

    def _readable(self) -> list[int]:
        start, deleted = int(self.core.state.s[st_.READ_POSITION]), self.core.state.deleted
        return [entry for entry in range(start, self._stored) if not deleted[entry]]

    def _attempt(self) -> None:
        read = self.core.attempt_read()
        if read.kind == "Normal":
            self._limit, self._waited = read.max_entries, not self._readable()
        elif read.kind == "Replay":
            entries = [entry for entry in read.entries if entry not in read.already_deleted]
            if entries:
                self._replays.append(entries)
            else:
                self._timer = True
        elif read.kind == "Backoff":
            self._timer = True

    def _complete_normal(self) -> None:
        there = self._readable()
        if self._limit is None or not self.core.state.s[st_.PENDING_READ] or (self._waited and not there):
            return
        empty = self._waited and "waiting_read_gets_entries" not in self.profile.changes
        entries, self._limit = [] if empty else there[: self._limit], None
        self._dispatch("Normal", entries)

    def _complete_replay(self) -> None:
        if self._replays:
            self._dispatch("Replay", self._replays.pop(0))

    def _dispatch(self, kind: str, entries: list[int]) -> None:
        if not self.core.read_done(kind, entries):
            self._attempt()
            return
        outcome = self.core.round(kind, entries)
        for number, taken in outcome.sent.items():
            self.sent.append((number, taken))
            self._write("sent", number, positions=self._positions(taken), batch_sizes=[1] * len(taken))
        looks_ahead = self.core.finish_round(
            outcome, has_more=int(self.core.state.s[st_.READ_POSITION]) < self._stored
        )
        if outcome.sent or (outcome.retry and looks_ahead):
            self._attempt()
        elif outcome.retry:
            self._timer = True

    # --- the log -------------------------------------------------------------------------------------------------

    def _positions(self, entries: Sequence[int]) -> list[str]:
        return [f"1:{entry}" for entry in entries]

    def _write(self, kind: str, consumer: int, **fields: Any) -> None:
        self.lines.append(Line(kind, {"consumer": consumer, **fields}))

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
                    "num_messages": 1,
                    "size_bytes": 20,
                }
            )
        return lines

    def _header(self) -> dict[str, Any]:
        return {
            "format_version": "1.1",
            "broker_version": self.profile.broker_version,
            "subscription_type": "Key_Shared",
            "partition_index": -1,
            "config": {name: value for name, value in self.profile.settings.items() if value is not None},
            "topic": TOPIC,
            "subscription": SUBSCRIPTION,
        }
