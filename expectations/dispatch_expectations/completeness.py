"""Promise: every stored, readable entry of the interval was delivered, or a finding says what held it.

As of the interval's end. ``undelivered`` are entries that were stored and not sent and that no finding explains:
whether something is wrong with them is not known, hence UNKNOWN. Work that a rule held back for longer than policy
is a ``stuck_*`` finding and FAIL.
"""

from __future__ import annotations

from typing import Final

from dispatch_expectations.promise import FAIL, REPLAY_CHECKS, UNKNOWN, Check, Promise, log_checks

_STUCK: Final = {
    "stuck_key": "keys that waited longer than policy: {value}",
    "stuck_consumer": "consumers that waited longer than policy: {value}",
    "stuck_subscription": "times that the subscription stood still for longer than policy: {value}",
    "ack_hole": "unacknowledged entries below acknowledged ones for longer than policy: {value}",
}

#: Columns of the table of waiting times, and what is too much of them.
_WAITS: Final = {
    "wait_ms_p99": "99 of 100 entries waited up to {value} ms for their first sending; the policy bears {limit}",
    "wait_ms_max": "an entry waited {value} ms for its first sending; the policy bears {limit}",
    "blocked_message_ms": "rules held messages back for {value} ms of message time; the policy bears {limit}",
}

PROMISE: Final = Promise(
    name="completeness",
    title="Completeness",
    kept="every stored entry was sent by the interval's end",
    checks=(
        Check(
            "never_delivered",
            FAIL,
            "readable entries never sent though no limit held them: {value}",
            limit="completeness.never_delivered",
            kinds=("never_delivered",),
        ),
        *(
            Check(kind, FAIL, sentence, limit=f"completeness.{kind}", kinds=(kind,))
            for kind, sentence in _STUCK.items()
        ),
        Check(
            "completeness_uncertain",
            UNKNOWN,
            "possible losses or stalls that this log cannot prove: {value}",
            limit="completeness.uncertain",
            kinds=("never_delivered", *_STUCK),
        ),
        *(
            Check(column, FAIL, sentence, limit=f"completeness.{column}", counts_findings=False)
            for column, sentence in _WAITS.items()
        ),
        Check(
            "undelivered",
            UNKNOWN,
            "stored entries not sent by the interval's end, and no finding says why: {value}",
            limit="completeness.undelivered",
            missing="entries were sent in this interval but no waiting times of them were published",
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
)
