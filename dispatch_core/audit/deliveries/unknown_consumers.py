"""Where a trace first tells of a connection that no line added.

A trace says more of a connection than what came from it: that it joined the selector, that it stands in the order of the
choice of an active consumer. Such lines come before the first that a user could have recorded, and what the broker decided
from then on took the connection into account. So what is not known begins there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import marked
from dispatch_core.audit.deliveries.log_checks import LogFinding
from dispatch_core.audit.sentences.names import shown

#: Lines about what a connection that was added did, or what was done for it. All but the last stand in traces alone.
_OF_CONNECTIONS: Final = (
    *("selector_added", "selector_refused", "selector_removed", "flow_applied", "flow_counted"),
    *("pending_ack_removed", "draining_add", "draining_blocked", "draining_release", "send_returned"),
    "sent",
)
#: Lines that name a connection which is being added, before its ``consumer_added`` line.
_BEFORE_IT_IS_ADDED: Final = ("active_picked", "active_notified", "read_attempt")
#: What ends the search for the beginning of a choice: an earlier choice's outcome, or work.
_OTHER_CHOICE: Final = ("active_picked", "consumer_added", "consumer_removed", "sent")
_COLUMNS: Final = ("seq", "t_us", "kind", "consumer", "active", "sorted")


def in_a_trace(found: Iterable[LogFinding], events: pa.Table, subscription: str) -> list[LogFinding]:
    """``found``, the findings about unknown connections, with what a trace says of these before.

    The first finding about each begins (``seqs``) with the first line that tells of the connection; of one that only lines
    of a trace tell of there is one finding more. Where the events are no trace, ``found`` as it was.
    """
    findings = list(found)
    if not set(_COLUMNS) <= set(events.column_names):
        return findings
    told = events.filter(pa.array(marked(events["kind"], *_OF_CONNECTIONS, *_BEFORE_IT_IS_ADDED)))
    if not marked(told["kind"], *_OF_CONNECTIONS[:-1]).any():
        return findings
    strangers = _strangers(told, events, [one for one in findings if one.reason == "never_added"])
    if not strangers:
        return findings
    first = _first_lines(told, strangers)
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


def _strangers(told: pa.Table, events: pa.Table, findings: list[LogFinding]) -> set[int]:
    """Connections that were never added, by the findings or by lines of a trace that only those have who were."""
    lines = told.filter(pa.array(marked(told["kind"], *_OF_CONNECTIONS[:-1])))
    named = set(pc.unique(lines["consumer"]).to_pylist()) - {None}
    added = events.filter(pa.array(marked(events["kind"], "consumer_added")))["consumer"].to_pylist()
    checkpoints = marked(events["kind"], "checkpoint").any()  # these name who was there before the log begins
    unknown = {one.consumer for one in findings if one.consumer is not None}
    return unknown | (set() if checkpoints else named - set(added))


def _first_lines(told: pa.Table, strangers: set[int]) -> dict[int, Mapping[str, Any]]:
    """The first line that names each: as the one it is about, as the active one, or in the order of a choice."""
    found: dict[int, Mapping[str, Any]] = {}
    for line in told.select(list(_COLUMNS)).to_pylist():
        for number in (line["consumer"], line["active"], *(line["sorted"] or ())):
            if number in strangers:
                found.setdefault(number, line)
        if len(found) == len(strangers):
            break
    return found


def _begins(events: pa.Table, seq: int) -> int:
    """Where the choice begins whose outcome the line ``seq`` tells: at its hand-over, if it makes one."""
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
