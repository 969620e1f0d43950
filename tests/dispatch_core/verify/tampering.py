"""Ways to tamper with a trace: each changes one thing and says which line must show it.

A ``Tampering`` takes the lines of a trace, the index of one of them and the key of each position, changes the lines in
place, and returns the ``seq`` at which the change must show, or None where that line does not lend itself to it.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dispatch_core.recording.reader import find_recordings, read_recording
from dispatch_core.verify.tally import Finding
from dispatch_core.verify.trace.runner import Verification, verify

Trace = list[dict[str, Any]]
Keys = dict[str, Any]
Tampering = Callable[[Trace, int, Keys], int | None]


#: Kind of line → fields of the class ``state``.
STATE = {
    "selector_added": ("selector",),
    "selector_refused": ("selector",),
    "selector_removed": ("selector",),
    "flow": ("blocked",),
    "flow_counted": ("permits_after", "blocked_after"),
    "read_attempt_end": ("total_permits", "usable", "pending_read", "pending_replay"),
    "usable_seen": ("value",),
    "replay_already_deleted": ("positions",),
    "round_begin": ("type", "positions"),
    "sent": ("batch_sizes",),
    "send_returned": ("permits_after",),
    "pending_ack_removed": ("hash",),
    "pending_ack_refused": ("positions",),
}
#: Kinds of lines with fields of the class ``position`` there; the fields are ``read_position`` and ``mark_delete``.
POSITION = frozenset(
    {
        *("consumer_added", "consumer_removed", "read_issued", "read_done", "round_begin", "mark_delete"),
        *("recently_joined_pruned", "rewind", "cursor_op", "cursor_state"),
    }
)


def published_formula(trace: Trace) -> Counter[str]:
    """Decisions per class, from the raw lines alone (docs/verify.md)."""
    count: Counter[str] = Counter()
    for line in trace[1:]:
        kind = line["kind"]
        count["state"] += sum(line.get(name) is not None for name in STATE.get(kind, ()))
        count["state"] += kind == "draining_clear"
        if kind in POSITION:
            count["position"] += sum(line.get(name) is not None for name in ("read_position", "mark_delete"))
        if kind == "round_begin":
            count["dispatch"] += len(line["positions"])
        elif kind == "read_done":
            count["hash"] += len(line.get("hashes", []))
        elif kind == "round_end":
            count["replay_set"] += 1
            count["round"] += 1
        elif kind in ("read_issued", "replay_read_issued"):
            count["read"] += 1
        elif kind == "sent":
            count["permits"] += "permits_before" in line
        elif kind in ("draining_add", "draining_release", "draining_blocked"):
            count["draining"] += 1
        elif kind in ("active_picked", "active_notified"):
            count["active"] += 1
        elif kind in ("selector_added", "selector_refused"):
            count["subscribe"] += 1
    return count


def decided(result: Verification) -> list[Finding]:
    """Return the findings about decisions: all but those of the classes ``state`` and ``position``."""
    return [f for f in result.tally.findings if f.decision_class not in ("state", "position")]


def first_wrong(result: Verification) -> Finding | None:
    """Return the first divergent decision, of all classes but ``state`` and ``position``."""
    return next((f for f in decided(result) if f.status == "divergent"), None)


#: Kinds that the dispatcher writes under its lock.
UNDER_THE_LOCK = frozenset(
    {
        "consumer_added",
        "consumer_removing",
        "consumer_removed",
        "selector_added",
        "selector_refused",
        "selector_removed",
        "flow_applied",
        "read_attempt",
        "read_issued",
        "replay_read_issued",
        "round_begin",
        "redeliver",
        "rewind",
        "end",
    }
)


def raw(folder: Path) -> Trace:
    """The lines of a recording's trace, the header first."""
    with gzip.open(folder / "trace.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def verified(folder: Path) -> Verification:
    """Return the result of ``verify`` for a recording."""
    (source,) = find_recordings([str(folder)])
    (log,) = read_recording(source).logs
    return verify(log)


def copy_with(folder: Path, trace: Trace, where: Path) -> Path:
    """A copy of the recording ``folder`` under ``where`` with other lines in its trace."""
    copy = where / folder.name
    copy.mkdir(parents=True, exist_ok=True)
    (copy / "messages.jsonl.gz").write_bytes((folder / "messages.jsonl.gz").read_bytes())
    with gzip.open(copy / "trace.jsonl.gz", "wt", encoding="utf-8", compresslevel=1) as out:
        out.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in trace)
    return copy


