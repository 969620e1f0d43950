"""Acknowledged entries above one that is not: what keeps the mark-delete position back."""

from __future__ import annotations

from dispatch_core.audit.findings import Finding
from dispatch_core.audit.history import History
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.scan import Scan
from dispatch_core.audit.stalls import End


def ack_holes(scan: Scan, history: History, limits: Limits, end: End) -> list[Finding]:
    """``ack_hole``: entries that are unacknowledged though later ones are acknowledged for longer than the limit."""
    return []
