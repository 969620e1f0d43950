"""Name what in a release and its settings lets a key go out of order, or be at two consumers at once.

An ordering rule that lets it happen does so under every selector: which keys it hits depends on where a selector places
them, so a neighbouring selector without violations was lucky. The same holds for a fault of a release.

>>> from dispatch_core.broker.profiles import resolve
>>> print(order_fault(resolve("4.0.2")))
before 4.0.3 two replay reads can be under way at once (#23384)
>>> order_fault(resolve("4.0.3")) is None
True
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from dispatch_core.audit.sentences.reasons import ORDERING_RULES
from dispatch_core.broker.profiles import Dispatcher, OrderingRule, Profile


class OrderFault(StrEnum):
    """A fault that lets keys go out of order, as a clause of a sentence."""

    READ_POSITION = f"{ORDERING_RULES['recently_joined']} lets this happen"
    LAST_SENT_POSITION = f"{ORDERING_RULES['last_sent_position']} lets this happen"
    TWO_REPLAY_READS = "before 4.0.3 two replay reads can be under way at once (#23384)"
    ALLOWED = "the consumers had allowed delivery out of order"
    NO_RULE_FOR_STICKY = "no rule keeps the order of keys that move between sticky ranges"
    NO_RULE_YET = "releases before 2.6 have no rule for keys that move (#7106)"


#: Faults of a rule that draining hashes (PIP-379) have replaced.
OF_EARLIER_RULES: Final = frozenset({OrderFault.READ_POSITION, OrderFault.LAST_SENT_POSITION})


def order_fault(profile: Profile) -> OrderFault | None:
    """Return what lets keys of Key_Shared go out of order under these rules; ``None`` = nothing that is known."""
    if profile.dispatcher not in (Dispatcher.KEY_SHARED, Dispatcher.KEY_SHARED_CLASSIC):
        return None
    if profile.allow_out_of_order:
        return OrderFault.ALLOWED
    is_classic = profile.dispatcher is Dispatcher.KEY_SHARED_CLASSIC
    if is_classic and "read_position" not in profile.changes:
        return OrderFault.NO_RULE_YET
    # STICKY consumers of the classic dispatcher are not held back since #23275.
    if profile.key_shared_mode != "AUTO_SPLIT" and (
        not is_classic or "sticky_never_recently_joined" in profile.changes
    ):
        return OrderFault.NO_RULE_FOR_STICKY
    if profile.ordering is OrderingRule.DRAINING_HASHES:
        early = "cancel_clears_replay_read" in profile.changes
        return OrderFault.TWO_REPLAY_READS if early else None
    return OrderFault[profile.ordering.name]
