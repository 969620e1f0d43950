"""Make scripts for the soak driver from seeds: a subscription, its broker's settings, and what its clients do.

The same seed gives the same script under the same release. Even seeds are *quiet*: the driver waits after each step until
nothing happens any more, so that nothing overlaps. Odd seeds are *racing*: clients, reads and acknowledgements overlap.

Scripts have a version. Seeds below ``SECOND_VERSION_FROM`` give the scripts of version 1, as they always did; the seeds from
there on those of version 2, which have larger batches with several keys, batches acknowledged in part and cumulatively,
negative acknowledgements for all types, consumers that leave and join again with another priority, compaction, unloads of
the topic, and deletions of the subscription.

=================  ====================================================================================================
class of a script  subscription
=================  ====================================================================================================
``ch``, ``range``  Key_Shared, owners by a ring of hashes or by ranges that are split; ``classic-``: the dispatchers of 3.x
``sticky``         Key_Shared with ranges that the consumers name
``failover``       Failover; ``-ring``: the active consumer by a ring of hashes
``exclusive``      Exclusive; a second consumer is refused
``shared``         Shared; ``classic-``: the dispatcher of 3.x
=================  ====================================================================================================
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

#: First seed of version 2 of the scripts.
SECOND_VERSION_FROM: Final = 5000
_QUIET_MS: Final = 60
_SLOTS: Final = 8
_SLOT: Final = 65536 // _SLOTS
#: Settings that scripts change, and what they are when a script does not: a broker plays many scripts.
BASE: Final[dict[str, Any]] = {
    "subscriptionKeySharedUseConsistentHashing": True,
    "subscriptionKeySharedConsistentHashingReplicaPoints": 100,
    "subscriptionKeySharedUseClassicPersistentImplementation": False,
    "subscriptionSharedUseClassicPersistentImplementation": False,
    "activeConsumerFailoverConsistentHashing": False,
    "activeConsumerFailoverDelayTimeMillis": 100,
    "dispatcherMaxReadBatchSize": 100,
    "dispatcherMaxRoundRobinBatchSize": 20,
    "maxUnackedMessagesPerConsumer": 50_000,
    "maxUnackedMessagesPerSubscription": 200_000,
    "keySharedLookAheadMsgInReplayThresholdPerConsumer": 2000,
    "keySharedLookAheadMsgInReplayThresholdPerSubscription": 20_000,
}
#: Class of a script: how often it comes, subscription type, settings.
CLASSES: Final[dict[str, tuple[int, str, dict[str, Any]]]] = {
    "ch": (5, "Key_Shared", {}),
    "range": (3, "Key_Shared", {"subscriptionKeySharedUseConsistentHashing": False}),
    "classic-ch": (2, "Key_Shared", {"subscriptionKeySharedUseClassicPersistentImplementation": True}),
    "classic-range": (
        2,
        "Key_Shared",
        {
            "subscriptionKeySharedUseClassicPersistentImplementation": True,
            "subscriptionKeySharedUseConsistentHashing": False,
        },
    ),
    "sticky": (2, "Key_Shared", {}),
    "failover": (2, "Failover", {}),
    "failover-ring": (1, "Failover", {"activeConsumerFailoverConsistentHashing": True}),
    "exclusive": (1, "Exclusive", {}),
    "shared": (1, "Shared", {}),
    "classic-shared": (1, "Shared", {"subscriptionSharedUseClassicPersistentImplementation": True}),
}
#: How often a class comes in version 2: half of the scripts are about one active consumer.
_WEIGHTS_2: Final[dict[str, int]] = {
    "ch": 4,
    "range": 2,
    "classic-ch": 2,
    "classic-range": 2,
    "sticky": 2,
    "failover": 5,
    "failover-ring": 5,
    "exclusive": 4,
    "shared": 1,
    "classic-shared": 1,
}
#: Steps that move the cursor otherwise than by acknowledgements.
CURSOR_MOVES: Final = ("skip", "clear_backlog", "expire", "reset", "seek")
#: Steps after which the dispatcher is a new one.
RELOADS: Final = ("unload", "delete_subscription")
_SPECIALS: Final = ("", "", "", "moves", "delays", "rate", "unacked", "busy")
_SPECIALS_2: Final = (*_SPECIALS, "compact", "unload", "delete_subscription")


@dataclass(frozen=True, slots=True)
class Step:
    """One step; ``Script.java`` says what the fields mean."""

    what: str
    consumer: str | None = None
    count: int = 0
    keys: tuple[str | None, ...] = ()
    random: int = 0
    queue: int = 1
    priority: int = 0
    ranges: tuple[tuple[int, int], ...] | None = None
    out_of_order: bool = False
    delay_ms: int = 0
    read_compacted: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """A script; ``Script.java`` says what the fields mean."""

    name: str
    type: str
    config: dict[str, Any]
    partitions: int
    partition: int
    batching: bool
    quiet_ms: int
    steps: tuple[Step, ...]
    batch_messages: int = 0
    mixed_keys: bool = False

    @property
    def out_of_order(self) -> bool:
        """True if the consumers allow delivery out of order."""
        return any(step.out_of_order for step in self.steps)

    def uses(self, *kinds: str) -> bool:
        """True if the script has a step of one of these kinds."""
        return any(step.what in kinds for step in self.steps)

    @property
    def ends_with_nobody(self) -> bool:
        """True if no consumer is connected at the end, so that nobody takes what is left."""
        connected: set[str | None] = set()
        for step in self.steps:
            if step.what == "join":
                connected.add(step.consumer)
            elif step.what in ("leave", "crash", "delete_subscription"):
                connected.discard(step.consumer)
        return not connected

    @property
    def delays(self) -> bool:
        """True if messages are delivered later."""
        return any(step.delay_ms for step in self.steps)

    @property
    def reads_compacted(self) -> bool:
        """True if a consumer reads the compacted topic, in which only the last message of each key is left."""
        return any(step.read_compacted for step in self.steps)

    def as_json(self) -> dict[str, Any]:
        """Return the script as the driver reads it."""
        return asdict(self)


def class_of(name: str) -> str:
    """Return the class of the script of this name."""
    return name.split("-", 1)[1].rsplit("-", 1)[0]


def is_quiet(name: str) -> bool:
    """True if the script of this name is a quiet one."""
    return name.endswith("-quiet")


def script_of(seed: int) -> Script:
    """Make the script of a seed."""
    return _Writer(seed).script()


@dataclass(slots=True)
class _Writer:
    """Write one script. Keeps which consumers are connected, so that most steps have an effect."""

    seed: int
    choice: random.Random = field(init=False)
    steps: list[Step] = field(default_factory=list)
    connected: list[str] = field(default_factory=list)
    slots: dict[str, list[int]] = field(default_factory=dict)
    joined: int = 0
    #: A script has at most one kind of these, because each of them makes some other comparison impossible.
    special: str = ""
    #: Some consumers read the compacted topic.
    _read_compacted: bool = False
    _second: bool = field(init=False)

    def __post_init__(self) -> None:
        self.choice = random.Random(f"soak {self.seed}")
        self._second = self.seed >= SECOND_VERSION_FROM

    def script(self) -> Script:
        choice, quiet = self.choice, self.seed % 2 == 0
        weights = _WEIGHTS_2 if self._second else {name: weight for name, (weight, _, _) in CLASSES.items()}
        kind = choice.choices(list(weights), list(weights.values()))[0]
        _, subscription_type, own = CLASSES[kind]
        config = BASE | own | self._limits(subscription_type)
        partitions = 8 if subscription_type == "Failover" and choice.random() < 0.6 else 0
        partition = choice.randrange(8) if partitions else 0
        batching = choice.random() < (0.6 if self._second else 0.25)
        self.special = choice.choice(_SPECIALS_2 if self._second else _SPECIALS)
        single_active = subscription_type in ("Failover", "Exclusive")
        if self.special == "delays" and single_active:
            self.special = ""  # they deliver at once
        batch_messages = choice.choice([0, 3, 12, 30]) if batching and self._second else 0
        # Key_Shared sends a batch to the consumer of its first key
        mixed_keys = subscription_type != "Key_Shared" and batch_messages > 0 and choice.random() < 0.6
        self._read_compacted = self.special == "compact" and single_active and choice.random() < 0.5
        self._write(kind, subscription_type, quiet=quiet)
        name = f"{self.seed}-{kind}-{'quiet' if quiet else 'racing'}"
        return Script(
            name,
            subscription_type,
            config,
            partitions,
            partition,
            batching,
            _QUIET_MS if quiet else 0,
            tuple(self.steps),
            batch_messages,
            mixed_keys,
        )

    def _limits(self, subscription_type: str) -> dict[str, Any]:
        """Choose sizes of reads and limits, some of them so small that they matter."""
        choice = self.choice
        config: dict[str, Any] = {}
        if choice.random() < 0.3:
            config["dispatcherMaxReadBatchSize"] = choice.randint(5, 25)
        if choice.random() < 0.3:
            config["maxUnackedMessagesPerConsumer"] = choice.randint(20, 80)
        if choice.random() < 0.1:
            config["maxUnackedMessagesPerSubscription"] = choice.randint(30, 120)
        if choice.random() < 0.25:
            config["subscriptionKeySharedConsistentHashingReplicaPoints"] = 5
        if choice.random() < 0.3:
            config["keySharedLookAheadMsgInReplayThresholdPerConsumer"] = choice.randint(10, 50)
            config["keySharedLookAheadMsgInReplayThresholdPerSubscription"] = choice.randint(50, 150)
        if subscription_type == "Failover":
            config["activeConsumerFailoverDelayTimeMillis"] = choice.choice([0, 60])
        if subscription_type == "Shared" and choice.random() < 0.5:
            config["dispatcherMaxRoundRobinBatchSize"] = 3
        return config

    def _write(self, kind: str, subscription_type: str, *, quiet: bool) -> None:
        choice = self.choice
        keys = choice.choice([1, 5, 20, 100, 400])
        most = 1 if subscription_type == "Exclusive" else choice.randint(2, 7)
        out_of_order = subscription_type == "Key_Shared" and choice.random() < 0.1
        individual = subscription_type in ("Key_Shared", "Shared")
        count = choice.randint(40, 80)
        specials = sorted(choice.sample(range(10, count - 5), 2)) if self.special else []
        weighted: list[tuple[float, Callable[[], None]]] = [
            (
                12,
                lambda: self._join(
                    kind, most, out_of_order=out_of_order, subscription_type=subscription_type
                ),
            ),
            (8, self._leave),
            (25, lambda: self._publish(keys)),
            (20, self._receive),
            (20, lambda: self._ack(cumulative=not individual)),
            (7 if individual else 0, self._nack),
            (8, self._receive_and_ack),
            (1.5, self._redeliver_all),
        ]
        if self._second:
            weighted += [
                (6, self._ack_parts),
                (0 if individual else 4, self._nack),
                (5 if subscription_type == "Failover" else 0, self._join_again),
                (0 if individual else 3, self._redeliver_all),
            ]
        while len(self.steps) < count:
            if not self.connected:
                self._join(kind, most, out_of_order=out_of_order, subscription_type=subscription_type)
            if specials and len(self.steps) >= specials[0]:
                specials.pop(0)
                self._special(keys, again=not specials)
            actions = [action for _, action in weighted]
            choice.choices(actions, [weight for weight, _ in weighted])[0]()
            if not quiet and choice.random() < 0.3:
                self.steps.append(Step("pause", count=choice.randint(1, 8)))

    def _consumer(self) -> str | None:
        return self.choice.choice(self.connected) if self.connected else None

    def _join(self, kind: str, most: int, *, out_of_order: bool, subscription_type: str) -> None:
        choice = self.choice
        # an Exclusive subscription refuses the one that is too many, and so does nobody else
        if len(self.connected) >= most and not (subscription_type == "Exclusive" and choice.random() < 0.3):
            return
        ranges = None
        if kind == "sticky":
            taken = {slot for slots in self.slots.values() for slot in slots}
            free = [slot for slot in range(_SLOTS) if slot not in taken and choice.random() < 0.35]
            if not free:
                return
            ranges = tuple((slot * _SLOT, slot * _SLOT + _SLOT - 1) for slot in free)
        self.joined += 1
        name = f"c{self.joined}"
        if ranges is not None:
            self.slots[name] = free
        self._append_join(name, ranges, out_of_order=out_of_order)
        if len(self.connected) < most:
            self.connected.append(name)

    def _append_join(
        self, name: str, ranges: tuple[tuple[int, int], ...] | None = None, *, out_of_order: bool = False
    ) -> None:
        choice = self.choice
        priority = 1 if choice.random() < 0.2 else 0
        if self._second and choice.random() < 0.3:
            priority = choice.randrange(3)
        queue = choice.choice([1, 3, 10, 50, 200])
        compacted = self._read_compacted and choice.random() < 0.5
        self.steps.append(
            Step(
                "join",
                name,
                queue=queue,
                priority=priority,
                ranges=ranges,
                out_of_order=out_of_order,
                read_compacted=compacted,
            )
        )

    def _join_again(self) -> None:
        """Let a consumer leave and join again under its name, with another priority and queue."""
        name = self._consumer()
        if name is not None:
            self.steps.append(Step("leave", name))
            self._append_join(name)

    def _leave(self) -> None:
        if len(self.connected) < 2 and self.choice.random() < 0.8:
            return
        name = self._consumer()
        if name is not None:
            self.connected.remove(name)
            self.slots.pop(name, None)
            self.steps.append(Step("crash" if self.choice.random() < 0.3 else "leave", name))

    def _publish(self, keys: int, delay_ms: int = 0) -> None:
        choice = self.choice
        names = tuple(
            None if choice.random() < 0.03 else f"key-{int(keys * choice.random() ** 2)}"
            for _ in range(choice.randint(1, 40))
        )
        self.steps.append(Step("publish", keys=names, delay_ms=delay_ms))

    def _receive(self) -> None:
        for name in self.connected:
            if self.choice.random() < 0.67:
                self.steps.append(Step("receive", name, self.choice.randint(1, 30)))

    def _ack(self, *, cumulative: bool) -> None:
        choice = self.choice
        for name in self.connected:
            if cumulative and choice.random() < 0.3:
                kept = choice.choice([0, 0, 1, 2, 7]) if self._second else 0
                self.steps.append(Step("ack_cumulative", name, kept))
            else:
                which = choice.randrange(1, 1 << 30) if choice.random() < 0.33 else 0
                self.steps.append(Step("ack", name, choice.randint(1, 20), random=which))

    def _ack_parts(self) -> None:
        name = self._consumer()
        if name is not None:
            entries = self.choice.randint(1, 3)
            self.steps.append(Step("ack_parts", name, entries, random=self.choice.randrange(1, 1 << 30)))

    def _nack(self) -> None:
        name = self._consumer()
        if name is not None:
            self.steps.append(
                Step("nack", name, self.choice.randint(1, 5), random=self.choice.randrange(1, 1 << 30))
            )

    def _redeliver_all(self) -> None:
        name = self._consumer()
        if name is not None:
            self.steps.append(Step("redeliver_all", name))

    def _receive_and_ack(self) -> None:
        name = self._consumer()
        if name is not None:
            self.steps += [Step("receive", name, 50), Step("ack", name, 50)]

    def _special(self, keys: int, *, again: bool) -> None:
        choice = self.choice
        if self.special == "moves":
            what = choice.choice(CURSOR_MOVES)
            count = {"skip": 20, "expire": 15, "reset": choice.choice([-30, 30]), "seek": -30}.get(what, 0)
            consumer = self._consumer() if what == "seek" else None
            if what != "seek" or consumer is not None:
                self.steps.append(Step(what, consumer, count))
        elif self.special == "delays":
            self._publish(keys, delay_ms=choice.randint(200, 1500))
        elif self.special == "rate":
            self.steps.append(Step("dispatch_rate", count=0 if again else 15))
        elif self.special == "unacked":
            self.steps.append(Step("unacked_limit", count=0 if again else 8))
        elif self.special in ("compact", "unload"):
            self.steps.append(Step(self.special))
        elif self.special == "delete_subscription":
            name = self._consumer()
            if name is not None:
                self.connected.remove(name)
                self.slots.pop(name, None)
                self.steps.append(Step("delete_subscription", name))
        else:
            self.steps.append(Step("busy", count=0 if again else 1))
