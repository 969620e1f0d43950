"""The state that the steps of a schedule change: the dispatcher's, reads in flight, and what was ever sent.

All arrays of a hunt lie in one buffer, so that a schedule begins with one copy, and two states are compared by one pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dispatch_core.arrays.structs import by_address
from dispatch_core.broker import state as st_
from dispatch_core.broker.state import I8, I64, NOBODY, State
from dispatch_core.errors import IllegalTransitionError

#: Entries that a schedule may store.
MAX_ENTRIES: Final = 12
#: Replay reads in flight: more than one only where a cancelled read makes the dispatcher forget one (#23384).
MAX_REPLAYS: Final = 2

# scalars
NODE: Final = 0  # of the selector (``ownership``)
STORED: Final = 1  # entries
READ_LIMIT: Final = 2  # most entries of the normal read in flight
READ_WAITED: Final = 3  # it found nothing when it was issued
REPLAYS: Final = 4  # replay reads in flight
RETRY: Final = 5  # a read attempt is due: when the back-off is over, or in another thread
BROKEN: Final = 6  # the promise that is broken, 0 = none
AT_ENTRY: Final = 7  # the entry that shows it
AT_SLOT: Final = 8  # the consumer that it was sent to
MOVE: Final = 9  # the move that ``ownership`` does not know yet
TIMER: Final = 10  # the unblock timer runs
CANCELS: Final = 11  # when it ends, a read that waits is cancelled: nothing was attempted since
TAKEN: Final = (
    12  # 1 + entries of the normal read that the cursor has returned and the dispatcher has not; 0 = none
)
ACKS_IN_SCAN: Final = (
    13  # 1 + name of the consumer whose acknowledgement comes within the next scan; 0 = nobody's
)
HANGING: Final = 14  # names of consumers that hang, as bits
AT_REPLAY: Final = 15  # the promise was broken by a replay read
FORGOT_REPLAY: Final = 16  # a replay read was forgotten while it was in flight
ACKS_IN_ROUND: Final = 17  # as ``ACKS_IN_SCAN``, within the next round
# rules of the profile
CLASSIC: Final = 18
RELEASES_WON: Final = 19  # hashes that come back are released (#24736)
EMPTY_WHEN_WAITED: Final = 20  # a read that waited comes back empty (before #24898)
CANCEL_CLEARS_REPLAY: Final = 21  # #23384, until #23855
BATCH_INDEX_ACKS: Final = 22  # single messages of a batch can be acknowledged
TRIMS_AFTER_MOVE: Final = 23  # what a move of the cursor has passed is dropped at once (#25581, #25592)
OWN_LIMIT: Final = 24  # the broker's setting of the limit of unacknowledged messages per consumer
SHARED: Final = 25  # of a Shared subscription: consumers take turns, and nobody owns a key
LEFT_UNREAD: Final = 26  # a leave caused no read attempt, and none has come since
READ_AGAIN: Final = 27  # a normal read has returned an entry that is pending
N_SCALARS: Final = 28


@by_address
class World(NamedTuple):
    """The surroundings of a dispatcher in a hunt; entries are ordinals, consumers slots.

    ``id_of_key``: hash id of each key. ``slot_of_name``: the slot of a connected name, or ``NOBODY``; ``turn_of_name``:
    which of its two slots is next. ``replays``: the entries of replay reads in flight, ``MAX_ENTRIES`` for each;
    ``replay_sizes``: their numbers. ``taken``: the entries of a normal read that the cursor has returned.
    """

    w: I64
    id_of_key: I64
    slot_of_name: I64
    turn_of_name: I64
    ever_sent: I8
    replays: I64
    replay_sizes: I64
    taken: I64
    entries: I64
    plan: I64
    outcome: I64
    attempts: I64


#: Scalars of the state that the end of a schedule is compared by.
COUNTERS: Final = {
    "mark_delete": st_.MARK_DELETE,
    "read_position": st_.READ_POSITION,
    "total_permits": st_.TOTAL_PERMITS,
    "total_unacked": st_.TOTAL_UNACKED,
    "in_replay": st_.N_REPLAY,
    "pending_read": st_.PENDING_READ,
    "pending_replay": st_.PENDING_REPLAY,
}


def counters(state: State) -> dict[str, int]:
    """Return the scalars of ``COUNTERS``, and the permits and unacknowledged messages of the consumers in list order."""
    slots = state.order[: state.s[st_.N_CONSUMERS]].tolist()
    return {
        **{name: int(state.s[at]) for name, at in COUNTERS.items()},
        **{f"permits_{at}": int(state.permits[slot]) for at, slot in enumerate(slots)},
        **{f"unacked_{at}": int(state.unacked[slot]) for at, slot in enumerate(slots)},
    }


def new_world(names: int, id_of_key: npt.NDArray[Any]) -> World:
    """Make the world of a dispatcher that nobody has connected to."""
    room = MAX_ENTRIES + 4
    return World(
        w=np.zeros(N_SCALARS, np.int64),
        id_of_key=np.array(id_of_key, np.int64),
        slot_of_name=np.full(names, NOBODY, np.int64),
        turn_of_name=np.zeros(names, np.int64),
        ever_sent=np.zeros(MAX_ENTRIES, np.uint8),
        replays=np.zeros(MAX_REPLAYS * MAX_ENTRIES, np.int64),
        replay_sizes=np.zeros(MAX_REPLAYS, np.int64),
        taken=np.zeros(room, np.int64),
        entries=np.zeros(room, np.int64),
        plan=np.zeros(room, np.int64),
        outcome=np.zeros(room, np.int64),
        attempts=np.zeros(1 + 2 * room, np.int64),
    )


W = TypeVar("W", bound=tuple[npt.NDArray[Any], ...])

#: Arrays whose values mean nothing between two steps.
_SCRATCH: Final = frozenset(
    {
        *("hash_blocked", "available", "left", "left_stamp", "limit", "seen_stamp", "held_stamp"),
        *("batch_messages", "batch_acked", "batch_entries"),
        *("drain_attempts", "drain_listed", "cleared_total", "drain_stats", "redelivery_count"),
        *("entries", "plan", "outcome", "attempts"),
    }
)


@dataclass(frozen=True, slots=True)
class Arena(Generic[W]):
    """A state and a world in one buffer of 64-bit words; ``matters``: 0 where a word is scratch, else all bits set."""

    state: State
    world: W
    words: I64
    matters: I64


def arena(state: State, world: W) -> Arena[W]:
    """Copy the arrays of a state and a world, a ``NamedTuple`` of arrays, into one buffer."""
    names: tuple[str, ...] = world._fields  # type: ignore[attr-defined]
    named = [*state._asdict().items(), *zip(names, world, strict=True)]
    sizes = [-(-array.nbytes // 8) for _, array in named]
    words = np.zeros(sum(sizes), np.int64)
    matters = np.zeros(len(words), np.int64)
    views: list[npt.NDArray[Any]] = []
    at = 0
    for (name, array), size in zip(named, sizes, strict=True):
        view = words[at : at + size].view(array.dtype)[: len(array)]
        view[:] = array
        views.append(view)
        matters[at : at + size] = 0 if name in _SCRATCH else -1
        at += size
    own = len(state)
    matters[st_.STAMP] = 0  # the scalars of the state come first
    return Arena(State(*views[:own]), type(world)(*views[own:]), words, matters)


def fresh(
    prototype: State, names: int, id_of_key: npt.NDArray[Any], rules: Sequence[tuple[int, int]]
) -> Arena[World]:
    """Make the arena of a hunt from the empty state of a dispatcher.

    ``id_of_key``: hash id of each key. ``rules``: scalars of the world that a profile sets.
    """
    if len(prototype.deleted) != MAX_ENTRIES:
        raise IllegalTransitionError(
            f"a hunt has room for {MAX_ENTRIES} entries, the state for {len(prototype.deleted)}",
            rule="a hunt has a fixed window",
        )
    world = new_world(names, id_of_key)
    for at, value in rules:
        world.w[at] = value
    return arena(prototype, world)
