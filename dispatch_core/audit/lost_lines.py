"""Doubt differences from the rules behind lines that are missing.

Behind a gap the replay of the rules goes on from a state that may be wrong. In the interval of the gap its finding
``log_gap`` says so, and differences behind it are no findings. In later intervals of the same load nothing but the reason of
the difference does.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from dispatch_core.arrays.columns import marked, replaced
from dispatch_core.audit.deliveries.findings import DOUBTS, LOG_GAP

_KIND: Final = "divergence"


def with_doubts(anomalies: pa.Table, first_seq: int | None) -> pa.Table:
    """Make the differences behind lost lines uncertain: rows of ``tables.ANOMALIES``.

    ``first_seq``: lines behind this one are missing; ``None`` = none are.
    """
    if first_seq is None or not marked(anomalies["kind"], _KIND).any():
        return anomalies
    names = ("kind", "seqs", "uncertain", "reason", "explanation")
    kinds, seqs, uncertain, reasons, texts = (anomalies[name].to_pylist() for name in names)
    for row, kind in enumerate(kinds):
        if kind == _KIND and not uncertain[row] and seqs[row][-1] > first_seq:
            uncertain[row], reasons[row] = True, LOG_GAP
            texts[row] += DOUBTS[LOG_GAP]
    return replaced(anomalies, {"uncertain": uncertain, "reason": reasons, "explanation": texts})
