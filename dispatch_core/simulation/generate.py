"""Simulate dispatchers and write their recordings (``dispatch-audit generate``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from dispatch_core.broker.profiles import Profile
from dispatch_core.recording.writer import RecordingFiles
from dispatch_core.simulation.failover_run import FailoverRun
from dispatch_core.simulation.key_shared_run import KeySharedRun, core_of
from dispatch_core.simulation.scenario import CLUSTER, SUBSCRIPTION, Scenario
from dispatch_core.simulation.shared_run import SharedRun
from dispatch_core.simulation.sink import FileSink
from dispatch_core.simulation.synthetic import Common, common, given_by
from dispatch_core.simulation.tables import Log, schema_of

if TYPE_CHECKING:
    from pathlib import Path

_FIRST_LEDGER: Final = 10
_SELECTORS: Final = {
    "STICKY": "HashRangeExclusiveStickyKeyConsumerSelector",
    "ring": "ConsistentHashingStickyKeyConsumerSelector",
    "range": "HashRangeAutoSplitStickyKeyConsumerSelector",
}


@dataclass(frozen=True, slots=True)
class Made:
    """A simulated dispatcher. ``unacknowledged``: entries that were not acknowledged at the end."""

    topic: str
    messages: int
    lines: int
    unacknowledged: int


def generate(
    scenario: Scenario, out: Path, *, form: str = "parquet", dispatchers_per_file: int = 1
) -> Iterator[Made]:
    """Simulate every dispatcher and write its recording below ``out``; yields each dispatcher when it is done.

    Each ``dispatchers_per_file`` dispatchers share a folder. Raises what ``KeySharedRun`` raises.
    """
    _check_rules(scenario)
    shared = common(scenario)
    for first in range(0, scenario.dispatchers, dispatchers_per_file):
        in_folder = range(first, min(first + dispatchers_per_file, scenario.dispatchers))
        files = RecordingFiles(
            out / f"dispatcher-{first:05d}",
            form,
            schema_of("messages", trace=scenario.trace),
            schema_of("events", trace=scenario.trace),
            cluster=CLUSTER,
            trace=scenario.trace,
            many=dispatchers_per_file > 1,
        )
        for dispatcher in in_folder:
            yield _simulate(scenario, dispatcher, shared, files)
        files.close()


def _check_rules(scenario: Scenario) -> None:
    """Raise the dispatchers' errors about their rules before anything is written."""
    for dispatcher in (0, scenario.dispatchers - 1):
        profile = scenario.profile_of(dispatcher)
        nothing = np.zeros(0, np.int64)
        if not (scenario.is_failover or scenario.is_shared):
            core_of(profile)(profile, nothing, nothing, 1)


def _simulate(scenario: Scenario, dispatcher: int, shared: Common, files: RecordingFiles) -> Made:
    profile = scenario.profile_of(dispatcher)
    log = Log(
        topic=scenario.topic_of(dispatcher),
        header=header_of(scenario, dispatcher, profile),
        first_ledger=_FIRST_LEDGER + dispatcher,
        ledger_step=max(scenario.dispatchers, 3),
        mode=scenario.key_shared_mode,
        allow_out_of_order=scenario.allow_out_of_order,
        selector=_selector(scenario, profile),
        trace=scenario.trace,
        shows_hashes=not (scenario.is_failover or scenario.is_shared),
    )
    run_type = FailoverRun if scenario.is_failover else SharedRun if scenario.is_shared else KeySharedRun
    left = run_type(given_by(scenario, dispatcher, shared), FileSink(log, shared.keys, files)).run()
    return Made(log.topic, scenario.messages_of(dispatcher), log.seq, left)


def _selector(scenario: Scenario, profile: Profile) -> str:
    if scenario.key_shared_mode == "STICKY":
        return _SELECTORS["STICKY"]
    return _SELECTORS["ring" if profile.consistent_hashing else "range"]


def header_of(scenario: Scenario, dispatcher: int, profile: Profile) -> dict[str, Any]:
    """Return the header of a dispatcher's log."""
    return {
        "format": "pulsar-dispatch-trace" if scenario.trace else "pulsar-consumer-events",
        "format_version": "1.0",
        "broker_version": scenario.broker_version,
        "scenario": f"generated-{scenario.churn}",
        "cluster": CLUSTER,
        "topic": scenario.topic_of(dispatcher),
        "subscription": SUBSCRIPTION,
        "subscription_type": scenario.subscription_type,
        "partition_index": scenario.partition_of(dispatcher),
        "seed": scenario.seed,
        "config": {**profile.settings, **scenario.settings},
    }
