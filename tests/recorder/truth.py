"""Judge the clients' journals alone: the order of each key, repetitions, messages that never came.

Nothing here knows logs, brokers' rules or the product. The order is that of positions, which clients see as message ids.

* *Out of order*: a consumer received an entry of a key behind a later one, and had not sent a negative ack for it before. If
  it had, the entry is *doubtful*: a negative ack leaves the client after a delay, and no client can tell if the later entry
  was delivered before.
* *Split*: a consumer received an entry while an earlier or equal entry of the key was outstanding at another: received
  there, and neither acknowledged nor refused, and the consumer had not left.
* *At two*: the same for the same message. *Again in hand*: the message was outstanding at the same consumer.
* *After its acknowledgement*: a message came (to any consumer) although it had been acknowledged.

Clients cannot know everything. An acknowledgement may never have arrived, and does not count, if client or broker ended
less than ``_UNSENT_NS`` later, or if the message came from before a reload. It may have arrived too late if the client had
asked for its entry again before, as it does when it refuses another message of the batch, also one that it received before
the acknowledged one. A message that comes again to the consumer that acknowledged it is not outstanding: it may have waited
in the client, and to the broker the one acknowledgement settled both deliveries.

The Java client asks for more than its user refused: it takes the messages of a refused entry out of its queue, with the
first message behind them, and asks for that entry, too (ConsumerImpl.removeExpiredMessagesFromQueue). A batch that begins
behind a message which was never acknowledged was asked for again in this way, and counts as refused.

After a reload the cursor starts from what the broker had kept: the first step back of each consumer is that rewind, and
messages that come after their acknowledgement are counted apart. Failover and Exclusive rewind when a consumer comes or
goes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.recorder.journal import Position, Step

#: The Python client gathers acknowledgements for 100 ms.
_UNSENT_NS = 2_000_000_000

Message = tuple[Position, int]


@dataclass(slots=True)
class Truth:
    """The outcome as clients saw it. Sets name the messages, to compare them with findings."""

    published: int = 0
    received: int = 0
    acked: int = 0
    killed: int = 0
    reloads: int = 0
    unseen: set[Message] = field(default_factory=set)
    out_of_order: set[tuple[str, str, Position]] = field(default_factory=set)  # consumer, key, entry
    split_keys: set[str] = field(default_factory=set)
    at_two: set[Message] = field(default_factory=set)
    again_in_hand: set[Message] = field(default_factory=set)
    doubtful: set[tuple[str, str, Position]] = field(default_factory=set)  # as out_of_order
    after_ack: set[Message] = field(default_factory=set)
    after_ack_and_reload: set[Message] = field(default_factory=set)
    #: Entries that each consumer name received: the messages of one delivery of a batch count as one.
    entries: dict[str, list[Position]] = field(default_factory=dict)

    @property
    def broken_keys(self) -> set[str]:
        """Keys whose order broke."""
        return {key for _, key, _ in self.out_of_order} | self.split_keys

    @property
    def repeated(self) -> bool:
        """True if a message came again that was not lost, refused or rewound."""
        return bool(self.after_ack or self.at_two or self.again_in_hand)

    def words(self) -> str:
        """Describe the outcome for people."""
        parts = [f"{self.published:,} messages", f"{self.received:,} receipts"]
        parts += [f"{self.killed} killed"] if self.killed else []
        parts += [f"{self.reloads} reloads"] if self.reloads else []
        parts.append(f"{len(self.broken_keys)} broken keys ({len(self.out_of_order)} entries backwards)")
        parts += [f"{len(self.at_two)} at two"] if self.at_two else []
        parts += [f"{len(self.again_in_hand)} again in hand"] if self.again_in_hand else []
        parts.append(f"{len(self.after_ack)} after their ack")
        if self.reloads:
            parts.append(f"{len(self.after_ack_and_reload)} after ack and reload")
        parts += [f"{len(self.unseen)} never"] if self.unseen else []
        return ", ".join(parts)


def truth(steps: Iterable[Step]) -> Truth:
    """Judge the steps of all journals, in the order of time."""
    ordered = list(steps)
    return _Observer(_unsent_acks(ordered)).observe(ordered)


def _unsent_acks(steps: list[Step]) -> set[int]:
    """Return the times of acks that may not have arrived because the client or the broker ended."""
    ends = [step for step in steps if step.what in ("killed", "reload")]
    return {
        step.t_ns
        for step in steps
        if step.what == "acked"
        and any(
            end.consumer in ("", step.consumer) and abs(end.t_ns - step.t_ns) < _UNSENT_NS for end in ends
        )
    }


class _Observer:
    """Fold the steps; one method for each kind of step."""

    def __init__(self, unsent_acks: set[int]) -> None:
        self.truth = Truth()
        self._unsent_acks = unsent_acks
        self._given: dict[str, dict[str, Position]] = {}  # consumer: key: its latest entry
        self._unacknowledged: dict[str, dict[Message, str]] = {}  # consumer: message: key
        self._refused: Counter[tuple[str, Position]] = Counter()  # number of refusals of messages of an entry
        self._refused_in_part: set[tuple[str, Position]] = set()  # since their last delivery began
        self._receipts: Counter[tuple[str, Message]] = Counter()
        self._may_rewind: set[str] = set()
        self._single_active = False
        self._acked: dict[Message, int] = {}  # message: how many reloads there had been
        self._ever_acked: set[Message] = set()  # also by acks that do not count
        # What each consumer has acknowledged that was outstanding at it, since it connected.
        self._acked_by: defaultdict[str, set[Message]] = defaultdict(set)
        self._given_in: dict[tuple[str, Message], int] = {}  # by consumer, as above
        self._published: set[Message] = set()
        self._seen: set[Message] = set()
        self._last: dict[str, Message] = {}

    def observe(self, steps: list[Step]) -> Truth:
        what = {
            "published": lambda step: self._published.add(_message(step)),
            "joined": self._begin,
            "left": self._end,
            "killed": self._end,
            "received": self._receive,
            "acked": self._ack,
            "nacked": self._refuse,
            "reload": self._reload,
        }
        for step in steps:
            what[step.what](step)
        self.truth.published = len(self._published)
        self.truth.unseen = self._published - self._seen
        self.truth.acked = len({_message(step) for step in steps if step.what == "acked"})
        self.truth.killed = sum(step.what == "killed" for step in steps)
        return self.truth

    def _begin(self, step: Step) -> None:
        self._single_active = step.type in ("Failover", "Exclusive")
        self._change()
        self._given[step.consumer], self._unacknowledged[step.consumer] = {}, {}
        self._acked_by.pop(step.consumer, None)
        for receipt in [receipt for receipt in self._receipts if receipt[0] == step.consumer]:
            del self._receipts[receipt]
        self._may_rewind.discard(step.consumer)
        self._last.pop(step.consumer, None)

    def _end(self, step: Step) -> None:
        self._unacknowledged.pop(step.consumer, None)
        self._change()

    def _change(self) -> None:
        if self._single_active:
            self._may_rewind = set(self._given)

    def _reload(self, _step: Step) -> None:
        self.truth.reloads += 1
        self._may_rewind = set(self._given)
        self._unacknowledged = {name: {} for name in self._unacknowledged}
        self._acked_by.clear()

    def _receive(self, step: Step) -> None:
        name, message = step.consumer, _message(step)
        self.truth.received += 1
        begins = self._count_entry(name, message)
        if begins:
            self._refused_in_part.discard((name, step.position))
            if any((step.position, index) not in self._ever_acked for index in range(step.batch_index)):
                self._ask_again(name, step.position)
        keyed = step.key != ""  # other messages have no order
        if keyed and step.position < self._given[name].get(step.key, step.position):
            if (name, step.position) in self._refused:
                self.truth.doubtful.add((name, step.key, step.position))
            elif name in self._may_rewind:
                self._given[name] = {}
                self._may_rewind.discard(name)
            else:
                self.truth.out_of_order.add((name, step.key, step.position))
        # Each refusal may be a request of its own, and the entry is sent again for each.
        again = self._receipts[name, message] > self._refused[name, step.position]
        if again and message in self._unacknowledged.get(name, ()):
            self.truth.again_in_hand.add(message)
        self._receipts[name, message] += 1
        for other, unacknowledged in self._unacknowledged.items():
            if (
                keyed
                and begins  # the rest of a batch came with its first message
                and other != name
                and any(k == step.key and p <= step.position for (p, _), k in unacknowledged.items())
            ):
                self.truth.split_keys.add(step.key)
            if other != name and message in unacknowledged:
                self.truth.at_two.add(message)
        if message in self._acked:
            reloaded = self._acked[message] < self.truth.reloads
            (self.truth.after_ack_and_reload if reloaded else self.truth.after_ack).add(message)
        self._seen.add(message)
        self._given_in[name, message] = self.truth.reloads
        settled = message in self._acked_by[name] or (name, step.position) in self._refused_in_part
        # Not at its end, a moment before its process is gone.
        if not settled and name in self._unacknowledged:
            self._unacknowledged[name][message] = step.key
        self._given[name][step.key] = max(step.position, self._given[name].get(step.key, step.position))

    def _ack(self, step: Step) -> None:
        self._ever_acked.add(_message(step))
        in_hand = self._unacknowledged.get(step.consumer, {}).pop(_message(step), None) is not None
        if in_hand:
            self._acked_by[step.consumer].add(_message(step))
        given_now = self._given_in.get((step.consumer, _message(step))) == self.truth.reloads
        if step.t_ns not in self._unsent_acks and given_now and in_hand:
            self._acked.setdefault(_message(step), self.truth.reloads)

    def _refuse(self, step: Step) -> None:
        unacknowledged = self._unacknowledged.get(step.consumer, {})
        for message in [message for message in unacknowledged if message[0] == step.position]:
            del unacknowledged[message]  # the broker sends all messages of an entry again
        self._ask_again(step.consumer, step.position)

    def _ask_again(self, name: str, position: Position) -> None:
        self._refused[name, position] += 1
        self._refused_in_part.add((name, position))

    def _count_entry(self, name: str, message: Message) -> bool:
        """Count the delivery of an entry with its first message, and return whether this is it."""
        last = self._last.get(name)
        begins = last is None or last[0] != message[0] or message[1] <= last[1]
        if begins:
            self.truth.entries.setdefault(name, []).append(message[0])
        self._last[name] = message
        return begins


def _message(step: Step) -> Message:
    return step.position, step.batch_index
