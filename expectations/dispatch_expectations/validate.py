"""Make the verdicts of one interval: run the suites, write the reasons, publish and summarize the verdicts.

``python -m dispatch_expectations.validate --warehouse DIR --interval-start TIME --data-docs DIR`` prints one JSON line on
stdout and ends with 0 (all PASS), 1 (a FAIL) or 2 (could not judge: an UNKNOWN, or bad input).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from dispatch_core.audit.assumptions import Assumptions
from dispatch_core.audit.policy.reader import POLICY_VARIABLE
from dispatch_core.audit.promises import balance
from dispatch_core.audit.promises.every import PROMISES
from dispatch_core.audit.promises.promise import FAIL, PASS, UNKNOWN, Promise, worst
from dispatch_core.audit.verdict import judge
from dispatch_core.errors import DispatchAuditError, names_disk_errors
from dispatch_core.tables import VERDICTS
from dispatch_expectations import data_docs as docs
from dispatch_expectations.findings import Finding, read_findings, top
from dispatch_expectations.frames import NOBODY, Dispatcher, dispatcher_frame
from dispatch_expectations.moment import NAMED_BY, without_moment
from dispatch_expectations.own_expectations import WARN, load_own_expectations
from dispatch_expectations.own_verdicts import KEPT, CustomResult, custom_results
from dispatch_expectations.policy import Policy, current_policy, load_policy
from dispatch_expectations.promise import ALL, CUSTOM
from dispatch_expectations.result_tables import rows_over_limits, whole_table
from dispatch_expectations.run_suites import RowOutcome, run_suites
from dispatch_expectations.suites import BY_NAME
from dispatch_expectations.table_rows import interval_dataset, read_rows
from dispatch_expectations.verdict import Verdict
from spark_jobs.intervals import interval
from spark_jobs.location import Location
from spark_jobs.stage_command import moment
from spark_jobs.warehouse.contracts import PARTITION
from spark_jobs.warehouse.delta_tables import Place, replace_rows

if TYPE_CHECKING:
    import pandas as pd

MAX_TOP_FINDINGS: Final = 5
EXIT_CODES: Final = {PASS: 0, FAIL: 1, UNKNOWN: 2}


@names_disk_errors("validate")
def validate_interval(
    warehouse: Place, interval_start: datetime, data_docs: Place, policy: Policy | None = None
) -> list[Verdict]:
    """Judge one interval: run all suites, publish Data Docs and replace the interval of the ``verdicts`` table.

    Returns the verdicts sorted by dispatcher, ``all`` first, then the promises. Running it again on the same tables
    gives the same verdicts and pages. Raises ``WarehouseError`` (missing tables), ``PolicyError``, ``OwnExpectationsError``
    or ``ExpectationError``; then nothing is published and the earlier verdicts of the interval stay.
    """
    span = interval(interval_start)
    interval_start = span.start
    policy = policy or current_policy()
    own = load_own_expectations(policy.expectations) if policy.expectations else None
    frame = dispatcher_frame(warehouse, interval_start, policy)
    tables = rows_over_limits(warehouse, interval_start, frame, policy)
    own_tables = {
        name: whole_table(warehouse, interval_start, name, policy) for name in (own.tables if own else ())
    }
    with docs.staged_site(data_docs, interval_start) as site:
        outcomes = run_suites(frame, tables, policy, interval_start, site.folder, own, own_tables)
        kinds = {kind for outcome in outcomes.counts for kind in outcome.check.kinds}
        findings = read_findings(warehouse, interval_start, kinds) if kinds else []
        custom = custom_results(outcomes.own, own_tables) if own else None
        verdicts = _verdicts(frame, outcomes.counts, findings, interval_start, policy, custom)
        rows = pa.Table.from_pylist([verdict.as_row() for verdict in verdicts], schema=VERDICTS)
        replace_rows(warehouse, "verdicts", span, rows)
        site.finish(verdicts)
    return verdicts


def read_verdicts(warehouse: Place, interval_start: datetime) -> list[Verdict]:
    """Read the published verdicts of one interval, in the order of ``validate_interval``; empty if it was not judged."""
    dataset = interval_dataset(warehouse, "verdicts", interval_start)
    names = [name for name in VERDICTS.names if name != PARTITION]
    start = interval(interval_start).start
    rows = [
        Verdict(interval_start=start, **row | {"top_findings": tuple(row["top_findings"])})
        for row in read_rows(dataset, names)
    ]
    return sorted(rows, key=lambda verdict: (verdict.dispatcher, _order(verdict.promise)))


def overall(verdicts: Sequence[Verdict]) -> str:
    """Return the worst verdict over all dispatchers; UNKNOWN if there is none."""
    return worst([verdict.verdict for verdict in verdicts]) if verdicts else UNKNOWN


def _order(promise: str) -> int:
    return -1 if promise == ALL else list(BY_NAME).index(promise)


def _verdicts(
    frame: pd.DataFrame,
    outcomes: Sequence[RowOutcome],
    findings: list[Finding],
    interval_start: datetime,
    policy: Policy,
    custom: Mapping[Dispatcher, CustomResult] | None,
) -> list[Verdict]:
    """Make the verdicts of all dispatchers; ``custom``: what the user's expectations found, None if there are none."""
    by_cell: defaultdict[tuple[int, str], list[RowOutcome]] = defaultdict(list)
    for outcome in outcomes:
        by_cell[outcome.row, outcome.promise].append(outcome)
    by_dispatcher: defaultdict[Dispatcher, list[Finding]] = defaultdict(list)
    for finding in findings:
        by_dispatcher[finding.dispatcher].append(finding)
    rules = {rule.name: rule for rule in policy.rules}
    verdicts: list[Verdict] = []
    for row in frame.to_dict("records"):
        dispatcher = (row["cluster"], row["topic"], row["subscription"])
        assume_absent = rules[row["policy"]].assume_absent
        assumptions = Assumptions(row["subscription_type"], assume_absent=assume_absent)
        promises = [
            _promise_verdict(
                promise,
                row,
                by_cell[row["row"], promise.name],
                by_dispatcher[dispatcher],
                interval_start,
                assumptions,
            )
            for promise in PROMISES
        ]
        if custom is not None:
            promises.append(_custom_verdict(promises[0], custom.get(dispatcher, KEPT)))
        verdicts += [_overall_verdict(promises, row["moment"]), *promises]
    if custom and NOBODY in custom and all(verdict.dispatcher != NOBODY for verdict in verdicts):
        cluster, topic, subscription = NOBODY
        nobody = replace(verdicts[0], cluster=cluster, topic=topic, subscription=subscription, incarnation=0)
        of_tables = _custom_verdict(nobody, custom[NOBODY])
        verdicts[:0] = [_overall_verdict([of_tables], ""), of_tables]
    return verdicts


