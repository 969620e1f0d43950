"""Deliveries in, anomalies out: what a recorded dispatcher's log says about order, duplicates and itself.

``audit_log`` is the one way in; ``catalogue`` names every kind of finding; ``verdict`` turns findings into PASS, FAIL or
UNKNOWN. Everything here is pure. Importing the package compiles nothing: ``audit_log`` and ``Audit`` are loaded on first
use, so that whoever needs only names and verdicts does not pay for numba.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dispatch_core.audit.verdict import DEFAULT_POLICY, Policy, PromiseVerdict, overall, verdicts

if TYPE_CHECKING:
    from dispatch_core.audit.judge import Audit, audit_log

__all__ = ["DEFAULT_POLICY", "Audit", "Policy", "PromiseVerdict", "audit_log", "overall", "verdicts"]


def __getattr__(name: str) -> Any:
    if name in ("Audit", "audit_log"):
        from dispatch_core.audit import judge

        return getattr(judge, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
