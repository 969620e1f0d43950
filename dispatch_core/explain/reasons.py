"""Why work waited, in words: each rule of dispatch as a sentence for somebody who knows Pulsar."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dispatch_core.audit.deliveries.findings import shown
from dispatch_core.explain.record import Record
from dispatch_core.explain.waits import Episode
from dispatch_core.times import clock

#: Above so many microseconds a duration is told in seconds.
_SECOND_US = 1_000_000
_MANY = 6


def duration(t_us: int) -> str:
    """A duration for people.

    >>> duration(860), duration(12_400), duration(2_660_000), duration(95_000_000), duration(7_500_000_000)
    ('0.9 ms', '12 ms', '2.66 s', '95.0 s', '2 h 5 min')
    """
    if t_us < 10_000:
        return f"{t_us / 1000:.1f} ms"
    if t_us < _SECOND_US:
        return f"{t_us / 1000:.0f} ms"
    if t_us < 10 * _SECOND_US:
        return f"{t_us / _SECOND_US:.2f} s"
    if t_us < 600 * _SECOND_US:
        return f"{t_us / _SECOND_US:.1f} s"
    minutes = t_us // (60 * _SECOND_US)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def listed(positions: Sequence[str], count: int | None = None) -> str:
    """Positions for people; ``count``: how many there are, where not all are given.

    >>> listed(["3:7"]), listed(["3:7", "3:17", "3:27"]), listed(["3:7", "3:17"], 40)
    ('3:7', '3:7, 3:17 and 3:27', '3:7, 3:17 and 38 more')
    >>> listed([f"3:{at}" for at in range(12)]), listed([f"3:{2 * at}" for at in range(12)])
    ('3:0 to 3:11', '3:0, 3:2, 3:4, 3:6, 3:8 and 7 more')
    """
    whole = len(positions) if count is None else max(count, len(positions))
    if not positions:
        return "nothing"
    if whole == len(positions) and whole > 2 and _follow(positions):
        return f"{positions[0]} to {positions[-1]}"
    told = positions if whole <= _MANY else positions[: _MANY - 1]
    if whole > len(told):
        return f"{', '.join(told)} and {whole - len(told)} more"
    return told[0] if len(told) == 1 else f"{', '.join(told[:-1])} and {told[-1]}"


def plural(count: int, one: str, many: str) -> str:
    """The word for so many."""
    return one if count == 1 else many


def counted(count: int, one: str, many: str) -> str:
    """A number with its word.

    >>> counted(1, "entry", "entries"), counted(0, "entry", "entries")
    ('1 entry', '0 entries')
    """
    return f"{count} {plural(count, one, many)}"


def _follow(positions: Sequence[str]) -> bool:
    places = [tuple(int(part) for part in position.split(":")) for position in positions]
    return all(a[0] == b[0] and a[1] + 1 == b[1] for a, b in pairwise(places))


def why(record: Record, episode: Episode) -> str:
    """What held the work of ``episode``, as the second half of a sentence that began with what waited."""
    who = "its new owner" if episode.waiting is None else record.who(episode.waiting)
    holder = "its old owner" if episode.holder is None else record.who(episode.holder)
    ids = listed(episode.held_by, episode.held_by_count)
    at = "" if episode.holder is None else f" at {holder}"
    were = "was" if episode.held_by_count == 1 else "were"
    oldest = f", the oldest of them{at}" if episode.held_by_count > 1 else at
    unacked = f"; {ids} {were} unacknowledged{oldest}" if episode.held_by else ""
    own = f"; it held {ids} unacknowledged" if episode.held_by else ""
    hashes = plural(len({hold.hash for hold in episode.holds}), "hash", "hashes")
    match episode.reason:
        case "draining_hash":
            if not episode.held_by_count and episode.phantom_since_us is None:
                return f"the hash still drained for {holder}, so {who} gets nothing of it (draining hashes, PIP-379)"
            if not episode.held_by_count:
                return _phantom(record, who, holder, None)
            real = (
                f"{holder} still held {ids} of the same {hashes}, and draining hashes (PIP-379) give {who} nothing of it "
                f"until {holder} has acknowledged that, or leaves"
            )
            if episode.phantom_since_us is None:
                return real
            return f"{real}. But {_phantom(record, who, holder, episode.phantom_since_us)}"
        case "recently_joined":
            return (
                f"{who} had joined recently, and the read-position rule (3.x, classic) sends a newcomer nothing that is "
                f"read after it joined until everything read before is acknowledged{unacked}"
            )
        case "last_sent_position":
            return (
                f"{who} had joined recently, and PIP-282 sends a newcomer nothing beyond what had been sent when it joined "
                f"until all of that is acknowledged{unacked}"
            )
        case "no_permits":
            return (
                f"{who} had no permits left: its client asked for no more messages (its receiver queue was full, or the "
                f"application had stopped receiving){own}"
            )
        case "unacked_limit_consumer":
            limit = _setting(record, "maxUnackedMessagesPerConsumer")
            return (
                f"{who} had as many unacknowledged messages as maxUnackedMessagesPerConsumer{limit} allows, and gets more "
                f"when it is down to half{own}"
            )
        case "unacked_limit_subscription":
            limit = _setting(record, "maxUnackedMessagesPerSubscription")
            return (
                f"the subscription had as many unacknowledged messages as maxUnackedMessagesPerSubscription{limit} "
                "allows; nothing new is read until it is down to half"
            )
        case "look_ahead_limit":
            return _look_ahead(record, episode)
        case "replay_order":
            behind = f" ({ids}{at})" if episode.held_by else ""
            return f"an earlier message of the same hash{behind} waited to be sent, and none may overtake it"
        case "uncovered_range":
            return "no connected consumer owned its hash: nobody's range covers it"
        case "failover_delay":
            delay = _setting(record, "activeConsumerFailoverDelayTimeMillis")
            return f"a new active consumer gets nothing before activeConsumerFailoverDelayTimeMillis{delay} has passed"
        case "no_consumer":
            return "no consumer was connected"
    return "no rule that the log shows held it back"


def _phantom(record: Record, who: str, holder: str, since_us: int | None) -> str:
    mended = record.profile is not None and "added_ranges" in record.profile.changes
    fault = "" if mended else ", a fault of 4.0.0 to 4.0.6 and 4.1.0 (#24736): upgrade"
    since = (
        f"{holder} held nothing of the hash any more"
        if since_us is None
        else (f"since {clock(since_us)} {holder} holds nothing of it any more")
    )
    return (
        f"{since}, and still the broker counts it as draining: a hash that moves away, back and away again is counted "
        f"twice{fault}. {who} gets nothing of it until {holder} leaves or owns the hash again"
    )


def _look_ahead(record: Record, episode: Episode) -> str:
    waited = " and ".join(
        f"for {record.who(waiting)} ({reason})" if waiting is not None else f"({reason})"
        for reason, waiting, _ in episode.others
    )
    limits = ", ".join(
        f"{name}{_setting(record, f'keySharedLookAheadMsgInReplayThreshold{name}')}"
        for name in ("PerConsumer", "PerSubscription")
    )
    return (
        f"nothing new was read: what had been read and could not be sent, waiting {waited or 'for others'}, filled the "
        f"look-ahead limit (keySharedLookAheadMsgInReplayThreshold… {limits})"
    )


def _setting(record: Record, name: str) -> str:
    """`` = 20`` of a setting, as far as the log's release knows it."""
    value = None if record.profile is None else record.profile.settings.get(name)
    return "" if value is None else f" = {value}"


def rule_of(record: Record) -> str:
    """The release and the rules that a log was recorded under, for a headline."""
    if record.profile is None:
        return "release unknown"
    return f"Pulsar {shown(record.profile.name)}"
