"""The fair part of each consumer: what it would have got, had every message been spread over the hash space.

The hash space counts as it was owned at the moment of each message.

The one definition of a consumer's part of the hash space, for the command line and for the pipeline. It is weighted by the
messages sent, not by time: who was alone while there was nothing to send owned much of the space and is owed nothing for
it, and who came late or left early is measured by what was sent while it was there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import ints
from dispatch_core.audit.sentences.names import names_in

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_NO_END: Final = np.iinfo(np.int64).max


def fair_parts(owned: pa.Table, sent: pa.Table, by: Sequence[str]) -> pa.Table:
    """Fair messages of each consumer name, in each group of ``by`` (an incarnation, or many dispatchers at once).

    Args:
        owned: who owned how much and when: ``by``, ``name``, ``consumer`` (its connection), ``from_seq``, ``until_seq``
            (null = to the end) and ``hashes``, the number of hashes.
        sent: what was sent, in any order: ``by``, ``seq``, ``messages``. A row may stand for a stretch of the log in which
            nothing changed hands; ``seq`` is then any line of it.
        by: columns that tell logs apart; seqs of different logs are not compared.

    Returns:
        ``by``, ``name``, ``by_hashes`` and ``by_number``: its messages if all had been spread over the owned hashes, and if
        all connections that were there had got the same. Each column adds up to the messages of the group, or to 0
        where nothing was sent while anything was owned. One row for each name that ever owned anything, in no promised
        order.
    """
    group, sent_group, groups = _groups([owned, sent], by)
    start, until, line = _ranked(
        ints(owned["from_seq"]), ints(owned["until_seq"], _NO_END), ints(sent["seq"])
    )
    ends = max((int(part.max()) for part in (start, until, line) if len(part)), default=0) + 1
    order = np.argsort(sent_group * ends + line, kind="stable")
    at = (sent_group * ends + line)[order]
    messages = ints(sent["messages"]).astype(np.float64)[order]
    first, last = np.searchsorted(at, group * ends + start), np.searchsorted(at, group * ends + until)
    before = np.concatenate([[0.0], np.cumsum(messages)])
    consumers = owned["name"].combine_chunks().dictionary_encode()
    person, part = _pairs(group, np.asarray(consumers.indices, np.int64))
    by_hashes = np.bincount(part, ints(owned["hashes"]) * (before[last] - before[first]), len(person))
    by_number = _by_number(group, ints(owned["consumer"]), part, len(person), first, last, messages)
    total = np.bincount(sent_group, ints(sent["messages"]).astype(np.float64), groups).astype(np.float64)
    whose = np.zeros(len(person), np.int64)
    whose[part] = group
    row = np.zeros(len(person), np.int64)
    row[part] = np.arange(len(group))
    return (
        owned.select([*by, "name"])
        .take(pa.array(row))
        .append_column("by_hashes", pa.array(_scaled(by_hashes.astype(np.float64), whose, total)))
        .append_column("by_number", pa.array(_scaled(by_number, whose, total)))
    )


def _by_number(
    group: Ints, consumer: Ints, part: Ints, parts: int, first: Ints, last: Ints, messages: Floats
) -> Floats:
    """Fair messages of each name, if at every sending all connections that had come and not left got the same."""
    pairs, connection = _pairs(group, consumer)
    came = np.full(len(pairs), len(messages))
    left = np.zeros(len(pairs), np.int64)
    np.minimum.at(came, connection, first)
    np.maximum.at(left, connection, last)
    left = np.maximum(left, came)
    change = np.zeros(len(messages) + 1)
    np.add.at(change, came, 1)
    np.add.at(change, left, -1)
    present = np.maximum(np.cumsum(change)[:-1], 1)
    before = np.concatenate([[0.0], np.cumsum(messages / present)])
    name_of = np.zeros(len(pairs), np.int64)
    name_of[connection] = part
    return np.bincount(name_of, before[left] - before[came], parts).astype(np.float64)


def _scaled(fair: Floats, group: Ints, total: Floats) -> Floats:
    """Parts that add up to the messages of their group: what was sent while nobody owned anything is spread as the rest."""
    whole = np.bincount(group, fair, len(total))
    return np.asarray(fair * np.divide(total, whole, out=np.zeros(len(total)), where=whole > 0)[group])


def _groups(tables: Sequence[pa.Table], by: Sequence[str]) -> tuple[Ints, Ints, int]:
    """The group of each row of two tables, and how many there are."""
    code = np.zeros(sum(map(len, tables)), np.int64)
    for name in by:
        both = pa.chunked_array(
            [chunk for table in tables for chunk in table[name].chunks], tables[0][name].type
        )
        values = both.combine_chunks().dictionary_encode()
        code, _ = _inverse(code * max(len(values.dictionary), 1) + np.asarray(values.indices, np.int64))
    code, count = _inverse(code)
    return code[: len(tables[0])], code[len(tables[0]) :], count


def _inverse(values: Ints) -> tuple[Ints, int]:
    distinct, at = np.unique(values, return_inverse=True)
    return at.astype(np.int64), len(distinct)


def _pairs(group: Ints, value: Ints) -> tuple[Ints, Ints]:
    """The distinct pairs of group and value, and which of them each row is."""
    rank, count = _inverse(value)
    pairs, at = np.unique(group * max(count, 1) + rank, return_inverse=True)
    return pairs, at.astype(np.int64)


def _ranked(*seqs: Ints) -> list[Ints]:
    """Line numbers as ranks among all of them: they may be as large as 64 bits hold."""
    ranks = np.unique(np.concatenate(seqs), return_inverse=True)[1].astype(np.int64)
    return np.split(ranks, np.cumsum([len(part) for part in seqs])[:-1])


def fair_of(deliveries: pa.Table, ownership: pa.Table) -> dict[str, tuple[float, float]]:
    """Name → (``by_hashes``, ``by_number``) of a log in memory, over all its incarnations."""
    hashes = pc.add(pc.subtract(ownership["range_end"], ownership["range_start"]), 1)
    owned = ownership.select(["incarnation", "consumer", "from_seq", "until_seq"])
    owned = owned.append_column("name", names_in(ownership)).append_column("hashes", hashes)
    sent = deliveries.select(["incarnation", "seq"]).append_column("messages", messages_of(deliveries))
    parts: dict[str, tuple[float, float]] = {}
    for row in fair_parts(owned, sent, ["incarnation"]).to_pylist():
        by_hashes, by_number = parts.get(row["name"], (0.0, 0.0))
        parts[row["name"]] = by_hashes + row["by_hashes"], by_number + row["by_number"]
    return parts


def messages_of(deliveries: pa.Table) -> pa.ChunkedArray:
    """The number of messages of each row; an entry that does not say counts as one."""
    return pc.fill_null(deliveries["num_messages"].cast(pa.int64()), 1)
