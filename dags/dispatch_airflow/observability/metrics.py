"""Send metrics through Airflow, to StatsD or OpenTelemetry as it is configured, and write the Prometheus text file.

``dispatch_expectations.metrics`` defines names and values; nothing else sends them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from dispatch_airflow.home import Home, progress
from dispatch_airflow.observability import never_fails
from dispatch_airflow.sources import source_name

if TYPE_CHECKING:
    from dispatch_expectations.metrics import Sample

#: Path of the Prometheus text file on the machine of the tasks.
PROMETHEUS_FILE_VARIABLE: Final = "DISPATCH_AUDIT_PROMETHEUS_FILE"
#: Metrics that are sent with a verdict; stages and alerts send theirs when they end.
_OF_INTERVAL: Final = ("verdicts", "findings", "messages", "lag_seconds")


@never_fails
def judged(chosen: Mapping[str, str], home: Home) -> None:
    """Send the metrics of an interval that was just judged, if it is the newest one, and write the file.

    Nothing is told of an ad-hoc source: its numbers would stand in the place of the schedule's.
    """
    write_file(home)
    source = source_name(home.namespace)
    if source is None or not _is_on():
        return
    from dispatch_expectations.interval_state import newest_state
    from dispatch_expectations.metrics import LAG, samples
    from spark_jobs.intervals import parse_moment

    state = newest_state(home.warehouse)
    if state is None or state.start != parse_moment(chosen["interval_start"]):
        progress.info("metrics: not sent, because a later interval has verdicts; its metrics stay")
        return
    ours = [sample for sample in samples(state) if sample.metric.name in _OF_INTERVAL]
    _send(ours, source)
    lag_s = next(sample.value for sample in ours if sample.metric is LAG)
    progress.info("metrics: %d values sent, verdict %.0f s after the interval's end", len(ours), lag_s)


@never_fails
def alerted(channel: str, *, sent: int, waiting: int) -> None:
    """Send the number of alerts that a channel accepted, and of those that wait for the next attempt."""
    if not _is_on():
        return
    from dispatch_expectations.metrics import ALERTS_SENT, ALERTS_WAITING, Sample

    _send([Sample(ALERTS_SENT, sent, (channel,)), Sample(ALERTS_WAITING, waiting, (channel,))])


@contextmanager
def timed(stage: str) -> Iterator[None]:
    """Send the duration of a stage that ends without an error."""
    began = time.monotonic()
    yield
    stage_ended(stage, time.monotonic() - began)


@never_fails
def stage_ended(stage: str, seconds: float) -> None:
    """Send the duration of a stage. ``stage``: ``replay group 2`` counts as ``replay group``."""
    if not _is_on():
        return
    from dispatch_expectations.metrics import STAGE, Sample

    _send([Sample(STAGE, round(seconds, 3), (stage.rstrip("0123456789").strip(),))])


def sent_name(sample: Sample, *, with_tags: bool, source: str = "") -> str:
    """Name a sample for a backend: one that has no tags needs the labels' values in the name, and the source's.

    >>> from dispatch_expectations.metrics import FINDINGS, Sample
    >>> found = Sample(FINDINGS, 3, ("split_key", "certain"))
    >>> sent_name(found, with_tags=True), sent_name(found, with_tags=False)
    ('dispatch_audit.findings', 'dispatch_audit.findings.split_key.certain')
    >>> sent_name(found, with_tags=False, source="orders")
    'dispatch_audit.orders.findings.split_key.certain'
    """
    from airflow.sdk.observability.stats import normalize_name_for_stats

    words = () if with_tags else sample.labels
    name = sample.metric.full_name
    return ".".join(
        [
            name if with_tags or not source else name.replace(".", f".{source}.", 1),
            *(normalize_name_for_stats(word, log_warning=False).replace(".", "_") for word in words),
        ]
    )


def _send(found: Iterable[Sample], source: str = "") -> None:
    from airflow.sdk.observability import stats

    with_tags = _has_tags()
    for sample in found:
        name = sent_name(sample, with_tags=with_tags, source=source)
        tags = sample.tags | ({"source": source} if source else {}) if with_tags else None
        if sample.metric.kind == "counter":
            stats.incr(name, int(sample.value), tags=tags)
        else:
            stats.gauge(name, sample.value, tags=tags)


def _is_on() -> bool:
    """Tell if Airflow sends metrics anywhere."""
    return any(_option(name) for name in ("statsd_datadog_enabled", "statsd_on", "otel_on"))


def _has_tags() -> bool:
    """Tell if the backend that Airflow uses has tags: StatsD has none, unless in the form of Datadog or InfluxDB."""
    return _option("statsd_datadog_enabled") or _option("statsd_influxdb_enabled") or not _option("statsd_on")


def _option(name: str) -> bool:
    """Read a switch of Airflow's section ``metrics``."""
    from airflow.sdk import conf

    return bool(conf.getboolean("metrics", name, fallback=False))


@never_fails
def write_file(home: Home) -> None:
    """Write the Prometheus text file of the newest judged interval, if the environment names a path for it.

    Another source than the one without a name has a file beside it: ``audit.prom``, ``audit-orders.prom``.
    """
    path = os.environ.get(PROMETHEUS_FILE_VARIABLE)
    source = source_name(home.namespace)
    if not path or source is None:
        return
    from dispatch_expectations.prometheus_file import write_newest

    stem, ending = os.path.splitext(path)  # noqa: PTH122 - stays a text
    write_newest(f"{stem}-{source}{ending}" if source else path, home.warehouse, home.outbox, source)
