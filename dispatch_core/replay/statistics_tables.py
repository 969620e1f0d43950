"""Facts and tables about one dispatcher at a moment, as text: for the command line and for the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dispatch_core.audit.sentences.durations import duration
from dispatch_core.audit.sentences.lists import listed, plural
from dispatch_core.audit.sentences.names import ConsumerNames, shown
from dispatch_core.replay.known_values import Values
from dispatch_core.replay.moment_statistics import MomentStatistics
from dispatch_core.times import clock, date_and_clock

#: Positions, or consumers, that one cell lists.
MAX_IN_CELL: Final = 6
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
    "E": "E, without a trace: ≥ is at least so many, ? is not known (--json says why)",
}


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text. ``name``: for an id; ``remark``: a sentence below it, or instead of rows."""

    name: str
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    remark: str = ""


def facts_of(statistics: MomentStatistics) -> Iterator[tuple[str, str]]:
    """Yield label and text of what holds for the whole subscription."""
    values = statistics.values
    since = duration(statistics.t_us - statistics.from_us)
    yield (
        "moment",
        f"{date_and_clock(statistics.t_us)} UTC, after seq {statistics.seq} ({statistics.lines:,} lines); rates, reads, "
        f"peaks and keys are since {clock(statistics.from_us)}, {since}",
    )
    yield "rules", "not known" if statistics.profile is None else statistics.profile.name
    compared = ", ".join(f"{count:,} {name}" for name, count in statistics.decisions.items())
    yield "level", _LEVELS[statistics.level] + (f" ({compared})" if compared else "")
    if statistics.assumes:
        yield "assumes", f"that these are absent, or in the log: {listed(list(statistics.assumes))}"
    yield from (("note", note) for note in statistics.notes)
    named = ("type", "activeConsumerName", "unackedMessages", "msgBacklog", "msgInReplay", "msgRateOut")
    fields = [f"{name} {text_of(values, name)}" for name in named if has(values, name)]
    if values.known.get("blockedSubscriptionOnUnackedMsgs"):
        fields.append("blockedSubscriptionOnUnackedMsgs yes")
    yield "now", ", ".join(fields)
    yield from _sizes(statistics)
    yield "reads", _reads(statistics)
    changes = statistics.changes
    if changes is None:
        yield "keys", "Shared keeps no key at a consumer"
    else:
        keys, times = plural(changes.keys, "key", "keys"), plural(changes.changes, "time", "times")
        yield "keys", f"{changes.keys:,} {keys} changed consumer, {changes.changes:,} {times} in all"


def _sizes(statistics: MomentStatistics) -> Iterator[tuple[str, str]]:
    tracker = statistics.tracker
    limit = "" if tracker.look_ahead_limit is None else f"; look-ahead limit {tracker.look_ahead_limit:,}"
    peak = tracker.peak("in_replay")
    if peak is not None:
        now = tracker.sizes[-1].in_replay
        yield "replay set", f"{now:,} positions, at most {peak.in_replay:,} (at {clock(peak.t_us)}){limit}"
    elif has(statistics.values, "msgInReplay"):
        yield "replay set", f"{text_of(statistics.values, 'msgInReplay')} positions, peak not known{limit}"
    if not tracker.has_draining_hashes:
        return
    peak = tracker.peak("draining")
    if peak is not None:
        now = tracker.sizes[-1].draining
        yield "draining", f"{now:,} hashes, at most {peak.draining:,} (at {clock(peak.t_us)})"
    else:
        yield "draining", f"{text_of(statistics.values, 'drainingHashesCount')} hashes, peak not known"


def _reads(statistics: MomentStatistics) -> str:
    reads = statistics.reads
    if not reads.delivered:
        return "nothing was delivered"
    if reads.read is not None:
        return f"{reads.read:,} entries read for {reads.delivered:,} delivered: {reads.amplification:.2f} per delivery"
    return (
        f"at least {reads.at_least:,} entries read for {reads.delivered:,} delivered: at least "
        f"{reads.amplification_at_least:.2f} per delivery (the log does not show reads)"
    )


