"""Recordings of a real broker, as its clients would have logged them: the same findings, and none more with other clocks."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dispatch_core.audit.client_log import CLOCK_DIFFERENCE_US, judged
from dispatch_core.recording.client_files import find_client_logs, read_client_logs
from dispatch_core.recording.client_log import merged
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.replay.whole_log import audit_whole
from tests.dispatch_core.client_lines import write

Lines = list[dict[str, Any]]
#: Kind, positions, and whether it is uncertain.
Findings = set[tuple[str, tuple[str, ...], bool]]

RECORDINGS = Path(__file__).parents[2] / "data" / "recordings" / "4.2.4"
SAMPLES = sorted(path.name for path in RECORDINGS.iterdir() if path.is_dir())
#: Findings that change with the clocks: whether a redelivery is one, depends on which client was closed first.
_JUDGED = ("out_of_order", "split_key", "double_outstanding", "duplicate_after_ack")


def _log(name: str) -> DispatcherLog:
    [source] = find_recordings([RECORDINGS / name])
    [log] = read_recording(source).logs
    return log


def _clients(log: DispatcherLog) -> list[Lines]:
    """Write down what each connection of a recording got and did."""
    stored = {(row["ledger_id"], row["entry_id"]): row for row in log.messages.to_pylist()}
    clients: dict[int, Lines] = defaultdict(list)
    for event in log.events.to_pylist():
        number, kind = event["consumer"], event["kind"]
        positions = [(at["ledger_id"], at["entry_id"]) for at in event["positions"] or ()]
        of_kind = {"sent": "client_received", "ack": "client_acked", "redeliver": "client_nacked"}.get(kind)
        if kind == "consumer_added":
            clients[number].append(_header(log, event["name"]))
        elif kind == "consumer_removed":
            clients[number].append({"t_us": event["t_us"], "kind": "footer"})
        elif of_kind is not None:
            for ledger, entry in positions:
                line = {"t_us": event["t_us"], "kind": of_kind, "position": f"{ledger}:{entry}"}
                if kind == "sent":
                    line |= {"key": stored[ledger, entry]["key"]}
                if event["ack_type"] is not None:
                    line |= {"ack_type": event["ack_type"]}
                clients[number].append(line)
    return list(clients.values())


def _header(log: DispatcherLog, consumer: str) -> dict[str, Any]:
    return {
        "format": "pulsar-client-log",
        "format_version": "1.1",
        "topic": log.topic,
        "subscription": log.subscription,
        "subscription_type": log.header["subscription_type"],
        "consumer": consumer,
        "host": "all on one",
    }


def _found(folder: Path, clients: list[Lines]) -> Findings:
    logs = read_client_logs(find_client_logs([write(folder, *clients)]))
    assert logs.counts.quarantined == 0
    [made] = merged(logs.sessions, logs.name)
    return _as_set(judged(audit_whole(made.log, rules=False).anomalies, made).to_pylist())


def _as_set(rows: list[dict[str, Any]]) -> Findings:
    return {(row["kind"], tuple(row["positions"]), row["uncertain"]) for row in rows}


def _certain(findings: Findings) -> Findings:
    return {finding for finding in findings if finding[0] in _JUDGED and not finding[2]}


@pytest.mark.parametrize("name", SAMPLES)
def test_clients_of_one_clock_find_what_the_broker_shows(name: str, tmp_path: Path) -> None:
    log = _log(name)
    assert _found(tmp_path, _clients(log)) == _as_set(audit_whole(log, rules=False).anomalies.to_pylist())


@pytest.mark.parametrize("name", SAMPLES)
def test_other_clocks_make_nothing_certain_that_is_not(name: str, tmp_path: Path) -> None:
    log = _log(name)
    true = _certain(_as_set(audit_whole(log, rules=False).anomalies.to_pylist()))
    random = Random(name)
    for attempt in range(2):
        clients = _clients(log)
        for number, lines in enumerate(clients):
            lines[0]["host"] = f"host {number}"
            off_us = random.randrange(CLOCK_DIFFERENCE_US)
            for line in lines[1:]:
                line["t_us"] += off_us
        certain = _certain(_found(tmp_path / str(attempt), clients))
        assert certain <= true
        # Order at one client does not depend on clocks.
        if name == "designed-rolling-restart-classic-ch":
            assert {kind for kind, _, _ in certain} == {"out_of_order"}
