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
from dispatch_core.audit.waits.tracker import GRACE_US, MOST_POSITIONS, Key, SampledWait

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


def stalls(waits: Iterable[SampledWait], names: Mapping[int, str], limits: Limits, end: End) -> list[Finding]:
    """``stuck_key``, ``stuck_consumer``, ``stuck_subscription`` and ``unnecessary_blocking``."""
    waits = list(waits)
    words = Words(names)
    groups: dict[tuple[str, str | None, int | None], list[SampledWait]] = {}
    found: list[Finding] = []
    for wait in waits:
        if wait.first_position is None or not _too_long(wait, limits, end):
            continue
        if wait.reason is None:
            groups.setdefault(("", None, wait.waiting), []).append(wait)
        elif KIND_OF[wait.reason] == "stuck_key":
            stuck = _finding("stuck_key", wait.reason, [wait], words, end)
            found.append(stuck._replace(unsent=_unsent([wait], limits, end)))
        else:
            kind = KIND_OF[wait.reason]
            waiting = wait.waiting if kind == "stuck_consumer" else None
            groups.setdefault((kind, wait.reason, waiting), []).append(wait)
    for (kind, reason, waiting), members in groups.items():
        for together in _overlapping(members):
            if reason is not None:
                stuck = _finding(kind, reason, together, words, end)
                found.append(stuck._replace(unsent=_unsent(together, limits, end)))
            else:
                found.extend(_of_nothing(waiting, together, words, limits, end))
    return found + _needless(waits, words, limits, end)


def never_delivered(
    waits: Iterable[SampledWait], names: Mapping[int, str], limits: Limits, end: End
) -> list[Finding]:
    """``never_delivered``: entries that no rule held, and nobody was ever sent; one finding per key.

    An entry that several of ``waits`` name is told with the first of them.
    """
    words = Words(names)
    found = []
    told: set[str] = set()
    for wait in waits:
        waited_us = _left_out_us(wait, limits, end)
        if waited_us is None:
            continue
        of_key: dict[Key | None, list[str]] = {}
        for position, key in zip(wait.positions, wait.keys or [None] * len(wait.positions), strict=True):
            if position not in told:
                of_key.setdefault(key, []).append(position)
        listed = Counter(wait.keys)
        of_keys = {
            key: count - listed[key] for key, count in wait.never_of_keys
        }  # beyond those that are listed
        left = wait.never_sent - len(told.intersection(wait.positions))
        told.update(wait.positions)
        last = next(reversed(of_key), None)
        for key, positions in of_key.items():
            # Of many keys the first are told one by one; the last of these stands for the others, too.
            count = len(positions) + max(of_keys.get(key, 0), 0)
            unsent = left if key == last else min(count, left)
            left -= unsent
            rest = (unsent - count, wait.never_keys - len(set(wait.keys))) if key == last else (0, 0)
            uncertain = wait.uncertain or waited_us < GRACE_US or end.gap
            found.append(
                Finding(
                    kind="never_delivered",
                    severity=KINDS["never_delivered"].severity,
                    key=key[0] if key else None,
                    key_b64=bool(key and key[1]),
                    hash=wait.hash,
                    positions=positions,
                    consumers=[] if wait.waiting is None else [wait.waiting],
                    seqs=_seqs(wait.from_seq, end.seq),
                    t_us=end.as_of_us,
                    cause=None,
                    reason=_why_uncertain(waited_us, end) if uncertain else None,
                    uncertain=uncertain,
                    explanation=words.never_delivered(
                        key, positions, count, rest, wait, end.as_of_us, end.gap
                    ),
                    place=0,
                    unsent=unsent,
                )
            )
    return found


def but_for(waits: Iterable[SampledWait], found: Iterable[Finding]) -> list[SampledWait]:
    """``waits`` without those that go on at the end and whose entries are all told by ``found``, as left out."""
    told = {position for one in found if one.kind == "never_delivered" for position in one.positions}
    return [
        wait
        for wait in _gone_on(list(waits), told)
        if wait.until_seq is not None or not wait.positions or not told.issuperset(wait.positions)
    ]


