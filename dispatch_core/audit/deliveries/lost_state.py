"""Decide whether a log shows the state with which the next load of the topic begins.

A dispatcher begins with what the cursor holds: the mark-delete position and the entries that were acknowledged above it. The
log of the load before shows them if no line of it is missing. A checkpoint as the first line of the load gives them, too.

Example: of the first load the lines behind seq 20 are lost, and the second load begins with 5:9. If it begins without a
checkpoint, nothing says whether 5:7 and 5:8 were sent and acknowledged in the lost lines, or are lost themselves.
"""

from __future__ import annotations

from dispatch_core.audit.deliveries.checkpoint_state import CheckpointState
from dispatch_core.audit.deliveries.missing_lines import gaps, without_repeated_rows
from dispatch_core.recording.log import DispatcherLog


def gives_state(checkpoint_state: CheckpointState | None) -> bool:
    """Check whether the checkpoint that a load begins with says what had been acknowledged."""
    return checkpoint_state is not None and checkpoint_state.checkpoint.mark_delete is not None


def loses_lines(log: DispatcherLog) -> bool:
    """Check whether lines of a load are missing, or rows behind its last one."""
    events, repeated, _ = without_repeated_rows(log.events)
    return log.end_lost or bool(gaps(events, repeated)[0])
