"""Promise: every stored, readable entry was delivered by the interval's end, or a finding says what held it back.

``undelivered`` are entries that were stored but not delivered and that no finding explains. They may be lost or only
late, so the verdict is UNKNOWN. Entries that a rule held back for longer than the policy allows are a ``stuck_*``
finding: FAIL.
"""

from __future__ import annotations

from typing import Final

from dispatch_core.audit import catalogue
from dispatch_core.audit.promises.promise import FAIL, REPLAY_CHECKS, UNKNOWN, Check, Promise, log_checks

#: What unreadable rows leave open.
ROWS_LOST: Final = "unreadable rows may hide entries that were never sent, or events: {value}"
_STUCK: Final = {
    "stuck_key": "keys that waited longer than the policy allows: {value}",
    "stuck_consumer": "consumers that waited longer than the policy allows: {value}",
    "stuck_subscription": "times that the subscription stood still for longer than the policy allows: {value}",
    "ack_hole": "unacknowledged entries below acknowledged ones for longer than the policy allows: {value}",
}
_PERMITS: Final = {
    "permit_leak": "consumers whose permits the broker has lost or doubled for good: {value}",
    "permit_drift": "times that the dispatcher's total and the sum of its consumers' permits parted for good: {value}",
}

#: Columns with waiting times: the sentence for a value above the limit, and what the column measures.
_WAITS: Final = {
    "wait_ms_p99": (
        "99 of 100 entries waited up to {value} ms for their first delivery (the policy allows {limit})",
        "ms that 99 of 100 entries waited at most for their first delivery",
    ),
    "wait_ms_max": (
        "an entry waited {value} ms for its first delivery (the policy allows {limit})",
        "ms that an entry waited for its first delivery",
    ),
    "blocked_message_ms": (
        "rules held messages back for {value} ms of message time (the policy allows {limit})",
        "ms of message time that rules held messages back",
    ),
}

PROMISE: Final = Promise(
    name="completeness",
    title="Completeness",
    kept="every stored entry was sent, or waits for no longer than the policy allows",
    checks=(
        Check(
            "never_delivered",
            FAIL,
            "readable entries never delivered although no limit held them back: {value}",
            limit="completeness.never_delivered",
            kinds=("never_delivered",),
        ),
        *(
            Check(kind, FAIL, sentence, limit=f"completeness.{kind}", kinds=(kind,))
            for kind, sentence in (_STUCK | _PERMITS).items()
        ),
        Check(
            "skipped",
            FAIL,
            "moves of the cursor that passed entries: {value} (the policy allows {limit})",
            limit="completeness.skipped",
            kinds=("skipped",),
        ),
        Check(
            "dropped",
            FAIL,
            "reasons for which entries of a non-persistent topic were dropped: {value} (the policy allows {limit})",
            limit="completeness.dropped",
            kinds=("dropped",),
        ),
        Check(
            "completeness_uncertain",
            UNKNOWN,
            "possible losses, stalls or lost permits that this log cannot prove: {value}",
            limit="completeness.uncertain",
            kinds=("never_delivered", *_STUCK, *_PERMITS),
        ),
        *(
            Check(
                column,
                FAIL,
                sentence,
                limit=f"completeness.{column}",
                counts_findings=False,
                measured=measured,
                severity=catalogue.MINOR,
            )
            for column, (sentence, measured) in _WAITS.items()
        ),
        Check(
            "undelivered",
            UNKNOWN,
            "stored entries not delivered by then, and no finding says why: {value}",
            limit="completeness.undelivered",
            missing="entries were sent in this interval but no waiting times of them were published",
        ),
        Check(
            "quarantined",
            UNKNOWN,
            ROWS_LOST,
            limit="input_quality.quarantined",
            counts_findings=False,
        ),
        Check(
            "nothing_recorded",
            UNKNOWN,
            "no dispatcher has an event in this interval: there was nothing to judge",
            counts_findings=False,
        ),
        *REPLAY_CHECKS,
        *log_checks(UNKNOWN, "log_gap", "unknown_position", "overlapping_incarnations"),
    ),
    tolerated=("skipped", "dropped"),
)
