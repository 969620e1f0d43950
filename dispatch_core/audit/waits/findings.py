"""Turn waits into findings: work that waited too long, work that nothing held and nobody got, and needless waiting.

A finding is an *episode*: a wait that lasted longer than the limit, proven by the line that ended it or by the end of the
log. Its reason is the rule that held it longest, and that reason says whose trouble it is (``KIND_OF``): one key's, one
consumer's, or the whole subscription's. Waits of one consumer for one reason that overlap are one finding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from dispatch_core.audit.catalogue import CRITICAL, KINDS
from dispatch_core.audit.deliveries.findings import Finding
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.waits.sentences import Words
from dispatch_core.audit.waits.tracker import GRACE_US, MOST_POSITIONS, Hold, Key

#: Whose trouble a reason is.
KIND_OF: Final[dict[str | None, str]] = {
    "draining_hash": "stuck_key",
    "replay_order": "stuck_key",
    "uncovered_range": "stuck_key",
    "recently_joined": "stuck_consumer",
    "last_sent_position": "stuck_consumer",
    "no_permits": "stuck_consumer",
    "unacked_limit_consumer": "stuck_consumer",
    "unacked_limit_subscription": "stuck_subscription",
    "look_ahead_limit": "stuck_subscription",
    "failover_delay": "stuck_subscription",
    "no_consumer": "stuck_subscription",
}
#: What says of entries that they were not sent, or long not sent.
LEFT_WAITING: Final = ("never_delivered", "stuck_key", "stuck_consumer", "stuck_subscription")
#: Rules that keep the order of a key, and may hold back more than that needs.
_ORDERING: Final = ("draining_hash", "recently_joined", "last_sent_position")


@dataclass(frozen=True, slots=True)
class End:
    """The end of a log, for what is still waiting.

    ``closed``: the log is all there is; what was never sent by then will never be. ``last_sent_us``: per consumer when it
    was sent something last. ``gap``: lines are missing somewhere.
    """

    seq: int
    as_of_us: int
    closed: bool
    last_sent_us: Mapping[int, int] = field(default_factory=dict)
    gap: bool = False


def stalls(holds: Iterable[Hold], names: Mapping[int, str], limits: Limits, end: End) -> list[Finding]:
    """``stuck_key``, ``stuck_consumer``, ``stuck_subscription`` and ``unnecessary_blocking``."""
    holds = list(holds)
    words = Words(names)
    groups: dict[tuple[str, str | None, int | None], list[Hold]] = {}
    found: list[Finding] = []
    for hold in holds:
        if hold.first_position is None or not _too_long(hold, limits, end):
            continue
        if hold.reason is None:
            groups.setdefault(("", None, hold.waiting), []).append(hold)
        elif KIND_OF[hold.reason] == "stuck_key":
            stuck = _finding("stuck_key", hold.reason, [hold], words, end)
            found.append(stuck._replace(unsent=_unsent([hold], limits, end)))
        else:
            kind = KIND_OF[hold.reason]
            waiting = hold.waiting if kind == "stuck_consumer" else None
            groups.setdefault((kind, hold.reason, waiting), []).append(hold)
    for (kind, reason, waiting), members in groups.items():
        for together in _overlapping(members):
            if reason is not None:
                stuck = _finding(kind, reason, together, words, end)
                found.append(stuck._replace(unsent=_unsent(together, limits, end)))
            else:
                found.extend(_of_nothing(waiting, together, words, limits, end))
    return found + _needless(holds, words, limits, end)


def never_delivered(
    holds: Iterable[Hold], names: Mapping[int, str], limits: Limits, end: End
) -> list[Finding]:
    """``never_delivered``: entries that no rule held, and nobody was ever sent; one finding per key.

    An entry that several of ``holds`` name is told with the first of them.
    """
    words = Words(names)
    found = []
    told: set[str] = set()
    for hold in holds:
        waited_us = _left_out_us(hold, limits, end)
        if waited_us is None:
            continue
        of_key: dict[Key | None, list[str]] = {}
        for position, key in zip(hold.positions, hold.keys or [None] * len(hold.positions), strict=True):
            if position not in told:
                of_key.setdefault(key, []).append(position)
        listed = Counter(hold.keys)
        of_keys = {
            key: count - listed[key] for key, count in hold.never_of_keys
        }  # beyond those that are listed
        left = hold.never_sent - len(told.intersection(hold.positions))
        told.update(hold.positions)
        last = next(reversed(of_key), None)
        for key, positions in of_key.items():
            # Of many keys the first are told one by one; the last of these stands for the others, too.
            count = len(positions) + max(of_keys.get(key, 0), 0)
            unsent = left if key == last else min(count, left)
            left -= unsent
            rest = (unsent - count, hold.never_keys - len(set(hold.keys))) if key == last else (0, 0)
            uncertain = hold.uncertain or waited_us < GRACE_US or end.gap
            found.append(
                Finding(
                    kind="never_delivered",
                    severity=KINDS["never_delivered"].severity,
                    key=key[0] if key else None,
                    key_b64=bool(key and key[1]),
                    hash=hold.hash,
                    positions=positions,
                    consumers=[] if hold.waiting is None else [hold.waiting],
                    seqs=_seqs(hold.from_seq, end.seq),
                    t_us=end.as_of_us,
                    cause=None,
                    reason=_why_uncertain(waited_us, end) if uncertain else None,
                    uncertain=uncertain,
                    explanation=words.never_delivered(
                        key, positions, count, rest, hold, end.as_of_us, end.gap
                    ),
                    place=0,
                    unsent=unsent,
                )
            )
    return found


def but_for(holds: Iterable[Hold], found: Iterable[Finding]) -> list[Hold]:
    """``holds`` without those that go on at the end and whose entries are all told by ``found``, as left out."""
    told = {position for one in found if one.kind == "never_delivered" for position in one.positions}
    return [
        hold
        for hold in _gone_on(list(holds), told)
        if hold.until_seq is not None or not hold.positions or not told.issuperset(hold.positions)
    ]


def _gone_on(holds: list[Hold], told: Set[str]) -> list[Hold]:
    """``holds``, where a wait that only the last hand-over ended goes on until the end.

    When everybody leaves one after the other, what nobody had been sent for minutes seems to begin to wait for the next
    one's failover delay. That is not what it waits for. ``told``: entries that are told of as left out.
    """
    for at, last in enumerate(holds):
        if last.reason != "failover_delay" or last.until_seq is not None:
            continue
        if last.entries > len(last.positions) or last.never_sent < last.entries:
            continue
        rest = {position for position in last.positions if position not in told}
        for number, one in enumerate(holds):
            if (
                one.until_seq == last.from_seq
                and one.hash is None
                and one.entries == len(rest)
                and rest.issuperset(one.positions)
                and one.waited_us > last.waited_us
            ):
                never = one.entries
                gone_on = replace(one, until_seq=None, until_t_us=None, never_sent=never, never_passed=never)
                return [
                    gone_on if place == number else hold for place, hold in enumerate(holds) if place != at
                ]
    return holds


def _why_uncertain(waited_us: int, end: End) -> str:
    if end.gap:
        return "log_gap"
    return "stored_at_the_end" if waited_us < GRACE_US else "undecided"


def _left_out_us(hold: Hold, limits: Limits, end: End) -> int | None:
    """For how long entries of a wait that goes on at the end should have been sent; ``None`` if none was left out."""
    if hold.until_seq is not None or not hold.never_sent or not hold.positions:
        return None
    overtaken = hold.never_passed < hold.never_sent
    waited_us = hold.waited_us
    if hold.reason is not None and not overtaken:
        waited_us = _free_us(hold)
        if waited_us < GRACE_US:
            return None  # a rule holds it, or did until a moment ago; none lets a later message of the key go first
    # else it may be on its way
    return waited_us if end.closed or overtaken or waited_us > 1000 * limits.stuck_key_ms else None


def _free_us(hold: Hold) -> int:
    """For how long no rule held what waits."""
    return sum(us for reason, us in hold.shares if reason is None)


def _unsent(holds: Iterable[Hold], limits: Limits, end: End) -> int:
    """Entries of waits that nobody was ever sent, but for those that ``never_delivered`` tells of: each counts once."""
    return sum(hold.never_sent for hold in holds if _left_out_us(hold, limits, end) is None)


def _too_long(hold: Hold, limits: Limits, end: End) -> bool:
    kind = KIND_OF.get(hold.reason, "stuck_key")
    limit_us = 1000 * int(getattr(limits, f"{kind}_ms"))
    if hold.waited_us > limit_us or _is_phantom(hold):
        return True
    if hold.until_seq is not None or not end.closed or not hold.never_sent:
        return False
    if hold.reason is not None and hold.never_passed < hold.never_sent:
        return False  # it was left out: ``never_delivered``
    if hold.reason is not None and _free_us(hold):
        return False  # at last nothing held it any more: ``never_delivered``
    # Nobody will ever send it. What came when everybody had left is nobody's fault.
    return any(reason != "no_consumer" for reason, _ in hold.shares)


def _is_phantom(hold: Hold) -> bool:
    """A hash drained for a consumer that held nothing of it: only its leaving, or owning the hash again, ends that."""
    if hold.reason != "draining_hash" or not hold.messages:
        return False
    return hold.needless_us > GRACE_US * hold.messages and 2 * hold.needless_us > hold.message_us


def _of_nothing(
    waiting: int | None, holds: Sequence[Hold], words: Words, limits: Limits, end: End
) -> list[Finding]:
    """Find what waited though no rule held it: a consumer that got nothing at all, or single keys that did not go on."""
    hashes = {hold.hash for hold in holds}
    since_us = end.last_sent_us.get(-1 if waiting is None else waiting)
    until_us = max(_until_us(hold, end) for hold in holds)
    from_us = min(hold.from_t_us for hold in holds)
    silent_us = until_us - max(from_us, since_us if since_us is not None else from_us)
    key = _only_key(holds)
    several = len(hashes) > 1 or (None in hashes and key is None)  # None: everybody's
    if several and waiting is not None and silent_us > 1000 * limits.stuck_consumer_ms:
        found = [_finding("stuck_consumer", None, holds, words, end)]
    else:
        found = []
    for hold in holds:
        # One entry that was left out is never_delivered; a key that does not go on has more of it waiting. Entries without
        # a key have no order in which one could hold up the next.
        ended = hold.hash is not None or key is not None
        stands = hold.never_passed >= 2 if hold.until_seq is None else ended
        if stands and hold.keys[:1] != (None,):
            reason = "replay_order" if hold.entries > 1 else None
            found.append(_finding("stuck_key", reason, [hold], words, end))
    return found


def _only_key(holds: Sequence[Hold]) -> Key | None:
    """The key of all that waits; ``None`` if there are several, or entries without one, or more than are named."""
    if any(hold.entries > len(hold.keys) for hold in holds):
        return None
    keys = {key for hold in holds for key in hold.keys}
    return keys.pop() if len(keys) == 1 else None


def _overlapping(holds: Sequence[Hold]) -> list[list[Hold]]:
    """Holds that follow each other without a break, together."""
    together: list[list[Hold]] = []
    reach: float = 0
    for hold in sorted(holds, key=lambda one: (one.from_t_us, one.from_seq)):
        if not together or hold.from_t_us > reach:
            together.append([])
            reach = hold.from_t_us
        together[-1].append(hold)
        reach = max(reach, float("inf") if hold.until_t_us is None else hold.until_t_us)
    return together


def _finding(kind: str, reason: str | None, holds: Sequence[Hold], words: Words, end: End) -> Finding:
    """One finding for holds that belong together; the one that waited longest stands for them."""
    longest = max(holds, key=lambda hold: (hold.waited_us, -hold.from_seq))
    ended = max(holds, key=lambda hold: (hold.until_seq is None, hold.until_seq or 0))
    until_seq = end.seq if ended.until_seq is None else ended.until_seq
    positions = _positions(holds) if kind != "stuck_key" else list(longest.positions)
    key = longest.keys[0] if longest.keys and kind == "stuck_key" else None
    severity = KINDS[kind].severity
    phantom = _is_phantom(longest)
    if phantom:
        severity = CRITICAL
    consumers = [number for number in (longest.waiting, longest.holder) if number is not None]
    from_us = min(hold.from_t_us for hold in holds)
    return Finding(
        kind=kind,
        severity=severity,
        key=key[0] if key else None,
        key_b64=bool(key and key[1]),
        hash=longest.hash if kind == "stuck_key" else None,
        positions=positions,
        consumers=list(dict.fromkeys(consumers)),
        seqs=_seqs(min(hold.from_seq for hold in holds), until_seq),
        t_us=_until_us(ended, end),
        cause=None,
        reason=reason,
        uncertain=end.gap or (2 * sum(hold.uncertain for hold in holds) > len(holds)),
        explanation=words.stuck(kind, reason, holds, longest, from_us, _until_us(ended, end), phantom),
        place=1,
    )


def _positions(holds: Sequence[Hold]) -> list[str]:
    """The oldest entry of each hash, in the order of the log."""
    first = {hold.first_position for hold in holds if hold.first_position is not None}
    return sorted(first, key=lambda position: tuple(map(int, position.split(":"))))[:MOST_POSITIONS]


def _until_us(hold: Hold, end: End) -> int:
    return end.as_of_us if hold.until_t_us is None else hold.until_t_us


def _seqs(*seqs: int) -> list[int]:
    """Lines in order, each once; 0 = before the first."""
    return sorted({seq for seq in seqs if seq > 0}) or [max(seqs)]


def _needless(holds: Sequence[Hold], words: Words, limits: Limits, end: End) -> list[Finding]:
    """``unnecessary_blocking``: per consumer and rule the message time that no order needed."""
    groups: dict[tuple[str, int | None], list[Hold]] = {}
    for hold in holds:
        if hold.reason in _ORDERING and hold.needless_us:
            groups.setdefault((str(hold.reason), hold.waiting), []).append(hold)
    found = []
    for (reason, waiting), members in groups.items():
        needless_us = sum(hold.needless_us for hold in members)
        if needless_us <= 1000 * limits.needless_message_ms:
            continue
        ended = max(members, key=lambda hold: (hold.until_seq is None, hold.until_seq or 0))
        hashes = Counter(hold.hash for hold in members if hold.hash is not None)
        found.append(
            Finding(
                kind="unnecessary_blocking",
                severity=KINDS["unnecessary_blocking"].severity,
                key=None,
                key_b64=False,
                hash=None,
                positions=_positions(members),
                consumers=[] if waiting is None else [waiting],
                seqs=_seqs(
                    min(hold.from_seq for hold in members),
                    end.seq if ended.until_seq is None else ended.until_seq,
                ),
                t_us=_until_us(ended, end),
                cause=None,
                reason=reason,
                uncertain=end.gap or 2 * sum(hold.uncertain for hold in members) > len(members),
                explanation=words.needless(reason, waiting, needless_us, len(hashes)),
                place=2,
            )
        )
    return found