def _gone_on(waits: list[SampledWait], told: Set[str]) -> list[SampledWait]:
    """``waits``, where a wait that only the last hand-over ended goes on until the end.

    When everybody leaves one after the other, what nobody had been sent for minutes seems to begin to wait for the next
    one's failover delay. That is not what it waits for. ``told``: entries that are told of as left out.
    """
    for at, last in enumerate(waits):
        if last.reason != "failover_delay" or last.until_seq is not None:
            continue
        if last.entries > len(last.positions) or last.never_sent < last.entries:
            continue
        rest = {position for position in last.positions if position not in told}
        for number, one in enumerate(waits):
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
                    gone_on if place == number else wait for place, wait in enumerate(waits) if place != at
                ]
    return waits


def _why_uncertain(waited_us: int, end: End) -> str:
    if end.gap:
        return "log_gap"
    return "stored_at_the_end" if waited_us < GRACE_US else "undecided"


def _left_out_us(wait: SampledWait, limits: Limits, end: End) -> int | None:
    """For how long entries of a wait that goes on at the end should have been sent; ``None`` if none was left out."""
    if wait.until_seq is not None or not wait.never_sent or not wait.positions:
        return None
    overtaken = wait.never_passed < wait.never_sent
    waited_us = wait.waited_us
    if wait.reason is not None and not overtaken:
        waited_us = _free_us(wait)
        if waited_us < GRACE_US:
            return None  # a rule holds it, or did until a moment ago; none lets a later message of the key go first
    # else it may be on its way
    return waited_us if end.closed or overtaken or waited_us > 1000 * limits.stuck_key_ms else None


def _free_us(wait: SampledWait) -> int:
    """For how long no rule held what waits."""
    return sum(us for reason, us in wait.shares if reason is None)


def _unsent(waits: Iterable[SampledWait], limits: Limits, end: End) -> int:
    """Entries of waits that nobody was ever sent, but for those that ``never_delivered`` tells of: each counts once."""
    return sum(wait.never_sent for wait in waits if _left_out_us(wait, limits, end) is None)


def _too_long(wait: SampledWait, limits: Limits, end: End) -> bool:
    kind = KIND_OF.get(wait.reason, "stuck_key")
    limit_us = 1000 * int(getattr(limits, f"{kind}_ms"))
    if wait.waited_us > limit_us or _is_phantom(wait):
        return True
    if wait.until_seq is not None or not end.closed or not wait.never_sent:
        return False
    if wait.reason is not None and wait.never_passed < wait.never_sent:
        return False  # it was left out: ``never_delivered``
    if wait.reason is not None and _free_us(wait):
        return False  # at last nothing held it any more: ``never_delivered``
    # Nobody will ever send it. What came when everybody had left is nobody's fault.
    return any(reason != "no_consumer" for reason, _ in wait.shares)


def _is_phantom(wait: SampledWait) -> bool:
    """A hash drained for a consumer that held nothing of it: only its leaving, or owning the hash again, ends that."""
    if wait.reason != "draining_hash" or not wait.messages:
        return False
    return wait.needless_us > GRACE_US * wait.messages and 2 * wait.needless_us > wait.message_us


def _of_nothing(
    waiting: int | None, waits: Sequence[SampledWait], words: Words, limits: Limits, end: End
) -> list[Finding]:
    """Find what waited though no rule held it: a consumer that got nothing at all, or single keys that did not go on."""
    hashes = {wait.hash for wait in waits}
    since_us = end.last_sent_us.get(-1 if waiting is None else waiting)
    until_us = max(_until_us(wait, end) for wait in waits)
    from_us = min(wait.from_t_us for wait in waits)
    silent_us = until_us - max(from_us, since_us if since_us is not None else from_us)
    key = _only_key(waits)
    several = len(hashes) > 1 or (None in hashes and key is None)  # None: everybody's
    if several and waiting is not None and silent_us > 1000 * limits.stuck_consumer_ms:
        found = [_finding("stuck_consumer", None, waits, words, end)]
    else:
        found = []
    for wait in waits:
        # One entry that was left out is never_delivered; a key that does not go on has more of it waiting. Entries without
        # a key have no order in which one could hold up the next.
        ended = wait.hash is not None or key is not None
        stands = wait.never_passed >= 2 if wait.until_seq is None else ended
        if stands and wait.keys[:1] != (None,):
            reason = "replay_order" if wait.entries > 1 else None
            found.append(_finding("stuck_key", reason, [wait], words, end))
    return found


