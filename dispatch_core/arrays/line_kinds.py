"""Find the lines of some kinds in a table of events.

A replay asks for lines of one kind some fifty times, and most logs have none of them. The kinds of a table are looked up
once, and kept for as long as the table is.
"""

from __future__ import annotations

import weakref
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.arrays.columns import Mask, encoded, marked, valid

#: Of larger tables nothing is kept: there the lookup takes little beside all else.
_MOST_ROWS: Final = 65_536
#: Of so few rows Python finds the different codes faster than numpy.
_FEW_ROWS: Final = 200


class _Kinds(NamedTuple):
    """The kinds of the lines of a table: the codes of those it has by name, and the code of each row; -1 = it has none."""

    table: weakref.ref[pa.Table]
    code_of: dict[str, int]
    codes: npt.NDArray[Any]


_KNOWN: Final[dict[int, _Kinds]] = {}


def of_kinds(events: pa.Table, *wanted: str) -> Mask:
    """Return a mask of the lines whose ``kind`` is one of ``wanted``.

    >>> of_kinds(pa.table({"kind": ["sent", "ack", None]}), "ack", "nack").tolist()
    [False, True, False]
    """
    if events.num_rows > _MOST_ROWS:
        return marked(events["kind"], *wanted)
    known = _kinds(events)
    codes = [known.code_of[kind] for kind in wanted if kind in known.code_of]
    if not codes:
        return np.zeros(events.num_rows, dtype=np.bool_)
    found: Mask = known.codes == codes[0]
    for code in codes[1:]:
        found |= known.codes == code
    return found


def has_kind(events: pa.Table, *wanted: str) -> bool:
    """Check whether there is a line of one of these kinds."""
    if events.num_rows > _MOST_ROWS:
        return bool(marked(events["kind"], *wanted).any())
    return not _kinds(events).code_of.keys().isdisjoint(wanted)


def rows_of_kind(events: pa.Table, *wanted: str) -> npt.NDArray[np.intp]:
    """Return the rows of the lines of these kinds."""
    if not has_kind(events, *wanted):
        return np.empty(0, np.intp)
    return of_kinds(events, *wanted).nonzero()[0]


def _kinds(events: pa.Table) -> _Kinds:
    key = id(events)
    known = _KNOWN.get(key)
    if known is None or known.table() is not events:
        column = events["kind"]
        codes, words = encoded(column)
        names = words.to_pylist()
        code_of = {name: code for code, name in enumerate(names)}
        if len(code_of) < len(names):  # a word stands twice in the dictionary
            codes = np.array([code_of[name] for name in names])[codes]
        if column.null_count:
            codes = np.where(valid(column), codes, -1)
        # Slices of a table share its words, so most have words that none of their rows has.
        there = set(codes.tolist()) if len(codes) < _FEW_ROWS else set(np.unique(codes).tolist())
        code_of = {name: code for name, code in code_of.items() if code in there}

        def forget(_table: weakref.ref[pa.Table]) -> None:
            _KNOWN.pop(key, None)

        table = weakref.ref(events, forget)
        known = _KNOWN[key] = _Kinds(table, code_of, codes)
    return known
