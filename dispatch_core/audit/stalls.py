"""From waits to findings: work that waited too long, and work that nothing held and nobody got."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dispatch_core.audit.findings import Finding
from dispatch_core.audit.holds import Hold
from dispatch_core.audit.limits import Limits
from dispatch_core.profiles import Profile


def stalls(
    holds: Iterable[Hold],
    names: Mapping[int, str],
    limits: Limits,
    *,
    as_of_us: int,
    closed: bool,
    profile: Profile | None,
) -> list[Finding]:
    """``stuck_key``, ``stuck_consumer``, ``stuck_subscription`` and ``unnecessary_blocking``."""
    return []


def never_delivered(
    holds: Iterable[Hold],
    names: Mapping[int, str],
    limits: Limits,
    *,
    as_of_us: int,
    closed: bool,
    profile: Profile | None,
) -> list[Finding]:
    """``never_delivered``."""
    return []
