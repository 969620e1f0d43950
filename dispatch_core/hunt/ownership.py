"""Follow who owns which key after joins and leaves: the selector of a profile as tables for compiled code.

A *node* stands for a selector in one state, a *move* for a consumer that joins or leaves. Two slots take turns for each
consumer name, so that a consumer that comes back is another one. The selector of the core answers each move once, when it is
needed (``expand``).
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from dispatch_core.arrays.structs import by_address
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.selectors import assignments, factory
from dispatch_core.broker.selectors.selector import Announced, Selector
from dispatch_core.broker.state import I32, I64, NOBODY
from dispatch_core.errors import SelectorRefusedError

SLOTS_PER_NAME: Final = 2
#: Not asked yet.
UNKNOWN: Final = -1
#: The selector refuses a consumer: its ranges meet those of another one (STICKY).
REFUSED: Final = -2
#: The ranges of each name on a STICKY subscription: the lower half, the upper half, everything.
_RANGES: Final[tuple[Announced, ...]] = ([(0, 32_767)], [(32_768, 65_535)], [(0, 65_535)])
#: Nodes of which tables are kept.
MAX_NODES: Final = 20_000


@by_address
class Owners(NamedTuple):
    """Tables over nodes, moves and keys.

    ``following``: node after a move, ``UNKNOWN`` or ``REFUSED``. ``owner``: slot that owns each key at a node, or
    ``NOBODY``. ``lost``, ``won``: the slot that lost or won a key by a move, as the selector reports it, or ``NOBODY``.
    ``sizes``: moves and keys.
    """

    following: I64
    owner: I32
    lost: I32
    won: I32
    sizes: I64


def nobody_owns(names: int) -> Owners:
    """Return the tables of a subscription without a selector, for so many consumer names: one node, and no key."""
    moves = 2 * SLOTS_PER_NAME * names
    nothing = np.zeros(0, np.int32)
    return Owners(np.zeros(moves, np.int64), nothing, nothing, nothing, np.array([moves, 0], np.int64))


def ranges_of(profile: Profile, name: int) -> Announced:
    """Return the ranges that a consumer name announces; ``None`` = the subscription is not STICKY."""
    return _RANGES[name % len(_RANGES)] if profile.key_shared_mode == "STICKY" else None


class Ownership:
    """The tables of one profile and the sticky hashes of some keys; ``names`` of consumers."""

    def __init__(self, profile: Profile, names: Sequence[str], hashes: Sequence[int]) -> None:
        self.slots = SLOTS_PER_NAME * len(names)
        self._names = [*names]
        self._profile = profile
        self._hashes = np.asarray(hashes, np.int64)
        moves, keys = 2 * self.slots, len(hashes)
        self.tables = Owners(
            following=np.full(MAX_NODES * moves, UNKNOWN, np.int64),
            owner=np.full(MAX_NODES * keys, NOBODY, np.int32),
            lost=np.full(MAX_NODES * moves * keys, NOBODY, np.int32),
            won=np.full(MAX_NODES * moves * keys, NOBODY, np.int32),
            sizes=np.array([moves, keys], np.int64),
        )
        self._selectors: list[Selector] = []
        self._known: dict[bytes, int] = {}
        self._node_of(factory.build(profile))

    def expand(self, node: int, move: int) -> None:
        """Ask the selector of a node about a move: join of slot ``move``, or leave of slot ``move - slots``."""
        selector = copy.deepcopy(self._selectors[node])
        slot = move % self.slots
        joins = move < self.slots
        name = slot // SLOTS_PER_NAME
        try:
            if joins:
                moved = selector.add(slot, self._names[name], ranges_of(self._profile, name))
            else:
                moved = selector.remove(slot)
        except SelectorRefusedError:
            self.tables.following[node * 2 * self.slots + move] = REFUSED
            return
        moves, keys = self.tables.sizes.tolist()
        at = (node * moves + move) * keys
        self.tables.lost[at : at + keys] = self._among(moved.lost)
        self.tables.won[at : at + keys] = self._among(moved.won)
        self.tables.following[node * moves + move] = self._node_of(selector)

    def _among(self, ranges: assignments.OwnedRanges) -> list[int]:
        """Return, for each key, the owner of the range that its hash is in."""
        found = []
        for value in self._hashes.tolist():
            inside = np.flatnonzero((ranges.starts <= value) & (value <= ranges.ends))
            found.append(int(ranges.owners[inside[0]]) if len(inside) else NOBODY)
        return found

    def _node_of(self, selector: Selector) -> int:
        """Return the node of a selector in this state, a new one if it is new."""
        state = pickle.dumps(selector)
        if state not in self._known:
            node = len(self._selectors)
            if node == MAX_NODES:
                raise MemoryError(f"more than {MAX_NODES:,} states of a selector: hunt with fewer names")
            self._known[state] = node
            self._selectors.append(selector)
            keys = int(self.tables.sizes[1])
            self.tables.owner[node * keys : (node + 1) * keys] = selector.select_array(self._hashes)
        return self._known[state]
