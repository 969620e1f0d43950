"""Releases 2.4 to 2.11: what they lack of the rules of 3.0, by the first release of each line that has it.

Key_Shared came with 2.4.0 (PIP-34) and was mended for years. These releases have no recordings here, so nothing shows that
the core does what their brokers did: every profile of one says so (``WARNING``). The table was read from the pull requests,
their labels and release notes, and from the dispatchers of 2.4, 2.10.1 and 2.11 that are public. All else is as in 3.0.0.

What is known to differ and is not modelled:

* 2.4 and 2.5 send a read result key by key, in the order of a hash map; they hold back the rest of a *key*, not that of a
  consumer;
* until #7108 (2.6.0) a replay takes its positions in no strict order;
* until #8292 (2.6.2) a recently joined consumer is held to its own position in replays, not to the first one's;
* until #16718 (2.9.4, 2.10.2) ``maxUnackedMessagesPerConsumer`` does not limit what a consumer gets of one read result.

>>> lacking((2, 9, 0)), lacking((2, 11, 4))
(['failover_ring', 'min_replay', 'no_stuck_consumers'], ['failover_ring'])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dispatch_core.broker.versions import Line, Version, reached

#: The first line whose rules recordings of real brokers confirm.
FIRST_RECORDED: Final[Line] = (3, 0)

#: Change → first release of each line below 3.0 that has it; later lines have it. 3.0.0 has all but the last.
CHANGES: Final[Mapping[str, Mapping[Line, int]]] = {
    "sticky_mode": {(2, 5): 0},  # #5388, PIP-51
    "consistent_hashing": {(2, 6): 0},  # #6791
    "read_position": {(2, 6): 0},  # #7106, recently joined consumers
    "looks_past_stuck": {(2, 6): 0},  # #7105
    "stuck_consumers": {(2, 6): 2, (2, 7): 0},  # #7553, until #20335
    "ring_points_shared": {(2, 7): 0},  # #8396; before, the later joiner takes a point over
    "replay_order": {(2, 7): 3, (2, 8): 1, (2, 9): 0},  # #10762, R0
    "min_replay": {(2, 8): 3, (2, 9): 1, (2, 10): 0},  # #12890, R1
    "failover_ring": {(3, 0): 0},  # #19502, of topics without partitions
    "no_stuck_consumers": {(2, 10): 5, (2, 11): 2, (3, 0): 1},  # #20335
}
#: Changes of later lines that reached one of these, too.
ALSO_LATER: Final = frozenset(("no_stuck_consumers",))

#: Newest release of each line.
NEWEST_OF_LINE: Final[Mapping[Line, int]] = {
    (2, 4): 2, (2, 5): 2, (2, 6): 4, (2, 7): 5, (2, 8): 4, (2, 9): 5, (2, 10): 6, (2, 11): 4,
}  # fmt: skip

WARNING: Final = (
    "the rules of {release} are read from its source and pull requests: no recording of a broker of that release confirms "
    "them (docs/settings.md)"
)


def is_old(version: Version) -> bool:
    """True if a release is below 3.0.

    >>> is_old((2, 11, 4)), is_old((3, 0, 0))
    (True, False)
    """
    return version[:2] < FIRST_RECORDED


def had_by(version: Version) -> frozenset[str]:
    """Return the changes of ``CHANGES`` that a release has."""
    return frozenset(change for change, lines in CHANGES.items() if reached(version, lines))


def lacking(version: Version) -> list[str]:
    """List the changes of ``CHANGES`` that a release does not have yet."""
    return sorted(CHANGES.keys() - had_by(version))
