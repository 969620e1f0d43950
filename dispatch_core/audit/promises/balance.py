"""Promise: the load follows the consumers' shares of the hash space (Key_Shared) or of the active topics (Failover).

Judged only with at least ``min_messages`` messages and ``min_keys_per_consumer`` keys per consumer in the interval; of an
interval shorter than a day, in the 24 hours that end with it. With fewer, the verdict is PASS and its reason says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isnan
from typing import Any, Final

from dispatch_core.audit import catalogue
from dispatch_core.audit.promises.promise import FAIL, UNKNOWN, Check, Promise, plain

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


def kept(row: Mapping[str, Any], kept: str) -> str:
    """Write the reason of a PASS: what was kept, or why it was not judged; ``row``: of the dispatcher's frame."""
    if _is_missing(row["max_share_ratio"]):
        return "nothing to judge: no consumer has a share of the hash space"
    if not row["balance_not_judged"]:
        return kept
    counted = (
        ""
        if _is_missing(row["keys_per_consumer"])
        else f" and {plain(row['keys_per_consumer'])} keys per consumer"
    )
    return f"too few messages to judge: {plain(row['messages'])} messages{counted}"


def _is_missing(value: float | None) -> bool:
    """Check for a missing number, which pandas may have made NaN."""
    return value is None or isnan(value)


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
            measured="share of the messages of a consumer, divided by its share of the hash space",
            severity=catalogue.MINOR,
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