def _custom_verdict(like: Verdict, result: CustomResult) -> Verdict:
    """Make the verdict on the user's expectations, of the dispatcher of another verdict."""
    return replace(
        like,
        promise=CUSTOM,
        verdict=result.verdict,
        findings=result.rows[result.verdict],
        tolerated=result.rows[WARN],
        reason=result.reason,
        top_findings=(),
    )


def _promise_verdict(
    promise: Promise,
    row: Mapping[str, Any],
    outcomes: Sequence[RowOutcome],
    findings: list[Finding],
    interval_start: datetime,
    assumptions: Assumptions,
) -> Verdict:
    """Make the verdict of one dispatcher and promise: the worst of its unexpected values."""
    judgement = judge(promise, row, outcomes, assumptions)
    deciding = [outcome for outcome in outcomes if outcome.decides == judgement.verdict]
    uncertain = judgement.verdict == UNKNOWN
    kinds = {kind for outcome in deciding for kind in outcome.check.kinds}
    evidence = [
        finding for finding in findings if finding.kind in kinds and (uncertain or not finding.uncertain)
    ]
    reason = judgement.reason
    if promise.name == balance.PROMISE.name:
        reason += row["balance_window"]
    if promise.name in NAMED_BY:
        reason += row["moment"]
    return Verdict(
        interval_start=interval_start,
        cluster=row["cluster"],
        topic=row["topic"],
        subscription=row["subscription"],
        incarnation=int(row["incarnation"]),
        promise=promise.name,
        verdict=judgement.verdict,
        findings=judgement.findings,
        tolerated=judgement.tolerated,
        reason=reason,
        top_findings=tuple(top(evidence, MAX_TOP_FINDINGS)),
    )


