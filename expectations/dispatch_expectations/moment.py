"""The moment as of which an interval was judged: part of the reason of its verdicts, and of what clears an alert.

Where logs are known to go on behind the interval, the moment is its end, and no reason names it. Otherwise it is the last
line of each log (``spark_jobs.replay.as_of``): what went on there is not finished, so its absence clears no alert.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.catalogue import COMPLETENESS
from dispatch_core.times import date_and_clock
from dispatch_expectations.promise import ALL
from dispatch_expectations.table_rows import read_batches, whole_dataset
from spark_jobs.replay.as_of import INTERVAL_END, LAST_LINE
from spark_jobs.warehouse.delta_tables import Place

#: Begins what a reason says about the moment.
AS_OF: Final = "; as of "
#: Promises whose reason names the moment.
NAMED_BY: Final = (ALL, COMPLETENESS)


def judged_as_of(warehouse: Place, interval_start: datetime) -> str:
    """Return how the newest replay of an interval chose its moment, as its summary names it."""
    start = pa.scalar(interval_start, pa.timestamp("us", tz="UTC"))
    replays = (pc.field("stage") == "replay") & (pc.field("interval_start") == start)
    metadata = whole_dataset(warehouse, "run_metadata")
    runs = [
        (run["finished_at"], run["summary_json"])
        for batch in read_batches(metadata, ["finished_at", "summary_json"], replays)
        for run in batch.to_pylist()
    ]
    if not runs:
        return INTERVAL_END
    moment: str = json.loads(max(runs)[1]).get("as_of", INTERVAL_END)
    return moment


def moment_in_reason(judged: str, last_us: int | None) -> str:
    """Return what the reasons of a dispatcher's verdicts say about the moment; "" for the interval's end.

    >>> moment_in_reason(LAST_LINE, 1795249461936412)
    '; as of 2026-11-21 08:24:21.936, where the log ends'

    Args:
        judged: see ``judged_as_of``.
        last_us: time of the dispatcher's last line, microseconds since the epoch.
    """
    if judged == INTERVAL_END or (judged == LAST_LINE and last_us is None):
        return ""
    if judged != LAST_LINE:
        return f"{AS_OF}{date_and_clock(int(judged))}"
    return f"{AS_OF}{date_and_clock(last_us or 0)}, where the log ends"


def without_moment(reason: str) -> str:
    """Return a reason without what it says about the moment.

    >>> without_moment("every promise was kept; as of 2026-11-21 08:24:21.936, where the log ends")
    'every promise was kept'
    """
    return reason.partition(AS_OF)[0]
