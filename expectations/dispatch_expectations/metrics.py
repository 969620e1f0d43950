"""The metrics of the audit: names, units and labels, and their values for one interval. Sends and writes nothing.

``dispatch_airflow.observability.metrics`` sends them through Airflow (StatsD, OpenTelemetry), ``prometheus_file`` writes
them to a file. ``docs/observe.md`` has the same table for people.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

from dispatch_core.audit.catalogue import KINDS
from dispatch_core.audit.promises.promise import SEVERITY
from dispatch_expectations.frames import Dispatcher

#: Subscriptions that are named at most: each is a time series of its own.
NAMED_AT_MOST: Final = 100
PREFIX: Final = "dispatch_audit."


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. ``name``: without the prefix. ``unit``: of its values. ``labels``: names of its labels, in order.

    ``kind``: a gauge is set, a counter is added to. ``only_in_file``: not sent through Airflow.
    """

    name: str
    unit: str
    meaning: str
    labels: tuple[str, ...] = ()
    kind: Literal["gauge", "counter"] = "gauge"
    only_in_file: bool = False

    @property
    def full_name(self) -> str:
        """Name in StatsD and OpenTelemetry, behind Airflow's own prefix."""
        return PREFIX + self.name

    @property
    def prometheus_name(self) -> str:
        """Name in the Prometheus text file."""
        return self.full_name.replace(".", "_")


VERDICTS: Final = Metric(
    "verdicts", "subscriptions", "Subscriptions of the interval, by their verdict", ("verdict",)
)
FINDINGS: Final = Metric(
    "findings",
    "findings",
    "Rows of the table anomalies of the interval, tolerated ones included, by kind and certainty",
    ("kind", "certainty"),
)
MESSAGES: Final = Metric("messages", "entries", "Rows of the table messages of the interval")
LAG: Final = Metric("lag_seconds", "seconds", "Time from the end of the interval to its verdict")
STAGE: Final = Metric("stage_seconds", "seconds", "Duration of the newest run of a stage", ("stage",))
ALERTS_SENT: Final = Metric(
    "alerts_sent",
    "messages",
    "Alerts sent: added up by Airflow's metrics, those of the interval in the file",
    ("channel",),
    "counter",
)
ALERTS_WAITING: Final = Metric(
    "alerts_waiting", "messages", "Intervals and messages that a channel has not accepted yet", ("channel",)
)
INTERVAL_START: Final = Metric(
    "interval_start_timestamp_seconds", "seconds since 1970", "Start of the interval", only_in_file=True
)
INTERVAL_END: Final = Metric(
    "interval_end_timestamp_seconds", "seconds since 1970", "End of the interval", only_in_file=True
)
JUDGED: Final = Metric(
    "judged_timestamp_seconds", "seconds since 1970", "Time of the interval's verdict", only_in_file=True
)
NOT_PASS: Final = Metric(
    "not_pass",
    "1",
    f"A subscription whose verdict is not PASS; at most {NAMED_AT_MOST}, FAIL first",
    ("cluster", "topic", "subscription", "verdict"),
    only_in_file=True,
)
NOT_PASS_LEFT_OUT: Final = Metric(
    "not_pass_left_out",
    "subscriptions",
    f"Subscriptions that are not PASS beyond the {NAMED_AT_MOST} that are named",
    only_in_file=True,
)
METRICS: Final = (
    *(VERDICTS, FINDINGS, MESSAGES, LAG, STAGE, ALERTS_SENT, ALERTS_WAITING),
    *(INTERVAL_START, INTERVAL_END, JUDGED, NOT_PASS, NOT_PASS_LEFT_OUT),
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric, with the values of its labels."""

    metric: Metric
    value: float
    labels: tuple[str, ...] = ()

    @property
    def tags(self) -> dict[str, str]:
        """The labels by name."""
        return dict(zip(self.metric.labels, self.labels, strict=True))


@dataclass(frozen=True, slots=True)
class IntervalState:
    """The results of one judged interval, as far as metrics show them.

    ``verdicts``: overall verdict by dispatcher. ``findings``: number by kind and whether they are certain. ``messages``:
    entries that were stored. ``stage_seconds``: by stage. ``alerts_sent``: messages by channel. ``alerts_waiting``: what
    waits in the outbox by channel, of any interval.
    """

    start: datetime
    end: datetime
    judged_at: datetime
    verdicts: Mapping[Dispatcher, str]
    findings: Mapping[tuple[str, bool], int] = field(default_factory=dict)
    messages: int = 0
    stage_seconds: Mapping[str, float] = field(default_factory=dict)
    alerts_sent: Mapping[str, int] = field(default_factory=dict)
    alerts_waiting: Mapping[str, int] = field(default_factory=dict)


def samples(state: IntervalState) -> Iterator[Sample]:
    """Yield all samples of an interval: those of one metric together, in the order of ``METRICS``."""
    verdicts = list(state.verdicts.values())
    for verdict in SEVERITY:
        yield Sample(VERDICTS, verdicts.count(verdict), (verdict,))
    # Kinds that were not found, too: a server keeps the last value of a gauge.
    for kind in dict.fromkeys([*KINDS, *sorted(kind for kind, _is_certain in state.findings)]):
        for is_certain, certainty in ((True, "certain"), (False, "uncertain")):
            yield Sample(FINDINGS, state.findings.get((kind, is_certain), 0), (kind, certainty))
    yield Sample(MESSAGES, state.messages)
    yield Sample(LAG, (state.judged_at - state.end).total_seconds())
    for metric, values in (
        (STAGE, state.stage_seconds),
        (ALERTS_SENT, state.alerts_sent),
        (ALERTS_WAITING, state.alerts_waiting),
    ):
        for label, value in sorted(values.items()):
            yield Sample(metric, value, (label,))
    yield Sample(INTERVAL_START, state.start.timestamp())
    yield Sample(INTERVAL_END, state.end.timestamp())
    yield Sample(JUDGED, state.judged_at.timestamp())
    not_pass = sorted(
        ((dispatcher, verdict) for dispatcher, verdict in state.verdicts.items() if verdict != SEVERITY[0]),
        key=lambda pair: (-SEVERITY.index(pair[1]), pair[0]),
    )
    for dispatcher, verdict in not_pass[:NAMED_AT_MOST]:
        yield Sample(NOT_PASS, 1, (*dispatcher, verdict))
    yield Sample(NOT_PASS_LEFT_OUT, max(0, len(not_pass) - NAMED_AT_MOST))
