"""Run Great Expectations over the counts and the result tables of an interval, and return what was unexpected.

One checkpoint runs all suites and writes Data Docs; then the actions that the user's file names run on its result. A suite
judges a pandas batch. Those of the promises judge one row of counts per dispatcher, and only these decide the verdicts on
the promises. Those of the result tables show the rows behind the counts (``row_suites``). The user's own expectations decide
the promise ``custom``. The context is in memory and sends no data anywhere but by the user's actions.
"""

from __future__ import annotations

import html
import logging
import os
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dispatch_core.audit.policy.rules import Rule
from dispatch_core.audit.promises.every import PROMISES
from dispatch_core.audit.promises.promise import UNKNOWN, Check, Promise
from dispatch_core.audit.verdict import Outcome
from dispatch_core.errors import DispatchAuditError
from dispatch_expectations.own_expectations import OwnExpectation, OwnExpectations
from dispatch_expectations.policy import Policy
from dispatch_expectations.promise import gx_severity
from dispatch_expectations.result_tables import SHOWN, ResultTable
from dispatch_expectations.row_suites import row_suite

if TYPE_CHECKING:
    import great_expectations as gx
    import pandas as pd
    from great_expectations.checkpoint.checkpoint import CheckpointResult

_LOG: Final = logging.getLogger("dispatch_audit.progress")
#: Columns of a promise's batch besides its own.
_IDENTITY: Final = [*SHOWN, "policy"]
#: Begins the name of a suite of the user's own expectations; the name of their table follows.
OWN_SUITE: Final = "custom_"
#: Seconds that the server of an action may stay silent.
_LONGEST_CALL_S: Final = 30.0
_RESULT_FORMAT: Final = {
    "result_format": "COMPLETE",
    "unexpected_index_column_names": list(SHOWN),
    "return_unexpected_index_query": False,
}
_DATA_DOCS_SITE: Final = {
    "class_name": "SiteBuilder",
    "show_how_to_buttons": False,
    "site_index_builder": {
        "module_name": "dispatch_expectations.data_docs_pages",
        "class_name": "NoIndex",
    },
    "site_section_builders": {
        "validations": {
            "renderer": {"module_name": "dispatch_expectations.data_docs_pages", "class_name": "ResultPage"}
        },
    },
}


class ExpectationError(DispatchAuditError):
    """Great Expectations could not evaluate an expectation; no verdict was published."""


@dataclass(frozen=True, slots=True)
class RowOutcome(Outcome):
    """A value that one expectation found unexpected, and the index of its dispatcher's row."""

    row: int


