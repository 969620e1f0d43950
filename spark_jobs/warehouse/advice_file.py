"""The advice on an interval's subscriptions: one JSON file beside their reports, which reports and alerts read.

It is made behind the verdicts (``spark_jobs.what_if.advice``) and replaced as a whole. Without it, pages say how to compute
it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from dispatch_core.recording.schema import DISPATCHER_KEY
from dispatch_core.report.advice import AdviceShown, not_computed
from spark_jobs.intervals import Interval
from spark_jobs.location import Location
from spark_jobs.warehouse.delta_tables import Place

#: In the folder of the interval's reports.
FILE: Final = "advice.json"
#: (cluster, topic, subscription)
Dispatcher = tuple[str, str, str]


def write_advice(folder: Place, found: Mapping[Dispatcher, AdviceShown]) -> None:
    """Replace the file of an interval."""
    rows = [dict(zip(DISPATCHER_KEY, key, strict=True)) | asdict(shown) for key, shown in found.items()]
    text = json.dumps(rows, ensure_ascii=False, indent=1)
    (Location.of(folder) / FILE).write_bytes(text.encode("utf-8", "backslashreplace"))


def read_advice(folder: Place) -> dict[Dispatcher, AdviceShown]:
    """Read the file of an interval; empty if there is none."""
    path = Location.of(folder) / FILE
    if not path.exists():
        return {}
    rows: list[dict[str, Any]] = json.loads(path.read_text())
    return {
        (row["cluster"], row["topic"], row["subscription"]): AdviceShown(
            row["sentence"], row["effects"], row["command"]
        )
        for row in rows
    }


def remove_advice(folder: Place) -> None:
    """Remove the file of an interval that is judged again."""
    path = Location.of(folder) / FILE
    if path.exists():
        path.delete()


def command_for(warehouse: Place, span: Interval, dispatcher: Dispatcher) -> str:
    """Return the command line that computes the advice for one dispatcher, however long that takes."""
    cluster, topic, subscription = dispatcher
    return shlex.join(
        [
            *("python", "-m", "spark_jobs.what_if.advice", "--warehouse", str(Location.of(warehouse))),
            *("--interval-start", span.start.isoformat(), "--interval-end", span.end.isoformat()),
            # Written as `--name=value`, because a name may begin with a dash.
            *(f"--cluster={cluster}", f"--topic={topic}", f"--subscription={subscription}"),
        ]
    )


def missing(warehouse: Place, span: Interval, dispatcher: Dispatcher) -> AdviceShown:
    """Say that an interval has no advice for a dispatcher."""
    return not_computed(
        "the run that judged the interval did not get to it", command_for(warehouse, span, dispatcher)
    )
