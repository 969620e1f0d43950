"""The user-level log (level E) of a dispatcher trace: what a user could have recorded of the same life.

Lines that only the broker's inside knows go, and so do fields of the others that only a trace has. The rest is numbered
anew, because a hole in ``seq`` means that lines were lost; a hole that was there stays one.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.recording.schema import EVENTS, KINDS

Ints = npt.NDArray[np.int64]

#: What the log says about itself stays; marks of a driver and checksums of the trace do not.
_ABOUT_THE_LOG: Final = ("gap", "checkpoint")
_USER_LEVEL: Final = tuple(name for name, kind in KINDS.items() if kind.level == "E")
_TRACE_ONLY: Final = frozenset(name for kind in KINDS.values() for name in kind.trace_only)
_OPTIONAL_KINDS: Final = ("active_notified", "subscribe_rejected")
_OPTIONAL_FIELDS: Final = ("blocked", "ack_sets")


def user_level(events: pa.Table, *, minimal: bool = False) -> tuple[pa.Table, Ints]:
    """The rows of level E among ``events`` (schema ``EVENTS``, sorted by ``seq``), and which ``seq`` each had.

    ``minimal``: also without the kinds and fields that are optional on level E.

    Lines keep their order. They are numbered from 1 (from 2 where the first lines of the log are missing, so that they
    still are); lines that shared a number share one; where numbers had a hole, one number is left out.
    """
    seq = np.asarray(events["seq"], dtype=np.int64)
    kinds = events["kind"].cast(pa.string())
    wanted = set(_USER_LEVEL) - (set(_OPTIONAL_KINDS) if minimal else set())
    kept = np.asarray(pc.is_in(kinds, value_set=pa.array([*sorted(wanted), *_ABOUT_THE_LOG])))
    gap = np.asarray(pc.equal(kinds, "gap"))
    # a gap line stands for what is missing around it, and a checkpoint for what came before the first line
    missing = np.zeros(len(seq), dtype=np.int64)
    missing[1:] = (np.diff(seq) > 1) & ~gap[1:] & ~gap[:-1]
    if len(seq):
        missing[0] = seq[0] > 1 and kinds[0].as_py() not in _ABOUT_THE_LOG
    rows = np.flatnonzero(kept)
    source = seq[rows]
    step = np.minimum(np.diff(np.cumsum(missing)[rows], prepend=0), 1)
    step += np.diff(source, prepend=source[:1] - 1) > 0
    anew = np.cumsum(step)
    taken = events.filter(pa.array(kept))
    columns: dict[str, Any] = {name: taken[name] for name in EVENTS.names}
    for name in (*_TRACE_ONLY, *(_OPTIONAL_FIELDS if minimal else ())):
        columns[name] = pa.nulls(len(taken), EVENTS.field(name).type)
    columns["seq"] = pa.array(anew, pa.int64())
    at_gap = gap[rows]
    if at_gap.any():
        for name in ("gap_from_seq", "gap_to_seq"):
            columns[name] = pa.array(anew, pa.int64(), mask=~at_gap)
    return pa.table([columns[name] for name in EVENTS.names], schema=EVENTS), source
