"""Say of each statistic of a log without a trace whether it is known, known to be at least so much, or not known.

Such a log shows commands when they arrive, not when they take effect, and no reads. So a value is known only if nothing near
in time could still change it, and nothing before left its rule open:

==============================  =======================================================================================
``availablePermits``            no permits granted shortly before, nothing sent shortly before or after, and the consumer
                                cannot have been blocked on unacknowledged messages, which parks permits
``unackedMessages``             nothing sent, acknowledged or asked for again near by
``drainingHashes``              the same of everybody, no join or leave near by, and every delivery of the hashes was as the
                                rules have it
hash ranges                     no join or leave near by, and never two so near that their order is open
``msgInReplay``                 at least the entries that were passed over and are not delivered
positions when joining          at least what had been sent by then
==============================  =======================================================================================

"Near" is ``races.RACE_US``. A value that is not known is left out, with the reason. Example: 1,000 permits were granted a
minute ago and 10 more 20 ms ago. If nothing else happened, the consumer has at least 1,000 permits.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import ints, valid
from dispatch_core.arrays.line_kinds import has_kind, of_kinds, rows_of_kind
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.recording.checkpoint import leading
from dispatch_core.replay.checkpoint_statistics import COUNTERS
from dispatch_core.verify.without_trace.races import RACE_US

_DRAINING: Final = (
    "drainingHashesCount",
    "drainingHashesClearedTotal",
    "drainingHashesUnackedMessages",
    "drainingHashes",
)
_RANGES: Final = ("keyHashRanges", "keyHashRangeArrays")
_UNREAD: Final = "follows from reads, which are not in the log"
_MEMBERSHIP: Final = f"a join or leave within {RACE_US // 1000} ms may or may not have taken effect"
_NEAR: Final = f"lines within {RACE_US // 1000} ms may or may not have taken effect"
_BLOCKED: Final = "the consumer may have been blocked on unacknowledged messages, which parks its permits"
_MOVED: Final = "the cursor was moved before, past entries that may have been held"
_PARTS: Final = "messages of batches were acknowledged one by one before"
_TWICE: Final = "an entry was sent again while it was held, which the broker counts twice"
_OPEN_ORDER: Final = (
    f"two joins or leaves lie within {RACE_US // 1000} ms, so their order in the broker is open"
)
_DIFFERS: Final = "deliveries before differ from the rules, or may"
#: Of an entry that is not in the message log.
_NO_POSITION: Final = "unknown"
#: Limits of unacknowledged messages that a policy sets.
_LIMITS: Final = ("unacked_namespace", "unacked_topic")


@dataclass(slots=True)
class Values:
    """Statistics of a subscription or a consumer: known, at least so much, and not known for a reason."""

    known: dict[str, Any] = field(default_factory=dict)
    at_least: dict[str, Any] = field(default_factory=dict)
    not_known: dict[str, str] = field(default_factory=dict)

    def take(self, name: str, value: Any, doubt: str | None, at_least: Any = None) -> None:
        """Take a value: known without a ``doubt``, else ``at_least`` where that is told."""
        if doubt is None:
            self.known[name] = value
        elif at_least is not None:
            self.at_least[name] = at_least
        else:
            self.not_known[name] = doubt


@dataclass(frozen=True, slots=True)
class NearLines:
    """Lines within ``RACE_US`` of a moment, by consumer.

    ``granted``: permits before it; ``sent_before``, ``sent_after``: messages. ``acked``, ``requested``: consumers whose
    entries were acknowledged before it, or asked for again. ``membership``: a join or leave. ``leaving``: consumers that are
    removed after it: the removal may have begun. ``entries_after``: entries sent after it.
    """

    granted: Counter[int]
    sent_before: Counter[int]
    sent_after: Counter[int]
    acked: frozenset[int]
    requested: frozenset[int]
    membership: bool
    leaving: frozenset[int]
    entries_after: int

    @classmethod
    def of(cls, events: pa.Table, row: int, t_us: int) -> NearLines:
        """Read the lines near ``t_us``; those before ``row`` of ``events`` came first."""
        times = ints(events["t_us"], t_us)
        near = np.flatnonzero(np.abs(times - t_us) <= RACE_US)
        granted, before, after = Counter[int](), Counter[int](), Counter[int]()
        acked, requested, leaving = set[int](), set[int](), set[int]()
        membership, entries_after = False, 0
        positions: list[dict[str, int]] = []
        columns = ["kind", "consumer", "permits", "batch_sizes", "positions"]
        lines = events.select(columns).take(pa.array(near)).to_pylist()
        for at, line in zip(near.tolist(), lines, strict=True):
            consumer, is_before = line["consumer"], at < row
            match line["kind"]:
                case "consumer_added" | "consumer_removed":
                    membership = True
                    if line["kind"] == "consumer_removed" and not is_before:
                        leaving.add(consumer)
                case "flow" if is_before:
                    granted[consumer] += line["permits"] or 0
                case "sent":
                    (before if is_before else after)[consumer] += sum(line["batch_sizes"] or ())
                    entries_after += 0 if is_before else len(line["positions"] or ())
                case "ack" if is_before:
                    acked.add(consumer)
                    positions += line["positions"] or ()
                case "redeliver":
                    requested.add(consumer)
        return cls(
            granted,
            before,
            after,
            frozenset(acked | _receivers(events, positions, row)),
            frozenset(requested),
            membership,
            frozenset(leaving),
            entries_after,
        )

    @property
    def quiet(self) -> bool:
        """True if nothing near by changes who holds what."""
        return not (self.sent_before or self.sent_after or self.acked or self.requested or self.membership)


def _receivers(events: pa.Table, positions: Iterable[Mapping[str, int]], row: int) -> set[int]:
    """Return the consumers that were sent any of some positions, in the lines before ``row``."""
    wanted = {(position["ledger_id"], position["entry_id"]) for position in positions}
    if not wanted:
        return set()
    rows = rows_of_kind(events, "sent")
    found = set()
    for line in events.select(["consumer", "positions"]).take(pa.array(rows[rows < row])).to_pylist():
        if any((at["ledger_id"], at["entry_id"]) in wanted for at in line["positions"]):
            found.add(line["consumer"])
    return found


@dataclass(frozen=True, slots=True)
class Doubts:
    """Values that a log leaves open at a moment.

    Attributes:
        near: the lines near by.
        everything: why no value is known; ``None`` = some are.
        counters: why no permits and unacknowledged messages are known; ``None`` = they are, but for ``near`` and
            ``may_block``.
        twice: consumers of entries that were sent again while somebody held them.
        may_block: consumers that may have been blocked on unacknowledged messages.
        subscription_may_block: the subscription may have been.
        order: why the owners of hashes are not known; ``None`` = they are.
        hashes: draining or pending hashes of which a delivery was not as the rules have it.
        delays: entries may wait elsewhere than in the replay set.
    """

    near: NearLines
    everything: str | None = None
    counters: str | None = None
    twice: frozenset[int] = frozenset()
    may_block: frozenset[int] = frozenset()
    subscription_may_block: bool = False
    order: str | None = None
    hashes: frozenset[int] = frozenset()
    delays: bool = False


def doubts_of(
    events: pa.Table,
    row: int,
    t_us: int,
    profile: Profile,
    *,
    everything: str | None,
    hashes: frozenset[int],
    delays: bool,
) -> Doubts:
    """Find what a log leaves open at ``t_us``, behind the lines before ``row``."""
    before = events.slice(0, row)
    # What was sent a moment later may be counted already.
    near = NearLines.of(events, row, t_us)
    pending = _Held.of(before)
    highest = pending.highest + near.sent_after
    limited = (
        any(what in _LIMITS for what in before["what"].to_pylist())
        if "what" in before.column_names
        else False
    )
    most = profile.number("maxUnackedMessagesPerConsumer")
    of_all = profile.number("maxUnackedMessagesPerSubscription")
    printed = before.filter(pa.array(of_kinds(before, "flow")))
    blocked = {
        consumer
        for consumer, is_blocked in zip(
            printed["consumer"].to_pylist(), printed["blocked"].to_pylist(), strict=True
        )
        if is_blocked
    }
    may_block = {consumer for consumer in pending.sent if limited or 0 < most <= highest[consumer]}
    return Doubts(
        near=near,
        everything=everything,
        counters=_doubt_of_counters(before),
        may_block=frozenset(may_block | blocked),
        twice=pending.twice,
        subscription_may_block=limited or 0 < of_all <= sum(highest.values()),
        order=_open_order(before),
        hashes=hashes,
        delays=delays,
    )


def _doubt_of_counters(events: pa.Table) -> str | None:
    """Return why nobody's unacknowledged messages are known; ``None`` = they are."""
    if has_kind(events, "cursor_moved"):
        return _MOVED
    return _PARTS if events["ack_sets"].null_count < events.num_rows else None


