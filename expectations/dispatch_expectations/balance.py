"""Promise: work is spread as the hash space is (Key_Shared), or as active topics are (Failover).

Judged only where there is enough to judge: from ``min_messages`` messages and ``min_keys_per_consumer`` keys per
consumer in the interval. Below, the verdict is PASS and says so.
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
    "unnecessary_blocking": "times that work was held back though nothing of its hash was outstanding elsewhere: {value}",
}

#: Active topics and needless waiting are judged by limits of their own, whatever was sent.
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
