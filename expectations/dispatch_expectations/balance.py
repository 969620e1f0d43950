"""Promise: the load follows the consumers' shares of the hash space (Key_Shared) or of the active topics (Failover).

Judged only with at least ``min_messages`` messages and ``min_keys_per_consumer`` keys per consumer in the interval. With
fewer, the verdict is PASS and its reason says so.
"""

from __future__ import annotations

from typing import Final

from dispatch_expectations.promise import FAIL, UNKNOWN, Check, Promise

#: Columns and the policy thresholds they must reach before balance is judged.
GATES: Final = (
    ("messages", "balance.min_messages"),
    ("keys_per_consumer", "balance.min_keys_per_consumer"),
)

_KINDS: Final = {
    "imbalance": "consumers that got too much or too little: {value}",
    "failover_imbalance": "consumers active for too many or too few topics: {value}",
    "hot_key": "keys that carried too large a part of the load: {value}",
    "hot_consumer": "consumers that carried too large a part of the load: {value}",
    "unnecessary_blocking": "times that entries waited although no entry of their hash was outstanding elsewhere: {value}",
}

#: Kinds with limits of their own, judged for any number of messages.
_NOT_GATED: Final = ("failover_imbalance", "unnecessary_blocking")


def _gates(kind: str) -> tuple[tuple[str, str], ...]:
    return () if kind in _NOT_GATED else GATES


PROMISE: Final = Promise(
    name="balance",
    title="Balance",
    kept="no consumer got more than its share",
    checks=(
        Check(
            "max_share_ratio",
            FAIL,
            "{busiest_consumer} got {value} times its share of the hash space (the policy allows {limit})",
            limit="balance.max_share_ratio",
            gates=GATES,
        ),
        *(
            Check(kind, FAIL, sentence, limit=f"balance.{kind}", kinds=(kind,), gates=_gates(kind))
            for kind, sentence in _KINDS.items()
        ),
        Check(
            "balance_missing",
            UNKNOWN,
            "entries were sent in this interval but no balance of them was published",
            counts_findings=False,
        ),
    ),
    tolerated=tuple(_KINDS),
)
