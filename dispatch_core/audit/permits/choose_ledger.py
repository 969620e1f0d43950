"""Choose the permit ledger that a log allows: by its trace, by its checkpoints, or none."""

from __future__ import annotations

from dispatch_core.arrays.line_kinds import has_kind
from dispatch_core.audit.permits.checkpoint_ledger import CheckpointLedger, shows_permits
from dispatch_core.audit.permits.ledger import PermitLedger
from dispatch_core.audit.permits.lines import OF_A_TRACE
from dispatch_core.broker.profiles import Profile
from dispatch_core.recording.log import DispatcherLog

Ledger = PermitLedger | CheckpointLedger


def choose_ledger(
    head: DispatcherLog, profile: Profile | None, *, single_active: bool, is_trace: bool, is_first: bool
) -> Ledger | None:
    """Make the ledger of a log; ``None`` where no line shows what the broker counts, so that nothing can be compared.

    Args:
        head: the log's identity and header; its ``events`` hold at least its rare lines.
        profile: its rules, if they are known.
        single_active: the subscription is Failover or Exclusive.
        is_trace: the log is a trace; else it is one if ``head`` has lines of a trace.
        is_first: no load of the topic came before.
    """
    keeps_indexes = None
    if profile is not None:
        keeps_indexes = bool(profile.settings.get("acknowledgmentAtBatchIndexLevelEnabled"))
    if is_trace or has_kind(head.events, *OF_A_TRACE):
        return PermitLedger(keeps_indexes=keeps_indexes, single_active=single_active, is_first=is_first)
    if shows_permits(head.events):
        return CheckpointLedger(has_parking=not single_active, keeps_indexes=keeps_indexes)
    return None