@dataclass(frozen=True, slots=True)
class _Held:
    """Messages per consumer: all that were ``sent``, and the most that may have been unacknowledged at once.

    ``twice``: consumers of entries that were sent again while somebody held them. The broker counts such an entry twice, and
    an acknowledgement of it once.
    """

    sent: Counter[int]
    highest: Counter[int]
    twice: frozenset[int]

    @classmethod
    def of(cls, events: pa.Table) -> _Held:
        """Count over ``events``. An acknowledgement takes effect up to ``RACE_US`` after its line."""
        rows = np.flatnonzero(of_kinds(events, "sent", "ack", "redeliver", "consumer_removed"))
        columns = ["t_us", "kind", "consumer", "positions", "batch_sizes", "ack_sets"]
        begin = leading(events)
        connected = () if begin is None else begin.consumers or ()
        now = Counter({consumer.number: consumer.unacked or 0 for consumer in connected})
        sent, highest, twice = Counter(now), Counter(now), set[int]()
        pending: dict[tuple[int, int], tuple[int, int]] = {}
        late: deque[tuple[int, int, int]] = deque()  # when, whose, how many
        for line in events.select(columns).take(pa.array(rows)).to_pylist():
            t_us, number = line["t_us"] or 0, line["consumer"]
            while late and late[0][0] < t_us:
                _, consumer, size = late.popleft()
                now[consumer] -= size
            positions = [(at["ledger_id"], at["entry_id"]) for at in line["positions"] or ()]
            if line["kind"] == "sent":
                sizes = line["batch_sizes"] or [1] * len(positions)
                for position, size in zip(positions, sizes, strict=False):
                    if position in pending:
                        twice |= {number, pending[position][0]}
                    pending[position] = number, size
                sent[number] += sum(sizes)
                now[number] += sum(sizes)
                highest[number] = max(highest[number], now[number])
                continue
            if line["kind"] != "ack" and line["positions"] is None:  # all that the consumer holds
                positions = [position for position, (consumer, _) in pending.items() if consumer == number]
            if line["ack_sets"] is None:
                gone = [pending.pop(position) for position in positions if position in pending]
                late += [(t_us + RACE_US, consumer, size) for consumer, size in gone]
        return cls(sent, highest, frozenset(twice))