def line_of(trace: Trace, seq: int) -> dict[str, Any]:
    """Return the line with a ``seq``."""
    (line,) = [line for line in trace if line.get("seq") == seq]
    return line


def divergent(folder: Path, trace: Trace, where: Path) -> list[Finding]:
    """Verify a changed copy of a recording; return its divergent decisions."""
    findings = verified(copy_with(folder, trace, where)).tally.findings
    return [finding for finding in findings if finding.status == "divergent"]


def found_at(folder: Path, trace: Trace, where: Path, seq: int) -> list[Finding]:
    """Verify a changed copy of a recording; return the findings about one of its lines."""
    findings = verified(copy_with(folder, trace, where)).tally.findings
    return [finding for finding in findings if finding.seq == seq]


def moved(trace: Trace, seq: int, behind: int) -> Trace:
    """Move a line right behind another one."""
    line = line_of(trace, seq)
    trace.remove(line)
    at = next(at for at, other in enumerate(trace) if other.get("seq") == behind)
    trace.insert(at + 1, line | {"t_us": trace[at]["t_us"]})
    return numbered(trace)


def numbered(trace: Trace) -> Trace:
    """Number the lines of a trace of one incarnation anew."""
    first = next(at for at, other in enumerate(trace) if other.get("seq") == 1)
    for number, other in enumerate(trace[first:], 1):
        other["seq"] = number
    return trace


def places(trace: Trace, kind: str) -> list[int]:
    """Indexes of the lines of a kind."""
    return [at for at, line in enumerate(trace) if line.get("kind") == kind]