def _overall_verdict(promises: list[Verdict], moment: str) -> Verdict:
    """Make a dispatcher's verdict over all promises: the worst one. A rule that is not replayed leaves it UNKNOWN.

    ``moment``: what its reason says about the moment, once.
    """
    first = promises[0]
    verdict = worst([promise.verdict for promise in promises])
    deciding = [promise for promise in promises if promise.verdict == verdict]
    if verdict == PASS:
        reason = "every promise was kept"
    else:
        reason = "; ".join(f"{promise.promise}: {without_moment(promise.reason)}" for promise in deciding)
    explanations = [text for promise in deciding for text in promise.top_findings]
    return Verdict(
        interval_start=first.interval_start,
        cluster=first.cluster,
        topic=first.topic,
        subscription=first.subscription,
        incarnation=first.incarnation,
        promise=ALL,
        verdict=verdict,
        findings=sum(promise.findings for promise in deciding),
        tolerated=sum(promise.tolerated for promise in promises),
        reason=reason + moment,
        top_findings=tuple(dict.fromkeys(explanations))[:MAX_TOP_FINDINGS],
    )


def summary(verdicts: Sequence[Verdict], data_docs: Place) -> dict[str, Any]:
    """Make a JSON object with the overall verdict, counts, and the reason of each verdict that is not PASS."""
    totals = [verdict for verdict in verdicts if verdict.promise == ALL]
    counts = Counter(verdict.verdict for verdict in totals)
    return {
        "stage": "validate",
        "interval_start": verdicts[0].interval_start.isoformat() if verdicts else None,
        "verdict": overall(totals),
        "dispatchers": len(totals),
        "counts": {name: counts[name] for name in (PASS, FAIL, UNKNOWN)},
        "not_pass": [
            {
                "topic": verdict.topic,
                "subscription": verdict.subscription,
                "verdict": verdict.verdict,
                "reason": verdict.reason,
            }
            for verdict in totals
            if verdict.verdict != PASS
        ],
        "data_docs": str(docs.index_of(data_docs, verdicts[0].interval_start)) if verdicts else None,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m dispatch_expectations.validate``; see the module's docstring."""
    parser = argparse.ArgumentParser(
        prog="dispatch_expectations.validate", description="Judge one interval of the warehouse."
    )
    parser.add_argument(
        "--warehouse", type=Location.of, required=True, help="folder or URL of the Delta tables"
    )
    parser.add_argument("--interval-start", type=moment, required=True, help="day or ISO time, UTC")
    parser.add_argument(
        "--data-docs", type=Location.of, required=True, help="folder or URL for the Data Docs pages"
    )
    parser.add_argument(
        "--policy", type=Path, help=f"audit policy (default: ${POLICY_VARIABLE}, else the shipped one)"
    )
    args = parser.parse_args(arguments)
    try:
        policy = load_policy(args.policy) if args.policy else current_policy()
        verdicts = validate_interval(args.warehouse, args.interval_start, args.data_docs, policy)
    except DispatchAuditError as error:
        print(f"validate: {error}", file=sys.stderr)
        return EXIT_CODES[UNKNOWN]
    result = summary(verdicts, args.data_docs)
    print(json.dumps(result, ensure_ascii=False))
    return EXIT_CODES[result["verdict"]]


if __name__ == "__main__":
    sys.exit(main())
