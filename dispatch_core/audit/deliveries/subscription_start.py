"""Find the first entry of a subscription, which a log without a trace does not record.

Normally it is the first entry that was sent. If a broker skipped the first entries, it lies before: an entry that was stored
after the first consumer joined was for the subscription. Older entries are the topic's past.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dispatch_core.arrays.columns import Mask
from dispatch_core.audit.deliveries.layout import ENTRY, OPERATION
from dispatch_core.audit.deliveries.operations import ADDED
from dispatch_core.audit.deliveries.scan import Scan
from dispatch_core.audit.deliveries.window import LogWindow

#: Difference that is possible between producers' clocks and the broker's without any entry showing it, microseconds. It
#: matters if the topic has a past: entries that are older than the join.
_SLACK_US: Final = 50_000
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
    stored_us = 1000 * published
    sent = np.maximum(scan.deliveries[:, ENTRY], 0)
    sent_us = window.op_t_us[scan.deliveries[:, OPERATION]]
    ahead_us = (stored_us[sent] - sent_us)[known[sent]].max(initial=0)
    earliest_us = int(window.op_t_us[joined[0]]) - _ROUNDED_US + int(ahead_us)
    if (stored_us[:before] >= earliest_us)[window.stored[:before] & known[:before]].all():
        return earliest_us
    return earliest_us + _ROUNDED_US + _SLACK_US


def for_subscription(window: LogWindow, scan: Scan, before: int) -> Mask:
    """Mask those of the window's first ``before`` entries, none of them sent, that were stored after the first join."""
    since_us = begins_us(window, scan, before) if before else None
    if since_us is None:
        return np.zeros(before, np.bool_)
    published, known = window.publish_time_ms
    return window.stored[:before] & known[:before] & (1000 * published[:before] >= since_us)


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
