"""Collect the decisions that the lines of a window record, and compare the core's answers with them.

Nothing here reaches the core: it answers from its inputs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Final, NamedTuple

from dispatch_core.broker.multiple_consumers import Pairs, Read, Round
from dispatch_core.verify.inputs import Line
from dispatch_core.verify.trace.races import Difference

#: Items of a window with the ``seq`` of their line.
Said = list[tuple[object, int]]
#: The read of an attempt that issues none.
_NO_READ: Final = Read("None")
#: Function that describes entries.
Show = Callable[[Sequence[int]], str]


class Sent(NamedTuple):
    """One ``sent`` line."""

    consumer: int
    entries: list[int]
    permits_before: int | None
    seq: int


@dataclass(slots=True)
class Recorded:
    """Decisions of the broker in the lines of one window."""

    read: Read = _NO_READ
    read_seq: int = 0
    results: dict[str, int] = field(default_factory=dict)  # type → seq of a read result within the window
    already_deleted: list[int] | None = None  # of a replay read
    deleted_seq: int = 0
    blocked: Said = field(default_factory=list)  # (consumer, hash)
    held_back: Counter[int] = field(default_factory=Counter)  # hash → lines of ``blocked`` in an attempt
    released: set[int] = field(
        default_factory=set
    )  # hashes of which the last pending ack goes within the window
    prunes: bool = False  # recently joined consumers are freed within the window
    adds: dict[int, Said] = field(default_factory=dict)  # consumer → hashes that begin to drain
    closed: Said = field(default_factory=list)  # (hash, reference count before)
    sent: list[Sent] = field(default_factory=list)
    not_taken: list[Line] = field(default_factory=list)  # ``pending_ack_refused``
    end: Line | None = None  # ``round_end``


def differing_items(
    what: str, expected: Sequence[object], said: Said, following: int = 0
) -> list[Difference]:
    """Compare sequences of draining decisions, item by item as a text comparison would align them.

    ``following``: ``seq`` of the line that shows that no more of them is to come; 0 = the end of the window.
    """
    if list(expected) == [item for item, _seq in said]:
        return []
    return [
        Difference(
            "draining",
            f"{what}: {'nothing' if item is None else item}",
            "nothing" if other is None else str(other),
            decisions=int(other is not None),
            seq=seq or following,
        )
        for item, other, seq in _aligned(expected, said)
    ]


def differing_adds(draining: Pairs, recorded: Recorded) -> list[Difference]:
    """Compare the hashes that begin to drain, per consumer: their order among consumers is a hash map's."""
    expected: dict[int, list[int]] = {}
    for consumer, hash_value in draining:
        expected.setdefault(consumer, []).append(hash_value)
    return [
        difference
        for consumer in sorted(expected.keys() | recorded.adds.keys())
        for difference in differing_items(
            f"consumer {consumer} drains", expected.get(consumer, []), recorded.adds.get(consumer, [])
        )
    ]


def differing_read(read: Read, recorded: Recorded, show: Show) -> list[Difference]:
    """Compare a read attempt: the entries that draining held back, and the read that was issued."""
    found = differing_items(
        "blocks (consumer, hash)", list(read.refused), recorded.blocked, recorded.read_seq
    )
    found += _differing_deleted(read, recorded, show)
    other = recorded.read
    same = (read.kind, read.max_entries, read.entries) == (other.kind, other.max_entries, other.entries)
    if same or (other.kind == "None" and read.kind not in ("Normal", "Replay")):
        return found
    difference = Difference(
        "read",
        _describe(read, show),
        _describe(other, show),
        decisions=int(other.kind != "None"),
        seq=recorded.read_seq or recorded.results.get(read.kind, 0),
        weight=1 + len(set(read.entries) ^ set(other.entries)) + 100 * (read.kind != other.kind),
    )
    return [*found, difference]


def _differing_deleted(read: Read, recorded: Recorded, show: Show) -> list[Difference]:
    """Compare the entries of a replay read that are acknowledged already: a set, for the broker keeps no order of them."""
    expected, other = sorted(read.already_deleted), sorted(recorded.already_deleted or ())
    if expected == other:
        return []
    return [
        Difference(
            "state",
            f"already acknowledged: {show(expected)}",
            show(other),
            decisions=int(recorded.already_deleted is not None),
            seq=recorded.deleted_seq or recorded.read_seq,
            weight=1 + len(set(expected) ^ set(other)),
        )
    ]


def differing_round(
    outcome: Round, entries: Sequence[int], recorded: Recorded, show: Show
) -> list[Difference]:
    """Compare a round: the entries that draining held back, the deliveries, the replay set after it, and the next read."""
    sends = recorded.sent[0].seq if recorded.sent else 0
    found = differing_items("blocks (consumer, hash)", outcome.refused, recorded.blocked, sends)
    found += _differing_sends(outcome, entries, recorded, show)
    found += _differing_not_taken(outcome, recorded, show)
    return [*found, *_differing_end(outcome, recorded)]


