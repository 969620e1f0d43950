"""Balance of a subscription: the table ``balance``, consumers and keys that carry too much, and Failover's active topics.

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
from dispatch_core.audit.key_totals import EVIDENCE, key_codes
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.sentences.lists import listed, plural
from dispatch_core.audit.sentences.names import Connections, connections_in, shown
from dispatch_core.tables import BALANCE

_NAMED_AT_MOST: Final = 5
_SUMMED: Final = ("entries", "messages", "size_bytes")


def not_judged(balance: pa.Table, limits: Limits) -> str | None:
    """Return the reason why a ``balance`` table holds too little to be judged; ``None`` = it holds enough."""
    messages = int(pc.sum(balance["messages"]).as_py() or 0)
    keys = int(pc.sum(balance["keys"]).as_py() or 0)
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
    messages, hashes = int(sums["messages"].sum()), sum(part.by_hashes for part in (fair or {}).values())
    columns = {
        **{name: pa.repeat(pa.scalar(value), len(names)) for name, value in identity.items()},
        **sums,
        "consumer_name": names,
        "connections": [len(connections[name]) for name in names],
        "message_share": sums["messages"] / max(messages, 1),
        "hash_share": [
            fair.get(name, FairPart(0.0, 0.0)).by_hashes / hashes if fair and hashes else None
            for name in names
        ],
    }
    return pa.table(columns, schema=BALANCE)


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


def _beginning(names: list[str]) -> str:
    """Return the prefix that all names share."""
    first, last = min(names), max(names)
    differ = (at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differ, len(first))]


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"


#: One row per topic and consumer of Failover subscriptions; ``active_us`` 0: it was never the active one.
ACTIVE_TIMES: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("cluster", "topic", "subscription", "consumer_name")),
        ("active_us", pa.int64()),
    ]
)
_TOPIC: Final = ("cluster", "topic", "subscription")


def active_times(
    ownership: pa.Table, connected: pa.Table, last_t_us: pa.Table, start_us: int, end_us: int
) -> pa.Table:
    """Compute for how long each consumer of each Failover topic was the active one in [``start_us``, ``end_us``).

    Args:
        ownership: rows of ``tables.OWNERSHIP`` of any number of topics; topics that ``last_t_us`` lacks are left out.
        connected: consumers that were connected in the interval: ``cluster``, ``topic``, ``subscription``,
            ``consumer_name``. One that was never active has a row with 0.
        last_t_us: by topic the time of its last line, ``last_t_us``: an activity without an end lasts until then.
        start_us: start of the interval, in microseconds since the epoch.
        end_us: its end.

    Returns:
        Rows of ``ACTIVE_TIMES``, sorted. Connections of one name are one consumer.
    """
    spans = ownership.select([*_TOPIC, "from_t_us", "until_t_us", "consumer_name"]).join(
        last_t_us, list(_TOPIC), join_type="inner", use_threads=False
    )
    until = pc.min_element_wise(pc.coalesce(spans["until_t_us"], spans["last_t_us"]), end_us)
    active_us = pc.max_element_wise(
        pc.subtract(until, pc.max_element_wise(spans["from_t_us"], start_us)), pa.scalar(0, pa.int64())
    )
    times = [
        [*(rows[name] for name in _TOPIC), pc.fill_null(rows["consumer_name"], ""), us]
        for rows, us in ((spans, active_us), (connected, pa.repeat(pa.scalar(0), connected.num_rows)))
    ]
    both = pa.concat_tables(
        [pa.table(columns, names=ACTIVE_TIMES.names).cast(ACTIVE_TIMES) for columns in times]
    )
    by = [*_TOPIC, "consumer_name"]
    summed = both.group_by(by, use_threads=False).aggregate([("active_us", "sum")])
    return summed.rename_columns(ACTIVE_TIMES.names).sort_by([(name, "ascending") for name in by])


class _ActiveTime(NamedTuple):
    """A row of ``ACTIVE_TIMES``."""

    cluster: str
    topic: str
    subscription: str
    consumer_name: str
    active_us: int


def failover_imbalances(times: pa.Table, limits: Limits) -> list[dict[str, Any]]:
    """``failover_imbalance`` over all topics of each Failover subscription: who is active for how many of them.

    A topic counts for the consumer that was active for longest. Findings are rows of ``anomalies`` without
    ``interval_start`` and ``incarnation``; their ``topic`` is what the names of all topics begin with, and ``*``.
    """
    of: defaultdict[tuple[str, str], list[_ActiveTime]] = defaultdict(list)
    for row in times.select(ACTIVE_TIMES.names).to_pylist():
        of[row["cluster"], row["subscription"]].append(_ActiveTime(**row))
    found = []
    for (cluster, subscription), group in sorted(of.items()):
        topics = sorted({time.topic for time in group})
        active = dict.fromkeys(sorted({time.consumer_name for time in group}), 0)
        longest: dict[str, _ActiveTime] = {}
        for time in group:
            if time.active_us > (longest[time.topic].active_us if time.topic in longest else 0):
                longest[time.topic] = time
        for time in longest.values():
            active[time.consumer_name] += 1
        if len(longest) < limits.min_topics or len(active) < 2:
            continue
        fair = len(longest) / len(active)
        busiest = max(active, key=lambda name: (active[name], name))
        idle = [name for name, count in active.items() if not count]
        if active[busiest] <= limits.share_ratio * fair and not (idle and fair >= limits.min_topics):
            continue
        text = (
            f"{shown(busiest)} is active for {active[busiest]} of {len(longest)} topics of subscription "
            f"{shown(subscription)}, an equal part would be {fair:.1f}"
        )
        if idle:
            text += f"; {listed(map(shown, idle))} {plural(len(idle), 'is', 'are')} active for none"
        text += (
            ". Failover picks by partition index, so one-partition topics all pick the same place in the list (PIP-392); "
            "activeConsumerFailoverConsistentHashing=true picks by the topic's name"
        )
        found.append(
            {
                "kind": "failover_imbalance",
                "severity": KINDS["failover_imbalance"].severity,
                "cluster": cluster,
                "topic": f"{_beginning(topics)}*",
                "subscription": subscription,
                "key": None,
                "key_b64": False,
                "hash": None,
                "positions": [],
                "consumers": [],
                "consumer_names": [busiest, *idle[:_NAMED_AT_MOST]],
                "seqs": [],
                "t_us": None,
                "cause": None,
                "reason": None,
                "uncertain": False,
                "explanation": text,
            }
        )
    return found
