"""Promise: no entry is delivered twice without a cause.

A redelivery with a cause (a disconnect, a redelivery request, a rewind, a topic reload) is part of Pulsar's at-least-once
delivery: tolerated and counted, each cause with its own limit. So is what a change of Failover's active consumer delivers
again while the old one stays connected (``duplicate_delivery_handover``). Any other entry that is outstanding at two
connections, or delivered after its ack was applied, is never allowed.
"""

from __future__ import annotations

from typing import Final

from dispatch_core.audit import catalogue
from dispatch_core.audit.promises.promise import (
    FAIL,
    REPLAY_CHECKS,
    UNKNOWN,
    Check,
    Promise,
    handover_check,
    log_checks,
)

#: Causes of a redelivery, as the audit names them; ``unexplained`` if there is none.
CAUSES: Final = (*catalogue.CAUSES, "unexplained")

PROMISE: Final = Promise(
    name="duplicate_delivery",
    title="No duplicate without a cause",
    kept="no entry was sent twice without a cause",
    checks=(
        Check(
            "double_outstanding",
            FAIL,
            "entries outstanding at two consumers at once: {value}",
            limit="duplicate_delivery.double_outstanding",
            kinds=("double_outstanding",),
        ),
        Check(
            "duplicate_after_ack",
            FAIL,
            "entries sent again after their acknowledgement: {value}",
            limit="duplicate_delivery.duplicate_after_ack",
            kinds=("duplicate_after_ack",),
        ),
        *(
            Check(
                f"redelivered_{cause}",
                FAIL,
                f"redeliveries with cause {cause}: {{value}} (the policy allows {{limit}})",
                limit=f"duplicate_delivery.redelivered_{cause}",
                kinds=("redelivered",),
            )
            for cause in CAUSES
        ),
        handover_check("duplicate_delivery"),
        Check(
            "duplicate_delivery_uncertain",
            UNKNOWN,
            "possible duplicates that this log cannot prove: {value}",
            limit="duplicate_delivery.uncertain",
            kinds=("double_outstanding", "duplicate_after_ack", "redelivered"),
        ),
        *REPLAY_CHECKS,
        *log_checks(UNKNOWN, "log_gap", "overlapping_incarnations"),
    ),
    tolerated=(*(f"redelivered_{cause}" for cause in CAUSES), "duplicate_delivery_handover"),
)
