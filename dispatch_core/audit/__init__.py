"""Deliveries in, anomalies out: what a recorded dispatcher's log says about order, duplicates and itself.

``audit_log`` audits a log in one piece, ``AuditFold`` piece by piece; ``catalogue`` names every kind of finding;
``verdict`` turns findings into PASS, FAIL or UNKNOWN. Everything here is pure. Importing the package compiles nothing:
what audits is loaded on first use, so that whoever needs only names and verdicts does not pay for numba.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dispatch_core.audit.verdict import DEFAULT_POLICY, Policy, PromiseVerdict, overall, verdicts

if TYPE_CHECKING:
    from dispatch_core.audit.fold import AuditFold
    from dispatch_core.audit.judge import audit_log
    from dispatch_core.audit.rows import Audit
    from dispatch_core.audit.streaming import NotStreamableError

__all__ = [
    "DEFAULT_POLICY",
    "Audit",
    "AuditFold",
    "NotStreamableError",
    "Policy",
    "PromiseVerdict",
    "audit_log",
    "overall",
    "verdicts",
]

_MODULES = {"Audit": "rows", "AuditFold": "fold", "NotStreamableError": "streaming", "audit_log": "judge"}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
