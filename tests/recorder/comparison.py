"""Compare what the product reports about a recording with what the clients saw."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.recorder.journal import Position
from tests.recorder.truth import Truth

#: Promises that clients can check themselves.
SEEN_BY_CLIENTS = ("per_key_order", "duplicate_delivery", "completeness")


@dataclass(frozen=True, slots=True)
class Audit:
    """The lines of ``dispatch-audit audit --json``: findings, and the verdict over the recording."""

    findings: list[dict[str, Any]]
    verdict: dict[str, Any]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Return the certain findings of a kind."""
        return [finding for finding in self.findings if finding["kind"] == kind and not finding["uncertain"]]

    def promise(self, name: str) -> str:
        """Return the worst verdict of a promise over the incarnations."""
        return min(
            (verdict["verdict"] for verdict in self.verdict["promises"] if verdict["promise"] == name),
            key=("FAIL", "UNKNOWN", "PASS").index,
        )


def audited(recording: Path) -> Audit:
    """Audit one recording, as ``audited_all``."""
    (audit,) = audited_all([recording])
    return audit


def audited_all(recordings: Sequence[Path]) -> list[Audit]:
    """Audit recordings by one command, as a user does; raises ``AssertionError`` with its stderr if it fails."""
    command = [str(Path(sys.executable).parent / "dispatch-audit"), "audit", *map(str, recordings), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = [
        Audit(
            [line for line in lines if "kind" in line and line["recording"] == verdict["recording"]], verdict
        )
        for verdict in lines
        if "verdict" in verdict
    ]
    assert len(found) == len(recordings), f"{recordings}: exit {done.returncode}: {done.stderr[-2000:]}"
    return found


def status(recording: Path) -> dict[str, int]:
    """Return the counts of ``recorder-status-*.json``."""
    (file,) = recording.glob("recorder-status-*.json")
    return dict(json.loads(file.read_text()))


def differences(truth: Truth, audit: Audit) -> list[str]:
    """List the differences between the audit and what the clients saw.

    The log knows more than the clients: it has the deliveries that were on their way when a client left. If order broke, the
    findings must name everything that clients saw, and may name more. A clean run must be clean in both. A message that came
    again after its acknowledgement was delivered after the ack (``duplicate_after_ack``) or just before it (``redelivered``
    without a cause): clients cannot tell the two apart. Nor can they, or the log, tell whether a later entry of the key was
    sent before a negative acknowledgement took effect that arrived just before: both leave the order open then.
    """
    backwards = {
        (finding["consumer_names"][0], finding["key"], finding["positions"][0])
        for finding in audit.of("out_of_order")
    }
    seen_backwards = {(name, key, "{}:{}".format(*entry)) for name, key, entry in truth.out_of_order}
    split = {finding["key"] for finding in audit.of("split_key")}
    after_ack = {finding["positions"][0] for finding in audit.of("duplicate_after_ack")}
    seen_after_ack = {"{}:{}".format(*entry) for entry, _ in truth.after_ack}
    doubles = {finding["positions"][0] for finding in audit.of("double_outstanding")}
    unexplained = {finding["positions"][0] for finding in audit.of("redelivered") if "cause" not in finding}
    doubtful = {(name, key, "{}:{}".format(*entry)) for name, key, entry in truth.doubtful}
    only_doubtful = bool(backwards) and backwards <= doubtful and not split
    order = "FAIL" if truth.broken_keys or only_doubtful else "PASS"
    racing = {
        (finding["consumer_names"][0], finding["key"], finding["positions"][0])
        for finding in audit.findings
        if finding["kind"] == "out_of_order" and finding.get("reason") == "request_racing"
    }
    undecided = audit.promise("per_key_order") == "UNKNOWN" and not split and not backwards
    neither_can_tell = undecided and bool(racing) and racing <= doubtful and not truth.broken_keys
    expected = {
        "quarantined lines": (audit.verdict["quarantined"], 0),
        "never received": (_never_received(truth, audit), len(truth.unseen)),
        "found undelivered, not seen": (
            _undelivered_for_certain(audit) - {position for position, _ in truth.unseen},
            set(),
        ),
        "order": (audit.promise("per_key_order"), "UNKNOWN" if neither_can_tell else order),
        "duplicates": (audit.promise("duplicate_delivery"), "FAIL" if truth.repeated else "PASS"),
        "completeness": (audit.promise("completeness"), "FAIL" if truth.unseen else "PASS"),
        "input": (audit.promise("input_quality"), "PASS"),
        "seen backwards, not found": (seen_backwards - backwards, set()),
        "seen split, not found": (truth.split_keys - split, set()),
        "seen at two, not found": ({"{}:{}".format(*entry) for entry, _ in truth.at_two} - doubles, set()),
        "seen after its ack, not found": (seen_after_ack - after_ack - unexplained, set()),
        "found after its ack, not seen": (after_ack - seen_after_ack, set()),
    }
    return [
        f"{what}: the audit says {said}, the clients saw {seen}"
        for what, (said, seen) in expected.items()
        if said != seen
    ]


def _never_received(truth: Truth, audit: Audit) -> int:
    """Count the messages that the audit finds undelivered; where it leaves this open, as the clients saw it.

    A certain ``never_delivered`` names what nobody can have received. A possible one, and a stuck key that waits at the
    end, may have been received before. The same holds for what the audit counts and does not name.
    """
    unseen = Counter(position for position, _ in truth.unseen)
    certain = _undelivered_for_certain(audit)
    stuck = [
        finding
        for finding in audit.findings
        if finding["kind"] == "stuck_key" and "still waiting" in finding["explanation"]
    ]
    possible = {
        position
        for finding in audit.findings
        if finding["kind"] == "never_delivered" or finding in stuck
        for position in _positions(finding)
    }
    found = sum(max(unseen[position], 1) for position in certain)
    found += sum(unseen[position] for position in possible - certain)
    unnamed = sum(max(_waited(finding) - len(finding["positions"]), 0) for finding in stuck)
    return found + min(max(len(truth.unseen) - found, 0), unnamed + _only_counted(audit))


def _undelivered_for_certain(audit: Audit) -> set[Position]:
    return {position for finding in audit.of("never_delivered") for position in _positions(finding)}


def _positions(finding: dict[str, Any]) -> Iterator[Position]:
    for text in finding["positions"]:
        ledger, entry = text.split(":")
        yield int(ledger), int(entry)


def _waited(stuck: dict[str, Any]) -> int:
    """Return how many messages of a stuck key waited; its explanation gives the number if there are several."""
    return sum(
        int(count.replace(",", "")) for count in re.findall(r"([\d,]+) messages waited", stuck["explanation"])
    )


def _only_counted(audit: Audit) -> int:
    """Return how many stored entries the audit counts as undelivered without a finding for them."""
    return sum(
        int(count.replace(",", ""))
        for promise in audit.verdict["promises"]
        if promise["promise"] == "completeness"
        for count in re.findall(r"stored entries not delivered by then[^:]*: ([\d,]+)", promise["reason"])
    )


def sent(recording: Path) -> dict[str, list[Position]]:
    """Return the entries that the log delivers to each consumer name, over its connections in their order."""
    names: dict[tuple[int, int], str] = {}
    found: dict[str, list[Position]] = defaultdict(list)
    for line in events_in_order(recording):
        if line["kind"] == "consumer_added":
            names[line["incarnation"], line["consumer"]] = line["name"]
        elif line["kind"] == "sent":
            positions = (text.split(":") for text in line["positions"])
            found[names[line["incarnation"], line["consumer"]]] += [(int(a), int(b)) for a, b in positions]
    return found


def events(recording: Path) -> Iterator[dict[str, Any]]:
    """Yield the event lines of all whole segments, of a recorder's log or a trace."""
    for file in _events_files(recording):
        for line in gzip.decompress(file.read_bytes()).splitlines():
            row = json.loads(line)
            if "seq" in row:
                yield row


def events_in_order(recording: Path) -> list[dict[str, Any]]:
    """Return the event lines in their order, over all incarnations."""
    return sorted(events(recording), key=lambda line: (line["incarnation"], line["seq"]))


def _events_files(recording: Path) -> list[Path]:
    return sorted(file for log in ("events", "trace") for file in recording.glob(f"{log}-*.jsonl.gz"))


def messages(recording: Path) -> Iterator[dict[str, Any]]:
    """Yield the message lines of all whole segments."""
    for file in sorted(recording.glob("messages-*.jsonl.gz")):
        for line in gzip.decompress(file.read_bytes()).splitlines():
            row = json.loads(line)
            if "position" in row:
                yield row


def unrecorded(truth: Truth, recording: Path) -> dict[str, Position]:
    """Return the first entry that each consumer received and the log does not have at this place of its deliveries."""
    found = {}
    log = sent(recording)
    for name, entries in truth.entries.items():
        rest = iter(log.get(name, ()))
        missing = next((entry for entry in entries if entry not in rest), None)  # consumes up to the entry
        if missing is not None:
            found[name] = missing
    return found


def settled_by_others(recording: Path) -> set[Position]:
    """Return the entries that a cumulative acknowledgement settled by a connection which was never sent them.

    They were sent to others, who may have left before they received them. The broker does not send them again: to it, the
    client has all up to its message.
    """
    sent_to: dict[Position, set[int]] = defaultdict(set)
    settled: set[Position] = set()
    for line in events_in_order(recording):
        if line["kind"] == "sent":
            for position in _positions(line):
                sent_to[position].add(line["consumer"])
        elif line["kind"] == "ack" and line["ack_type"] == "Cumulative":
            last = max(_positions(line))
            settled |= {
                position
                for position, consumers in sent_to.items()
                if position <= last and line["consumer"] not in consumers
            }
    return settled


def release(recording: Path) -> tuple[int, ...]:
    """Return the broker's release from the log's header."""
    first = _events_files(recording)[0]
    header = json.loads(gzip.decompress(first.read_bytes()).split(b"\n", 1)[0])
    return tuple(int(part) for part in header["broker_version"].split("-")[0].split("."))


def holes(recording: Path) -> list[str]:
    """List the holes in ``seq`` without a ``gap`` line, over all incarnations."""
    found = []
    last: dict[int, int] = {}
    for line in events_in_order(recording):
        expected = last.get(line["incarnation"], 0) + 1
        if line["seq"] != expected:
            found.append(f"incarnation {line['incarnation']}: seq {line['seq']}, not {expected}")
        last[line["incarnation"]] = line.get("to", line["seq"]) if line["kind"] == "gap" else line["seq"]
    return found


def stalled_s(recording: Path) -> float:
    """Return how long the broker delivered nothing though it could, until a consumer left; 0 = it did not stall.

    It could: stored entries were never sent, no sent entry is unacknowledged, and each connected consumer has permits.
    All of it follows from the raw lines.
    """
    unsent = {line["position"] for line in messages(recording)}
    permits: dict[tuple[int, int], int] = {}
    pending: dict[str, tuple[int, int]] = {}
    last_us = 0
    for line in events_in_order(recording):
        consumer = line["incarnation"], line.get("consumer", 0)
        kind = line["kind"]
        if kind == "consumer_added":
            permits[consumer] = 0
        elif kind == "flow":
            permits[consumer] += line["permits"]
        elif kind == "sent":
            unsent.difference_update(line["positions"])
            pending.update(dict.fromkeys(line["positions"], consumer))
            permits[consumer] -= sum(line["batch_sizes"])
        elif kind == "ack":
            for position in line["positions"]:
                pending.pop(position, None)
        elif kind == "consumer_removed":
            waited = (line["t_us"] - last_us) / 1e6
            if unsent and not pending and waited > 60 and min(permits.values()) > 0:
                return waited
            permits.pop(consumer, None)
            pending = {position: holder for position, holder in pending.items() if holder != consumer}
        if kind in ("consumer_added", "flow", "sent", "ack"):
            last_us = line["t_us"]
    return 0
