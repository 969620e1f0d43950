"""All promises, in the order in which they are reported. To add one: a module like its neighbours, and a line here."""

from __future__ import annotations

from typing import Final

from dispatch_core.audit import catalogue
from dispatch_core.audit.promises import (
    balance,
    completeness,
    conformance,
    duplicate_delivery,
    input_quality,
    per_key_order,
)
from dispatch_core.audit.promises.promise import Check, Promise

PROMISES: Final[tuple[Promise, ...]] = (
    per_key_order.PROMISE,
    duplicate_delivery.PROMISE,
    completeness.PROMISE,
    conformance.PROMISE,
    balance.PROMISE,
    input_quality.PROMISE,
)
BY_NAME: Final = {promise.name: promise for promise in PROMISES}

#: Kinds about the log itself; they also affect the verdicts on order, duplicates and completeness.
LOG_KINDS: Final = tuple(
    kind.name for kind in catalogue.KINDS.values() if kind.promise == catalogue.INPUT_QUALITY
)
#: The promise that judges a kind when certain, and counts it as ``<promise>_uncertain`` when not.
PROMISE_OF_KIND: Final = {
    kind.name: kind.promise for kind in catalogue.KINDS.values() if kind.name not in LOG_KINDS
}
#: Kinds tolerated by definition: counted whether certain or not.
TOLERATED_KINDS: Final = tuple(
    kind.name for kind in catalogue.KINDS.values() if kind.default_tolerated is None
)
#: Kinds that a check counts whether they are certain or not.
_COUNTED_ANYWAY: Final = (*LOG_KINDS, *TOLERATED_KINDS)


def counts(check: Check, kind: str, uncertain: bool) -> bool:
    """Check whether a finding of a kind, certain or not, is one of those that a check counts."""
    if kind not in check.kinds:
        return False
    if check.column.endswith(("_certain", "_uncertain")):
        return uncertain == check.column.endswith("_uncertain")
    return kind in _COUNTED_ANYWAY or not uncertain
