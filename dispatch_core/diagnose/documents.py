r"""Find the documents of ``pulsar-admin topics stats`` and ``stats-internal`` in texts, and group them into moments.

A text may be one document, several behind each other, the output of ``pulsar-admin`` with its log lines around it, the
statistics of a partitioned topic, or lines that ``diagnose --save`` wrote. What cannot be used is a *problem*, one line
each, and the rest is used. A document that breaks off is used up to the last subscription that is complete.

The statistics hold no time at which they were made. It is taken from a saved line, or from a time in the file's name as
``date -u +%FT%TZ`` writes it. A time without the Z may be of another zone, and only tells how far the moments are apart.
Without any, the latest time in the document is a time before which it was not made.

>>> text = 'INFO connecting\n{"subscriptions": {"s": {"msgBacklog": 3}}}\n{"cursors": {}, "lastConfirmedEntry": "3:4"}'
>>> found = documents_in("a.txt", text)
>>> [document.kind for document in found.documents], found.problems
(['topics stats', 'topics stats-internal'], [])
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from dispatch_core.importers.topic_stats.documents import INTERNAL, PARTITIONED, STATS, kind_of
from dispatch_core.times import micros

#: A time in the name of a file: 2026-11-21T08:21:07.5Z, also with - or nothing between the parts of the time.
_TIME: Final = re.compile(r"(\d{4})-?(\d{2})-?(\d{2})[T_](\d{2})[:-]?(\d{2})[:-]?(\d{2})(?:[.,](\d{1,9}))?Z?")
_OPENS: Final = re.compile(r"^[ \t]*\{", re.MULTILINE)
#: Milliseconds since the epoch that are times: 2001 to 2100.
_MS: Final = (1_000_000_000_000, 4_102_444_800_000)
#: Clocks that differ by more are not compared, microseconds.
_CLOCKS_US: Final = 1_000_000
#: Long lists that hold no times.
_WITHOUT_TIMES: Final = ("keyHashRangeArrays", "keyHashRanges", "drainingHashes")
_TOPIC: Final = re.compile(r"(?:non-)?persistent://[^\s\"'/]+/[^\s\"'/]+/[^\s\"']+")
#: Names of brackets that are open when a document breaks off, and what closes them.
_CLOSES: Final = {"{": "}", "[": "]"}
_ADVICE: Final = f"give the output of `pulsar-admin {STATS} TOPIC` and `pulsar-admin {INTERNAL} TOPIC`"


@dataclass(frozen=True, slots=True)
class Statistics:
    """A document. ``name``: its file and place; ``taken_us``: time at which it was made, ``None`` = not known.

    ``is_utc``: that time can be compared with the times in the document.
    """

    name: str
    kind: str
    fields: Mapping[str, Any]
    topic: str | None = None
    taken_us: int | None = None
    is_utc: bool = True
    broker_version: str | None = None
    broken_off: bool = False
    polled: bool = False


@dataclass(slots=True)
class Found:
    """The documents of a text, in its order, and what could not be used, one line each."""

    documents: list[Statistics] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Moment:
    """The documents of one topic that belong together.

    Attributes:
        taken_us: time of the first of them, microseconds since the epoch; ``None`` = not known.
        is_utc: that time can be compared with those in the documents; else only with those of other moments.
        not_before_us: the latest time that a document names; 0 = none.
        stats, internal: the documents; at least one of them is there.
    """

    topic: str | None
    taken_us: int | None
    is_utc: bool
    not_before_us: int
    stats: Statistics | None
    internal: Statistics | None

    @property
    def broker_version(self) -> str | None:
        """The release that a saved line names."""
        return next((d.broker_version for d in (self.stats, self.internal) if d and d.broker_version), None)


def documents_in(name: str, text: str) -> Found:
    """Find all documents in a text. ``name``: the file, for messages, and for the time in it."""
    found = Found()
    taken_us, is_utc = time_in(name)
    before, values = 0, 0
    for start, end, value, broken in _objects(text):
        values += 1
        where = (
            name if value is not None and end - start >= len(text.strip()) else f"{name}:{_line(text, start)}"
        )
        topics = _TOPIC.findall(text[before:start])
        before = end
        if value is None:
            found.problems.append(
                f"{where}: JSON that breaks off before its first subscription; take it again"
            )
            continue
        base = Statistics(
            where, "", value, topics[-1] if topics else None, taken_us, is_utc, broken_off=broken
        )
        if broken:
            found.problems.append(
                f"{where}: JSON that breaks off; it was used up to its last complete subscription"
            )
        found.documents += _of_value(base, found.problems)
    if not values:
        what = "empty" if not text.strip() else "no JSON object in it"
        found.problems.append(f"{name}: {what}; {_ADVICE}")
    return found


def time_in(name: str) -> tuple[int | None, bool]:
    """Return the time that a file's name contains, microseconds since the epoch, and whether it is UTC.

    >>> time_in("orders/stats-2026-11-21T08:21:07.5Z.json"), time_in("stats-20261121_082107.json"), time_in("stats.json")
    ((1795249267500000, True), (1795249267000000, False), (None, False))
    """
    found, is_utc = None, False
    for match in _TIME.finditer(name):
        *parts, fraction = match.groups()
        try:
            moment = datetime.strptime(" ".join(parts), "%Y %m %d %H %M %S").replace(tzinfo=UTC)
        except ValueError:
            continue
        found = micros(moment) + int(((fraction or "") + "000000")[:6])
        is_utc = match[0].endswith("Z")
    return found, is_utc


def moments_of(documents: Iterable[Statistics]) -> list[Moment]:
    """Group documents of a topic into moments, oldest first.

    A document of the other kind that follows belongs to the same moment. Without known topics all documents are taken to be
    of one topic.
    """
    by_topic: dict[str | None, list[Statistics]] = {}
    for document in documents:
        by_topic.setdefault(document.topic, []).append(document)
    if None in by_topic and len(by_topic) == 2:
        # One document of the pair names its topic: the output of one command does.
        (named,) = (topic for topic in by_topic if topic is not None)
        by_topic = {named: [d for documents_ in by_topic.values() for d in documents_]}
    moments: list[Moment] = []
    for topic, own in by_topic.items():
        moments += _moments(topic, own)
    return moments


def _moments(topic: str | None, documents: list[Statistics]) -> list[Moment]:
    latest = {id(document): latest_us(document.fields) for document in documents}

    def order(document: Statistics) -> tuple[int, int]:
        found_us = latest[id(document)]
        return (found_us if document.taken_us is None else document.taken_us), found_us

    pairs: list[dict[str, Statistics]] = []
    for kind in (STATS, INTERNAL):
        # A shell's glob gives all files of one kind first, so that the nth of a kind belongs to the nth of the other.
        for at, document in enumerate(sorted((d for d in documents if d.kind == kind), key=order)):
            if at == len(pairs):
                pairs.append({})
            pairs[at][kind] = document
    moments = []
    for pair in pairs:
        times = [document.taken_us for document in pair.values() if document.taken_us is not None]
        not_before_us = max(latest[id(document)] for document in pair.values())
        taken_us = min(times, default=None)
        # A document that names a later time was made by another clock.
        is_utc = all(d.is_utc for d in pair.values()) and (
            taken_us is None or taken_us >= not_before_us - _CLOCKS_US
        )
        moments.append(Moment(topic, taken_us, is_utc, not_before_us, pair.get(STATS), pair.get(INTERNAL)))
    return moments


def latest_us(value: Any) -> int:
    """Return the latest time in a document, microseconds since the epoch: of fields ``…Timestamp`` and ``connectedSince``.

    >>> latest_us({"consumers": [{"lastAckedTimestamp": 1795249267500, "connectedSince": "2026-11-21T08:21:06Z"}]})
    1795249267500000
    """
    latest = 0
    if isinstance(value, list):
        return max(map(latest_us, value), default=0)
    if isinstance(value, dict):
        for name, part in value.items():
            if name in _WITHOUT_TIMES:
                continue
            if isinstance(part, (dict, list)):
                latest = max(latest, latest_us(part))
            elif name.endswith(("Timestamp", "TimeStamp")) and type(part) is int and _MS[0] < part < _MS[1]:
                latest = max(latest, part * 1000)
            elif name == "connectedSince" and isinstance(part, str):
                latest = max(latest, _time_us(part))
    return latest


def _time_us(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return 0  # the field's reader names it
    return micros(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def _of_value(base: Statistics, problems: list[str]) -> Iterator[Statistics]:
    """The documents of one JSON object: itself, those of a saved line, or those of the partitions."""
    value = base.fields
    if not isinstance(value, dict):
        problems.append(f"{base.name}: a JSON {type(value).__name__}, not an object; {_ADVICE}")
        return
    if isinstance(value.get("stats"), dict) or isinstance(value.get("internal"), dict):
        yield from _of_saved_line(base, problems)
        return
    kind = kind_of(value)
    if kind == PARTITIONED:
        yield from _of_partitions(base, problems)
    elif kind is not None:
        yield replace(base, kind=kind)
    elif isinstance(value.get("cursors"), dict):
        yield replace(base, kind=INTERNAL)  # its reader names what is missing
    elif "cursors" in value or "lastConfirmedEntry" in value or "subscriptions" in value:
        lacks = "subscriptions" if "subscriptions" in value else "cursors or lastConfirmedEntry"
        problems.append(f"{base.name}: {lacks} is missing or no object; {_ADVICE}, unchanged")
    elif isinstance(value.get("reason"), str):
        problems.append(f"{base.name}: the broker's answer is an error: {value['reason'][:200]}")
    else:
        shown = ", ".join(list(value)[:4]) or "nothing"
        problems.append(f"{base.name}: JSON with {shown} in it is neither of the two statistics; {_ADVICE}")


def _of_saved_line(base: Statistics, problems: list[str]) -> Iterator[Statistics]:
    line = base.fields
    taken = line.get("taken")
    version, topic = line.get("broker_version"), line.get("topic")
    of_line = replace(
        base,
        taken_us=(_time_us(taken) or None) if isinstance(taken, str) else base.taken_us,
        is_utc=isinstance(taken, str) or base.is_utc,
        topic=topic if isinstance(topic, str) else base.topic,
        broker_version=version if isinstance(version, str) else None,
        polled=True,
    )
    for part in ("stats", "internal"):
        if isinstance(line.get(part), dict):
            yield from _of_value(replace(of_line, fields=line[part]), problems)


def _of_partitions(base: Statistics, problems: list[str]) -> Iterator[Statistics]:
    partitions = base.fields["partitions"]
    if not partitions:
        problems.append(
            f"{base.name}: the statistics of a partitioned topic without its partitions, whose dispatchers are what waits: "
            "add --per-partition, or give those of one partition (…-partition-0)"
        )
    for partition, fields in partitions.items():
        yield from _of_value(
            replace(base, name=f"{base.name}: {partition}", fields=fields, topic=partition), problems
        )


def _objects(text: str) -> Iterator[tuple[int, int, Any, bool]]:
    """Yield begin, end, value, and whether it breaks off, of each JSON object that begins a line; no value = not usable."""
    decoder = json.JSONDecoder()
    at = 0
    while (opening := _OPENS.search(text, at)) is not None:
        start = opening.end() - 1
        try:
            value, at = decoder.raw_decode(text, start)
            yield start, at, value, False
        except RecursionError:
            at = opening.end()
        except ValueError:
            end, value = _used_part(text, start)
            if end is None:
                at = opening.end()  # a line that begins with a brace, no document
                continue
            yield start, end, value, True
            at = end


def _used_part(text: str, start: int) -> tuple[int | None, Any]:
    """Return the end of a document that breaks off, and its value up to the last complete part of its second level.

    No end = it does not look like a document. The second level holds the subscriptions, or the cursors.
    """
    stack: list[str] = []
    kept: tuple[int, tuple[str, ...]] | None = None
    in_string = escaped = False
    end = len(text)
    for at in range(start, len(text)):
        character = text[at]
        if in_string:
            in_string = escaped or character != '"'
            escaped = not escaped and character == "\\"
        elif character == '"':
            in_string = True
        elif character in _CLOSES:
            stack.append(character)
        elif character in "}]":
            if not stack or _CLOSES[stack[-1]] != character:
                end = at
                break
            stack.pop()
            if len(stack) == 2:
                kept = at + 1, tuple(stack)
            if not stack:
                end = at + 1
                break
    beginning = text[start : start + 4000]
    if not any(
        f'"{name}"' in beginning
        for name in ("msgRateIn", "entriesAddedCounter", "subscriptions", "cursors", "taken")
    ):
        return None, None
    if kept is None:
        return end, None
    try:
        value = json.loads(text[start : kept[0]] + "".join(_CLOSES[bracket] for bracket in reversed(kept[1])))
    except ValueError:
        return end, None
    return end, value if kind_of(value) is not None else None


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1
