"""Join the result tables of the parts of a log that resumes behind lost lines (``recording.resumed_parts``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from dispatch_core.recording.log import DispatcherLog

#: Counts of ``dispatcher_state`` that parts add up to; all else is as the last part leaves it.
_SUMS: Final = (
    "events",
    "entries_sent",
    "rounds",
    "decisions",
    "exact",
    "uncertain",
    "divergent",
)


def joined(
    parts: Sequence[DispatcherLog], found: Sequence[dict[str, pa.Table]], start_us: int
) -> dict[str, pa.Table]:
    """Return the result tables of all parts as those of one log; ``start_us``: start of the interval."""
    tables = {
        name: pa.concat_tables([part[name] for part in found])
        for name in found[0]
        if name not in ("ownership", "dispatcher_state")
    }
    tables["ownership"] = _ownership(parts, [part["ownership"] for part in found], start_us)
    tables["dispatcher_state"] = _state([part["dispatcher_state"] for part in found])
    return tables


def _ownership(parts: Sequence[DispatcherLog], found: Sequence[pa.Table], start_us: int) -> pa.Table:
    """End the open spans of each part where the next part begins, and number the epochs through."""
    rows: list[dict[str, Any]] = []
    epoch = 0
    for number, table in enumerate(found):
        following = parts[number + 1].events.slice(0, 1).to_pylist() if number + 1 < len(parts) else []
        for row in table.to_pylist():
            row["epoch"] += epoch
            if following and row["until_seq"] is None:
                row |= {"until_seq": following[0]["seq"], "until_t_us": following[0]["t_us"]}
                if row["until_t_us"] < start_us:
                    continue
            rows.append(row)
        epoch = max([epoch, *(row["epoch"] for row in rows)])
    return pa.Table.from_pylist(rows, schema=found[0].schema)


def _state(found: Sequence[pa.Table]) -> pa.Table:
    rows = [row for table in found for row in table.to_pylist()]
    state = rows[-1] | {name: sum(row[name] for row in rows) for name in _SUMS}
    reasons = [row["not_judged_reason"] for row in rows if row["not_judged_reason"]]
    return pa.Table.from_pylist(
        [state | {"not_judged_reason": next(iter(reasons), None)}], schema=found[0].schema
    )