def tables_of(statistics: MomentStatistics) -> Iterator[Table]:
    """Yield the tables, with all their rows: consumers, what holds draining hashes, keys that changed consumer."""
    names = ConsumerNames(statistics.names)
    yield _consumers(statistics, names)
    if statistics.draining or (statistics.draining_doubt and statistics.tracker.has_draining_hashes):
        yield _draining(statistics, names)
    changes = statistics.changes
    if changes is None or not changes.changes:
        return
    moving = sorted((change for change in changes.by_change if change.keys), key=lambda change: -change.keys)
    yield Table(
        "key-changes",
        "Joins and leaves after which keys went to another consumer, most keys first",
        ("seq", "at", "what", "consumer", "keys"),
        [
            (
                str(change.seq),
                clock(change.t_us),
                "before the first" if change.joined is None else "joined" if change.joined else "left",
                "" if change.consumer is None else names.of(change.consumer),
                f"{change.keys:,}",
            )
            for change in moving
        ],
    )
    yield Table(
        "worst-keys",
        "Keys that changed consumer most often",
        ("key", "changes", "consumers in turn"),
        [
            (
                shown(moved.key) + (" (base64)" if moved.key_b64 else ""),
                f"{moved.changes:,}",
                some([names.of(number) for number in moved.consumers], " > "),
            )
            for moved in changes.worst
        ],
    )


def _consumers(statistics: MomentStatistics, names: ConsumerNames) -> Table:
    columns = [(head, name) for head, name in _COLUMNS if any(has(own, name) for own in statistics.consumers)]
    return Table(
        "consumers",
        f"Consumers (msgRateOut: messages per second over the last {duration(statistics.window_us)})",
        ("consumer", "name", *(head for head, _ in columns)),
        [
            (
                str(own.known["consumer"]),
                names.of(own.known["consumer"]),
                *(text_of(own, name) for _, name in columns),
            )
            for own in statistics.consumers
        ],
        "" if statistics.consumers else "No consumer is connected.",
    )


def _draining(statistics: MomentStatistics, names: ConsumerNames) -> Table:
    return Table(
        "draining",
        "Pending acks that hold a draining hash",
        ("hash", "held by", "waiting", "unackMsgs", "blockedAttempts", "since", "messageIds"),
        [
            (
                str(item["hash"]),
                names.of(item["consumer"]),
                names.of(item.get("waiting")),
                str(item["unackMsgs"]),
                str(item.get("blockedAttempts", "?")),
                _since(statistics.t_us, item["since_t_us"]),
                some(item["messageIds"]),
            )
            for item in statistics.draining
        ],
        "" if statistics.draining_doubt is None else f"Not known: {statistics.draining_doubt}.",
    )


def _since(t_us: int, since_us: int | None) -> str:
    return "?" if since_us is None else f"{clock(since_us)} ({duration(t_us - since_us)})"


# --- cells -----------------------------------------------------------------------------------------------------------


def has(values: Values, name: str) -> bool:
    """Check whether a statistic exists in the release, known or not."""
    return any(name in where for where in (values.known, values.at_least, values.not_known))


def text_of(values: Values, name: str) -> str:
    """Write a statistic: known, at least so much, not known, or nothing where the release has none.

    >>> values = Values(known={"a": 1200, "b": True}, at_least={"c": 3}, not_known={"d": "why"})
    >>> [text_of(values, name) for name in "abcde"]
    ['1,200', 'yes', '≥ 3', '?', '']
    """
    if name in values.known:
        return _plain(values.known[name])
    if name in values.at_least:
        return f"≥ {_plain(values.at_least[name])}"
    return "?" if name in values.not_known else ""


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else shown(str(value))


def some(items: Sequence[str], between: str = ", ") -> str:
    """Write the first items of a list, and how many more there are.

    >>> some(["a", "b"]), some([*"abcdefgh"], " > ")
    ('a, b', 'a > b > c > d > e > f and 2 more')
    """
    more = f" and {len(items) - MAX_IN_CELL} more" if len(items) > MAX_IN_CELL else ""
    return between.join(items[:MAX_IN_CELL]) + more
