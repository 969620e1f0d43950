"""Judge the frame with Great Expectations, and return each unexpected value with its row.

Each promise has its own pandas batch, suite and checkpoint. The context is in memory and sends no data anywhere.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.errors import DispatchAuditError
from dispatch_expectations.policy import Policy, Rule
from dispatch_expectations.promise import UNKNOWN, Check, Promise
from dispatch_expectations.suites import PROMISES

if TYPE_CHECKING:
    import great_expectations as gx
    import pandas as pd

#: Columns of every batch besides the promise's own.
IDENTITY: Final = ["row", "dispatcher", "policy"]
_RESULT_FORMAT: Final = {
    "result_format": "COMPLETE",
    "unexpected_index_column_names": ["row", "dispatcher"],
    "return_unexpected_index_query": False,
}


class ExpectationError(DispatchAuditError):
    """Great Expectations could not evaluate an expectation; no verdict was published."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A value that one expectation found unexpected in one dispatcher's row; ``limit`` None: the value is missing."""

    row: int
    promise: str
    check: Check
    value: Any
    limit: float | None

    @property
    def decides(self) -> str:
        """FAIL or UNKNOWN."""
        return UNKNOWN if self.limit is None else self.check.decides


def run_suites(frame: pd.DataFrame, policy: Policy, interval_start: datetime, site: Path) -> list[Outcome]:
    """Judge every row of ``frame`` by every promise; write Data Docs to the folder ``site``.

    Returns one outcome per unexpected row and expectation; a dispatcher without an outcome kept the promise.
    Raises ``ExpectationError`` if an expectation could not be evaluated.
    """
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    from great_expectations.core.run_identifier import RunIdentifier

    context = _quiet_context(site)
    source = context.data_sources.add_pandas("warehouse")
    rules = [rule for rule in policy.rules if rule.name in set(frame["policy"])]
    planned: dict[str, tuple[Check, float | None]] = {}
    results = {}
    for promise in PROMISES:
        suite = context.suites.add(_suite(promise, rules, planned))
        asset = source.add_dataframe_asset(promise.name)
        definition = context.validation_definitions.add(
            gx.ValidationDefinition(
                name=promise.name, data=asset.add_batch_definition_whole_dataframe("interval"), suite=suite
            )
        )
        checkpoint = context.checkpoints.add(
            gx.Checkpoint(
                name=promise.name,
                validation_definitions=[definition],
                result_format=_RESULT_FORMAT,  # type: ignore[arg-type]  # the type lacks the dict's documented keys
            )
        )
        run = RunIdentifier(run_name=interval_start.strftime("%Y-%m-%dT%H-%M-%SZ"), run_time=interval_start)
        batch = frame[[*IDENTITY, *promise.columns]]
        results[promise.name] = checkpoint.run(batch_parameters={"dataframe": batch}, run_id=run)
    context.build_data_docs()
    outcomes: list[Outcome] = []
    for name, result in results.items():
        for validation in result.run_results.values():
            for expectation in validation.results:
                outcomes += _unexpected(name, expectation, planned, frame)
    return outcomes


def _quiet_context(site: Path) -> gx.data_context.EphemeralDataContext:
    """Make a context in memory: no progress bars, no analytics, no temporary folder, one Data Docs site."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        progress_bars=ProgressBarsConfig(globally=False),
        analytics_enabled=False,
        data_docs_sites={
            "audit": {
                "class_name": "SiteBuilder",
                "show_how_to_buttons": False,
                "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
                "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(site)},
            }
        },
    )
    return gx.get_context(mode="ephemeral", project_config=config)


def _suite(
    promise: Promise, rules: list[Rule], planned: dict[str, tuple[Check, float | None]]
) -> gx.ExpectationSuite:
    """Make the suite of one promise for the policy rules in use; add the check of each expectation to ``planned``."""
    import great_expectations as gx
    import great_expectations.expectations as gxe
    from great_expectations.expectations.row_conditions import Column

    suite = gx.ExpectationSuite(name=promise.name, notes=html.escape(promise.title))
    for check in promise.checks:
        if check.missing:
            mark = f"{promise.name}/{check.column}/missing"
            planned[mark] = (check, None)
            suite.add_expectation(
                gxe.ExpectColumnValuesToNotBeNull(
                    column=check.column,
                    meta={"check": mark, "decides": UNKNOWN},
                    description=html.escape(f"{UNKNOWN} where missing: {check.missing}."),
                )
            )
        for rule in rules:
            limit = _limit(check, rule)
            if limit is None:
                continue
            conditions = [Column("policy") == rule.name] if len(rules) > 1 else []
            for column, threshold in check.gates:
                section, name = threshold.split(".")
                conditions.append(Column(column) >= (rule.limit(section, name) or 0.0))
            mark = f"{promise.name}/{check.column}/{rule.name}"
            planned[mark] = (check, limit)
            suite.add_expectation(
                gxe.ExpectColumnValuesToBeBetween(
                    column=check.column,
                    max_value=limit,
                    row_condition=reduce(and_, conditions) if conditions else None,
                    meta={"check": mark, "decides": check.decides},
                )
            )
    return suite


def _limit(check: Check, rule: Rule) -> float | None:
    if check.limit is None:
        return 0.0
    section, name = check.limit.split(".")
    return rule.limit(section, name)


def _unexpected(
    promise: str, result: Any, planned: Mapping[str, tuple[Check, float | None]], frame: pd.DataFrame
) -> list[Outcome]:
    mark = result.expectation_config.meta["check"]
    raised = _exception(result.exception_info)
    if raised:
        raise ExpectationError(
            f"Great Expectations could not evaluate {result.expectation_config.type} for {mark}: {raised}; "
            "no verdict was published. The tables are kept; report this with the message"
        )
    if result.success:
        return []
    check, limit = planned[mark]
    rows = [int(item["row"]) for item in result.result["unexpected_index_list"]]
    if not rows:
        raise ExpectationError(
            f"Great Expectations found {mark} unexpected but named no row; no verdict was published"
        )
    return [Outcome(row, promise, check, frame.at[row, check.column], limit) for row in rows]


def _exception(info: Any) -> str:
    """Return the message of an exception during evaluation, or ""; GX gives one record, or one per metric."""
    if not isinstance(info, Mapping):
        return ""
    records = (
        [info]
        if "raised_exception" in info
        else [record for record in info.values() if isinstance(record, Mapping)]
    )
    return "; ".join(
        str(record.get("exception_message")) for record in records if record.get("raised_exception")
    )
