"""Text output of ``dispatch-audit stats`` for one dispatcher: what matters on the first screen, then the lists.

A module of its own so that ``stats --help`` does not load the core.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import listed, plural
from dispatch_core.audit.sentences.names import ConsumerNames, shown
from dispatch_core.replay.known_values import Values
from dispatch_core.replay.moment_statistics import MomentStatistics
from dispatch_core.times import clock, date_and_clock

#: Rows of each list; ``--json`` has all.
MAX_ROWS: Final = 20
_MAX_POSITIONS: Final = 6
_BARS: Final = " ▁▂▃▄▅▆▇█"
#: Heading and field of each column of consumers.
_COLUMNS: Final = (
    ("availablePermits", "availablePermits"),
    ("unackedMessages", "unackedMessages"),
    ("blocked", "blockedConsumerOnUnackedMsgs"),
    ("msgRateOut", "msgRateOut"),
    ("msgOutCounter", "msgOutCounter"),
    ("avgMessagesPerEntry", "avgMessagesPerEntry"),
    ("keyHashes", "keyHashes"),
    ("keysHeld", "keysHeld"),
    ("drainingHashes", "drainingHashesCount"),
    ("drainingUnacked", "drainingHashesUnackedMessages"),
    ("readPositionWhenJoining", "readPositionWhenJoining"),
    ("lastSentPositionWhenJoining", "lastSentPositionWhenJoining"),
)
_LEVELS: Final = {
    "T": "T: from a trace whose decisions were compared with the rules",
    "E": "E, without a trace: >= is at least so many, ? is not known (--json says why)",
}


def for_people(statistics: MomentStatistics) -> Iterator[str]:
    """Yield the lines of one dispatcher."""
    names = ConsumerNames(statistics.names)
    yield from _head(statistics)
    yield ""
    yield from _consumers(statistics, names)
    yield from _draining(statistics, names)
    yield from _changes(statistics, names)
    yield from _rates(statistics, names)


def _head(statistics: MomentStatistics) -> Iterator[str]:
    log, values = statistics.log, statistics.values
    yield f"{shown(log.recording)}  {shown(log.topic)}  {shown(log.subscription)}  incarnation {log.incarnation}"
    span = (
        f"{statistics.lines:,} lines; rates, peaks and keys are since {clock(statistics.from_us)}, "
        + duration(statistics.t_us - statistics.from_us)
    )
    yield f"  moment     {date_and_clock(statistics.t_us)} UTC, after seq {statistics.seq}; {span}"
    yield f"  rules      {'not known' if statistics.profile is None else statistics.profile.name}"
    compared = ", ".join(f"{count:,} {name}" for name, count in statistics.decisions.items())
    yield f"  level      {_LEVELS[statistics.level]}" + (f" ({compared})" if compared else "")
    if statistics.assumes:
        yield f"  assumes    that these are absent, or in the log: {listed(list(statistics.assumes))}"
    yield from (f"  note       {note}" for note in statistics.notes)
    named = ("type", "activeConsumerName", "unackedMessages", "msgBacklog", "msgInReplay", "msgRateOut")
    fields = [f"{name} {_text(values, name)}" for name in named if _has(values, name)]
    if values.known.get("blockedSubscriptionOnUnackedMsgs"):
        fields.append("blockedSubscriptionOnUnackedMsgs yes")
    yield f"  now        {'   '.join(fields)}"
    yield from _sizes(statistics)
    reads = statistics.reads
    if not reads.delivered:
        yield "  reads      nothing was delivered"
    elif reads.amplification is not None:
        yield (
            f"  reads      {reads.read:,} entries read for {reads.delivered:,} delivered: "
            f"{reads.amplification:.2f} read per delivery"
        )
    else:
        yield (
            f"  reads      at least {reads.at_least:,} entries read for {reads.delivered:,} delivered: at least "
            f"{reads.amplification_at_least:.2f} read per delivery (the log does not show reads)"
        )
    changes = statistics.changes
    if changes is None:
        yield "  keys       Shared keeps no key at a consumer"
    else:
        yield (
            f"  keys       {changes.keys:,} {plural(changes.keys, 'key', 'keys')} changed consumer, {changes.changes:,} "
            f"{plural(changes.changes, 'time', 'times')} in all"
        )


def _sizes(statistics: MomentStatistics) -> Iterator[str]:
    tracker = statistics.tracker
    limit = "" if tracker.look_ahead_limit is None else f"; look-ahead limit {tracker.look_ahead_limit:,}"
    peak = tracker.peak("in_replay")
    if peak is not None:
        yield (
            f"  replay set {tracker.sizes[-1].in_replay:,} positions, at most {peak.in_replay:,} (at {clock(peak.t_us)})"
            f"{limit}"
        )
    elif limit:
        yield f"  replay set {_text(statistics.values, 'msgInReplay')} positions, its peak is not known{limit}"
    if not tracker.has_draining_hashes:
        return
    peak = tracker.peak("draining")
    if peak is not None:
        yield (
            f"  draining   {tracker.sizes[-1].draining:,} hashes, at most {peak.draining:,} (at {clock(peak.t_us)})"
        )
    else:
        yield f"  draining   {_text(statistics.values, 'drainingHashesCount')} hashes, their peak is not known"


def _consumers(statistics: MomentStatistics, names: ConsumerNames) -> Iterator[str]:
    if not statistics.consumers:
        yield "  no consumer is connected"
        return
    columns = [
        (head, name) for head, name in _COLUMNS if any(_has(own, name) for own in statistics.consumers)
    ]
    rows = [
        [
            str(own.known["consumer"]),
            names.of(own.known["consumer"]),
            *(_text(own, name) for _, name in columns),
        ]
        for own in statistics.consumers
    ]
    window = duration(statistics.window_us)
    yield f"  Consumers (msgRateOut: messages per second over the last {window})"
    yield from _table(["consumer", "name", *(head for head, _ in columns)], rows)


def _draining(statistics: MomentStatistics, names: ConsumerNames) -> Iterator[str]:
    if statistics.draining_doubt is not None and statistics.tracker.has_draining_hashes:
        yield ""
        yield f"  Pending acks that hold a draining hash: not known, as {statistics.draining_doubt}"
    if not statistics.draining:
        return
    yield ""
    yield "  Pending acks that hold a draining hash"
    rows = [
        [
            str(item["hash"]),
            names.of(item["consumer"]),
            names.of(item.get("waiting")),
            str(item["unackMsgs"]),
            str(item.get("blockedAttempts", "?")),
            "?"
            if item["since_t_us"] is None
            else f"{clock(item['since_t_us'])} ({duration(statistics.t_us - item['since_t_us'])})",
            _some(item["messageIds"], _MAX_POSITIONS),
        ]
        for item in statistics.draining
    ]
    head = ["hash", "held by", "waiting", "unackMsgs", "blockedAttempts", "since", "messageIds"]
    yield from _table(head, rows)


def _changes(statistics: MomentStatistics, names: ConsumerNames) -> Iterator[str]:
    changes = statistics.changes
    if changes is None or not changes.changes:
        return
    moving = sorted((change for change in changes.by_change if change.keys), key=lambda change: -change.keys)
    yield ""
    yield "  Joins and leaves after which keys went to another consumer, most keys first"
    rows = [
        [
            str(change.seq),
            clock(change.t_us),
            "before the first" if change.joined is None else "joined" if change.joined else "left",
            "" if change.consumer is None else names.of(change.consumer),
            f"{change.keys:,}",
        ]
        for change in moving
    ]
    yield from _table(["seq", "at", "what", "consumer", "keys"], rows)
    yield ""
    yield "  Keys that changed consumer most often"
    rows = [
        [
            shown(moved.key) + (" (base64)" if moved.key_b64 else ""),
            f"{moved.changes:,}",
            _some([names.of(number) for number in moved.consumers], _MAX_POSITIONS, " > "),
        ]
        for moved in changes.worst[:5]
    ]
    yield from _table(["key", "changes", "consumers in turn"], rows)


def _rates(statistics: MomentStatistics, names: ConsumerNames) -> Iterator[str]:
    rates = statistics.rates
    if not rates.consumers:
        return
    yield ""
    step_s = rates.step_us / 1e6
    yield f"  Messages delivered over time, from {clock(rates.from_us)}, a column per {duration(rates.step_us)}"
    highest = max(int(rates.messages.max()), 1)
    rows = [
        [
            names.of(number),
            f"{counts.max() / step_s:,.1f}",
            "".join(_BARS[-(-int(count) * (len(_BARS) - 1) // highest)] for count in counts.tolist()),
        ]
        for number, counts in zip(rates.consumers, rates.messages, strict=True)
    ]
    yield from _table(["consumer", "most per second", "|"], rows)


# --- cells -----------------------------------------------------------------------------------------------------------


def _has(values: Values, name: str) -> bool:
    return any(name in where for where in (values.known, values.at_least, values.not_known))


def _text(values: Values, name: str) -> str:
    """Write a value: known, at least so much, not known, or nothing where the release has no such field."""
    if name in values.known:
        return _plain(values.known[name])
    if name in values.at_least:
        return f">= {_plain(values.at_least[name])}"
    return "?" if name in values.not_known else ""


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else shown(str(value))


def _some(items: Sequence[str], most: int, between: str = ", ") -> str:
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return between.join(items[:most]) + more


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Lay out a table; the first ``MAX_ROWS`` rows are shown, numbers stand to the right."""
    kept = [list(head), *map(list, rows[:MAX_ROWS])]
    widths = [max(len(row[at]) for row in kept) for at in range(len(head))]
    right = [all(_is_number(row[at]) for row in kept[1:]) for at in range(len(head))]
    for row in kept:
        cells: Iterable[str] = (
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(row, widths, right, strict=True)
        )
        yield f"    {'  '.join(cells)}".rstrip()
    if len(rows) > MAX_ROWS:
        yield f"    … and {len(rows) - MAX_ROWS:,} more: --json lists them"


def _is_number(text: str) -> bool:
    return (
        not text
        or text == "?"
        or text.removeprefix(">= ").replace(",", "").replace(".", "").lstrip("-").isdigit()
    )
