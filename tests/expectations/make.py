"""Real Delta tables for the tests of the verdicts: a quiet, healthy day that each test spoils in one way."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from dispatch_core import tables
from dispatch_core.recording import schema

DAY = datetime(2026, 11, 21, tzinfo=UTC)
NEXT_DAY = datetime(2026, 11, 22, tzinfo=UTC)
TOPIC = "persistent://public/default/orders"
RUN_METADATA = pa.schema(
    [
        pa.field("run_id", pa.string()),
        pa.field("stage", pa.string()),
        tables.INTERVAL_START,
        pa.field("finished_at", pa.timestamp("us", tz="UTC")),
        pa.field("rows_in", pa.int64()),
        pa.field("rows_accepted", pa.int64()),
        pa.field("rows_quarantined", pa.int64()),
        pa.field("rows_other_interval", pa.int64()),
        pa.field("summary_json", pa.string()),
    ]
)
_SCHEMAS = {
    **tables.ALL_TABLES,
    "messages": pa.schema([tables.INTERVAL_START, *schema.MESSAGES]),
    "consumer_events": pa.schema([tables.INTERVAL_START, *schema.EVENTS]),
    "quarantine": pa.schema([tables.INTERVAL_START, *schema.QUARANTINE]),
}
Rows = dict[str, list[dict[str, Any]]]


def _name(who: dict[str, Any]) -> tuple[str, str]:
    return who["topic"], who["subscription"]


@dataclass
class Day:
    """Rows of one interval's tables; ``write`` makes Delta tables of them."""

    interval_start: datetime = DAY
    rows: Rows = field(default_factory=dict)
    as_of: str | None = None  # how the replay chose its moment

    def add(self, table: str, **row: Any) -> dict[str, Any]:
        """Add a row and return it, so that a test may change it."""
        record = {"interval_start": self.interval_start, **row}
        self.rows.setdefault(table, []).append(record)
        return record

    def dispatcher(self, topic: str = TOPIC, subscription: str = "audit", entries: int = 3) -> dict[str, Any]:
        """A healthy dispatcher: ``entries`` stored, sent in order to two consumers, every decision exact."""
        who = {"cluster": "standalone", "topic": topic, "subscription": subscription, "incarnation": 0}
        folder = f"landing/{topic.rpartition('/')[2]}"
        shared = {"cluster": "standalone", "topic": topic}
        self.add(
            "consumer_events",
            **who,
            seq=1,
            kind="consumer_added",
            consumer=0,
            source_file=f"{folder}/trace.jsonl",
        )
        for entry in range(entries):
            self.add(
                "messages",
                **shared,
                ledger_id=5,
                entry_id=entry,
                key="k",
                num_messages=1,
                source_file=f"{folder}/messages.jsonl",
            )
            self.add(
                "consumer_events",
                **who,
                seq=entry + 2,
                kind="sent",
                consumer=0,
                batch_sizes=[1],
                positions=[{"ledger_id": 5, "entry_id": entry}],
                source_file=f"{folder}/trace.jsonl",
            )
            self.add(
                "deliveries",
                **who,
                seq=entry + 2,
                index_in_send=0,
                t_us=1,
                consumer=0,
                ledger_id=5,
                entry_id=entry,
                key_b64=False,
                delivery_number=1,
                judgement="exact",
            )
        self.add(
            "dispatcher_state",
            **who,
            subscription_type="Key_Shared",
            broker_version="4.2.4",
            last_seq=entries + 1,
            events=entries + 1,
            entries_stored=entries,
            entries_sent=entries,
            rounds=1,
            decisions=100,
            exact=100,
            uncertain=0,
            divergent=0,
            core_version="1",
            settings_digest="d",
        )
        self.add(
            "waits", **who, entries=entries, never_delivered=0, blocked_message_ms=0, needless_message_ms=0
        )
        for name in ("worker-1", "worker-2"):
            self.add(
                "balance",
                **who,
                consumer_name=name,
                connections=1,
                entries=entries,
                messages=entries,
                size_bytes=1,
                keys=1,
                message_share=0.5,
                hash_share=0.5,
            )
        return who

    def anomaly(self, who: dict[str, Any], kind: str, **fields: Any) -> dict[str, Any]:
        """A finding with evidence at 5:1 and 5:2."""
        defaults = {
            "severity": "critical",
            "key": "order-17",
            "key_b64": False,
            "positions": ["5:2", "5:1"],
            "consumers": [0, 1],
            "seqs": [3, 4],
            "t_us": 1795255135000000,
            "uncertain": False,
            "explanation": f"{kind}: key order-17 went backwards at worker-2: it got 5:2 and then 5:1",
        }
        return self.add("anomalies", **(who | defaults | {"kind": kind} | fields))

    def of(self, table: str, who: dict[str, Any]) -> list[dict[str, Any]]:
        """Rows of one dispatcher in a table, to be changed."""
        return [row for row in self.rows[table] if (row["topic"], row["subscription"]) == _name(who)]

    def drop(self, table: str, who: dict[str, Any], last: int | None = None) -> None:
        """Take rows of one dispatcher out of a table: all, or the ``last`` ones."""
        gone = self.of(table, who)[-last if last else None :]
        self.rows[table] = [row for row in self.rows[table] if not any(row is removed for removed in gone)]

    def write(
        self, warehouse: Path, counts: Callable[[dict[str, int]], dict[str, int]] | None = None
    ) -> Path:
        """Write the tables; ``counts`` may falsify the row counts that the ingest left."""
        for table in ("messages", "consumer_events", "quarantine"):
            self.rows.setdefault(table, [])
        accepted, quarantined = (
            sum(len(self.rows[table]) for table in group)
            for group in (("messages", "consumer_events"), ("quarantine",))
        )
        kept = {"rows_in": accepted + quarantined, "rows_accepted": accepted, "rows_quarantined": quarantined}
        kept["rows_other_interval"] = 0
        run = {
            "run_id": "r",
            "stage": "ingest",
            "interval_start": self.interval_start,
            "finished_at": NEXT_DAY,
            "summary_json": json.dumps(
                {"interval_start": self.interval_start.isoformat(), "interval_end": NEXT_DAY.isoformat()}
            ),
        }
        runs = [run | (counts(kept) if counts else kept)]
        if self.as_of is not None:
            runs.append(run | {"stage": "replay", "summary_json": json.dumps({"as_of": self.as_of})})
        metadata = pa.Table.from_pylist(runs, schema=RUN_METADATA)
        write_deltalake(str(warehouse / "run_metadata"), metadata, mode="append")
        for table, contract in _SCHEMAS.items():
            if table != "verdicts":
                rows = pa.Table.from_pylist(self.rows.get(table, []), schema=contract)
                write_deltalake(str(warehouse / table), rows, mode="append", partition_by=["interval_start"])
        return warehouse
