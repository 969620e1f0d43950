"""Turn a comparison's divergences into findings: the entry, its key, the consumer that got it and the one by the rules.

A comparison gives one row of ``divergences`` per decision. Each delivery that differs is a finding. Decisions that only a
trace shows (reads, replay sets, draining hashes) depend on each other: after the first one that differs, the core's state is
not the broker's, and later differences may be consequences. Of these decisions the first is a finding, with the number of
the others.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.arrays.columns import marked
from dispatch_core.audit.catalogue import DOUBTS, KINDS
from dispatch_core.audit.deliveries.findings import Finding
from dispatch_core.audit.sentences.names import ConsumerNames, shown
from dispatch_core.broker import gates
from dispatch_core.times import clock
from dispatch_core.verify.consequences import NOT_ACTIVE, Consequences, holders_of_holes, unfinished
from dispatch_core.verify.without_trace.key_shared import KeySharedFold

#: Decisions so near in time to a delivery that differs are part of the same round, or lead to it.
_SAME_ROUND_US: Final = 100_000
#: Kinds of findings whose proving line is a delivery that the rules had not allowed.
_BEYOND_THE_RULES: Final = ("double_outstanding", "duplicate_after_ack")
#: Kinds of findings about entries that were left out, so that others of their hash went before them.
_LEFT_OUT: Final = ("never_delivered", "stuck_key")
_WAITS: Final = KeySharedFold.reasons[gates.REPLAY_ORDER]
#: Reason of a delivery that only lacks a permit.
NO_PERMITS: Final = KeySharedFold.reasons[gates.NO_PERMITS]
#: Columns that are read of the tables of a replay; a log that differs everywhere has many rows.
COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "deliveries": (
        *("seq", "t_us", "consumer", "ledger_id", "entry_id", "key", "key_b64", "hash"),
        *("judgement", "expected_consumer"),
    ),
    "divergences": ("seq", "status", "reason"),
}
#: Columns that are read of the other findings.
ANOMALY_COLUMNS: Final = ("kind", "hash", "positions", "consumers", "seqs", "t_us", "cause")
#: Place in a line, behind all others.
_BEHIND_ALL: Final = 1 << 40
_POSITION: Final = re.compile(r"(?<![\d:])-?\d+:-?\d+(?![\d:])")
_CONSUMER: Final = re.compile(r"\bconsumer (\d+)")


def of_deliveries(
    deliveries: pa.Table,
    divergences: pa.Table,
    names: ConsumerNames,
    rule: str,
    anomalies: Sequence[Mapping[str, Any]] = (),
) -> list[Finding]:
    """Make one finding per delivery that is judged ``divergent``, without consequences of other findings.

    A consumer that was sent more than the rules allow has a permit less from then on, in the log as in the broker. If an
    entry went to another consumer, the rules still spend a permit of the consumer it was for. So deliveries without a permit
    count once per consumer, and not at all after another finding about a delivery to it, or in one round with such a
    finding. An entry that overtook one that was left out belongs to the finding about the latter; see also ``consequences``.

    Args:
        deliveries: rows of ``DELIVERIES`` with judgements (docs/logs-without-trace.md).
        divergences: rows of ``DIVERGENCES`` of the same judgement, with the reasons.
        names: display names of the consumers.
        rule: name of the rules in force, for people.
        anomalies: the other findings of the log.
    """
    took = _took_permits(anomalies)
    left_out = {row["hash"] for row in anomalies if row["kind"] in _LEFT_OUT and row["hash"] is not None}
    beyond_us = [row["t_us"] for row in anomalies if row["kind"] in _BEYOND_THE_RULES]
    doubtful = doubtful_from(anomalies)
    wrong = certain(deliveries.filter(pc.equal(deliveries["judgement"], "divergent")), doubtful).to_pylist()
    why = divergences.filter(pc.equal(divergences["status"], "divergent")).to_pylist()
    reasons: dict[int, list[str | None]] = {}
    for row in why:
        reasons.setdefault(row["seq"], []).append(row["reason"])
    explained = []
    for row in wrong:
        reason = reasons[row["seq"]].pop(0) if reasons.get(row["seq"]) else None
        explained.append((row, reason))
        if reason != NO_PERMITS:
            beyond_us.append(row["t_us"])
    beyond_us.sort()
    elsewhere = [
        ((r["ledger_id"], r["entry_id"]), r["seq"]) for r, reason in explained if reason == NOT_ACTIVE
    ]
    consequences = Consequences(anomalies, elsewhere)
    found = []
    for place, (row, reason) in enumerate(explained):
        if reason == _WAITS and row["hash"] in left_out:
            continue
        if consequences.explain((row["ledger_id"], row["entry_id"]), row["seq"], reason):
            continue
        to_seq = took.get(row["consumer"], row["seq"])
        if reason == NO_PERMITS:
            at = bisect_left(beyond_us, row["t_us"] - _SAME_ROUND_US)
            near = at < len(beyond_us) and beyond_us[at] <= row["t_us"] + _SAME_ROUND_US
            if near or to_seq < row["seq"]:
                continue
        took[row["consumer"]] = min(to_seq, row["seq"])
        position = f"{row['ledger_id']}:{row['entry_id']}"
        key = "" if row["key"] is None else f" (key {shown(row['key'])})"
        expected = row["expected_consumer"]
        meant, to = names.of(expected), names.of(row["consumer"])
        text = (
            f"{position}{key} was sent to {to} at {clock(row['t_us'])}; by the rules of {rule} "
            f"it was for {meant}{f': {reason}' if reason else ''}"
        )
        consumers = [row["consumer"], *([] if expected is None else [expected])]
        found.append(_finding([row["seq"]], row["t_us"], text, "dispatch", [position], consumers, place, row))
    return found


def of_the_rest(
    deliveries: pa.Table, unseen: int, rule: str, anomalies: Sequence[Mapping[str, Any]] = ()
) -> list[Finding]:
    """Make one finding for all divergent deliveries that are not reported one by one; an empty list if there are none.

    Args:
        deliveries: these deliveries.
        unseen: number of more deliveries that are not among the rows.
        rule: name of the rules in force, for people.
        anomalies: the other findings of the log; nothing is reported behind lines that may be missing.
    """
    rest = certain(deliveries, doubtful_from(anomalies))
    if not rest.num_rows:
        return []
    first = rest.slice(0, 1).to_pylist()[0]
    text = (
        f"{rest.num_rows + unseen:,} more deliveries, from {clock(first['t_us'])} (seq {first['seq']}) on, differ from the "
        f"rules of {rule}; all of them are rows of divergences. Where so many differ the rules are most likely not those "
        "of this broker: see the settings in the header of the log"
    )
    position = f"{first['ledger_id']}:{first['entry_id']}"
    consumers = [first["consumer"]]
    row = {"hash": first["hash"]}
    return [
        _finding([first["seq"]], first["t_us"], text, "dispatch", [position], consumers, _BEHIND_ALL, row)
    ]


def _took_permits(anomalies: Iterable[Mapping[str, Any]]) -> dict[int, int]:
    """Return, by consumer, the line of the first delivery to it that no rule allows."""
    took = holders_of_holes(anomalies)
    for row in anomalies:
        if row["kind"] in _BEYOND_THE_RULES:
            # of an entry at two connections the ack of one leaves it with the other, and that one's count too high
            for consumer in row["consumers"]:
                took[consumer] = min(took.get(consumer, row["seqs"][-1]), row["seqs"][-1])
    return took


def of_decisions(
    divergences: pa.Table,
    deliveries: pa.Table,
    rule: str,
    anomalies: Sequence[Mapping[str, Any]] = (),
    unseen: int = 0,
) -> list[Finding]:
    """Make a finding of the first decision of a trace that differs from its rule, with the number of all such decisions.

    Args:
        divergences: of a comparison decision by decision.
        deliveries: the deliveries of the log, for the key of an entry that the decision names.
        rule: name of the rules in force, for people.
        anomalies: the other findings. One that the same line proves may name entries that the decision does not name. A
            finding that an entry was left out, or never acknowledged, includes the decision about it.
        unseen: number of more decisions that differ, behind these.
    """
    wrong = certain(
        divergences.filter(pc.equal(divergences["status"], "divergent")), doubtful_from(anomalies)
    )
    if not wrong.num_rows:
        return []
    first = wrong.slice(0, 1).to_pylist()[0]
    counts = Counter(wrong["decision_class"].to_pylist())
    text = (
        f"at {clock(first['t_us'])} (seq {first['seq']}) the {first['decision_class']} decision of the broker differs from "
        f"the rules of {rule}: expected {first['expected']}, recorded {first['recorded']}"
    )
    if first["reason"]:
        text += f" ({first['reason']})"
    if wrong.num_rows > 1:
        others = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
        more = f"{others}, {unseen} later ones" if unseen else others
        number = wrong.num_rows + unseen
        text += f"; in all {number} decisions differ ({more}), those that follow may be its consequences"
    expected, recorded = (_POSITION.findall(first[side]) for side in ("expected", "recorded"))
    positions = _differing(expected, recorded)
    if unfinished(anomalies, positions):
        return []
    of_line = [row for row in anomalies if first["seq"] in row["seqs"] and row["positions"]]
    if positions:
        of_line = [row for row in of_line if positions[0] in row["positions"]]
    # what nothing explains, before the rest
    same = min(of_line, key=lambda row: row["cause"] is not None, default=None)
    positions = positions if same is None else list(same["positions"])
    consumers = [
        int(number) for side in ("expected", "recorded") for number in _CONSUMER.findall(first[side])
    ]
    row = _row_of(positions[0], deliveries) if positions else {}
    seqs = [first["seq"]] if first["racing_seq"] is None else sorted({first["racing_seq"], first["seq"]})
    unique = list(dict.fromkeys(consumers))
    return [_finding(seqs, first["t_us"], text, first["decision_class"], positions, unique, 0, row)]


def positions_of_first(divergences: pa.Table, anomalies: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the entries that ``of_decisions`` may look up: those of the first decision, and of findings by its line."""
    wrong = divergences.filter(pc.equal(divergences["status"], "divergent")).slice(0, 1).to_pylist()
    if not wrong:
        return set()
    named = {text for side in ("expected", "recorded") for text in _POSITION.findall(wrong[0][side])}
    of_line = (row["positions"] for row in anomalies if wrong[0]["seq"] in row["seqs"])
    return named.union(*of_line)


