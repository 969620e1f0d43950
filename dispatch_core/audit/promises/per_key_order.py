"""Promise: entries of one key reach consumers in order, and are never outstanding at two consumers at once.

This is the promise of Key_Shared (PIP-34; PIP-379 keeps it across membership changes). An entry may come out of order after
a redelivery request of the consumer; this is counted as ``overtaken_redelivery`` and tolerated. Shared subscriptions, and
Key_Shared ones that allow out-of-order delivery, promise no order: their findings are counted and tolerated. Failover
documents that the old active consumer may still hold messages when the new one begins (concepts-messaging, Failover): what
such a change explains is counted as ``per_key_order_handover`` and tolerated.
"""

from __future__ import annotations

from typing import Final

from dispatch_core.audit.catalogue import ORDER_NOT_PROMISED
from dispatch_core.audit.promises.promise import (
    FAIL,
    REPLAY_CHECKS,
    UNKNOWN,
    Check,
    Promise,
    handover_check,
    log_checks,
)

PROMISE: Final = Promise(
    name="per_key_order",
    title="Order per key",
    kept="every entry was sent in the order of its key, and no key was outstanding at two consumers at once",
    checks=(
        Check(
            "out_of_order",
            FAIL,
            "entries sent after a later entry of their key: {value}",
            limit="per_key_order.out_of_order",
            kinds=("out_of_order",),
        ),
        Check(
            "split_key",
            FAIL,
            "entries sent to one consumer while their key was outstanding at another: {value}",
            limit="per_key_order.split_key",
            kinds=("split_key",),
        ),
        Check(
            "mixed_key_entry",
            FAIL,
            "consumers that got batches with messages of several keys: {value}",
            limit="per_key_order.mixed_key_entry",
            kinds=("mixed_key_entry",),
        ),
        Check(
            "overtaken_redelivery",
            FAIL,
            "requested redeliveries that were overtaken: {value} (the policy allows {limit})",
            limit="per_key_order.overtaken_redelivery",
            kinds=("overtaken_redelivery",),
        ),
        handover_check("per_key_order"),
        Check(
            "per_key_order_uncertain",
            UNKNOWN,
            "possible order violations that this log cannot prove: {value}",
            limit="per_key_order.uncertain",
            kinds=("out_of_order", "split_key"),
        ),
        *REPLAY_CHECKS,
        *log_checks(UNKNOWN, "log_gap", "unknown_position", "unknown_key", "overlapping_incarnations"),
    ),
    tolerated=("overtaken_redelivery", ORDER_NOT_PROMISED, "per_key_order_handover"),
)
