"""Find the first line of a trace that names a connection which no line added.

A trace has more lines about a connection than those of its own commands: that it joined the selector, or that it takes part
in the choice of an active consumer. Such lines come before the first one that a log without a trace holds. From there on the
broker's decisions took the connection into account, so uncertainty begins there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import has, rows_at
from dispatch_core.arrays.line_kinds import has_kind, of_kinds, rows_of_kind
from dispatch_core.audit.deliveries.log_finding import LogFinding
from dispatch_core.audit.sentences.names import shown
from dispatch_core.errors import NotStreamableError

#: Lines about connections that were added. All but the last kind stand in traces only.
_OF_CONNECTIONS: Final = (
    *("selector_added", "selector_refused", "selector_removed", "flow_applied", "flow_counted"),
    *("pending_ack_removed", "draining_add", "draining_blocked", "draining_release", "send_returned"),
    "sent",
)
#: Lines that name a connection which is being added, before its ``consumer_added`` line.
_BEFORE_IT_IS_ADDED: Final = ("active_picked", "active_notified", "read_attempt")
#: Lines that end the search for the beginning of a choice: an earlier choice's outcome, or work.
_OTHER_CHOICE: Final = ("active_picked", "consumer_added", "consumer_removed", "sent")
_COLUMNS: Final = ("seq", "t_us", "kind", "consumer", "active", "sorted")


def in_a_trace(
    found: Iterable[LogFinding],
    events: pa.Table,
    subscription: str,
    added: Set[int],
    *,
    checkpoints: bool,
    streaming: bool = False,
) -> list[LogFinding]:
    """Extend ``found``, the findings about unknown connections, by the first line of the trace about each connection.

    The first finding about a connection gets that line as its first ``seqs``. A connection that only lines of a trace name
    gets a finding of its own. Events that are no trace change nothing.

    Args:
        found: findings about these events.
        events: lines of the log.
        subscription: for people.
        added: connections that a line of the log adds, before or behind these lines.
        checkpoints: the log has checkpoints, which name the connections of before it begins.
        streaming: the events are a batch. The line about a connection and the finding may then lie in different batches:
            ``NotStreamableError`` is raised for a trace that names a connection which is never added.
    """
    findings = list(found)
    if not all(has(events, name) for name in _COLUMNS):
        return findings
    if not has_kind(events, *_OF_CONNECTIONS[:-1]):
        return findings
    naming = events.filter(pa.array(of_kinds(events, *_OF_CONNECTIONS, *_BEFORE_IT_IS_ADDED)))
    never_added = _never_added(naming, findings, None if checkpoints else added)
    if not never_added:
        return findings
    if streaming:
        raise NotStreamableError(f"a trace names connection {min(never_added)}, which no line adds")
    first = _first_lines(naming, never_added)
    for at, finding in enumerate(findings):
        if finding.reason == "never_added" and finding.consumer in first:
            begins = _begins(events, first.pop(finding.consumer)["seq"])
            if begins < finding.seqs[0]:
                text = f"{finding.explanation}; the trace tells of it from seq {begins} on"
                findings[at] = replace(finding, seqs=(begins, *finding.seqs), explanation=text)
    for number, line in first.items():
        text = (
            f"the line {line['kind']} at seq {line['seq']} names connection {number} of {shown(subscription)}, but no "
            "consumer_added line stands before it"
        )
        seqs = tuple(dict.fromkeys([_begins(events, line["seq"]), line["seq"]]))
        findings.append(LogFinding("unknown_consumer", "never_added", seqs, line["t_us"] or 0, text, number))
    return findings


def connections_added(events: pa.Table) -> set[int]:
    """Return the connections that the lines add."""
    added = rows_at(events.select(["consumer"]), rows_of_kind(events, "consumer_added"))
    return {number for number in added["consumer"].to_pylist() if number is not None}


def _never_added(naming: pa.Table, findings: list[LogFinding], added: Set[int] | None) -> set[int]:
    """Return the connections that were never added, by the findings or by the lines of a trace about added ones.

    ``added``: the others; ``None`` = not known.
    """
    lines = naming.filter(pa.array(of_kinds(naming, *_OF_CONNECTIONS[:-1])))
    named = set(pc.unique(lines["consumer"]).to_pylist()) - {None}
    unknown = {
        finding.consumer
        for finding in findings
        if finding.reason == "never_added" and finding.consumer is not None
    }
    return unknown | (set() if added is None else named - added)


def _first_lines(naming: pa.Table, never_added: set[int]) -> dict[int, Mapping[str, Any]]:
    """Return the first line that names each connection: as its consumer, as the active one, or in the order of a choice."""
    found: dict[int, Mapping[str, Any]] = {}
    for line in naming.select(list(_COLUMNS)).to_pylist():
        for number in (line["consumer"], line["active"], *(line["sorted"] or ())):
            if number in never_added:
                found.setdefault(number, line)
        if len(found) == len(never_added):
            break
    return found


def _begins(events: pa.Table, seq: int) -> int:
    """Return the line at which the choice with the outcome ``seq`` begins: ``handover_scheduled`` if there is one."""
    row = int(np.searchsorted(np.asarray(events["seq"], dtype=np.int64), seq))
    if events["kind"][row].as_py() not in _BEFORE_IT_IS_ADDED:
        return seq
    for at in range(row - 1, -1, -1):
        kind = events["kind"][at].as_py()
        if kind == "handover_scheduled":
            return int(events["seq"][at].as_py())
        if kind in _OTHER_CHOICE:
            break
    return seq