def _only_key(waits: Sequence[SampledWait]) -> Key | None:
    """The key of all that waits; ``None`` if there are several, or entries without one, or more than are named."""
    if any(wait.entries > len(wait.keys) for wait in waits):
        return None
    keys = {key for wait in waits for key in wait.keys}
    return keys.pop() if len(keys) == 1 else None


def _overlapping(waits: Sequence[SampledWait]) -> list[list[SampledWait]]:
    """Holds that follow each other without a break, together."""
    together: list[list[SampledWait]] = []
    reach: float = 0
    for wait in sorted(waits, key=lambda one: (one.from_t_us, one.from_seq)):
        if not together or wait.from_t_us > reach:
            together.append([])
            reach = wait.from_t_us
        together[-1].append(wait)
        reach = max(reach, float("inf") if wait.until_t_us is None else wait.until_t_us)
    return together


def _finding(kind: str, reason: str | None, waits: Sequence[SampledWait], words: Words, end: End) -> Finding:
    """One finding for holds that belong together; the one that waited longest stands for them."""
    longest = max(waits, key=lambda wait: (wait.waited_us, -wait.from_seq))
    ended = max(waits, key=lambda wait: (wait.until_seq is None, wait.until_seq or 0))
    until_seq = end.seq if ended.until_seq is None else ended.until_seq
    positions = _positions(waits) if kind != "stuck_key" else list(longest.positions)
    key = longest.keys[0] if longest.keys and kind == "stuck_key" else None
    severity = KINDS[kind].severity
    phantom = _is_phantom(longest)
    if phantom:
        severity = CRITICAL
    consumers = [number for number in (longest.waiting, longest.holder) if number is not None]
    from_us = min(wait.from_t_us for wait in waits)
    return Finding(
        kind=kind,
        severity=severity,
        key=key[0] if key else None,
        key_b64=bool(key and key[1]),
        hash=longest.hash if kind == "stuck_key" else None,
        positions=positions,
        consumers=list(dict.fromkeys(consumers)),
        seqs=_seqs(min(wait.from_seq for wait in waits), until_seq),
        t_us=_until_us(ended, end),
        cause=None,
        reason=reason,
        uncertain=end.gap or (2 * sum(wait.uncertain for wait in waits) > len(waits)),
        explanation=words.stuck(kind, reason, waits, longest, from_us, _until_us(ended, end), phantom),
        place=1,
    )


def _positions(waits: Sequence[SampledWait]) -> list[str]:
    """The oldest entry of each hash, in the order of the log."""
    first = {wait.first_position for wait in waits if wait.first_position is not None}
    return sorted(first, key=lambda position: tuple(map(int, position.split(":"))))[:MOST_POSITIONS]


def _until_us(wait: SampledWait, end: End) -> int:
    return end.as_of_us if wait.until_t_us is None else wait.until_t_us


def _seqs(*seqs: int) -> list[int]:
    """Lines in order, each once; 0 = before the first."""
    return sorted({seq for seq in seqs if seq > 0}) or [max(seqs)]


def _needless(waits: Sequence[SampledWait], words: Words, limits: Limits, end: End) -> list[Finding]:
    """``unnecessary_blocking``: per consumer and rule the message time that no order needed."""
    groups: dict[tuple[str, int | None], list[SampledWait]] = {}
    for wait in waits:
        if wait.reason in _ORDERING and wait.needless_us:
            groups.setdefault((str(wait.reason), wait.waiting), []).append(wait)
    found = []
    for (reason, waiting), members in groups.items():
        needless_us = sum(wait.needless_us for wait in members)
        if needless_us <= 1000 * limits.needless_message_ms:
            continue
        ended = max(members, key=lambda wait: (wait.until_seq is None, wait.until_seq or 0))
        hashes = Counter(wait.hash for wait in members if wait.hash is not None)
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
                    min(wait.from_seq for wait in members),
                    end.seq if ended.until_seq is None else ended.until_seq,
                ),
                t_us=_until_us(ended, end),
                cause=None,
                reason=reason,
                uncertain=end.gap or 2 * sum(wait.uncertain for wait in members) > len(members),
                explanation=words.needless(reason, waiting, needless_us, len(hashes)),
                place=2,
            )
        )
    return found
