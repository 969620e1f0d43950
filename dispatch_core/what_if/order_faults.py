"""Name what in a release and its settings lets a key go out of order, or be at two consumers at once.

An ordering rule that lets it happen does so under every selector: which keys it hits depends on where a selector places
them, so a neighbouring selector without violations was lucky. The same holds for a fault of a release.
"""

from __future__ import annotations

from typing import Final

from dispatch_core.audit.sentences.reasons import ORDERING_RULES
from dispatch_core.broker.profiles import Dispatcher, OrderingRule, Profile
from dispatch_core.what_if.client_changes import AUTO_SPLIT

_LETS_IT_HAPPEN: Final = {
    OrderingRule.READ_POSITION: f"{ORDERING_RULES['recently_joined']} lets this happen",
    OrderingRule.LAST_SENT_POSITION: f"{ORDERING_RULES['last_sent_position']} lets this happen",
}
_NO_RULE: Final = "no rule keeps the order of keys that move"
_TWO_REPLAY_READS: Final = "two replay reads can be under way at once (#23384)"


def order_fault(profile: Profile) -> str | None:
    """Say what lets keys go out of order under these rules; ``None`` = nothing that is known.

    Source: as ``audit.deliveries.findings`` says of each finding. STICKY consumers are not held back since #23275.
    """
    if profile.dispatcher not in (Dispatcher.KEY_SHARED, Dispatcher.KEY_SHARED_CLASSIC):
        return None
    never_recent = "sticky_never_recently_joined" in profile.changes
    if profile.ordering is OrderingRule.NONE or (profile.key_shared_mode != AUTO_SPLIT and never_recent):
        return _NO_RULE
    if profile.ordering is OrderingRule.DRAINING_HASHES:
        return _TWO_REPLAY_READS if "cancel_clears_replay_read" in profile.changes else None
    return _LETS_IT_HAPPEN[profile.ordering]
