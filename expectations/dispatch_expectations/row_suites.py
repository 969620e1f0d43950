"""Make the suites of expectations on single rows of the result tables. They decide nothing: they show the rows.

A promise's verdict is decided by counts (``run_suites``). Beside them each table has a suite, whose unexpected rows are the
evidence: which topic, subscription, key and position, and what happened there.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.audit.catalogue import KINDS
from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.promises.counts import WAITS
from dispatch_core.audit.promises.every import PROMISES
from dispatch_core.audit.promises.promise import Check, plain
from dispatch_expectations.promise import GX_SEVERITIES, gx_severity

if TYPE_CHECKING:
    import great_expectations as gx

#: Titles of the tables' suites, in the order in which they are listed.
TITLES: Final = {
    "anomalies": "Findings",
    "divergences": "Decisions that differ from the rules",
    "waits": "Waiting times",
    "balance": "Shares of the consumers",
    "quarantine": "Unreadable rows",
}
#: Begins the name of a suite of rows; the name of their table follows.
ROW_SUITE: Final = "rows_"
_OVER_LIMIT: Final = "over_limit"


def row_suite(table: str, rules: Sequence[Rule]) -> gx.ExpectationSuite:
    """Make the suite of one table for the policy rules in use; it may have no expectation."""
    import great_expectations as gx

    suite = gx.ExpectationSuite(name=f"{ROW_SUITE}{table}", notes=html.escape(TITLES[table]))
    for expectation in _expectations(table, rules):
        suite.add_expectation(expectation)
    return suite


def _expectations(table: str, rules: Sequence[Rule]) -> list[Any]:
    import great_expectations.expectations as gxe

    if table == "anomalies":
        return [
            gxe.ExpectColumnValuesToNotBeInSet(
                column=_OVER_LIMIT,
                value_set=[kind],
                severity=GX_SEVERITIES[KINDS[kind].severity],
                **_words(table, f"no {kind} that the policy does not tolerate: {KINDS[kind].definition}"),
                notes=f"docs/anomalies.md#{kind}",
            )
            for kind in _limited_kinds(rules)
        ]
    if table == "divergences":
        words = "no decision of the broker that differs from the rule"
        return [_nothing(table, words, "critical", "docs/anomalies.md#divergence")]
    if table == "quarantine":
        words = "no row of the input that could not be read"
        return [_nothing(table, words, "critical", "docs/verdicts.md#the-promises")]
    columns = {"waits": WAITS, "balance": ("max_share_ratio",)}[table]
    return [
        _at_most(table, check, rule, len(rules) > 1)
        for promise in PROMISES
        for check in promise.checks
        if check.column in columns
        for rule in rules
        if rule.tolerated(check.limit) is not None
    ]


def _limited_kinds(rules: Sequence[Rule]) -> list[str]:
    """List the kinds of which some rule does not tolerate any number."""
    limited = {
        kind
        for promise in PROMISES
        for check in promise.checks
        if any(rule.tolerated(check.limit) is not None for rule in rules)
        for kind in check.kinds
    }
    return [kind for kind in KINDS if kind in limited]


def _nothing(table: str, words: str, severity: str, notes: str) -> Any:
    import great_expectations.expectations as gxe

    return gxe.ExpectColumnValuesToBeNull(
        column=_OVER_LIMIT, severity=severity, notes=notes, **_words(table, words)
    )


def _at_most(table: str, check: Check, rule: Rule, several_rules: bool) -> Any:
    import great_expectations.expectations as gxe
    from great_expectations.expectations.row_conditions import Column

    limit = rule.tolerated(check.limit)
    return gxe.ExpectColumnValuesToBeBetween(
        column="share_ratio" if table == "balance" else check.column,
        max_value=limit,
        row_condition=Column("policy") == rule.name if several_rules else None,
        severity=gx_severity(check),
        notes="docs/verdicts.md#the-promises",
        **_words(table, f"at most {plain(limit)}: {check.measured}"),
    )


def _words(table: str, description: str) -> dict[str, Any]:
    """Return description and meta of an expectation; the pages insert descriptions unescaped."""
    return {"description": html.escape(description, quote=False), "meta": {"table": table}}