def differing_turns(
    outcome: Round, entries: Sequence[int], recorded: Recorded, show: Show
) -> list[Difference]:
    """Compare a round of Shared, turn by turn: who gets which entries at once, the replay set after it, and the next read.

    A send of other entries than those of its turn differs, also if the entries go to the right consumers after all.
    """
    expected = {entry: turn.consumer for turn in outcome.turns for entry in turn.entries}
    got = {entry: sent.consumer for sent in recorded.sent for entry in sent.entries}
    uncounted = {entry for entry in entries if expected.get(entry) != got.get(entry)}
    found = []
    for turn, sent in zip_longest(outcome.turns, recorded.sent):
        own = None if turn is None else (turn.consumer, turn.entries)
        said = None if sent is None else (sent.consumer, sent.entries)
        seq = 0 if sent is None else sent.seq
        if own != said:
            parted = uncounted.intersection([*(own[1] if own else ()), *(said[1] if said else ())])
            uncounted -= parted
            found.append(
                Difference(
                    "dispatch",
                    _describe_turn(own, show),
                    _describe_turn(said, show),
                    decisions=len(parted),
                    seq=seq,
                    weight=len(parted) + 1,
                )
            )
        if sent is not None and sent.permits_before is not None:
            before = turn.permits_before if own is not None and sent.consumer == own[0] else None
            if before != sent.permits_before:
                what = f"consumer {sent.consumer}: {before}"
                found.append(Difference("permits", what, str(sent.permits_before), seq=seq))
    found += _differing_not_taken(outcome, recorded, show)
    return [*found, *_differing_end(outcome, recorded)]


def _describe_turn(turn: tuple[int, list[int]] | None, show: Show) -> str:
    return "nobody gets more" if turn is None else f"consumer {turn[0]} gets {show(turn[1])}"


def _differing_end(outcome: Round, recorded: Recorded) -> list[Difference]:
    """Compare the replay set after a round, and whether it is retried and looks ahead."""
    found = []
    if recorded.end is None:
        return [Difference("round", "the round ends", "the next one begins", decisions=0)]
    said, seq = recorded.end.recorded, recorded.end.seq
    in_replay = said["in_replay"]
    if outcome.in_replay != in_replay:
        weight = 1 if in_replay is None else 1 + abs(outcome.in_replay - in_replay)
        found.append(Difference("replay_set", str(outcome.in_replay), str(in_replay), seq=seq, weight=weight))
    if (outcome.retry, outcome.look_ahead_due) != (said["retry"], said["look_ahead"]):
        found.append(
            Difference(
                "round",
                f"retry {outcome.retry}, look ahead {outcome.look_ahead_due}",
                f"retry {said['retry']}, look ahead {said['look_ahead']}",
                seq=seq,
            )
        )
    return found


def _differing_not_taken(outcome: Round, recorded: Recorded, show: Show) -> list[Difference]:
    """Compare the entries that the last check at send time refused; consumers are served in a hash map's order."""
    said = sorted(entry for line in recorded.not_taken for entry in line.recorded["positions"])
    if sorted(outcome.not_taken) == said:
        return []
    return [
        Difference(
            "state",
            f"refused at send time: {show(sorted(outcome.not_taken))}",
            show(said),
            decisions=len(recorded.not_taken),
            seq=recorded.not_taken[0].seq if recorded.not_taken else 0,
            weight=1 + len(set(outcome.not_taken) ^ set(said)),
        )
    ]


def differing_entries(expected: Sequence[int], got: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the items of ``expected`` that are not in ``got``, and the reverse; nothing if one side is empty."""
    if not expected or not got:
        return [], []
    sides = set(expected), set(got)
    return [entry for entry in expected if entry not in sides[1]], [
        entry for entry in got if entry not in sides[0]
    ]


def _differing_sends(
    outcome: Round, entries: Sequence[int], recorded: Recorded, show: Show
) -> list[Difference]:
    found = []
    unsent = dict(outcome.sent)
    uncounted = set(entries)  # each entry of the round is one decision

    def part(consumer: int, expected: Sequence[int], got: Sequence[int], seq: int) -> None:
        pairs = [pair for pair in zip_longest(expected, got) if pair[0] != pair[1]]
        parted = {entry for pair in pairs for entry in pair if entry is not None}
        missing, more = differing_entries(expected, got)
        found.append(
            Difference(
                "dispatch",
                f"consumer {consumer} gets {show(expected)}" + (f", also {show(missing)}" if missing else ""),
                f"gets {show(got)}" + (f", also {show(more)}" if more else ""),
                decisions=len(parted & uncounted),
                seq=seq,
                weight=len(parted) + 1,
            )
        )
        uncounted.difference_update(parted)

    for sent in recorded.sent:
        consumer = sent.consumer
        expected = unsent.pop(consumer, [])
        if expected != sent.entries:
            part(consumer, expected, sent.entries, sent.seq)
        before = outcome.permits_before.get(consumer)
        if sent.permits_before is not None and before != sent.permits_before:
            found.append(
                Difference(
                    "permits", f"consumer {consumer}: {before}", str(sent.permits_before), seq=sent.seq
                )
            )
    for consumer, missing in unsent.items():
        part(consumer, missing, [], 0)
    return found


def _describe(read: Read, show: Show) -> str:
    if read.kind == "Normal":
        return f"normal read of at most {read.max_entries}"
    if read.kind == "Replay":
        return f"replay read of {show(read.entries)}"
    return "no read" if read.kind == "None" else "back-off"


def _aligned(expected: Sequence[object], said: Said) -> list[tuple[object | None, object | None, int]]:
    """Return the differences of two sequences: (expected, None, seq), (None, recorded, seq) or (expected, recorded, seq).

    ``seq`` of a missing item is that of the next recorded item; 0 = there is none. If several items are equal, the first
    place where the sequences differ is returned.
    """
    found: list[tuple[object | None, object | None, int]] = []
    alike = 0
    while alike < min(len(expected), len(said)) and expected[alike] == said[alike][0]:
        alike += 1
    expected, said = expected[alike:], said[alike:]
    words = [str(item) for item, _seq in said]
    matcher = SequenceMatcher(None, [str(item) for item in expected], words, autojunk=False)
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            for item, other in zip_longest(expected[a:b], said[c:d]):
                following = said[d][1] if d < len(said) else 0
                found.append((item, None, following) if other is None else (item, *other))
    return found
