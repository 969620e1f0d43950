"""Promise: the broker decided as its release's rules say.

Every decision of the log is compared with the rule (``dispatch_core``): those of a trace one by one; of a log of level E,
which shows no reads, who was sent each entry. A divergence is FAIL. Decisions in which two
admissible orders of events differ are uncertain: UNKNOWN above the policy's percentage. A rule that this version
does not replay leaves the promise UNKNOWN, and with it the verdict over all promises.
"""

from __future__ import annotations

from typing import Final

from dispatch_expectations.promise import FAIL, NEVER_RECORDED, UNKNOWN, Check, Promise

#: Why PASS, where the log shows no reads.
KEPT_UNSEEN: Final = "every sending was as the rules of the release ask for; reads are unseen without a trace"

PROMISE: Final = Promise(
    name="conformance",
    title="Conformance to the release's rules",
    kept="every decision was the one the rules of the release ask for",
    checks=(
        Check(
            "divergent",
            FAIL,
            "decisions that differ from the rule: {value} of {decisions}",
            limit="conformance.divergent",
            kinds=("divergence",),
        ),
        Check(
            "doubted",
            UNKNOWN,
            "decisions that differ from the rule behind lines that are missing or cannot be: {value} of {decisions}",
            counts_findings=False,
        ),
        NEVER_RECORDED,
        Check(
            "not_judged",
            UNKNOWN,
            "decisions were not compared with the rule: {not_judged_reason}",
            counts_findings=False,
        ),
        Check(
            "uncertain_percent",
            UNKNOWN,
            "decisions that depend on an order which the log does not show: {value} % of {decisions}",
            limit="conformance.uncertain_percent",
            counts_findings=False,
        ),
        Check(
            "undecided_sends",
            UNKNOWN,
            "entries sent without any decision that could be compared: {value}",
            counts_findings=False,
        ),
        Check(
            "replay_missing",
            UNKNOWN,
            "the log of this interval was ingested but no replay of it was published",
            counts_findings=False,
        ),
    ),
)
