"""Write the state of the newest judged interval as a Prometheus text file, for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dispatch_core.errors import DispatchAuditError
from dispatch_expectations.interval_state import newest_state
from dispatch_expectations.metrics import Sample, samples
from spark_jobs.location import Location
from spark_jobs.warehouse.delta_tables import Place

#: The collector leaves out files with another ending.
_ENDING: Final = ".prom"


class PrometheusFileError(DispatchAuditError):
    """The file cannot be written."""


def write_newest(path: str, warehouse: Place, outbox: Location, source: str = "") -> None:
    """Write the newest judged interval's metrics; a reader sees the earlier file or the new one. Without one, do nothing.

    ``outbox``: place of the home's outbox, which need not exist. ``source``: value of a label of this name, which all
    metrics get unless it is empty.
    Raises ``PrometheusFileError``; then the earlier file stays.
    """
    if not path.endswith(_ENDING):
        raise PrometheusFileError(
            f"{path}: the file of metrics must end in {_ENDING}, or node_exporter does not read it; nothing was written"
        )
    state = newest_state(warehouse, outbox)
    if state is not None:
        write_samples(Path(path), samples(state), source)


def write_samples(path: Path, found: Iterable[Sample], source: str = "") -> None:
    """Write samples to a file as gauges. Raises ``PrometheusFileError``; then the earlier file stays."""
    from prometheus_client import CollectorRegistry, Gauge, write_to_textfile

    registry = CollectorRegistry()
    gauges: dict[str, Gauge] = {}
    names, values = (("source",), (source,)) if source else ((), ())
    for sample in found:
        metric = sample.metric
        name = metric.prometheus_name
        if name not in gauges:
            gauges[name] = Gauge(name, metric.meaning, (*metric.labels, *names), registry=registry)
        labels = (*sample.labels, *values)
        gauge = gauges[name].labels(*labels) if labels else gauges[name]
        gauge.set(sample.value)
    try:
        write_to_textfile(str(path), registry)
    except OSError as error:
        raise PrometheusFileError(
            f"{path}: the metrics could not be written: {error.strerror or error}; the earlier file stays, and so do the "
            "verdicts. Make the folder, and let the user of this process write there"
        ) from error