@dataclass(frozen=True, slots=True)
class OwnOutcome:
    """The outcome of one of the user's expectations.

    ``rows``: index of each row of its table that is unexpected; empty if it is about the table as a whole. ``error``: why it
    could not be evaluated, or "".
    """

    entry: OwnExpectation
    met: bool
    rows: tuple[int, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The unexpected rows of counts, and the outcomes of the user's expectations."""

    counts: list[RowOutcome]
    own: list[OwnOutcome]


def run_suites(
    frame: pd.DataFrame,
    tables: Mapping[str, ResultTable],
    policy: Policy,
    interval_start: datetime,
    site: Path,
    own: OwnExpectations | None = None,
    own_tables: Mapping[str, ResultTable] | None = None,
) -> Outcomes:
    """Judge every row of ``frame`` by every promise; write Data Docs to the folder ``site``.

    ``tables``: the rows over a limit, by table (``result_tables.rows_over_limits``). ``own_tables``: the tables that the
    expectations of ``own`` are about. Returns one outcome per unexpected row and expectation of the promises; a dispatcher
    without an outcome kept the promise.

    Raises ``ExpectationError`` if an expectation of a promise could not be evaluated. An action of ``own`` that fails is
    logged as an error: a chat that does not answer changes no verdict.
    """
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx
    from great_expectations.core.run_identifier import RunIdentifier

    from dispatch_expectations.data_docs_pages import DataDocs

    context = _quiet_context(site)
    rules = [rule for rule in policy.rules if rule.name in set(frame["policy"])]
    planned: dict[str, tuple[Check, float | None]] = {}
    frame = frame.assign(key="", position="", what="")
    batches: list[tuple[gx.ExpectationSuite, pd.DataFrame]] = [
        (_suite(promise, rules, planned), frame[[*_IDENTITY, *promise.columns]]) for promise in PROMISES
    ]
    batches += [(row_suite(name, rules), table.frame) for name, table in tables.items()]
    batches += [(_own_suite(name, own), table.frame) for name, table in (own_tables or {}).items() if own]
    source = context.data_sources.add_pandas("warehouse")
    run = RunIdentifier(run_name=interval_start.strftime("%Y-%m-%dT%H-%M-%SZ"), run_time=interval_start)
    with tempfile.TemporaryDirectory(prefix="batches-") as folder:
        definitions = []
        for suite, batch in batches:
            if not suite.expectations:
                continue
            path = Path(folder) / f"{suite.name}.parquet"
            batch.to_parquet(path)
            asset = source.add_parquet_asset(suite.name, path=str(path))
            definition = gx.ValidationDefinition(
                name=suite.name,
                data=asset.add_batch_definition_whole_dataframe("interval"),
                suite=context.suites.add(suite),
            )
            definitions.append(context.validation_definitions.add(definition))
        checkpoint = context.checkpoints.add(
            gx.Checkpoint(
                name="interval",
                validation_definitions=definitions,
                actions=[DataDocs(name="data_docs")],
                result_format=_RESULT_FORMAT,  # type: ignore[arg-type]  # the type lacks the dict's documented keys
            )
        )
        result = checkpoint.run(run_id=run)
    if own:
        _run_actions(own, result, context)
    outcomes = Outcomes([], [])
    entries = {entry.name: entry for entry in own.expectations} if own else {}
    for validation in result.run_results.values():
        for expectation in validation.results:
            meta = expectation.expectation_config.meta
            if "check" in meta:
                outcomes.counts.extend(_unexpected(meta["check"], expectation, planned, frame))
            elif "own" in meta:
                outcomes.own.append(_own_outcome(entries[meta["own"]], expectation))
            elif error := _exception(expectation.exception_info):
                raise ExpectationError(_not_evaluated(expectation, meta["table"], error))
    return outcomes


def _run_actions(
    own: OwnExpectations, result: CheckpointResult, context: gx.data_context.EphemeralDataContext
) -> None:
    """Run the user's actions as a checkpoint does, one after the other."""
    from great_expectations.checkpoint.actions import ActionContext

    for action in own.actions:
        action._data_context = context
        try:
            with _limited_waiting():
                action.run(checkpoint_result=result, action_context=ActionContext())
        except Exception as error:  # noqa: BLE001 - whatever a server or a library does, the verdicts stand
            # Without the error's text, which may have the address that was posted to.
            _LOG.error(
                "the action %s failed: %s; verdicts and pages stand", action.name, type(error).__name__
            )


@contextmanager
def _limited_waiting() -> Iterator[None]:
    """Let no call to a server take for ever: Great Expectations' actions set no time limit of their own."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_LONGEST_CALL_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _quiet_context(site: Path) -> gx.data_context.EphemeralDataContext:
    """Make a context in memory: no progress bars, no analytics, no temporary folder, one Data Docs site."""
    import great_expectations as gx
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )

    backend = {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(site)}
    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(),
        progress_bars=ProgressBarsConfig(globally=False),
        analytics_enabled=False,
        data_docs_sites={"audit": {**_DATA_DOCS_SITE, "store_backend": backend}},
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
        notes = f"docs/anomalies.md#{check.kinds[0]}" if check.kinds else "docs/verdicts.md#the-promises"
        if check.missing:
            mark = f"{promise.name}/{check.column}/missing"
            planned[mark] = (check, None)
            suite.add_expectation(
                gxe.ExpectColumnValuesToNotBeNull(
                    column=check.column,
                    meta={"check": mark, "decides": UNKNOWN},
                    description=html.escape(f"{UNKNOWN} where missing: {check.missing}", quote=False),
                    severity="warning",
                    notes=notes,
                )
            )
        for rule in rules:
            limit = rule.tolerated(check.limit)
            if limit is None:
                continue
            conditions = [Column("policy") == rule.name] if len(rules) > 1 else []
            conditions += [
                Column(column) >= (rule.tolerated(threshold) or 0.0) for column, threshold in check.gates
            ]
            mark = f"{promise.name}/{check.column}/{rule.name}"
            planned[mark] = (check, limit)
            suite.add_expectation(
                gxe.ExpectColumnValuesToBeBetween(
                    column=check.column,
                    max_value=limit,
                    row_condition=reduce(and_, conditions) if conditions else None,
                    meta={"check": mark, "decides": check.decides},
                    description=html.escape(check.describe(limit), quote=False)
                    + (f" (rule {rule.name})" if len(rules) > 1 else ""),
                    severity=gx_severity(check),
                    notes=notes,
                )
            )
    return suite


def _own_suite(table: str, own: OwnExpectations) -> gx.ExpectationSuite:
    """Make the suite of the user's expectations on one table."""
    import great_expectations as gx

    suite = gx.ExpectationSuite(name=f"{OWN_SUITE}{table}", notes=html.escape(f"Own expectations on {table}"))
    for entry in own.expectations:
        if entry.table == table:
            suite.add_expectation(entry.expectation.copy(deep=True))
    return suite


def _own_outcome(entry: OwnExpectation, result: Any) -> OwnOutcome:
    error = _exception(result.exception_info)
    listed: Iterable[Any] = () if error else result.result.get("unexpected_index_list") or ()
    return OwnOutcome(entry, bool(result.success), tuple(int(item["row"]) for item in listed), error)


def _not_evaluated(result: Any, where: str, error: str) -> str:
    return (
        f"Great Expectations could not evaluate {result.expectation_config.type} for {where}: {error}; "
        "no verdict was published. The tables are kept; report this with the message"
    )


def _unexpected(
    mark: str, result: Any, planned: Mapping[str, tuple[Check, float | None]], frame: pd.DataFrame
) -> list[RowOutcome]:
    raised = _exception(result.exception_info)
    if raised:
        raise ExpectationError(_not_evaluated(result, mark, raised))
    if result.success:
        return []
    check, limit = planned[mark]
    rows = [int(item["row"]) for item in result.result["unexpected_index_list"]]
    if not rows:
        raise ExpectationError(
            f"Great Expectations found {mark} unexpected but named no row; no verdict was published"
        )
    promise = mark.partition("/")[0]
    return [RowOutcome(promise, check, frame.at[row, check.column], limit, row) for row in rows]


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
