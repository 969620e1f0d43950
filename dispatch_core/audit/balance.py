"""Balance of a subscription: the table ``balance``, and consumers and keys that carry too much.

A consumer's fair share is what it would have got if every message sent had been spread over the hash space (or over the
consumers) as it was owned at that moment (``hash_share``). So a consumer that joined late or stayed briefly is not blamed
for it. All is judged from the sums that a replay gathers (``key_totals``), which take the same room for any log.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import Ints, Mask, ints, valid
from dispatch_core.audit.catalogue import KINDS
from dispatch_core.audit.deliveries.findings import Finding
from dispatch_core.audit.hash_share import FairPart
from dispatch_core.audit.key_totals import key_codes
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.sentences.names import Connections, connections_in, shown
from dispatch_core.tables import BALANCE, EVIDENCE

_SUMMED: Final = ("entries", "messages", "size_bytes")


def not_judged(balance: pa.Table, limits: Limits) -> str | None:
    """Return the reason why a ``balance`` table holds too little to be judged; ``None`` = it holds enough."""
    messages, keys = (int(ints(balance[name]).sum()) for name in ("messages", "keys"))
    if messages < limits.min_messages:
        return f"{messages:,} messages were sent; below {limits.min_messages:,} balance is not judged"
    if keys < limits.min_keys_per_consumer * balance.num_rows:
        return (
            f"{keys:,} keys at {balance.num_rows} consumers; below {limits.min_keys_per_consumer} for each "
            "balance is not judged"
        )
    if balance["hash_share"].null_count == balance.num_rows:
        return "no consumer has a share of the hash space"
    return None


def balance_rows(
    totals: pa.Table, owners: Connections, fair: Mapping[str, FairPart] | None, identity: Mapping[str, Any]
) -> pa.Table:
    """Compare what each consumer name got with its share of the hash space: the table ``balance``, ordered by name.

    Connections of one name are one consumer: that is what a rolling restart keeps. ``connections`` counts those that got
    something or owned hashes (Failover: were active). A consumer that owned hashes and got nothing has a row of zeros.

    Args:
        totals: rows of ``key_totals.TOTALS``; redeliveries count too.
        owners: connections that owned hashes in the same incarnation (Failover: were active).
        fair: fair parts by name; ``None`` for subscriptions whose consumers own no hashes. Their ``hash_share`` is null, as
            it is where nothing was sent while anything was owned.
        identity: columns that every row begins with.
    """
    got = connections_in(totals)
    connections: dict[str, set[int | None]] = defaultdict(set)
    for number, name in zip(got.numbers, got.names, strict=True):
        connections[name].add(number)
    for number, name in zip(owners.numbers, owners.names, strict=True):
        if fair is not None or name in connections:
            connections[name].add(number)
    names = sorted(connections)
    place = {name: at for at, name in enumerate(names)}
    row_of = np.array([place[name] for name in got.names], np.int64)[got.of_row]
    sums = {name: _summed(row_of, ints(totals[name]), len(names)) for name in _SUMMED}
    sums["keys"] = _keys(totals, row_of, len(names), same_name=len(set(got.names)) < len(got.names))
    messages = int(sums["messages"].sum())
    columns = {
        **{name: pa.repeat(pa.scalar(value), len(names)) for name, value in identity.items()},
        **sums,
        "consumer_name": names,
        "connections": [len(connections[name]) for name in names],
        "message_share": sums["messages"] / max(messages, 1),
        "hash_share": _shares(names, {name: part.by_hashes for name, part in (fair or {}).items()}),
        "equal_share": _shares(names, {name: part.by_number for name, part in (fair or {}).items()}),
    }
    return pa.table(columns, schema=BALANCE)


def _shares(names: list[str], parts: Mapping[str, float]) -> list[float | None]:
    """Return what each name has of all parts; ``None`` for all where there is nothing to share."""
    whole = sum(parts.values())
    return [parts.get(name, 0.0) / whole if whole else None for name in names]


def _summed(row_of: Ints, values: Ints, rows: int) -> Ints:
    """Sum up values by the row of the result that each belongs to."""
    sums = np.zeros(rows, np.int64)
    np.add.at(sums, row_of, values)
    return sums


def _keys(totals: pa.Table, row_of: Ints, rows: int, *, same_name: bool) -> Ints:
    """Count the different keys of each row of ``balance``. ``same_name``: two connections share a name, and maybe keys."""
    keyed = valid(totals["key"])
    if not same_name:
        return np.bincount(row_of[keyed], minlength=rows)
    pairs = pa.table([row_of, totals["key"], totals["key_b64"]], names=["row", "key", "key_b64"])
    different = pairs.filter(pa.array(keyed)).group_by(pairs.column_names, use_threads=False).aggregate([])
    return np.bincount(ints(different["row"]), minlength=rows)


class _Totals:
    """Rows of ``key_totals.TOTALS`` with codes for the names and keys that they are summed up by."""

    def __init__(self, totals: pa.Table) -> None:
        self.rows = totals
        self.messages = ints(totals["messages"])
        connections = connections_in(totals)
        self.names, name_of = connections.by_name()
        self.name = name_of[connections.of_row]
        self.key = np.where(valid(totals["key"]), key_codes(totals), -1)

    def of_name(self, name: str) -> Mask:
        """Mark the rows of a consumer name."""
        return self.name == (self.names.index(name) if name in self.names else -1)

    def keys_above(self, messages: float) -> list[_Key]:
        """Return keys that carry more than ``messages``, whoever got them; most first."""
        return self._keys(self.key >= 0, messages)

    def hottest_key(self, name: str) -> _Key | None:
        """Return the key of which a consumer got most messages; ``None`` where it got none with a key."""
        return next(iter(self._keys(self.of_name(name) & (self.key >= 0), None)), None)

    def _keys(self, rows: Mask, above: float | None) -> list[_Key]:
        """Sum up messages of these rows by key; ``above``: see ``keys_above``, ``None`` = those with most."""
        codes = self.key[rows]
        sums = _summed(codes, self.messages[rows], int(codes.max(initial=-1)) + 1)
        wanted = np.flatnonzero(sums > above if above is not None else (sums == sums.max(initial=1)))
        row_of = np.zeros(len(sums), np.int64)
        row_of[codes] = np.flatnonzero(rows)
        found = self.rows.select(["key", "key_b64"]).take(pa.array(row_of[wanted])).to_pylist()
        keys = [
            _Key(row["key"], row["key_b64"], code, count)
            for row, code, count in zip(found, wanted.tolist(), sums[wanted].tolist(), strict=True)
        ]
        return sorted(keys, key=lambda key: (-key.messages, key.key, key.key_b64))


class _Key(NamedTuple):
    """A key, its code in ``_Totals.key`` and its messages."""

    key: str
    key_b64: bool
    code: int
    messages: int


class Uneven(NamedTuple):
    """A consumer name, or a key, that carries too much; and the rows of the totals that say so."""

    kind: str
    key: _Key | None
    rows: Mask
    explanation: str


def load_findings(
    totals: pa.Table, balance: pa.Table, fair: Mapping[str, FairPart], limits: Limits, deliveries: int
) -> list[Finding]:
    """Find consumers and keys that carry too much (``imbalance``, ``hot_consumer``, ``hot_key``) in a Key_Shared log.

    Nothing is found where there is too little to judge (``not_judged``). The proving lines are those of the first and the
    last delivery to the consumer, or of the key.

    Args:
        totals: rows of ``key_totals.TOTALS``.
        balance: ``balance_rows`` of them.
        fair: fair parts by name.
        limits: how much is too much.
        deliveries: number of deliveries that ``totals`` sum up.
    """
    if not_judged(balance, limits) is not None:
        return []
    return [
        _finding(uneven, totals, deliveries) for uneven in _uneven(_Totals(totals), balance, fair, limits)
    ]


def _uneven(totals: _Totals, balance: pa.Table, fair: Mapping[str, FairPart], limits: Limits) -> list[Uneven]:
    got = dict(zip(balance["consumer_name"].to_pylist(), balance["messages"].to_pylist(), strict=True))
    total = sum(got.values())
    found = []
    for kind, means in (("imbalance", "its part of the hash space"), ("hot_consumer", "an equal part")):
        for name, messages in got.items():
            part = fair.get(name, FairPart(0.0, 0.0))
            expected = part.by_hashes if kind == "imbalance" else part.by_number
            if expected <= 0 or messages <= limits.share_ratio * expected:
                continue
            text = (
                f"{shown(name)} got {_percent(messages, total)} of {total:,} messages, "
                f"{messages / expected:.1f} times {means} ({_percent(expected, total)})"
            )
            hottest = totals.hottest_key(name)
            if hottest is not None and 2 * hottest.messages >= messages:
                text += (
                    f"; key {shown(hottest.key)} alone is {hottest.messages / messages:.0%} of what it got"
                )
            elif kind == "hot_consumer":
                text += f"; it owned {_percent(part.by_hashes, total)} of the hash space"
            found.append(Uneven(kind, None, totals.of_name(name), text))
    for key in totals.keys_above(limits.hot_key_share * total):
        text = (
            f"key {shown(key.key)} carries {_percent(key.messages, total)} of {total:,} messages: "
            "whoever owns its hash gets at least as much, however the ranges are cut; split the key, or give its "
            "consumer room"
        )
        found.append(Uneven("hot_key", key, totals.key == key.code, text))
    return found


def _finding(uneven: Uneven, totals: pa.Table, deliveries: int) -> Finding:
    """Make the finding, with its first and last delivery as evidence."""
    rows = totals.filter(pa.array(uneven.rows))
    first, last = (
        {name: rows[f"{end}_{name}"][at].as_py() for name in EVIDENCE}
        for end, at in (
            ("first", int(np.argmin(ints(rows["first_number"])))),
            ("last", int(np.argmax(ints(rows["last_number"])))),
        )
    )
    return Finding(
        kind=uneven.kind,
        severity=KINDS[uneven.kind].severity,
        key=None if uneven.key is None else uneven.key.key,
        key_b64=uneven.key is not None and uneven.key.key_b64,
        hash=None if uneven.key is None else last["hash"],
        positions=list(dict.fromkeys(f"{end['ledger_id']}:{end['entry_id']}" for end in (first, last))),
        consumers=sorted(pc.unique(rows["consumer"]).to_pylist()),
        seqs=sorted({first["seq"], last["seq"]}),
        t_us=last["t_us"],
        cause=None,
        reason=None,
        uncertain=False,
        explanation=uneven.explanation,
        place=deliveries,
    )


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"
