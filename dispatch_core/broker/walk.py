"""Walk a dispatcher of several consumers through a history by hand: clients, stored entries, reads that complete on demand.

A *walk* is the smallest world around a dispatcher: entries with keys in one ledger, clients with permits that acknowledge
on demand, a managed ledger that answers every read at once. It adds no rule: the dispatcher of the given profile makes all
decisions. Use it to learn the rules and to ask "what if".

It leaves out time, threads and transactions. ``run`` attempts reads until nothing moves, where a broker waits for a
flow, an ack or a timer, so it counts more refused attempts. Consumers are named, entries have positions ("ledger:entry").

The first consumer runs out of permits; when it leaves, its entries go to the second consumer, in order:

>>> from dispatch_core.broker import profiles
>>> walk = Walk(profiles.resolve("4.2.4"), ["key-61"] * 3, first="1:6")
>>> walk.join("c1", permits=1)
>>> walk.run()
{'c1': ['1:6']}
>>> walk.join("c3", permits=10)
>>> walk.turn(), walk.draining()
({}, {'key-61': ('c1', 1, 1)})
>>> walk.leave("c1")
>>> walk.run()
{'c3': ['1:6', '1:7', '1:8']}

Under Shared consumers take turns, whatever the keys:

>>> shared = profiles.resolve("4.2.4", {"dispatcherMaxRoundRobinBatchSize": 1}, subscription_type="Shared")
>>> walk = Walk(shared, ["key-61"] * 3)
>>> for name in ("c1", "c2"):
...     walk.join(name, permits=10)
>>> walk.run()
{'c1': ['1:0', '1:2'], 'c2': ['1:1']}
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from dispatch_core.broker import hashing
from dispatch_core.broker import state as st_
from dispatch_core.broker.commands import Flows
from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.multiple_consumers import MultipleConsumersDispatcher
from dispatch_core.broker.pluggable import OrderingFactory, SelectorFactory
from dispatch_core.broker.plugged import PluggedDispatcher
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.selectors.selector import Announced
from dispatch_core.broker.shared import SharedDispatcher
from dispatch_core.errors import IllegalTransitionError, SelectorRefusedError, UnsupportedRuleError

_DISPATCHERS: dict[Dispatcher, type[KeySharedDispatcher | SharedDispatcher]] = {
    Dispatcher.KEY_SHARED: KeySharedDispatcher,
    Dispatcher.KEY_SHARED_CLASSIC: ClassicKeySharedDispatcher,
    Dispatcher.SHARED: SharedDispatcher,
    Dispatcher.SHARED_CLASSIC: SharedDispatcher,
}

#: ``run`` ends after so many read attempts in a row that moved nothing: one of them may be spent on looking ahead.
QUIET_ATTEMPTS = 3


class Walk:
    """A Key_Shared or Shared subscription, its log and its clients."""

    def __init__(
        self,
        profile: Profile,
        keys: Sequence[str | bytes],
        *,
        stored: int | None = None,
        first: str = "1:0",
        max_consumers: int = 64,
        messages: Sequence[int] | None = None,
        selector: SelectorFactory | None = None,
        ordering: OrderingFactory | None = None,
        exclusive: bool = False,
    ) -> None:
        """Store the first entries of a log whose entries have these ``keys`` (text, or their bytes); nobody is connected.

        ``stored``: how many entries are stored (default: all). ``first``: position of the first entry; everything before it
        is acknowledged. ``max_consumers``: how many will ever join. ``messages``: number of messages in each entry (default:
        1). ``selector``, ``ordering``: rules that no release has (``pluggable``), for the Key_Shared dispatcher of 4.x.
        ``exclusive``: a consumer that joins waits for the read in flight, which is dispatched first (PIP-282,
        alternative 2). Raises ``UnsupportedRuleError`` for a profile with one active consumer, and what the
        dispatcher raises.
        """
        if profile.dispatcher not in _DISPATCHERS:
            raise UnsupportedRuleError(
                f"{profile.name}: only Key_Shared and Shared dispatchers can be walked"
            )
        self.profile = profile
        self.keys = list(keys)
        self.stored = len(keys) if stored is None else stored
        ledger, _, entry = first.partition(":")
        self._ledger, self._first = int(ledger), int(entry)
        in_bytes = [key if isinstance(key, bytes) else key.encode() for key in keys]
        hashes = [profile.hash_space.sticky(hashing.h31(key)) for key in in_bytes]
        self._exclusive = exclusive
        make: Callable[..., MultipleConsumersDispatcher] = _DISPATCHERS[profile.dispatcher]
        if selector is not None or ordering is not None:
            make = partial(PluggedDispatcher, selector=selector, ordering=ordering)
        #: The dispatcher itself, for queries that the walk does not have.
        self.core: MultipleConsumersDispatcher = make(
            profile,
            np.array(hashes, np.int64),
            np.ones(len(keys), np.int64) if messages is None else np.asarray(messages, np.int64),
            max_consumers,
        )
        #: Consumer → everything it was sent, in order; a consumer that comes back goes on with its list.
        self.got: dict[str, list[str]] = {}
        #: Shared: consumer and positions of each turn of the last round.
        self.turns: list[tuple[str, list[str]]] = []
        self._numbers: dict[str, int] = {}  # connected consumers
        self._joined = 0
        self._news: dict[str, list[str]] = {}
        self._waiting = 0  # most entries that the normal read waiting for entries will take; 0 = none waits
        self._result: tuple[str, list[int]] | None = None  # read, not dispatched

    # --- events of clients and storage ---------------------------------------------------------------------------

    def store(self, entries: int) -> None:
        """Store the next entries of the log."""
        if self.stored + entries > len(self.keys):
            raise IllegalTransitionError(
                f"{entries} more entries: the log has {len(self.keys)}, {self.stored} of them are stored",
                rule="only entries of the log are stored",
            )
        self.stored += entries

    def join(self, name: str, permits: int = 0, ranges: Announced = None, *, priority_level: int = 0) -> None:
        """Connect a consumer, which grants its first permits. ``ranges``: those it announces (STICKY).

        ``priority_level``: 0 is served first (Shared). Raises ``SelectorRefusedError`` where the broker refuses it; it is
        not connected then.
        """
        if name in self._numbers:
            raise IllegalTransitionError(f"{name} is connected already", rule="names are unique in a walk")
        if self._exclusive:
            self.dispatch()
        number = self._joined + 1
        self.core.join(number, name, priority_level)
        self._joined = number
        if isinstance(self.core, KeySharedDispatcher):
            try:
                self.core.join_selector(number, ranges)
            except SelectorRefusedError:
                self.core.refuse(number)
                raise
        self._numbers[name] = number
        if permits:
            self.give(name, permits)

    def leave(self, name: str) -> None:
        """Disconnect a consumer: its pending entries are to be redelivered.

        The broker attempts to read then, since 4.0 only if there are any; see ``replay_set.read_follows``.
        """
        number = self._number(name)
        pending, was_blocked = self.core.pending_on(number), bool(self.core.state.s[st_.BLOCKED_ON_UNACKED])
        del self._numbers[name]
        if isinstance(self.core, KeySharedDispatcher):
            self.core.drop(number, self.core.select_out(number))
        elif isinstance(self.core, SharedDispatcher):
            self.core.leave(number)
        if not self._numbers and self._waiting:
            self.core.read_cancelled()
            self._waiting = 0
        if self.core.read_follows(pending, was_blocked=was_blocked):
            self.turn()
        if isinstance(self.core, KeySharedDispatcher):
            self.core.forget(number)

    def give(self, name: str, permits: int) -> None:
        """Grant permits of a client."""
        number = self._number(name)
        if self.core.flow(number, permits):
            self.core.flow_applied(number, permits)

    def ack(self, *positions: str) -> None:
        """Acknowledge entries, whoever holds them."""
        for entry in [self._entry(position) for position in positions]:
            done = self.core.ack(entry)
            if done is not None:
                self._flows(done.consumer, done.flows)

    def nack(self, name: str, *positions: str) -> None:
        """Request redelivery of entries that a consumer holds (negative ack, or its ack timeout)."""
        number = self._number(name)
        entries = sorted(self._entry(position) for position in positions)
        missing = [self._position(entry) for entry in entries if self.core.holder(entry) != number]
        if missing:
            raise IllegalTransitionError(
                f"{name} does not hold {', '.join(missing)}",
                rule="a consumer requests redelivery of what it holds",
            )
        self._flows(number, self.core.redeliver(number, entries).flows)

    # --- steps of the broker -------------------------------------------------------------------------------------

    def read(self) -> list[str]:
        """Attempt a read; its result is in flight until ``dispatch``. Returns the positions read.

        Where a read that had to wait comes back empty (before #24898), its empty round is run and the next read attempted.
        """
        if self._result is None:
            self._result = self._attempt()
            if self._result is not None and not self._result[1]:
                self.dispatch()
                self._result = self._attempt()
        return [] if self._result is None else [self._position(entry) for entry in self._result[1]]

    def dispatch(self) -> dict[str, list[str]]:
        """Dispatch the read result in flight; returns the positions sent, by consumer."""
        if self._result is None:
            return {}
        (kind, entries), self._result = self._result, None
        outcome = self.core.round(kind, entries)
        more = int(self.core.state.s[st_.READ_POSITION]) < self.stored
        self.core.finish_round(outcome, has_more=more)
        self.turns = [
            (self.core.name_of(turn.consumer), [self._position(entry) for entry in turn.entries])
            for turn in outcome.turns
        ]
        sent: dict[str, list[str]] = {}
        for name, number in self._numbers.items():
            if number in outcome.sent:
                sent[name] = [self._position(entry) for entry in outcome.sent[number]]
                self.got.setdefault(name, []).extend(sent[name])
                self._news.setdefault(name, []).extend(sent[name])
        return sent

    def turn(self) -> dict[str, list[str]]:
        """Attempt a read and dispatch its result; returns the positions sent, by consumer."""
        self.read()
        return self.dispatch()

    def run(self) -> dict[str, list[str]]:
        """Take turns until nothing moves; returns the positions sent since ``run`` returned last, by consumer."""
        quiet = 0
        while quiet < QUIET_ATTEMPTS:
            before = self._progress()
            self.turn()
            quiet = quiet + 1 if self._progress() == before else 0
        news, self._news = self._news, {}
        return news

    # --- queries -------------------------------------------------------------------------------------------------

    def owner(self, key: str | bytes) -> str | None:
        """Return the consumer that owns the hash of a key of the log now; None = nobody."""
        slot = int(self.core.state.hash_owner[self.core.state.hash_id[self.keys.index(key)]])
        return None if slot == st_.NOBODY else self.core.name_of(self.core.number_of(slot))

    def connected(self) -> list[str]:
        """Return the connected consumers, in the order in which they joined."""
        return [*self._numbers]

    def pending(self, name: str) -> list[str]:
        """Return the positions that a connected consumer was sent and has not acknowledged."""
        return [self._position(entry) for entry in self.core.pending_on(self._number(name))]

    def in_replay(self) -> list[str]:
        """Return the positions in the replay set."""
        return [self._position(int(entry)) for entry in np.flatnonzero(self.core.state.in_replay)]

    def draining(self) -> dict[str | bytes, tuple[str, int, int]]:
        """Return key → (consumer it drains for, entries still to be acknowledged, refused attempts)."""
        found = self.core.draining() if isinstance(self.core, KeySharedDispatcher) else {}
        hashes = {
            key: self.core.hash_value(int(self.core.state.hash_id[i])) for i, key in enumerate(self.keys)
        }
        return {
            key: (self.core.name_of(found[value][0]), *found[value][1:])
            for key, value in hashes.items()
            if value in found
        }

    def recently_joined(self) -> dict[str, str]:
        """Return the consumers that are held back → the position remembered for them: read or last sent position."""
        core = self.core
        waiting = core.recently_joined().items() if isinstance(core, KeySharedDispatcher) else ()
        return {self.core.name_of(number): self._position(entry) for number, entry in waiting}

    # --- inside --------------------------------------------------------------------------------------------------

    def _attempt(self) -> tuple[str, list[int]] | None:
        """Attempt a read; returns its kind and entries, None where it reads nothing."""
        core, state = self.core, self.core.state
        read = core.attempt_read()
        if read.kind == "Replay":
            kind, entries = "Replay", [e for e in read.entries if e not in read.already_deleted]
            if not entries:
                return None
        else:
            self._waiting = read.max_entries if read.kind == "Normal" else self._waiting
            start = int(state.s[st_.READ_POSITION])
            there = [entry for entry in range(start, self.stored) if not state.deleted[entry]]
            if not self._waiting or not there:
                return None
            kind, entries = "Normal", there[: self._waiting]
            if read.kind != "Normal" and "waiting_read_gets_entries" not in self.profile.changes:
                entries = []
            self._waiting = 0
        return (kind, entries) if core.read_done(kind, entries) else None

    def _flows(self, number: int, flows: Flows) -> None:
        """Count permits at the dispatcher that an ack or a redelivery request has set free."""
        if flows.notices:
            self.core.flow_applied(number, flows.permits)

    def _progress(self) -> tuple[int, int, int]:
        s = self.core.state.s
        return sum(map(len, self.got.values())), int(s[st_.READ_POSITION]), int(s[st_.N_REPLAY])

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            raise IllegalTransitionError(
                f"{name} is not connected; connected: {', '.join(self._numbers) or 'nobody'}",
                rule="events come from connected consumers",
            )
        return self._numbers[name]

    def _position(self, entry: int) -> str:
        return f"{self._ledger}:{self._first + entry}"

    def _entry(self, position: str) -> int:
        ledger, _, number = position.partition(":")
        entry = int(number) - self._first
        if int(ledger) != self._ledger or not 0 <= entry < self.stored:
            last = self._position(self.stored - 1)
            raise IllegalTransitionError(
                f"{position} is not stored; stored: {self._position(0)} to {last}",
                rule="only stored entries are acknowledged or requested",
            )
        return entry
