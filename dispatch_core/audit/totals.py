"""The tables ``balance`` and ``waits`` of one log: what the pipeline sums over all dispatchers with Spark.

Same columns, same meaning (``spark_jobs.aggregates.aggregate_interval``), for the command line, which has one log in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import ints
from dispatch_core.arrays.positions import distinct, locate
from dispatch_core.audit.hash_share import fair_of, messages_of
from dispatch_core.audit.sentences.names import names_in
from dispatch_core.tables import BALANCE, WAITS

Ints = npt.NDArray[np.int64]

_PERCENTILES: Final = (50, 99)


def balance_table(
    deliveries: pa.Table,
    ownership: pa.Table,
    identity: Mapping[str, Any],
    *,
    key_shared: bool,
) -> pa.Table:
    """The messages of each consumer name, redeliveries too, against its share of the hash space (``hash_share``).

    Rows are ordered by name. ``identity``: the columns that every row begins with. Single-active subscriptions own no
    hashes: their ``hash_share`` is null, as it is where nothing was sent while anything was owned.
    """
    sent = pa.table(
        {
            "name": names_in(deliveries),
            "consumer": deliveries["consumer"],
            "messages": messages_of(deliveries),
            "size": pc.fill_null(deliveries["size_bytes"], 0),
        }
    )
    got = sent.group_by("name").aggregate([("messages", "count"), ("messages", "sum"), ("size", "sum")])
    rows: dict[str, dict[str, Any]] = {
        row["name"]: {
            "entries": row["messages_count"],
            "messages": row["messages_sum"],
            "size_bytes": row["size_sum"],
        }
        for row in got.to_pylist()
    }
    for name, keys in _keys_of(deliveries).items():
        rows[name]["keys"] = keys
    connections: dict[str, set[int]] = {}
    for pairs in (sent, pa.table({"name": names_in(ownership), "consumer": ownership["consumer"]})):
        for pair in pairs.group_by(["name", "consumer"]).aggregate([]).to_pylist():
            connections.setdefault(pair["name"], set()).add(pair["consumer"])
    owned = fair_of(deliveries, ownership) if key_shared else {}
    if not key_shared:
        connections = {name: numbers for name, numbers in connections.items() if name in rows}
    messages = sum(row["messages"] for row in rows.values())
    hashes = sum(by_hashes for by_hashes, _by_number in owned.values())
    nothing = {"entries": 0, "messages": 0, "size_bytes": 0, "keys": 0}
    return pa.Table.from_pylist(
        [
            {
                **identity,
                **(row := nothing | rows.get(name, {})),
                "consumer_name": name,
                "connections": len(connections[name]),
                "message_share": row["messages"] / messages if messages else 0.0,
                "hash_share": owned.get(name, (0.0, 0.0))[0] / hashes if hashes else None,
            }
            for name in sorted(connections)
        ],
        schema=BALANCE,
    )


def waits_table(
    deliveries: pa.Table, messages: pa.Table, blocked: pa.Table, identity: Mapping[str, Any]
) -> pa.Table:
    """The waits of entries from being stored to first being sent, and what rules held back; one row."""
    first = deliveries.filter(pc.equal(deliveries["delivery_number"], 1))
    known = first.filter(pc.is_valid(first["publish_time_ms"]))
    wait_us = ints(known["t_us"]) - ints(known["publish_time_ms"]) * 1000
    at = (
        [float(np.percentile(wait_us, share)) / 1000 for share in _PERCENTILES]
        if len(wait_us)
        else [None] * 2
    )
    row = {
        **identity,
        "entries": first.num_rows,
        "never_delivered": never_sent(deliveries, messages),
        "wait_ms_p50": at[0],
        "wait_ms_p99": at[1],
        "wait_ms_max": int(wait_us.max()) / 1000 if len(wait_us) else None,
        "blocked_message_ms": int(pc.sum(blocked["message_ms"]).as_py() or 0),
        "needless_message_ms": int(pc.sum(blocked["needless_ms"]).as_py() or 0),
    }
    return pa.Table.from_pylist([row], schema=WAITS)


def never_sent(deliveries: pa.Table, messages: pa.Table) -> int:
    """Stored entries that were not sent, from the first that was; a position stored twice is one entry."""
    if not deliveries.num_rows:
        return 0
    ledger, entry = (ints(deliveries[name]) for name in ("ledger_id", "entry_id"))
    ledgers, entries = (ints(messages[name]) for name in ("ledger_id", "entry_id"))
    order = distinct(ledgers, entries)
    sent = np.unique(locate(ledgers[order], entries[order], ledger, entry))
    sent = sent[sent >= 0]
    return int(len(order) - sent[0] - len(sent)) if len(sent) else 0


def unexplained(unsent: int, anomalies: pa.Table, incarnation: int) -> int:
    """Of the entries that were not sent (``never_sent``): those that no finding about the last incarnation tells of.

    What an earlier one left unsent, the next may have sent.
    """
    told = anomalies.filter(pc.equal(anomalies["incarnation"], incarnation))["unsent"]
    return max(0, unsent - int(pc.sum(told).as_py() or 0))


def _keys_of(deliveries: pa.Table) -> dict[str, int]:
    """Distinct keys by consumer name."""
    keyed = pa.table({"name": names_in(deliveries), "key": deliveries["key"], "b64": deliveries["key_b64"]})
    keyed = keyed.filter(pc.is_valid(keyed["key"])).group_by(["name", "key", "b64"]).aggregate([])
    counted = keyed.group_by("name").aggregate([("key", "count")])
    return dict(zip(counted["name"].to_pylist(), counted["key_count"].to_pylist(), strict=True))
