"""Where a subscription begins: which entries before the first one that was sent were for it nevertheless.

A log of level E does not say at which entry its subscription was created. What was sent first shows it, unless the very
first entries were left out; but what was stored when somebody had joined already cannot be the topic's past.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dispatch_core.arrays.columns import Mask
from dispatch_core.audit.deliveries.layout import ENTRY, OPERATION
from dispatch_core.audit.deliveries.operations import ADDED
from dispatch_core.audit.deliveries.scan import Scan
from dispatch_core.audit.deliveries.window import History

#: Producers' clocks and the broker's may differ by so much without any entry showing it. That matters where the topic has
#: a past: entries that are older than the join.
_SLACK_US: Final = 50_000
#: Publish times are whole milliseconds.
_ROUNDED_US: Final = 1_000


def begins_us(history: History, scan: Scan, before: int) -> int | None:
    """From when on what was stored was for the subscription; ``None`` if the log shows nobody joining.

    Producers whose clocks are ahead of the broker's show it by entries that were sent before they were stored: entries
    must be later than the join by as much more. ``before``: entries before the first one that was sent; where none of them
    is older than the join, the topic has no past, and clocks need not be doubted.
    """
    if history.begins_us is not None:
        return history.begins_us
    joined = np.flatnonzero(history.op_code == ADDED)
    if not len(joined):
        return None
    published, known = history.publish_time_ms
    stored_us = 1000 * published
    sent = np.maximum(scan.deliveries[:, ENTRY], 0)
    sent_us = history.op_t_us[scan.deliveries[:, OPERATION]]
    ahead_us = (stored_us[sent] - sent_us)[known[sent]].max(initial=0)
    earliest_us = int(history.op_t_us[joined[0]]) - _ROUNDED_US + int(ahead_us)
    if (stored_us[:before] >= earliest_us)[history.stored[:before] & known[:before]].all():
        return earliest_us
    return earliest_us + _ROUNDED_US + _SLACK_US


def for_subscription(history: History, scan: Scan, before: int) -> Mask:
    """Which of the window's first ``before`` entries, none of which was sent, were stored after the first join."""
    since_us = begins_us(history, scan, before) if before else None
    if since_us is None:
        return np.zeros(before, np.bool_)
    published, known = history.publish_time_ms
    return history.stored[:before] & known[:before] & (1000 * published[:before] >= since_us)


def first_of(history: History, scan: Scan) -> int | None:
    """The first entry of the window that was sent, or was stored for the subscription before that; None = none was sent."""
    sent = np.flatnonzero(scan.times_sent)
    if not len(sent):
        return None
    ours = np.flatnonzero(for_subscription(history, scan, int(sent[0])))
    return int(ours[0]) if len(ours) else int(sent[0])
