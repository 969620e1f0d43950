"""Compute from when on each entry is owed to consumers, by the delivery time of its message (delayed delivery).

A broker delivers a delayed message at its delivery time at the earliest, but for one tick of its timer, and up to a tick
later; messages behind it may be sent before. Only Shared and Key_Shared subscriptions delay; on others the delivery time
means nothing. Example: a message is to be delivered at 12:00:05 and the tick is 1 s. From 12:00:06 on it is owed, and a
later message of its key that was sent before that did not overtake it.

Source: AbstractDelayedDeliveryTracker, InMemoryDelayedDeliveryTracker; delayedDeliveryTickTimeMillis and
isDelayedDeliveryDeliverAtTimeStrict of broker.conf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from dispatch_core.arrays.columns import Ints, ints, valid
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.log_profile import subscription_type

_TYPES: Final = ("Shared", "Key_Shared")
_TICK_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class DelayedDelivery:
    """Delays of one subscription.

    Attributes:
        enabled: delivery times are kept at all.
        late_us: a message may come so long after its delivery time, microseconds.
    """

    enabled: bool = False
    late_us: int = 1_000 * _TICK_MS

    @classmethod
    def of(cls, log: DispatcherLog) -> DelayedDelivery:
        """Read type and settings from a log's header."""
        config = log.header.get("config")
        config = config if isinstance(config, dict) else {}
        tick_ms = config.get("delayedDeliveryTickTimeMillis")
        tick_us = 1_000 * (_TICK_MS if tick_ms is None or not str(tick_ms).isdecimal() else int(tick_ms))
        strict = _is_true(config.get("isDelayedDeliveryDeliverAtTimeStrict"), default=False)
        return cls(
            subscription_type(log) in _TYPES and _is_true(config.get("delayedDeliveryEnabled"), default=True),
            # A strict tracker waits for the tick behind the delivery time.
            2 * tick_us if strict else tick_us,
        )

    def due_us(self, messages: pa.Table) -> Ints:
        """Return for each entry the time from which on it is owed, microseconds since the epoch; 0 = since it was stored."""
        due_us = np.zeros(messages.num_rows, np.int64)
        if not self.enabled or "deliver_at_ms" not in messages.column_names:
            return due_us
        times = messages["deliver_at_ms"]
        if times.null_count == len(times):
            return due_us
        known = valid(times)
        due_us[known] = 1_000 * ints(times)[known] + self.late_us
        return due_us

    def owed_us(self, messages: pa.Table) -> Ints:
        """Return since when each entry is owed: its publish time (0 = not known), or the end of its delay."""
        return np.maximum(1_000 * ints(messages["publish_time_ms"]), self.due_us(messages))


def _is_true(value: Any, *, default: bool) -> bool:
    return default if value is None else str(value).lower() == "true"
