"""What the sentences of findings speak of: the deliveries and lines that some findings touch, looked up all at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.audit.deliveries.layout import BEFORE_OF_ENTRY, CONSUMER, ENTRY, OPERATION
from dispatch_core.audit.deliveries.window import History


class Sent(NamedTuple):
    """One delivery. ``before``: the delivery of its entry before it, -1 = none; ``hash`` -1 = none."""

    ordinal: int
    position: str
    key: str | None
    key_b64: bool
    hash: int
    consumer: int
    op: int
    before: int


class Line(NamedTuple):
    """One line of the log. ``at``: its time for people; ``consumer`` -1 = none."""

    seq: int
    t_us: int
    at: str
    consumer: int


def sent_of(history: History, state: npt.NDArray[np.int32], found: npt.NDArray[np.int32]) -> dict[int, Sent]:
    """The deliveries that ``found`` (``kernel.take``) names, and those of the same entries just before; by number."""
    numbers = _distinct(found[:, 0], found[:, 2], state[found[:, 0], BEFORE_OF_ENTRY])
    rows = state[numbers]
    ordinal = rows[:, ENTRY]
    keys = history.entry_key[ordinal]
    return dict(
        zip(
            numbers.tolist(),
            map(
                Sent,
                ordinal.tolist(),
                _positions(history, ordinal),
                history.keys.texts.take(pa.array(keys, mask=keys < 0)).to_pylist(),
                np.append(history.keys.base64, False)[keys].tolist(),  # -1 = no key: the last
                history.entry_hash[ordinal].tolist(),
                rows[:, CONSUMER].tolist(),
                rows[:, OPERATION].tolist(),
                rows[:, BEFORE_OF_ENTRY].tolist(),
            ),
            strict=True,
        )
    )


def lines_of(history: History, sent: dict[int, Sent], found: npt.NDArray[np.int32]) -> dict[int, Line]:
    """The lines of these deliveries, and those that ``found`` names; by number of the operation."""
    numbers = _distinct(np.fromiter((s.op for s in sent.values()), np.int32, len(sent)), found[:, 3])
    t_us = history.op_t_us[numbers].tolist()
    return dict(
        zip(
            numbers.tolist(),
            map(
                Line,
                history.op_seq[numbers].tolist(),
                t_us,
                map(history.when, numbers.tolist()),
                history.op_consumer[numbers].tolist(),
            ),
            strict=True,
        )
    )


def _distinct(*numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """All numbers once, without the absent (-1)."""
    distinct = np.unique(np.concatenate(numbers))
    return distinct[distinct >= 0]


def _positions(history: History, ordinal: npt.NDArray[Any]) -> list[str]:
    ledgers, entries = history.ledger[ordinal].tolist(), history.entry[ordinal].tolist()
    return [f"{ledger}:{entry}" for ledger, entry in zip(ledgers, entries, strict=True)]
