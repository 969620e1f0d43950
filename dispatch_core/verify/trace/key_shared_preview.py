"""Verify a trace of the Key_Shared dispatcher of 4.0.0-preview.1 (last sent position, PIP-282)."""

from __future__ import annotations

from dispatch_core.verify.trace.recently_joined import RecentlyJoinedVerifier
from dispatch_core.verify.trace.unlogged_acks import UnloggedAcksVerifier


class PreviewVerifier(UnloggedAcksVerifier, RecentlyJoinedVerifier):
    """State of one verification, as for 4.x, except for the effect of acks and the steps of a removal."""
