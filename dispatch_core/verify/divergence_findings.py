"""Where a broker decided otherwise than its rule: findings that name entry, key, who got it and who should have.

A comparison gives one row of ``divergences`` per decision. What is sent otherwise is one finding each. Decisions that only a
trace shows (reads, replay sets, draining hashes) hang on each other: after the first that differs, the core's state is
another than the broker's, and what follows may be its consequence. Of these the first is a finding, with the number of the
others.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from dispatch_core.audit.catalogue import DOUBTS, KINDS
from dispatch_core.audit.deliveries.findings import Finding
from dispatch_core.audit.sentences.names import ConsumerNames, shown
from dispatch_core.broker import gates
from dispatch_core.times import clock
from dispatch_core.verify.consequences import NOT_ACTIVE, Consequences, holders_of_holes, unfinished
from dispatch_core.verify.without_trace.key_shared import KeySharedFold

#: Decisions so near in time to a sending that differs are part of the same round, or lead to it.
_SAME_ROUND_US: Final = 100_000
#: Kinds whose proving line is a sending that the rules had not allowed.
_BEYOND_THE_RULES: Final = ("double_outstanding", "duplicate_after_ack")
#: Kinds that say of an entry that it was left out, so that others of its hash went before it.
_LEFT_OUT: Final = ("never_delivered", "stuck_key")
_WAITS: Final = KeySharedFold.reasons[gates.REPLAY_ORDER]
#: Why a sending differs that only lacks a permit.
NO_PERMITS: Final = KeySharedFold.reasons[gates.NO_PERMITS]
#: A place in a line behind all others.
_BEHIND_ALL: Final = 1 << 40
_POSITION: Final = re.compile(r"(?<![\d:])-?\d+:-?\d+(?![\d:])")
_CONSUMER: Final = re.compile(r"\bconsumer (\d+)")


def of_sendings(
    deliveries: pa.Table,
    divergences: pa.Table,
    names: ConsumerNames,
    rule: str,
    anomalies: Sequence[Mapping[str, Any]] = (),
) -> list[Finding]:
    """One finding per delivery that is judged ``divergent``, but for consequences.

    Who was sent something beyond what the rules allow has a permit less from then on, in the log as in the broker; and where
    something went elsewhere, the rules still spend a permit of whom it was for. So sendings without a permit count once per
    consumer, and not at all behind another finding about a sending to it, or in one round with such a finding. What overtook
    an entry that a finding says was left out is told by that finding; see also ``consequences``.

    Args:
        deliveries: as judged by who was sent each entry (docs/logs-without-trace.md).
        divergences: of the same judgement; they say why.
        names: the display names of the consumers.
        rule: the rules in force, for people.
        anomalies: what else was found in the log.
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
    """One finding for all sendings that are not told one by one: ``deliveries`` and ``unseen`` more; none if there are none.

    ``anomalies``: what else was found in the log; behind lines that may be missing nothing is told.
    """
    rest = certain(deliveries, doubtful_from(anomalies))
    if not rest.num_rows:
        return []
    first = rest.slice(0, 1).to_pylist()[0]
    text = (
        f"{rest.num_rows + unseen:,} more sendings, from {clock(first['t_us'])} (seq {first['seq']}) on, differ from the "
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
    """Consumer → line of the first sending to it that no rule allows."""
    took = holders_of_holes(anomalies)
    for row in anomalies:
        if row["kind"] in _BEYOND_THE_RULES:
            # of an entry at two connections the ack of one leaves it with the other, and that one's count too high
            for consumer in row["consumers"]:
                took[consumer] = min(took.get(consumer, row["seqs"][-1]), row["seqs"][-1])
    return took


def of_decisions(
    divergences: pa.Table, deliveries: pa.Table, rule: str, anomalies: Sequence[Mapping[str, Any]] = ()
) -> list[Finding]:
    """The first decision of a trace that differs from its rule, with how many do; nothing if none does.

    Args:
        divergences: of a comparison decision by decision.
        deliveries: to tell the key of an entry that the decision names.
        rule: the rules in force, for people.
        anomalies: what else was found; one that the same line proves tells entries that the decision does not name. One that
            says of an entry that it was left out, or never acknowledged, tells the decision about it too.
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
        text += f"; in all {wrong.num_rows} decisions differ ({others}), those that follow may be its consequences"
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
    consumers = [int(one) for side in ("expected", "recorded") for one in _CONSUMER.findall(first[side])]
    row = _row_of(positions[0], deliveries) if positions else {}
    seqs = [first["seq"]] if first["racing_seq"] is None else sorted({first["racing_seq"], first["seq"]})
    unique = list(dict.fromkeys(consumers))
    return [_finding(seqs, first["t_us"], text, first["decision_class"], positions, unique, 0, row)]


def _differing(expected: Sequence[str], recorded: Sequence[str]) -> list[str]:
    """Entries that only one of two decisions names, the first place where they differ before the rest.

    What differs in order alone: the two that stand in that place.
    """
    both = set(expected) & set(recorded)
    place = next((pair for pair in zip(expected, recorded, strict=False) if pair[0] != pair[1]), ())
    only = [one for one in dict.fromkeys([*place, *expected, *recorded]) if one not in both]
    return only or list(place)


def of_trace(decisions: list[Finding], sendings: list[Finding]) -> list[Finding]:
    """Findings of a trace: every sending that differs, and the first decision if it lies before all of them."""
    if not sendings or not decisions:
        return sendings or decisions
    lead_us = min(one.t_us for one in sendings) - decisions[0].t_us
    return [*(decisions if lead_us > _SAME_ROUND_US else []), *sendings]


def doubtful_from(anomalies: Iterable[Mapping[str, Any]]) -> int | None:
    """The first line from which on a log may not say what happened: something is missing or cannot be; ``None`` = none."""
    return min((min(row["seqs"]) for row in anomalies if row["kind"] in DOUBTS), default=None)


def certain(divergences: pa.Table, doubtful: int | None) -> pa.Table:
    """The rows of ``divergences`` before a line; what differs behind it may be explained by what is not there."""
    return divergences if doubtful is None else divergences.filter(pc.less(divergences["seq"], doubtful))


def doubted(divergences: pa.Table, anomalies: pa.Table) -> int:
    """How many decisions differ behind lines that are missing or cannot be: these are no findings."""
    wrong = divergences.filter(pc.equal(divergences["status"], "divergent"))
    return len(wrong) - len(certain(wrong, doubtful_from(anomalies.select(["kind", "seqs"]).to_pylist())))


def _row_of(position: str, deliveries: pa.Table) -> Mapping[str, Any]:
    """A delivery of an entry, for its key and hash."""
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
