"""What the product says about a recording, beside what the clients saw."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.recorder.journal import Position
from tests.recorder.truth import Truth

#: Promises of which clients see whether they hold.
SEEN_BY_CLIENTS = ("per_key_order", "duplicate_delivery", "completeness")


@dataclass(frozen=True, slots=True)
class Audit:
    """The lines of ``dispatch-audit audit --json``: findings, and the verdict over the recording."""

    findings: list[dict[str, Any]]
    verdict: dict[str, Any]

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Findings of a kind, certain ones."""
        return [one for one in self.findings if one["kind"] == kind and not one["uncertain"]]

    def promise(self, name: str) -> str:
        """The worst verdict of a promise over the incarnations."""
        return min(
            (one["verdict"] for one in self.verdict["promises"] if one["promise"] == name),
            key=("FAIL", "UNKNOWN", "PASS").index,
        )


def audited(recording: Path) -> Audit:
    """Audit one recording, as ``audited_all``."""
    (audit,) = audited_all([recording])
    return audit


def audited_all(recordings: Sequence[Path]) -> list[Audit]:
    """Audit as a user does, by one command. Raises ``AssertionError`` with its words if it could not."""
    command = [str(Path(sys.executable).parent / "dispatch-audit"), "audit", *map(str, recordings), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = [
        Audit([one for one in lines if "kind" in one and one["recording"] == verdict["recording"]], verdict)
        for verdict in lines
        if "verdict" in verdict
    ]
    assert len(found) == len(recordings), f"{recordings}: exit {done.returncode}: {done.stderr[-2000:]}"
    return found


def status(recording: Path) -> dict[str, int]:
    """The counts of ``recorder-status-*.json``."""
    (file,) = recording.glob("recorder-status-*.json")
    return dict(json.loads(file.read_text()))


def differences(truth: Truth, audit: Audit) -> list[str]:
    """Where the audit says something else than the clients saw, or calls certain what they did not see.

    The log knows more than clients: what was on its way to them when they left. So where order broke, the findings must name
    all that clients saw, and may name more; a clean life must be clean in both. What came again after its acknowledgement
    was sent after it (``duplicate_after_ack``) or a moment before it (``redelivered`` without a cause): clients cannot tell.
    """
    backwards = {
        (one["consumer_names"][0], one["key"], one["positions"][0]) for one in audit.of("out_of_order")
    }
    seen_backwards = {(name, key, "{}:{}".format(*entry)) for name, key, entry in truth.out_of_order}
    split = {one["key"] for one in audit.of("split_key")}
    after_ack = {one["positions"][0] for one in audit.of("duplicate_after_ack")}
    seen_after_ack = {"{}:{}".format(*entry) for entry, _ in truth.after_ack}
    doubles = {one["positions"][0] for one in audit.of("double_outstanding")}
    unexplained = {one["positions"][0] for one in audit.of("redelivered") if "cause" not in one}
    never = sum(len(one["positions"]) for one in audit.of("never_delivered"))
    doubtful = {(name, key, "{}:{}".format(*entry)) for name, key, entry in truth.doubtful}
    only_doubtful = bool(backwards) and backwards <= doubtful and not split
    expected = {
        "quarantined lines": (audit.verdict["quarantined"], 0),
        "never received": (never, len(truth.unseen)),
        "order": (audit.promise("per_key_order"), "FAIL" if truth.broken_keys or only_doubtful else "PASS"),
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


def sent(recording: Path) -> dict[str, list[Position]]:
    """For each consumer name the entries that the log says it was sent, over its connections in their order."""
    names: dict[tuple[int, int], str] = {}
    found: dict[str, list[Position]] = defaultdict(list)
    for line in sorted(events(recording), key=lambda one: (one["incarnation"], one["seq"])):
        if line["kind"] == "consumer_added":
            names[line["incarnation"], line["consumer"]] = line["name"]
        elif line["kind"] == "sent":
            positions = (text.split(":") for text in line["positions"])
            found[names[line["incarnation"], line["consumer"]]] += [(int(a), int(b)) for a, b in positions]
    return found


def events(recording: Path) -> Iterator[dict[str, Any]]:
    """The event lines of all whole segments."""
    for file in sorted(recording.glob("events-*.jsonl.gz")):
        for line in gzip.decompress(file.read_bytes()).splitlines():
            row = json.loads(line)
            if "seq" in row:
                yield row


def unrecorded(truth: Truth, recording: Path) -> dict[str, Position]:
    """Consumers that received what the log does not say they were sent, in that order, with the first such entry."""
    found = {}
    log = sent(recording)
    for name, entries in truth.entries.items():
        rest = iter(log.get(name, ()))
        missing = next((entry for entry in entries if entry not in rest), None)  # consumes up to the entry
        if missing is not None:
            found[name] = missing
    return found


def release(recording: Path) -> tuple[int, ...]:
    """The broker's release, as the log says."""
    first = next(iter(sorted(recording.glob("events-*.jsonl.gz"))))
    header = json.loads(gzip.decompress(first.read_bytes()).split(b"\n", 1)[0])
    return tuple(int(part) for part in header["broker_version"].split("-")[0].split("."))


def holes(recording: Path) -> list[str]:
    """Where ``seq`` does not go on by one, without a gap line, in any incarnation."""
    found = []
    last: dict[int, int] = {}
    for line in sorted(events(recording), key=lambda one: (one["incarnation"], one["seq"])):
        expected = last.get(line["incarnation"], 0) + 1
        if line["seq"] != expected:
            found.append(f"incarnation {line['incarnation']}: seq {line['seq']}, not {expected}")
        last[line["incarnation"]] = line.get("to", line["seq"]) if line["kind"] == "gap" else line["seq"]
    return found
