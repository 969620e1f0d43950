"""Report the data sets of tasks, and the verdicts on them, to OpenLineage.

Airflow's provider (``apache-airflow-providers-openlineage``, extra ``openlineage``) reports that tasks start and end.
It does not know what a ``@task`` function reads and writes. So each stage here emits an event of the same run with its
data sets, through the provider and its transport. Without the package, or while it has no transport, nothing happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from dispatch_airflow.home import Home
from dispatch_airflow.observability import never_fails

if TYPE_CHECKING:
    from openlineage.client.event_v2 import Dataset

    from dispatch_expectations.verdict import Verdict

_LOG: Final = ("messages", "consumer_events")
_REPLAYED: Final = (
    *("deliveries", "ownership", "blocked", "divergences", "dispatcher_state", "anomalies"),
    *("balance", "waits", "key_totals"),
)
#: Tables that a stage reads and writes.
TABLES: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "ingest": ((), (*_LOG, "quarantine")),
    "replay": (_LOG, _REPLAYED),
    "aggregates": (("balance", "key_totals"), ("rolling_balance", "anomalies")),
    "validate": (
        ("anomalies", "waits", "divergences", "dispatcher_state", "balance", "rolling_balance", "quarantine"),
        ("verdicts",),
    ),
}
#: The table that holds the evidence on a promise; its data-quality facet has the promise.
TABLE_OF_PROMISE: Final[Mapping[str, str]] = {
    "per_key_order": "anomalies",
    "duplicate_delivery": "anomalies",
    "completeness": "waits",
    "conformance": "divergences",
    "balance": "balance",
    "input_quality": "quarantine",
    # The user's own expectations are about several tables; this one stands for them.
    "custom": "anomalies",
}


@never_fails
def pulled(source: str, home: Home) -> None:
    """Report a pull: from the source into the landing."""
    if not _is_active():
        return
    _emit([_dataset(source)], [_dataset(str(home.landing))])


@never_fails
def ran(stage: str, home: Home) -> None:
    """Report the tables that a stage has read and written. ``stage``: a key of ``TABLES``."""
    if not _is_active():
        return
    reads, writes = TABLES[stage]
    inputs = [_dataset(str(home.landing))] if stage == "ingest" else []
    _emit([*inputs, *_tables(reads, home)], _tables(writes, home))


@never_fails
def validated(verdicts: Sequence[Verdict], home: Home) -> None:
    """Report the verdicts of an interval: an assertion per promise, on the table that has its evidence."""
    if not _is_active():
        return
    from openlineage.client.event_v2 import InputDataset
    from openlineage.client.facet_v2 import data_quality_assertions_dataset as quality

    by_table: dict[str, list[quality.Assertion]] = {}
    for values in assertions(verdicts):
        table = TABLE_OF_PROMISE[values["assertion"]]
        by_table.setdefault(table, []).append(quality.Assertion(**values))
    reads, writes = TABLES["validate"]
    inputs = []
    for table, dataset in zip(reads, _tables(reads, home), strict=True):
        facets = {}
        if table in by_table:
            facets["dataQualityAssertions"] = quality.DataQualityAssertionsDatasetFacet(by_table[table])
        inputs.append(InputDataset(dataset.namespace, dataset.name, inputFacets=facets))
    _emit(inputs, _tables(writes, home))


def assertions(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Return a data-quality assertion per promise, over all subscriptions of the interval.

    It has succeeded if every subscription is PASS. ``severity``: ``error`` if some subscription is FAIL, else ``warn``, for
    then the log does not settle it. ``actual``: the number of subscriptions by verdict.
    """
    from dispatch_core.audit.promises.promise import FAIL, PASS, SEVERITY, worst
    from dispatch_expectations.promise import ALL
    from dispatch_expectations.suites import BY_NAME

    by_promise: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.promise != ALL:
            by_promise.setdefault(verdict.promise, []).append(verdict.verdict)
    return [
        {
            "assertion": promise,
            "success": worst(found) == PASS,
            "severity": "error" if FAIL in found else "warn",
            "name": promise,
            "description": BY_NAME[promise].kept,
            "expected": PASS,
            "actual": ", ".join(f"{found.count(name)} {name}" for name in SEVERITY if name in found),
        }
        for promise, found in by_promise.items()
    ]


def dataset_name(place: str) -> tuple[str, str]:
    """Return namespace and name of a folder, as OpenLineage names data sets of files.

    A connection in the URL, as Airflow's object storage reads it, is left out.

    >>> dataset_name("/srv/audit/warehouse/verdicts"), dataset_name("s3://store@logs/2026/november/")
    (('file', '/srv/audit/warehouse/verdicts'), ('s3://logs', '2026/november'))
    """
    scheme, host, path, _query, _fragment = urlsplit(place) if "://" in place else ("file", "", place, "", "")
    if scheme == "file":
        return "file", path.rstrip("/") or "/"
    return f"{scheme}://{host.rpartition('@')[2]}", path.strip("/") or "/"


def _tables(names: Iterable[str], home: Home) -> list[Dataset]:
    return [_dataset(str(home.warehouse / name)) for name in names]


def _dataset(place: str) -> Dataset:
    from openlineage.client.event_v2 import Dataset

    return Dataset(*dataset_name(place))


def _is_active() -> bool:
    """Tell if the provider is installed and has a transport."""
    try:
        from airflow.providers.openlineage.api import is_openlineage_active
    except ImportError:
        return False
    return bool(is_openlineage_active())


def _emit(inputs: Sequence[Dataset], outputs: Sequence[Dataset]) -> None:
    from airflow.providers.openlineage.api import emit_dataset_lineage

    emit_dataset_lineage(inputs=list(inputs), outputs=list(outputs))
