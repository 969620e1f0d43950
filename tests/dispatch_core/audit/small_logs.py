"""Small hand-made logs: a few events each, written the way the format writes them, read by the product's reader."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from dispatch_core.audit.deliveries.rows import Audit
from dispatch_core.audit.deliveries.whole_log import audit_log
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.recording.schema import KINDS

MIDNIGHT = datetime(2026, 11, 21, tzinfo=UTC)
T0_US = 1_795_219_200_000_000  # that midnight

Event = dict[str, Any]


def added(consumer: int, name: str | None = None, *, allow_out_of_order: bool = False) -> Event:
    return {
        "kind": "consumer_added",
        "consumer": consumer,
        "name": name or f"worker-{consumer}",
        "key_shared": {"mode": "AUTO_SPLIT", "allow_out_of_order": allow_out_of_order, "ranges": []},
    }


def removed(consumer: int) -> Event:
    return {"kind": "consumer_removed", "consumer": consumer}


def sent(consumer: int, *entries: int) -> Event:
    return {
        "kind": "sent",
        "consumer": consumer,
        "positions": [f"5:{entry}" for entry in entries],
        "batch_sizes": [1] * len(entries),
    }


def ack(consumer: int, *entries: int, sets: list[list[int]] | None = None, cumulative: bool = False) -> Event:
    event: Event = {
        "kind": "ack",
        "consumer": consumer,
        "ack_type": "Cumulative" if cumulative else "Individual",
        "positions": [f"5:{entry}" for entry in entries],
    }
    return event | ({"ack_sets": sets} if sets is not None else {})


def flow(consumer: int, permits: int = 100) -> Event:
    return {"kind": "flow", "consumer": consumer, "permits": permits}


def redeliver(consumer: int, *entries: int) -> Event:
    """A redelivery request for these entries; without any, for all that the consumer has not acknowledged."""
    return {
        "kind": "redeliver",
        "consumer": consumer,
        "positions": [f"5:{entry}" for entry in entries] or None,
    }


def message(entry: int, key: str | None, **fields: Any) -> Event:
    return {
        "topic": "t",
        "position": f"5:{entry}",
        "key": key,
        "producer": "p",
        "sequence_id": entry,
        "publish_time_ms": T0_US // 1000,
        "num_messages": 1,
        "size_bytes": 10,
    } | fields


def numbered(events: Iterable[Event]) -> list[Event]:
    """Number events from 1, one second apart; ``seq`` and ``t_us`` of an event are kept."""
    return [
        {"seq": index, "t_us": T0_US + index * 1_000_000} | event
        for index, event in enumerate(events, start=1)
    ]


def header(**fields: Any) -> Event:
    return {
        "format": "pulsar-dispatch-trace",
        "format_version": 1,
        "broker_version": "4.2.4",
        "topic": "t",
        "subscription": "s",
        "subscription_type": "Key_Shared",
        "partition_index": -1,
        "config": {},
    } | fields


def write(folder: Path, messages: list[Event], events: list[Event], **fields: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in (("messages", messages), ("trace", [header(**fields), *events])):
        with gzip.open(folder / f"{name}.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
    return folder


def read(folder: Path) -> DispatcherLog:
    (source,) = find_recordings([str(folder)])
    recording = read_recording(source)
    assert recording.quarantine.num_rows == 0, recording.quarantine.to_pylist()
    (log,) = recording.logs
    return log


def audited(log: DispatcherLog, **options: Any) -> Audit:
    audit = audit_log(log, interval_start=MIDNIGHT, **options)
    audit.deliveries.validate(full=True)
    audit.anomalies.validate(full=True)
    return audit


def of_kind(audit: Audit, kind: str) -> list[dict[str, Any]]:
    return [row for row in audit.anomalies.to_pylist() if row["kind"] == kind]


def kinds(audit: Audit) -> dict[str, list[str]]:
    """Kind → first position of each finding, in order."""
    found: dict[str, list[str]] = {}
    for row in audit.anomalies.to_pylist():
        found.setdefault(row["kind"], []).append(row["positions"][0] if row["positions"] else "")
    return found


def without_trace(log: DispatcherLog) -> DispatcherLog:
    """The log with the required kinds of level E only, numbered anew."""
    optional = ("active_notified", "subscribe_rejected")
    wanted = {name for name, kind in KINDS.items() if kind.level == "E" and name not in optional}
    rows = pa.array([kind in wanted for kind in log.events["kind"].to_pylist()])
    events = log.events.filter(rows)
    column = events.schema.get_field_index("seq")
    anew = pa.array(range(1, events.num_rows + 1), pa.int64())
    return replace(log, events=events.set_column(column, events.schema.field(column), anew))