def _differing(expected: Sequence[str], recorded: Sequence[str]) -> list[str]:
    """Return the entries that only one of two decisions names, beginning with the first place where they differ.

    If they differ in order only: the two entries in that place.
    """
    both = set(expected) & set(recorded)
    place = next((pair for pair in zip(expected, recorded, strict=False) if pair[0] != pair[1]), ())
    only = [entry for entry in dict.fromkeys([*place, *expected, *recorded]) if entry not in both]
    return only or list(place)


def of_trace(decisions: list[Finding], deliveries: list[Finding]) -> list[Finding]:
    """Join the findings of a trace: all deliveries that differ, and the first decision if it comes before all of them.

    ``decisions``: of ``of_decisions``; ``deliveries``: of ``of_deliveries``.
    """
    if not deliveries or not decisions:
        return deliveries or decisions
    lead_us = min(finding.t_us for finding in deliveries) - decisions[0].t_us
    return [*(decisions if lead_us > _SAME_ROUND_US else []), *deliveries]


def doubtful_from(anomalies: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the first line from which on lines are missing or cannot be; ``None`` = none."""
    return min((min(row["seqs"]) for row in anomalies if row["kind"] in DOUBTS), default=None)


def certain(divergences: pa.Table, doubtful: int | None) -> pa.Table:
    """Return the rows of ``divergences`` before a line; missing lines may explain what differs behind it."""
    return divergences if doubtful is None else divergences.filter(pc.less(divergences["seq"], doubtful))


def doubted(divergences: pa.Table, anomalies: pa.Table) -> int:
    """Count the decisions that differ behind lines that are missing or cannot be: these are no findings."""
    if not divergences.num_rows:
        return 0
    # Few columns of each, as a filter copies all.
    wrong = divergences.select(["seq", "status"]).filter(pc.equal(divergences["status"], "divergent"))
    if not wrong.num_rows:
        return 0
    doubts = anomalies.select(["kind", "seqs"]).filter(pa.array(marked(anomalies["kind"], *DOUBTS)))
    return wrong.num_rows - certain(wrong, doubtful_from(doubts.to_pylist())).num_rows


def _row_of(position: str, deliveries: pa.Table) -> Mapping[str, Any]:
    """Return a delivery of an entry, for its key and hash."""
    ledger, entry = (int(part) for part in position.rsplit(":", 1))
    hit = pc.and_(pc.equal(deliveries["ledger_id"], ledger), pc.equal(deliveries["entry_id"], entry))
    rows = deliveries.filter(hit).slice(0, 1).to_pylist()
    return rows[0] if rows else {}


def _finding(
    seqs: list[int],
    t_us: int,
    text: str,
    reason: str,
    positions: list[str],
    consumers: list[int],
    place: int,
    row: Mapping[str, Any],
) -> Finding:
    return Finding(
        kind="divergence",
        severity=KINDS["divergence"].severity,
        key=row.get("key"),
        key_b64=bool(row.get("key_b64")),
        hash=row.get("hash"),
        positions=positions,
        consumers=consumers,
        seqs=seqs,
        t_us=t_us,
        cause=None,
        reason=reason,
        uncertain=False,
        explanation=text,
        place=place,
    )
