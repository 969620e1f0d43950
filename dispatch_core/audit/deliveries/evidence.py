"""Look up the deliveries and lines that the sentences of findings name, for many findings at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dispatch_core.audit.deliveries.layout import BEFORE_OF_ENTRY, CONSUMER, ENTRY, OPERATION
from dispatch_core.audit.deliveries.window import LogWindow


class Sent(NamedTuple):
    """One delivery. ``before``: the earlier delivery of its entry, -1 = none; ``hash`` -1 = none."""

    ordinal: int
    position: str
    key: str | None
    key_b64: bool
    hash: int
    consumer: int
    op: int
    before: int


class Line(NamedTuple):
    """One line of the log. ``at``: its time as text; ``consumer``: index of the connection, -1 = none."""

    seq: int
    t_us: int
    at: str
    consumer: int


def sent_of(window: LogWindow, state: npt.NDArray[np.int32], found: npt.NDArray[np.int32]) -> dict[int, Sent]:
    """Return by number the deliveries that ``found`` (``kernel.take``) names, and the earlier ones of the same entries."""
    numbers = _distinct(found[:, 0], found[:, 2], state[found[:, 0], BEFORE_OF_ENTRY])
    rows = state[numbers]
    ordinal = rows[:, ENTRY]
    keys = window.entry_key[ordinal]
    return dict(
        zip(
            numbers.tolist(),
            map(
                Sent,
                ordinal.tolist(),
                _positions(window, ordinal),
                window.keys.texts.take(pa.array(keys, mask=keys < 0)).to_pylist(),
                np.append(window.keys.base64, False)[keys].tolist(),  # -1 = no key: the last
                window.entry_hash[ordinal].tolist(),
                rows[:, CONSUMER].tolist(),
                rows[:, OPERATION].tolist(),
                rows[:, BEFORE_OF_ENTRY].tolist(),
            ),
            strict=True,
        )
    )


def lines_of(window: LogWindow, sent: dict[int, Sent], found: npt.NDArray[np.int32]) -> dict[int, Line]:
    """Return by operation number the lines of these deliveries, and the lines that ``found`` names."""
    numbers = _distinct(np.fromiter((s.op for s in sent.values()), np.int32, len(sent)), found[:, 3])
    t_us = window.op_t_us[numbers].tolist()
    return dict(
        zip(
            numbers.tolist(),
            map(
                Line,
                window.op_seq[numbers].tolist(),
                t_us,
                map(window.when, numbers.tolist()),
                window.op_consumer[numbers].tolist(),
            ),
            strict=True,
        )
    )


def _distinct(*numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Return the numbers in order, each once, without -1."""
    distinct = np.unique(np.concatenate(numbers))
    return distinct[distinct >= 0]


def _positions(window: LogWindow, ordinal: npt.NDArray[Any]) -> list[str]:
    ledgers, entries = window.ledger[ordinal].tolist(), window.entry[ordinal].tolist()
    return [f"{ledger}:{entry}" for ledger, entry in zip(ledgers, entries, strict=True)]
