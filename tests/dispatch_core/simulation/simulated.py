"""Small simulations for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.simulation.generate import Made, generate
from dispatch_core.simulation.scenario import Scenario

CLASSIC: Final = "subscriptionKeySharedUseClassicPersistentImplementation"
RING: Final = "subscriptionKeySharedUseConsistentHashing"


def small(**wanted: Any) -> Scenario:
    """Make a small load: a few hundred messages in about a second, consumers with short queues."""
    return Scenario(
        **{"messages": 600, "rate": 1000, "keys": 40, "consumers": 4, "queue": 40, "seed": 5, **wanted}
    )


def logs(folder: Path) -> list[DispatcherLog]:
    """Read a folder; no line may be quarantined."""
    found = []
    for source in find_recordings([str(folder)]):
        recording = read_recording(source)
        assert recording.quarantine.num_rows == 0, recording.quarantine.to_pylist()[:3]
        found += recording.logs
    return found


def simulated(folder: Path, form: str = "parquet", **wanted: Any) -> DispatcherLog:
    """Return the log of one simulated dispatcher."""
    list(generate(small(**wanted), folder, form=form))
    (log,) = logs(folder)
    return log


def made(folder: Path, **wanted: Any) -> Made:
    """Return the generator's summary."""
    (dispatcher,) = generate(small(**wanted), folder)
    return dispatcher
