"""Write a comparison as a table for people or as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from dispatch_core.audit.promises.promise import FAIL
from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import counted, worst_first
from dispatch_core.audit.sentences.names import printable, rules_called, shown
from dispatch_core.times import date_and_clock
from dispatch_core.what_if.client_changes import SHARED
from dispatch_core.what_if.compare import NO_ORDER, Confidence, Row
from dispatch_core.what_if.measure import Measures, Spread

_COLUMNS: Final = (
    "rules",
    "order (keys)",
    "again",
    "twice",
    "late",
    "wait ms 50/99/100 %",
    "of keys",
    "blocked (needless)",
    "share",
    "moved (times)",
    "msg/s",
    "unsent",
    "same",
    "sure",
)
#: The meaning of the columns; printed once.
LEGEND: Final = """order (keys): proven findings of out_of_order and split_key, and the number of their keys
again, twice, late: entries sent again for an allowed cause, pending on two consumers at once, sent after their ack
wait: from publishing a message to its first delivery; of keys: the longest wait of each key
blocked (needless): message-seconds that rules held back, and those while no consumer had an entry of the hash pending
share: load of the most loaded consumer, in multiples of its share; unsent: entries never sent by the end of the log
moved (times): keys that went to another consumer name than before, and how often keys did so altogether
same: positions that go first to the recorded connection; sure: of 100 such predictions so many come true, as measured on
client scripts that were recorded under several rules (docs/what-if.md#how-certain-it-is); in parentheses: none is like it"""


def as_json(row: Row) -> dict[str, Any]:
    """A row of ``what-if --json``. Of a subscription with several topics ``group`` names it, and ``recording`` is null."""
    of_group = {"group": {"cluster": row.cluster, "subscription": row.subscription}}
    return {
        "recording": row.recording if row.topic else None,
        **({} if row.topic else of_group),
        "cluster": row.cluster,
        "topic": row.topic or None,
        "subscription": row.subscription,
        "incarnation": row.incarnation,
        "rules": {
            "name": printable(row.rules.name),
            "broker_version": row.rules.broker_version,
            # given on a command line, so not always text that can be written
            "settings": {
                name: printable(value) if isinstance(value, str) else value
                for name, value in row.rules.settings.items()
            },
            "clients": {
                printable(name): printable(value) for name, value in row.rules.clients.settings.items()
            },
            "priority_levels": {printable(name): level for name, level in row.rules.priorities.items()},
            "profile": row.profile or None,
            "proposal": _proposal(row),
        },
        "recorded": None if row.recorded is None else row.recorded.as_json(),
        "simulated": None if row.simulated is None else row.simulated.as_json(),
        "over_seeds": row.over_seeds(),
        "same_first_consumer": row.same_first_consumer,
        "assumptions": list(row.assumptions),
        "confidence": None if row.confidence is None else row.confidence.as_json(),
        "sentence": None if row.confidence is None else printable(sentence(row)),
        "warnings": list(row.warnings),
        "notes": list(row.notes),
        "problem": row.problem,
        "verdict": row.verdict,
    }


def _proposal(row: Row) -> dict[str, Any] | None:
    proposal = row.rules.proposal
    if proposal is None:
        return None
    return {
        "title": proposal.title,
        "revision": proposal.revision,
        "status": proposal.status,
        "figures": {} if row.shown is None else dict(row.shown.figures),
    }


def for_people(rows: Sequence[Row]) -> str:
    """The rows of one dispatcher (or of all topics of one subscription) as a table, followed by remarks."""
    first = rows[0]
    recorded = next((row.recorded for row in rows if row.recorded is not None), None)
    if first.topic:
        title = f"{shown(first.recording)}  {shown(first.topic)}  {shown(first.subscription)}"
        title += f"  incarnation {first.incarnation}" if first.incarnation else ""
    else:
        topics = 0 if recorded is None else recorded.topics
        title = f"{shown(first.subscription)}: {topics} topics together"
    table = [list(_COLUMNS)]
    if recorded is not None:
        title += f": {recorded.messages} messages to {len(recorded.messages_of)} consumers"
        about = rules_called(first.recorded_rules) if first.topic else ""
        if recorded.from_us is not None and recorded.until_us is not None:
            about += f"{', ' if about else ''}{date_and_clock(recorded.from_us)} to {date_and_clock(recorded.until_us)} UTC"
        title += f"\n  {about}" if about else ""
        table.append(["recorded", *_cells(recorded), "", ""])
    for row in rows:
        if row.simulated is None:
            table.append([shown(row.rules.name), *["-"] * (len(_COLUMNS) - 2), "-"])
            continue
        same = "-" if row.same_first_consumer is None else f"{row.same_first_consumer:.1%}"
        confidence = {} if row.confidence is None else row.confidence.as_json()
        table.append([shown(row.rules.name), *_cells(row.simulated), same, sure_cell(confidence)])
    return "\n".join([title, *_aligned(table), *_active(rows, recorded), *_remarks(rows)]) + "\n"


def sure_cell(confidence: Mapping[str, Any]) -> str:
    """Write the probability of a prediction (``Confidence.as_json``) for the column *sure*."""
    probability = confidence.get("probability")
    if probability is None or confidence.get("not_measured") == NO_ORDER:
        return "-"
    return f"{probability:.0%}" if confidence.get("not_measured") is None else f"({probability:.0%})"


def sentence(row: Row) -> str:
    """A prediction in one sentence: whether it prevents what was recorded, and how sure that is."""
    simulated, confidence = row.simulated, row.confidence
    if simulated is None or confidence is None:
        return f"{row.rules.name}: nothing is predicted."
    before = 0 if row.recorded is None else row.recorded.order_violations
    recorded = counted(before, "order violation", "order violations")
    found = counted(simulated.order_violations, "order violation", "order violations")
    name = row.rules.name
    if row.not_measured == NO_ORDER:
        return f"{name}: {NO_ORDER}{_waits(row)}{_unsent(row)}."
    if row.subscription_type == SHARED:
        said = f"{name} would keep the order of each key, which Shared does not promise, with {found}"
    elif row.is_control:
        said = f"{name}: the simulation has {found}, the recording {before}"
    elif before and not simulated.order_violations:
        these = "this" if before == 1 else "these"
        said = f"{name} would have prevented {these} {recorded}"
    elif before:
        said = f"{name} would not have prevented order violations: {simulated.order_violations} instead of {before}"
    elif simulated.order_violations:
        said = f"{name} would have had {found}, where none was recorded"
    else:
        said = f"{name} would have had no order violation either"
    return f"{said} ({sure(confidence)}){_unsent(row)}."


def _waits(row: Row) -> str:
    """Write how long messages would wait, and how long they waited."""
    recorded, simulated = row.recorded, row.simulated
    if recorded is None or simulated is None or None in (recorded.wait_ms.p99, simulated.wait_ms.p99):
        return ""
    before, after = recorded.wait_ms, simulated.wait_ms
    return (
        f"; half of the messages would wait {after.p50:,.0f} ms, not {before.p50:,.0f}, and 99 of 100 at most "
        f"{after.p99:,.0f} ms, not {before.p99:,.0f}"
    )


def sure(confidence: Confidence) -> str:
    """Write the probability of a prediction, as in "97 of 100"."""
    not_measured = "" if confidence.not_measured is None else f", not measured: {confidence.not_measured}"
    return f"{confidence.probability * 100:.0f} of 100{not_measured}"


def _unsent(row: Row) -> str:
    """Write how many entries nobody would have been sent, or was, if any."""
    simulated = row.simulated
    if simulated is None:
        return ""
    before = 0 if row.recorded is None else row.recorded.never_sent
    total = simulated.entries + simulated.never_sent
    if simulated.never_sent > before:
        missing = f"{simulated.never_sent:,} of {total:,} entries"
        return f"; {missing} would not have been sent by the end of the log, not {before:,}"
    if before > simulated.never_sent:
        rest = f"{simulated.never_sent:,}" if simulated.never_sent else "none"
        return f"; {before:,} of {total:,} entries were never sent, under these rules {rest} would be missing"
    return f"; {before:,} of {total:,} entries would not have been sent, as recorded" if before else ""


def key_changes(rows: Sequence[Row]) -> str:
    """List for the recording and each rules the joins and leaves behind which keys went to another consumer."""
    recorded = next((row.recorded for row in rows if row.recorded is not None), None)
    lines = []
    for name, measured in (("recorded", recorded), *((shown(row.rules.name), row.simulated) for row in rows)):
        if measured is None:
            continue
        begin_us = measured.from_us or 0
        moves = [
            f"{shown(change.consumer_name)} {'joined' if change.joined else 'left'} after "
            f"{duration(change.t_us - begin_us)}: {change.keys}"
            for change in measured.affinity.by_change
            if change.keys
        ]
        lines.append(f"  keys moved, {name}: {'; '.join(moves) or 'none'}")
    return "\n".join(lines) + "\n"


def failed(rows: Sequence[Row]) -> str:
    """List the predictions that fail, the worst first; empty if there are not several dispatchers."""
    found = [(row, row.simulated) for row in rows if row.verdict == FAIL and row.simulated is not None]
    found.sort(key=lambda pair: -pair[1].order_violations)
    lines = [
        f"{shown(row.recording)}  {shown(row.topic)}  {shown(row.subscription)}  {shown(row.rules.name)}: "
        f"{counted(measured.order_violations, 'order violation', 'order violations')} of "
        f"{counted(measured.keys_out_of_order, 'key', 'keys')}"
        for row, measured in found
    ]
    return worst_first(lines, len({(row.recording, row.topic, row.subscription) for row in rows}))


def assumptions(rows: Sequence[Row]) -> str:
    """The assumptions of all predictions, each once."""
    texts = dict.fromkeys(text for row in rows for text in row.assumptions)
    lines = [textwrap.fill(text, 116, initial_indent="  - ", subsequent_indent="    ") for text in texts]
    return "\n".join(["assumed:", *lines])


def problem_of(row: Row) -> str:
    """The reason why a row has no prediction, in one line for people."""
    return printable(f"{row.recording or row.subscription}: {row.rules.name}: {row.problem}")


def _cells(measured: Measures) -> list[str]:
    ratio = measured.max_share_ratio
    speed = measured.throughput_per_s
    return [
        f"{measured.order_violations} ({measured.keys_out_of_order})",
        str(measured.redelivered),
        str(measured.double_outstanding),
        str(measured.duplicates),
        _spread(measured.wait_ms),
        _spread(measured.key_wait_ms_max),
        f"{measured.blocked_message_s:.1f} ({measured.needless_message_s:.1f})" if measured.judged else "-",
        "-" if ratio is None else f"{ratio:.2f}",
        f"{measured.affinity.keys} ({measured.affinity.changes})",
        "-" if speed is None else f"{speed:.0f}",
        str(measured.never_sent),
    ]


def _spread(spread: Spread) -> str:
    return "/".join(
        "-" if value is None else f"{value:.0f}" for value in (spread.p50, spread.p99, spread.max)
    )


def _aligned(table: list[list[str]]) -> list[str]:
    """Columns side by side, names aligned left and figures aligned right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if at in (0, len(row) - 1) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _active(rows: Sequence[Row], recorded: Measures | None) -> list[str]:
    """For several Failover topics: the number of topics for which each consumer is active."""
    found = []
    for name, measured in (("recorded", recorded), *((shown(row.rules.name), row.simulated) for row in rows)):
        if measured is None or measured.topics < 2 or not measured.active_topics:
            continue
        counts = sorted(measured.active_topics.items(), key=lambda item: (-item[1], item[0]))
        counts_listed = ", ".join(f"{shown(consumer)} {count}" for consumer, count in counts[:_CONSUMERS])
        left = len(counts) - _CONSUMERS
        counts_listed += (
            f" … and {left} more with {counts[-1][1]} to {counts[_CONSUMERS][1]}" if left > 0 else ""
        )
        found.append(f"  active topics, {name}: {counts_listed}")
    return found


_CONSUMERS: Final = 12
#: A prediction that is less sure than this says what it rests on.
SURE_WITHOUT_REASON: Final = 0.95


def _remarks(rows: Sequence[Row]) -> list[str]:
    found = []
    for row in rows:
        if row.problem is not None:
            found.append(f"  {shown(row.rules.name)}: {printable(row.problem)}")
        if row.confidence is not None:
            found.append(f"  {printable(sentence(row))}")
        said = "" if row.confidence is None else sentence(row)
        remarks = [text for text in (*row.warnings, *row.notes) if text not in said]
        found += [f"  {shown(row.rules.name)}: {printable(text)}" for text in remarks]
        if row.shown is not None and row.shown.figures:
            figures = ", ".join(f"{name} {value:g}" for name, value in row.shown.figures.items())
            found.append(f"  {shown(row.rules.name)}: {figures}")
        if row.not_measured == NO_ORDER or row.confidence is None:
            continue
        if row.confidence.probability < SURE_WITHOUT_REASON:
            found.append(f"  {shown(row.rules.name)}: {row.confidence.reason}")
    return found
