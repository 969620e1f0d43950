"""Moments at the checkpoint that a log begins with: entries already pending on a consumer, or already acknowledged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dispatch_core.audit.deliveries import layout as at
from dispatch_core.audit.sentences.lists import plural, positions_listed
from dispatch_core.explain.moments import CHECKPOINT, Moment
from dispatch_core.explain.record import Record
from dispatch_core.explain.subject import CONSUMER, Subject


def at_checkpoint(record: Record, subject: Subject) -> Iterator[Moment]:
    """Moments at the checkpoint that the log begins with. None without a checkpoint or for a new dispatcher."""
    seed = record.history.checkpoint_state
    if seed is None or seed.of_a_new_dispatcher:
        return
    if subject.kind == CONSUMER:
        yield from _of_consumer(record, subject)
        return
    d = record.deliveries
    before = d[
        np.isin(d[:, at.ENTRY], subject.ordinals)
        & (d[:, at.OPERATION] < record.first_op)
        & (d[:, at.OPERATION] >= record.history.first_op_of_state)
    ]
    for place in np.unique(before[:, at.CONSUMER]).tolist():
        ordinals = sorted(before[before[:, at.CONSUMER] == place, at.ENTRY].tolist())
        positions = record.positions(ordinals)
        it = plural(len(positions), "it", "them")
        sent = f"{record.names[place]} was sent {positions_listed(positions)} before"
        text = f"the log begins: {sent}, and has not acknowledged {it}"
        yield _moment(record, text, place, positions, subject.hash)
    acked = [ordinal for ordinal in subject.ordinals.tolist() if record.history.was_acknowledged(ordinal)]
    if acked:
        positions = record.positions(acked)
        were = plural(len(acked), "was", "were")
        text = f"the log begins: {positions_listed(positions)} {were} acknowledged before"
        yield _moment(record, text, None, positions, subject.hash)


def _of_consumer(record: Record, subject: Subject) -> Iterator[Moment]:
    seed = record.history.checkpoint_state
    assert seed is not None
    pending = seed.checkpoint.pending
    for connection in seed.checkpoint.consumers or ():
        place = record.place_of(connection.number)
        if place not in subject.places:
            continue
        text = f"the log begins: {record.names[place]} is connected"
        known_pending = pending.get(connection.number)
        positions = tuple(f"{ledger}:{entry}" for ledger, entry in known_pending or ())
        if known_pending is None and connection.unacked != 0:
            text += "; what it holds is not known"
        elif positions:
            text += f" and has not acknowledged {positions_listed(positions)}, sent before"
        if connection.unacked is not None and connection.unacked > len(positions):
            text += f" ({connection.unacked} unacknowledged messages in all)"
        if connection.permits is not None:
            text += f"; it may be sent {connection.permits} more messages"
        yield _moment(record, text, place, positions, None)


def _moment(
    record: Record, text: str, place: int | None, positions: tuple[str, ...], sticky_hash: int | None
) -> Moment:
    seed = record.history.checkpoint_state
    assert seed is not None
    return Moment(
        seed.seq,
        seed.t_us,
        CHECKPOINT,
        text,
        consumer=None if place is None else record.number_of(place),
        positions=positions,
        hash=sticky_hash,
    )