def _open_order(events: pa.Table) -> str | None:
    """Return why the order of joins and leaves is open since the subscription was empty last; ``None`` = it is not."""
    rows = np.flatnonzero(of_kinds(events, "consumer_added", "consumer_removed") & valid(events["consumer"]))
    lines = events.select(["t_us", "kind", "consumer"]).take(pa.array(rows)).to_pylist()
    connected: set[int] = set()
    first = 0
    for at, line in enumerate(lines):
        if line["kind"] == "consumer_added":
            connected.add(line["consumer"])
        else:
            connected.discard(line["consumer"])
        if not connected:
            first = at + 1
    times = [line["t_us"] or 0 for line in lines[first:]]
    return _OPEN_ORDER if any(after - before <= RACE_US for before, after in pairwise(times)) else None


def values_of(
    shown: Mapping[str, Any], complete: Mapping[str, Any], profile: Profile, doubts: Doubts
) -> tuple[Values, list[Values]]:
    """Sort the statistics of a subscription by how certain they are; returns its values and those of each consumer.

    Args:
        shown: ``statistics.subscription_stats`` without what a checkpoint leaves open (``determined``).
        complete: the same with everything.
        profile: the rules in force.
        doubts: what the log leaves open.
    """
    near, everything = doubts.near, doubts.everything
    consumers = [
        _of_consumer(own, every, profile, doubts, first=at == 0)
        for at, (own, every) in enumerate(zip(shown["consumers"], complete["consumers"], strict=True))
    ]
    values = Values()
    for name in complete:
        if name == "consumers":
            continue
        if name not in shown:
            values.not_known[name] = "the log begins with a checkpoint that does not tell it"
            continue
        doubt, at_least = everything, None
        match name:
            case "unackedMessages":
                if near.membership:
                    doubt = doubt or _MEMBERSHIP
                elif any(name not in own.known for own in consumers):
                    doubt = doubt or _NEAR
                    parts = [own.known.get(name, own.at_least.get(name)) for own in consumers]
                    at_least = None if None in parts else sum(part for part in parts if part is not None)
            case "blockedSubscriptionOnUnackedMsgs":
                if doubts.subscription_may_block:
                    doubt = doubt or "the subscription may have been blocked on unacknowledged messages"
            case "msgInReplay":
                if doubt is None and not doubts.delays and doubts.counters != _MOVED:
                    at_least = max(shown[name] - near.entries_after, 0)
                doubt = doubt or _UNREAD
            case "consumersAfterMarkDeletePosition":
                if (
                    "draining_hashes" not in profile.changes
                    or profile.dispatcher is not Dispatcher.KEY_SHARED
                ):
                    doubt = doubt or _UNREAD
            case "lastSentPosition" | "individuallySentPositions":
                doubt = doubt or _UNREAD
            case "activeConsumer" | "activeConsumerName":
                doubt = doubt or (_MEMBERSHIP if near.membership else None)
            case name if name in _DRAINING:
                doubt = doubt or _doubt_of_draining(doubts)
            case _:
                doubt = None  # what the header and the joins say
        values.take(name, shown[name], doubt, None if everything else at_least)
    return values, consumers


