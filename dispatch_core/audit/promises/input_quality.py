"""Promise: every row of the input was accepted, or quarantined with its reason, and the counts add up.

For each ingest run: rows in = rows accepted + rows quarantined + rows of other intervals. Quarantined rows count for the
dispatchers of their file, else for those of its folder, else for ``*`` (no dispatcher). A gap in the log leaves the promise
UNKNOWN; an event about a consumer or an entry that the log does not contain breaks it, if nothing else explains that.
"""

from __future__ import annotations

from typing import Final

from dispatch_core.audit.promises.promise import FAIL, UNKNOWN, Check, Promise, log_checks, proven_log_checks

_OF_THE_LOG: Final = ("log_gap", "repeated_lines", "clock_step", "unknown_batch_size")

PROMISE: Final = Promise(
    name="input_quality",
    title="Input quality",
    kept="every row of its files was accepted",
    checks=(
        Check(
            "quarantined",
            FAIL,
            "unreadable rows, quarantined: {value}{first_quarantined}",
            limit="input_quality.quarantined",
        ),
        Check(
            "rows_unaccounted",
            UNKNOWN,
            "rows of the input that are neither accepted nor quarantined nor of another interval: {value}",
            missing="the ingest of this interval left no count of its rows",
        ),
        Check(
            "unknown_kinds",
            UNKNOWN,
            "findings of kinds that this version does not know: {value}",
        ),
        *log_checks(UNKNOWN, *_OF_THE_LOG),
        *proven_log_checks("unknown_consumer", "unknown_position", "overlapping_incarnations"),
    ),
    tolerated=_OF_THE_LOG,
)
