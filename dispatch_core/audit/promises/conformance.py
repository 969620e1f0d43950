"""Promise: the broker decided as its release's rules say.

``dispatch_core`` compares the log with the rules: every decision of a trace; for a log without a trace, which shows no
reads, the consumer of each delivery. A divergence is FAIL. A decision that depends on an order of events which the log
does not show is uncertain; more of them than the policy allows are UNKNOWN. A rule that this version does not replay
leaves the promise UNKNOWN, and with it the verdict over all promises.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dispatch_core.audit.promises.promise import FAIL, NEVER_RECORDED, UNKNOWN, Check, Promise, plain

#: Reason of a PASS for a log without a trace.
KEPT_UNSEEN: Final = (
    "every delivery followed the rules of the release; without a trace, reads are not compared"
)


def kept(row: Mapping[str, Any], kept: str) -> str:
    """Write the reason of a PASS: what was kept, and how many decisions were compared; ``row``: of the dispatcher."""
    if not row["decisions"]:
        return kept
    compared = (
        f"decisions compared: {plain(row['decisions'])}, uncertain: {plain(row['uncertain_decisions'])}"
    )
    return f"{KEPT_UNSEEN if row['reads_unseen'] else kept}; {compared}"


PROMISE: Final = Promise(
    name="conformance",
    title="Conformance to the release's rules",
    kept="every decision followed the rules of the release",
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
            "decisions that differ from the rule, which {doubted_by} may explain: {value} of {decisions}",
            counts_findings=False,
            measured="decisions that differ from the rule, which something that the log cannot show may explain",
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
            gates=(("decisions", "conformance.min_decisions"),),
            counts_findings=False,
            measured="percentage of the decisions that depend on an order which the log does not show",
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