def _of_consumer(
    shown: Mapping[str, Any], complete: Mapping[str, Any], profile: Profile, doubts: Doubts, *, first: bool
) -> Values:
    near, number, values = doubts.near, shown["consumer"], Values()
    single_active = profile.dispatcher is Dispatcher.SINGLE_ACTIVE
    sent = near.sent_before[number] + near.sent_after[number]
    for name in complete:
        if name in ("consumer", "consumerName", "address"):
            values.known[name] = shown[name]
            continue
        if name not in shown:
            values.not_known[name] = "the log begins with a checkpoint that does not tell it"
            continue
        doubt, at_least = doubts.everything, None
        if number in near.leaving:
            doubt = doubt or _MEMBERSHIP
        counters = None if single_active else doubts.counters
        blocks = not single_active and number in doubts.may_block | doubts.twice
        match name:
            case "availablePermits":
                doubt = doubt or counters or (_BLOCKED if blocks else None)
                if doubt is None and (near.granted[number] or sent):
                    doubt, at_least = _NEAR, shown[name] - near.granted[number] - near.sent_after[number]
            case "unackedMessages" if not single_active:
                doubt = doubt or counters or (_TWICE if number in doubts.twice else None)
                if doubt is None and number in near.requested:
                    doubt = _NEAR
                elif doubt is None and (sent or number in near.acked):
                    doubt, at_least = _NEAR, max(shown[name] - near.sent_before[number], 0)
            case "blockedConsumerOnUnackedMsgs" if not single_active:
                doubt = doubt or counters or (_BLOCKED if blocks else None)
            case "avgMessagesPerEntry":
                doubt = doubt or (_NEAR if sent else None)
            case "readPositionWhenJoining" | "lastSentPositionWhenJoining":
                if doubt is None and not first and shown[name] != _NO_POSITION:
                    at_least = shown[name]
                doubt = doubt or _UNREAD
            case name if name in _RANGES:
                doubt = doubt or doubts.order or (_MEMBERSHIP if near.membership else None)
            case name if name in _DRAINING:
                doubt = doubt or _doubt_of_draining(doubts)
            case _:
                doubt = doubt if name in COUNTERS else None
        value = shown[name]
        if name == "drainingHashes":
            value = [{key: item[key] for key in item if key != "blockedAttempts"} for item in value]
            if value:
                values.not_known["blockedAttempts"] = _UNREAD
        values.take(name, value, doubt, at_least)
    return values


def _doubt_of_draining(doubts: Doubts) -> str | None:
    if doubts.order is not None:
        return doubts.order
    if not doubts.near.quiet:
        return _NEAR
    return _DIFFERS if doubts.hashes else None