def keys_of(folder: Path) -> Keys:
    """Position → what says which key an entry has; an entry without a key has its own."""
    with gzip.open(folder / "messages.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return {row["position"]: row.get("ordering_key_b64") or row.get("key") or row["position"] for row in rows}


def connected(trace: Trace, at: int) -> list[int]:
    """Consumers that the selector, or a dispatcher without one, has before the line ``at``."""
    selects = bool(places(trace, "selector_added"))
    joins, leaves = (
        ("selector_added", "selector_removed") if selects else ("consumer_added", "consumer_removing")
    )
    members: list[int] = []
    for line in trace[:at]:
        if line.get("kind") == joins:
            members.append(line["consumer"])
        elif line.get("kind") == leaves and line["consumer"] in members:
            members.remove(line["consumer"])
    return members


def round_of(trace: Trace, at: int) -> tuple[int, int]:
    """Indexes of the first and the last line of the round of a line. One of Failover ends when its send has returned."""
    first = at
    while trace[first]["kind"] != "round_begin":
        first -= 1
    finish = "round_end" if places(trace, "round_end") else "send_returned"
    last = at
    while trace[last]["kind"] != finish and last + 1 < len(trace):
        last += 1
    return first, last


# --- what was sent -----------------------------------------------------------------------------------------------


def to_another_consumer(trace: Trace, at: int, _keys: Keys) -> int | None:
    """All that a consumer got in a round went to another one that got nothing in it."""
    first, last = round_of(trace, at)
    served = {line["consumer"] for line in trace[first:last] if line["kind"] == "sent"}
    others = [consumer for consumer in connected(trace, at) if consumer not in served]
    if not others:
        return None
    trace[at]["consumer"] = others[0]
    return trace[at]["seq"]


def one_to_another_consumer(trace: Trace, at: int, _keys: Keys) -> int | None:
    """The last entry that a consumer got in a round went to the next one that was served in it."""
    _, last = round_of(trace, at)
    other = next((line for line in trace[at + 1 : last] if line["kind"] == "sent"), None)
    if other is None:
        return None
    for name in ("positions", "batch_sizes", "hashes"):
        if trace[at].get(name) and other.get(name):
            other[name].append(trace[at][name].pop())
    return trace[at]["seq"]


def two_of_one_key_swapped(trace: Trace, at: int, keys: Keys) -> int | None:
    """Two neighbours of one key went out in the wrong order."""
    positions = trace[at]["positions"]
    last: dict[Any, int] = {}
    for index, position in enumerate(positions):
        before = last.get(keys[position])
        if before is not None:
            positions[before], positions[index] = positions[index], positions[before]
            return trace[at]["seq"]
        last[keys[position]] = index
    return None


def one_not_sent(trace: Trace, at: int, _keys: Keys) -> int | None:
    """One entry fewer was sent."""
    if len(trace[at]["positions"]) < 2:
        return None
    for name in ("positions", "batch_sizes", "hashes"):
        if trace[at].get(name):
            trace[at][name].pop()
    return trace[at]["seq"]


def sent_line_dropped(trace: Trace, at: int, _keys: Keys) -> int | None:
    """A delivery to one consumer in a round is missing: the end of the round shows it."""
    _, last = round_of(trace, at)
    after = next((line for line in trace[at + 1 : last + 1] if line["kind"] in ("sent", "round_end")), None)
    del trace[at]
    return None if after is None else trace[last - 1]["seq"]


def add_to(field: str, by: int = 1) -> Tampering:
    """A number of the line is another one."""

    def change(trace: Trace, at: int, _keys: Keys) -> int | None:
        if trace[at].get(field) is None:
            return None
        trace[at][field] += by
        return trace[at]["seq"]

    change.__name__ = f"other_{field}"
    return change


def negate(field: str) -> Tampering:
    """A truth value of the line is the other one."""

    def change(trace: Trace, at: int, _keys: Keys) -> int | None:
        trace[at][field] = not trace[at][field]
        return trace[at]["seq"]

    return change


# --- reads and hashes --------------------------------------------------------------------------------------------


def other_hash(trace: Trace, at: int, _keys: Keys) -> int | None:
    """The first entry of a read result has another hash."""
    if not trace[at].get("hashes"):
        return None
    trace[at]["hashes"][0] += 1
    return trace[at]["seq"]


def one_not_asked_for(trace: Trace, at: int, _keys: Keys) -> int | None:
    """A replay read asked for one entry fewer."""
    if len(trace[at]["positions"]) < 2:
        return None
    trace[at]["positions"].pop()
    return trace[at]["seq"]


def read_dropped(trace: Trace, at: int, _keys: Keys) -> int | None:
    """The line of a read that was issued is missing: its result or the end of the attempt shows it.

    Where a flow command may still have been uncounted, no read would have been right, too: then the result shows it.
    """
    kind = "Replay" if trace[at]["kind"] == "replay_read_issued" else "Normal"
    del trace[at]
    result = next((line for line in trace[at:] if line["kind"] == "read_done" and line["type"] == kind), None)
    end = next((line for line in trace[at:] if line["kind"] == "read_attempt_end"), None)
    cancelled = next((line for line in trace[at:] if line["kind"] == "read_cancelled"), None)
    if result is None or end is None or (cancelled is not None and cancelled["seq"] < result["seq"]):
        return None
    return min(result["seq"], end["seq"])


# --- draining ----------------------------------------------------------------------------------------------------


def release_dropped(trace: Trace, at: int, _keys: Keys) -> int | None:
    """A release is missing: the next line of the thread that should have written it shows it.

    That is the connection of whoever acknowledged, which here is its holder, or the dispatcher under its lock.
    """
    gone = trace[at]
    before = trace[at - 1]
    by_ack = before["kind"] == "pending_ack_removed" and before["consumer"] == gone["consumer"]
    if gone["closing"] or not by_ack:
        return None
    del trace[at]
    for line in trace[at:]:
        own = line.get("consumer") == gone["consumer"]
        if line["kind"] == "end" or (
            own and line["kind"] in ("ack", "flow", "redeliver", "pending_ack_removed")
        ):
            return line["seq"]
    return None


def returned_release_dropped(trace: Trace, at: int, _keys: Keys) -> int | None:
    """A release of a hash that came back is missing: the next line under the dispatcher's lock shows it."""
    gone, before = trace[at], trace[at - 1]
    if gone["closing"] or before["kind"] not in ("selector_added", "selector_removed", "draining_add"):
        return None
    del trace[at]
    return next((line["seq"] for line in trace[at:] if line["kind"] in UNDER_THE_LOCK), None)


def closing_release_dropped(trace: Trace, at: int, _keys: Keys) -> int | None:
    """A release of a consumer that leaves is missing: the next one, or the end of its removal, shows it."""
    gone = trace[at]
    if not gone["closing"]:
        return None
    del trace[at]
    return trace[at]["seq"]


def line_dropped(trace: Trace, at: int, _keys: Keys) -> int | None:
    """The line is missing: the next one shows it."""
    del trace[at]
    return trace[at]["seq"]
