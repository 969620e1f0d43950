"""Find the first entry of a subscription, which a log without a trace does not record.

Normally it is the first entry that was sent. If a broker skipped the first entries, it lies before: an entry that was stored
after the first consumer joined was for the subscription. Older entries are the topic's past. The checkpoint of a new
dispatcher says where the cursor stood: all entries behind that were for the subscription, whatever the clocks say.

Entries have the publish times of their producers, and the clocks of producers and broker may differ. Example: a consumer
joins at 12:00:00, and every delivery comes 2 s after its publish time. Then the producer's clock may be 2 s behind, and an
entry published at 11:59:59 may have been stored after the join. So it was *perhaps* for the subscription.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dispatch_core.arrays.columns import Mask
from dispatch_core.audit.deliveries.layout import OPERATION
from dispatch_core.audit.deliveries.operations import ADDED
from dispatch_core.audit.deliveries.scan import Scan
from dispatch_core.audit.deliveries.window import LogWindow

#: Difference that is possible between producers' clocks and the broker's without any entry showing it, microseconds. It
#: matters if the topic has a past: entries that are older than the join.
SLACK_US: Final = 50_000
#: Publish times are whole milliseconds.
_ROUNDED_US: Final = 1_000


def begins_us(window: LogWindow, scan: Scan, before: int) -> int | None:
    """Return the time from which on stored entries were for the subscription, microseconds; ``None`` if nobody joins.

    A producer's clock is ahead of the broker's if an entry was sent before its publish time; entries must then be later than
    the join by that much more. ``before``: number of entries before the first one that was sent. If none of these is older
    than the join, the topic has no past, and the clocks need no allowance.
    """
    if window.begins_us is not None:
        return window.begins_us
    joined = np.flatnonzero(window.op_code == ADDED)
    if not len(joined):
        return None
    published, known = window.publish_time_ms
    ahead_us = max(-(scan.least_lag_us or 0), 0)
    earliest_us = int(window.op_t_us[joined[0]]) - _ROUNDED_US + ahead_us
    if (1000 * published[:before] >= earliest_us)[window.stored[:before] & known[:before]].all():
        return earliest_us
    return earliest_us + _ROUNDED_US + SLACK_US


def settled_by_checkpoint(window: LogWindow, scan: Scan) -> Mask:
    """Mask the entries of the window that the checkpoint which the last log begins with names as acknowledged."""
    acknowledged_by = scan.acknowledged_by
    return (acknowledged_by >= window.first_op_of_state) & (acknowledged_by < window.first_op_of_last_log)


def begins_at_checkpoint(window: LogWindow) -> bool:
    """Check whether the last log begins with the checkpoint of a new dispatcher that says where its cursor stood."""
    state = window.checkpoint_state
    return state is not None and state.of_a_new_dispatcher and state.checkpoint.mark_delete is not None


def clock_is_ahead(window: LogWindow, scan: Scan, before: int) -> Mask:
    """Mask those of the first ``before`` entries whose publish time is later than the first delivery of a later entry.

    They were stored before that delivery, so the clock of their producer is ahead.
    """
    published, known = window.publish_time_ms
    if not len(scan.deliveries):
        return np.zeros(before, np.bool_)
    first_us = int(window.op_t_us[scan.deliveries[:, OPERATION]].min())
    return known[:before] & (1000 * published[:before] > first_us + SLACK_US)


def perhaps_for_subscription(window: LogWindow, scan: Scan, before: int) -> Mask:
    """Mask those of the first ``before`` entries that were stored after the first join if clocks differ enough."""
    joined = np.flatnonzero(window.op_code == ADDED)
    lag_us = scan.least_lag_us
    if not before or not len(joined) or lag_us is None:
        return np.zeros(before, np.bool_)
    published, known = window.publish_time_ms
    perhaps = clock_is_ahead(window, scan, before)
    offset_us = latest_join_us(0, lag_us)
    if offset_us is not None:
        perhaps |= 1000 * published[:before] + offset_us >= int(window.op_t_us[joined[0]])
    return window.stored[:before] & known[:before] & perhaps & ~settled_by_checkpoint(window, scan)[:before]


def latest_join_us(published_us: int, lag_us: int) -> int | None:
    """Return the latest join after which an entry may have been stored, by its publish time and ``Scan.least_lag_us``.

    ``None`` where the lag shows that the clocks agree: then ``for_subscription`` takes the times as they are.

    >>> latest_join_us(11_000_000, 2_000_000), latest_join_us(11_000_000, 20_000)
    (13001000, None)
    """
    return None if 0 <= lag_us <= SLACK_US else published_us + lag_us + _ROUNDED_US


def for_subscription(window: LogWindow, scan: Scan, before: int) -> Mask:
    """Mask those of the window's first ``before`` entries, none of them sent, that were certainly for the subscription.

    They were stored after the first join, or behind the cursor that a new dispatcher's checkpoint names. Where a producer's
    clock is ahead of the broker's, times say nothing for certain.
    """
    if begins_at_checkpoint(window):
        return window.stored[:before] & ~settled_by_checkpoint(window, scan)[:before]
    since_us = begins_us(window, scan, before) if before else None
    lag_us = scan.least_lag_us
    if since_us is None or (lag_us is not None and lag_us < -SLACK_US):
        return np.zeros(before, np.bool_)
    published, known = window.publish_time_ms
    since = known[:before] & (1000 * published[:before] >= since_us)
    return window.stored[:before] & since & ~clock_is_ahead(window, scan, before)


def first_of(window: LogWindow, scan: Scan, lowest_sent: tuple[int, int] | None = None) -> int | None:
    """Return the first entry of the window that was for the subscription; ``None`` if no entry was sent.

    ``lowest_sent``: the lowest position that is sent in the lines to come, if it is known.
    """
    sent = np.flatnonzero(scan.times_sent)[:1].tolist()
    if lowest_sent is not None:
        ledger, entry = lowest_sent
        before = (window.ledger < ledger) | ((window.ledger == ledger) & (window.entry < entry))
        sent.append(int(np.count_nonzero(before)))
    if not sent:
        return None
    unsent = np.flatnonzero(for_subscription(window, scan, min(sent)))
    return int(unsent[0]) if len(unsent) else min(sent)
