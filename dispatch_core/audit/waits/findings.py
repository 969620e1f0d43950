"""Turn waits into findings: work that waited too long, entries that were never delivered, and needless waiting.

A finding is an *episode*: a wait that lasted longer than the limit, proven by the line that ended it or by the end of the
log. Its reason is the rule that held it longest. The reason decides the kind (``KIND_OF``): one key, one consumer, or the
whole subscription is stuck. Overlapping waits of one consumer for one reason are one finding.

Example: consumer 1 gives no permits from 12:00:00 to 12:00:30, and entries of three hashes wait for it. That is one finding
``stuck_consumer`` with the reason ``no_permits``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Final

from dispatch_core.audit.assumptions import UNLOGGED
from dispatch_core.audit.catalogue import CRITICAL, KINDS, LIMIT_REASONS, NO_READ
from dispatch_core.audit.deliveries.findings import (
    BEFORE_CHECKPOINT,
    CLOCK_JUMPED,
    DOUBTS,
    ROWS_LOST,
    Finding,
)
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.waits.sentences import BY_CLOCK, CLOCK_STEPPED, MAYBE_LIMITED, Words
from dispatch_core.audit.waits.tracker import CLOCKS_DIFFER, GRACE_US, MOST_POSITIONS, Key, SampledWait

#: Kind of finding by reason.
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
    NO_READ: "stuck_subscription",
}
#: Kinds of a reason that concerns one consumer where any consumer would do.
_OF_ANY_CONSUMER: Final = {"stuck_consumer": "stuck_subscription"}
#: Kinds of findings about entries that were not sent, or not for long.
LEFT_WAITING: Final = ("never_delivered", "stuck_key", "stuck_consumer", "stuck_subscription")
#: A hash that drains for nothing for so long, microseconds, is a finding of its own, whatever held its entry before.
_DRAINED_FOR_LONG_US: Final = 1_000_000
#: Rules that keep the order of a key, and may hold back more than that needs.
_ORDERING: Final = ("draining_hash", "recently_joined", "last_sent_position")


@dataclass(frozen=True, slots=True)
class End:
    """The end of a log, for what is still waiting.

    Attributes:
        seq: the last line.
        as_of_us: time of the verdict, microseconds since the epoch.
        closed: no lines follow; an entry that was never sent by then never will be. Otherwise what waits for less than
            the limits is not finished, and no finding.
        deleted: the subscription was deleted: what waited then is no finding, but what was passed over is.
        doubt: the reason why something that the log does not show may explain what waits (``AuditFold.doubt``); ``None`` =
            there is none.
        behind_us: by number of the producer, the most by which its clock may be behind (``producer_clocks``), microseconds.
        stepped_back_us: by how much the log's clock went back; it may have gone forward by as much, unseen.
        jumped_us: by how much the log's clock may have jumped forward between two moments (``AuditFold.jumped_us``).
        highest_sent: the highest position that was sent, by any load; (-1, -1) = none was.
        clock_shown: whether an entry of the producer with this number was sent, which shows how far its clock may be behind.
        known_until_us: time of the last line, if rows behind it were lost (``recording.lost_rows``). What waits is certain
            only if it was too long by then.
    """

    seq: int
    as_of_us: int
    closed: bool
    deleted: bool = False
    doubt: str | None = None
    behind_us: Mapping[int, int] = field(default_factory=dict)
    stepped_back_us: int = 0
    known_until_us: int | None = None
    jumped_us: Callable[[int, int], int] = lambda _from_us, _until_us: 0
    highest_sent: tuple[int, int] = (-1, -1)
    clock_shown: Callable[[int], bool] = lambda _producer: True

    def only_by_lost_rows(self, waited_us: int, limit_us: int) -> bool:
        """Check whether what waits at the end need not wait: by the last line before lost rows it had not for too long."""
        if self.known_until_us is None:
            return False
        return waited_us - (self.as_of_us - self.known_until_us) <= limit_us


def stalls(waits: Iterable[SampledWait], names: Mapping[int, str], limits: Limits, end: End) -> list[Finding]:
    """Find ``stuck_key``, ``stuck_consumer``, ``stuck_subscription`` and ``unnecessary_blocking`` in ``waits``.

    What waits for a limit in force is not stuck: only the rest of a wait counts.
    """
    waits = [rest for wait in waits if (rest := _without_limits(wait)) is not None]
    waits = [part for wait in waits for part in _drained_apart(wait)]
    if not waits:
        return []
    words = Words(names)
    groups: dict[tuple[str, str | None, int | None], list[SampledWait]] = {}
    found: list[Finding] = []
    for wait in waits:
        if wait.first_position is None or not _too_long(wait, limits, end):
            continue
        kind = _kind_of(wait)
        if wait.reason is None:
            groups.setdefault(("", None, wait.waiting), []).append(wait)
        elif kind == "stuck_key":
            stuck = _finding("stuck_key", wait.reason, [wait], words, limits, end)
            found.append(stuck._replace(unsent=_unsent([wait], limits, end)))
        else:
            waiting = wait.waiting if kind == "stuck_consumer" else None
            groups.setdefault((kind, wait.reason, waiting), []).append(wait)
    for (kind, reason, waiting), members in groups.items():
        for together in _overlapping(members):
            if reason is not None:
                stuck = _finding(kind, reason, together, words, limits, end)
                found.append(stuck._replace(unsent=_unsent(together, limits, end)))
            else:
                found.extend(_of_nothing(waiting, together, words, limits, end))
    return found + _needless(waits, words, limits, end)


def _without_limits(wait: SampledWait) -> SampledWait | None:
    """Return a wait without the time in which a limit held it; ``None`` = one always did."""
    rest = tuple((reason, us) for reason, us in wait.shares if reason not in LIMIT_REASONS)
    if len(rest) == len(wait.shares):
        return wait
    return replace(wait, reason=rest[0][0], shares=rest) if rest else None


def _drained_apart(wait: SampledWait) -> list[SampledWait]:
    """Split a wait into the part in which its hash drained for nothing and the rest, unless that part is most of it.

    Example: an entry waits for a minute because its consumer has no permits. Then its hash moves, and drains for that
    consumer although this one holds nothing of it. That is a fault of the broker, whatever held the entry before.
    """
    drained = wait.drained
    if drained is None or drained.lasted_us < _DRAINED_FOR_LONG_US or is_phantom(wait):
        return [wait]
    rest_of = {reason: us - drained.lasted_us * (reason == "draining_hash") for reason, us in wait.shares}
    shares = tuple((reason, us) for reason, us in rest_of.items() if us > 0)
    part = replace(
        wait,
        reason="draining_hash",
        shares=(("draining_hash", drained.lasted_us),),
        waiting=drained.waiting,
        holder=drained.holder,
        holder_positions=(),
        holder_pending=0,
        from_seq=drained.from_seq,
        from_t_us=drained.from_us,
        until_seq=wait.until_seq if drained.is_last else drained.until_seq,
        until_t_us=wait.until_t_us if drained.is_last else drained.from_us + drained.lasted_us,
        message_us=wait.messages * drained.lasted_us,
        needless_us=wait.messages * drained.lasted_us,
        uncertain=False,
        maybe_limited=False,
        maybe_limited_us=0,
    )
    if not drained.is_last:
        part = replace(part, never_sent=0, never_passed=0)
    if not shares:
        return [part]
    rest = replace(
        wait,
        reason=wait.reason if rest_of.get(wait.reason, 0) > 0 else shares[0][0],
        shares=shares,
        message_us=max(wait.message_us - part.message_us, 0),
        needless_us=max(wait.needless_us - part.needless_us, 0),
        drained=None,
    )
    if drained.is_last:
        rest = replace(
            rest, until_seq=drained.from_seq, until_t_us=drained.from_us, never_sent=0, never_passed=0
        )
    return [rest, part]


def never_delivered(
    waits: Sequence[SampledWait], names: Mapping[int, str], limits: Limits, end: End
) -> list[Finding]:
    """Find ``never_delivered``: entries that no rule held and that were never sent; one finding per key.

    An entry that several of ``waits`` name is reported with the first of them.
    """
    if not waits:
        return []
    words = Words(names)
    found = []
    reported: set[str] = set()
    for wait in waits:
        waited_us = _left_out_us(wait, limits, end)
        if waited_us is None:
            continue
        of_key: dict[Key | None, list[str]] = {}
        for position, key in zip(wait.positions, wait.keys or [None] * len(wait.positions), strict=True):
            if position not in reported:
                of_key.setdefault(key, []).append(position)
        listed = Counter(wait.keys)
        of_keys = {
            key: count - listed[key] for key, count in wait.never_of_keys
        }  # beyond those that are listed
        left = wait.never_sent - len(reported.intersection(wait.positions))
        reported.update(wait.positions)
        last = next(reversed(of_key), None)
        for key, positions in of_key.items():
            # Of many keys the first are reported one by one; the last of these includes the others.
            count = len(positions) + max(of_keys.get(key, 0), 0)
            unsent = left if key == last else min(count, left)
            left -= unsent
            rest = (unsent - count, wait.never_keys - len(set(wait.keys))) if key == last else (0, 0)
            # A limit holds back whatever comes next, and lets nothing overtake.
            limited = wait.maybe_limited and wait.never_passed == wait.never_sent
            lost = end.only_by_lost_rows(waited_us, 1000 * limits.never_delivered_ms)
            by_clock = _stored_later_by_clock(wait, limits, end)
            uncertain = wait.uncertain or waited_us < GRACE_US or end.doubt is not None or lost or limited
            uncertain = uncertain or by_clock
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
                    reason=(
                        wait.doubt
                        or _why_uncertain(waited_us, end, lost=lost, limited=limited, by_clock=by_clock)
                    )
                    if uncertain
                    else None,
                    uncertain=uncertain,
                    explanation=words.never_delivered(
                        key, positions, count, rest, wait, end.as_of_us, end.doubt
                    )
                    + (DOUBTS[ROWS_LOST] if lost else "")
                    + (MAYBE_LIMITED if limited else "")
                    + (_by_which_clock([wait], end) if by_clock else ""),
                    place=0,
                    unsent=unsent,
                )
            )
    return found


def but_for(waits: Iterable[SampledWait], found: Iterable[Finding]) -> list[SampledWait]:
    """Return ``waits`` without those that go on at the end and whose entries are all ``never_delivered`` in ``found``.

    If a rule holds others of its entries, such a wait goes on for these alone.
    """
    reported = {
        position for finding in found if finding.kind == "never_delivered" for position in finding.positions
    }
    return [
        wait if wait.until_seq is not None or wait.reason is None else _without(wait, reported)
        for wait in _gone_on(list(waits), reported)
        if wait.until_seq is not None or not wait.positions or not reported.issuperset(wait.positions)
    ]


def _without(wait: SampledWait, reported: Set[str]) -> SampledWait:
    """Return a wait without entries that are reported already.

    Example: 5:12 was passed over, then the last consumer left, and 5:40 was stored. Both wait, but 5:40 for a consumer.
    """
    left = [at for at, position in enumerate(wait.positions) if position not in reported]
    gone = len(wait.positions) - len(left)
    if not gone:
        return wait
    gone_of_key = Counter(
        key for position, key in zip(wait.positions, wait.keys, strict=False) if position in reported
    )
    of_keys = tuple((key, count - gone_of_key[key]) for key, count in wait.never_of_keys)
    never_sent = max(wait.never_sent - gone, 0)
    return replace(
        wait,
        first_position=wait.positions[left[0]],
        positions=tuple(wait.positions[at] for at in left),
        keys=tuple(wait.keys[at] for at in left) if wait.keys else (),
        published=tuple(wait.published[at] for at in left) if wait.published else (),
        entries=max(wait.entries - gone, len(left)),
        messages=max(wait.messages - gone, len(left)),
        never_sent=never_sent,
        never_passed=min(wait.never_passed, never_sent),
        never_of_keys=tuple((key, count) for key, count in of_keys if count > 0),
        never_keys=wait.never_keys - sum(count <= 0 for _, count in of_keys),
    )


def _gone_on(waits: list[SampledWait], reported: Set[str]) -> list[SampledWait]:
    """Join a wait that only the last active-consumer change ended with the one after it.

    Example: an entry waits for minutes, then all consumers leave one after the other. With each change of the active
    consumer it seems to begin to wait for the next one's failover delay, which is not what it waits for. ``reported``:
    positions of entries that are ``never_delivered``.
    """
    for at, last in enumerate(waits):
        if last.reason != "failover_delay" or last.until_seq is not None:
            continue
        if last.entries > len(last.positions) or last.never_sent < last.entries:
            continue
        rest = {position for position in last.positions if position not in reported}
        for number, earlier in enumerate(waits):
            if (
                earlier.until_seq == last.from_seq
                and earlier.hash is None
                and earlier.entries == len(rest)
                and rest.issuperset(earlier.positions)
                and earlier.waited_us > last.waited_us
            ):
                never = earlier.entries
                gone_on = replace(
                    earlier, until_seq=None, until_t_us=None, never_sent=never, never_passed=never
                )
                return [
                    gone_on if place == number else wait for place, wait in enumerate(waits) if place != at
                ]
    return waits


def _stored_later_by_clock(wait: SampledWait, limits: Limits, end: End) -> bool:
    """Check whether entries were owed for too long only by a clock: they may have been stored later, even behind the end.

    An entry before one that was sent was stored by then, whatever its publish time.
    """
    if end.closed or end.highest_sent < (0, 0) or _place(wait.positions[0]) <= end.highest_sent:
        return False
    if wait.published and not any(end.clock_shown(producer) for producer, _ in wait.published):
        return True
    return _has_clocks(wait, end) and _certain_us(wait, end) <= 1000 * limits.never_delivered_ms


def _place(position: str) -> tuple[int, int]:
    """Return ledger and entry of a position."""
    ledger, entry = position.split(":")
    return int(ledger), int(entry)


def _why_uncertain(waited_us: int, end: End, *, lost: bool, limited: bool, by_clock: bool) -> str:
    if end.doubt is not None:
        return end.doubt
    if lost:
        return ROWS_LOST
    if limited:
        return UNLOGGED
    if by_clock:
        return CLOCKS_DIFFER
    return "stored_at_the_end" if waited_us < GRACE_US else "undecided"


def _left_out_us(wait: SampledWait, limits: Limits, end: End) -> int | None:
    """Return how long entries of a wait were left out at the end, microseconds; ``None`` if none was."""
    if wait.until_seq is not None or not wait.never_sent or not wait.positions:
        return None
    overtaken = wait.never_passed < wait.never_sent
    if wait.limited and not overtaken:
        return None
    waited_us = wait.waited_us
    if wait.reason == NO_READ:
        return None  # nothing was read: a stall, and no loss
    limited = any(reason in LIMIT_REASONS for reason, _ in wait.shares)
    if (wait.reason is not None or limited) and not overtaken:
        waited_us = _free_us(wait)
        if waited_us < GRACE_US:
            return None  # a rule holds it, or did until a moment ago; none lets a later message of the key go first
    if end.deleted and overtaken and waited_us > GRACE_US:
        return waited_us
    # else it may be on its way
    return waited_us if end.closed or waited_us > 1000 * limits.never_delivered_ms else None


def _free_us(wait: SampledWait) -> int:
    """Return the part of a wait in which no rule held it, microseconds."""
    return sum(us for reason, us in wait.shares if reason is None)


def _unsent(waits: Iterable[SampledWait], limits: Limits, end: End) -> int:
    """Count the entries of waits that were never sent, without those of ``never_delivered`` findings."""
    return sum(wait.never_sent for wait in waits if _left_out_us(wait, limits, end) is None)


def _kind_of(wait: SampledWait) -> str:
    """Return the kind of a wait that is too long; of Shared, where nobody owns an entry, the whole subscription is stuck."""
    kind = KIND_OF.get(wait.reason, "stuck_key")
    of_any = wait.hash is None and wait.waiting is None
    return _OF_ANY_CONSUMER.get(kind, kind) if of_any else kind


def _too_long(wait: SampledWait, limits: Limits, end: End) -> bool:
    limit_us = 1000 * int(getattr(limits, f"{_kind_of(wait)}_ms"))
    if wait.waited_us > limit_us or wait.reason == NO_READ:
        return True
    # A hash drains for what is not there, also behind its consumer's leave, until it comes back or no consumer is connected.
    # A consumer stays blocked until its next acknowledgement.
    if is_phantom(wait) and (wait.until_seq is None or wait.reason == "draining_hash"):
        return True
    if wait.until_seq is not None or not end.closed or not wait.never_sent or wait.limited:
        return False
    if wait.reason is not None and wait.never_passed < wait.never_sent:
        return False  # it was left out: ``never_delivered``
    if wait.reason is not None and _free_us(wait):
        return False  # at last nothing held it any more: ``never_delivered``
    # It will never be sent. Entries that came when no consumer was left are no finding.
    return any(reason != "no_consumer" for reason, _ in wait.shares)


def is_phantom(wait: SampledWait) -> bool:
    """Check whether the broker counted what was not there for most of a wait.

    A hash drained for a consumer that held nothing of it, or a consumer stayed blocked on unacknowledged messages though it
    held no more than half of the limit.
    """
    if wait.reason not in ("draining_hash", "unacked_limit_consumer") or not wait.messages:
        return False
    if wait.reason == "draining_hash" and wait.drained is None:
        return False
    return wait.needless_us > GRACE_US * wait.messages and 2 * wait.needless_us > wait.message_us


def _of_nothing(
    waiting: int | None, waits: Sequence[SampledWait], words: Words, limits: Limits, end: End
) -> list[Finding]:
    """Find work that waited although no rule held it: of a consumer that got nothing at all, or of single keys."""
    key = _only_key(waits)
    # Failover and Exclusive (no hash) send in the order of positions: nothing overtakes the entry that waits.
    silent = [
        wait
        for wait in waits
        if waiting is not None and (wait.hash is None or wait.silent_us > 1000 * limits.stuck_consumer_ms)
    ]
    hashes = {wait.hash for wait in silent}
    found = []
    if (
        len(hashes) > 1
        or (None in hashes and key is None)
        or any(_has_no_key(wait) and not _left_out(wait) for wait in silent)
    ):
        found.append(_finding("stuck_consumer", None, silent, words, limits, end))
        of_consumer = {id(wait) for wait in silent if _has_no_key(wait)}
    else:
        of_consumer = set()
    for wait in waits:
        # One entry that was left out is never_delivered; a key that does not go on has more of it waiting. Entries without
        # a key have no order in which one could hold up the next.
        if _left_out(wait):
            stands = wait.never_passed >= 2 and not _has_no_key(wait)
        else:
            stands = (wait.hash is not None or key is not None) and id(wait) not in of_consumer
        if stands:
            reason = "replay_order" if wait.entries > 1 and not _has_no_key(wait) else None
            found.append(_finding("stuck_key", reason, [wait], words, limits, end))
    return found


def _left_out(wait: SampledWait) -> bool:
    """Check whether the oldest entry of a wait was not sent by the end, and never before."""
    return wait.until_seq is None and not wait.again


def _has_no_key(wait: SampledWait) -> bool:
    return wait.keys[:1] == (None,)


def _only_key(waits: Sequence[SampledWait]) -> Key | None:
    """Return the key of all waiting entries; ``None`` if there are several, or none, or more entries than are named."""
    if any(wait.entries > len(wait.keys) for wait in waits):
        return None
    keys = {key for wait in waits for key in wait.keys}
    return keys.pop() if len(keys) == 1 else None


def _overlapping(waits: Sequence[SampledWait]) -> list[list[SampledWait]]:
    """Group waits that follow each other without a break."""
    together: list[list[SampledWait]] = []
    reach: float = 0
    for wait in sorted(waits, key=lambda wait: (wait.from_t_us, wait.from_seq)):
        if not together or wait.from_t_us > reach:
            together.append([])
            reach = wait.from_t_us
        together[-1].append(wait)
        reach = max(reach, float("inf") if wait.until_t_us is None else wait.until_t_us)
    return together


def _finding(
    kind: str, reason: str | None, waits: Sequence[SampledWait], words: Words, limits: Limits, end: End
) -> Finding:
    """Make one finding for waits that belong together; it describes the longest one."""
    longest = max(waits, key=lambda wait: (wait.waited_us, -wait.from_seq))
    ended = max(waits, key=lambda wait: (wait.until_seq is None, wait.until_seq or 0))
    until_seq = end.seq if ended.until_seq is None else ended.until_seq
    positions = _positions(waits) if kind != "stuck_key" else list(longest.positions)
    key = longest.keys[0] if longest.keys and kind == "stuck_key" else None
    severity = KINDS[kind].severity
    phantom = is_phantom(longest)
    maybe_limited = 2 * sum(wait.maybe_limited for wait in waits) > len(waits)
    maybe_limited = maybe_limited or (not phantom and _only_by_limits(kind, waits, limits))
    by_clock = not phantom and _only_by_clock(kind, waits, limits, end)
    lost = not phantom and _only_by_lost_rows(kind, waits, limits, end)
    if phantom:
        severity = CRITICAL
    consumers = [number for number in (longest.waiting, longest.holder) if number is not None]
    from_us = min(wait.from_t_us for wait in waits)
    seqs = [min(wait.from_seq for wait in waits), until_seq]
    cause = None
    if reason == NO_READ and longest.no_read is not None:
        reads = longest.no_read.reads
        cause, seqs = reads.shown, seqs if reads.seq is None else [*seqs, reads.seq]
        consumers = list(dict.fromkeys(wait.waiting for wait in waits if wait.waiting is not None))
    return Finding(
        kind=kind,
        severity=severity,
        key=key[0] if key else None,
        key_b64=bool(key and key[1]),
        hash=longest.hash if kind == "stuck_key" else None,
        positions=positions,
        consumers=list(dict.fromkeys(consumers)),
        seqs=_seqs(*seqs),
        t_us=_until_us(ended, end),
        cause=cause,
        reason=reason,
        uncertain=end.doubt is not None
        or by_clock
        or lost
        or maybe_limited
        or (2 * sum(wait.uncertain for wait in waits) > len(waits)),
        explanation=words.stuck(kind, reason, waits, longest, from_us, _until_us(ended, end), phantom)
        + (_by_which_clock(waits, end) if by_clock else "")
        + (DOUBTS[ROWS_LOST] if lost else "")
        + (DOUBTS[BEFORE_CHECKPOINT] if end.doubt == BEFORE_CHECKPOINT else "")
        + (MAYBE_LIMITED if maybe_limited else ""),
        place=1,
    )


def _only_by_clock(kind: str, waits: Sequence[SampledWait], limits: Limits, end: End) -> bool:
    """Check whether waits are too long only by a clock: of a producer that may be behind, or of a broker that steps."""
    limit_us = 1000 * int(getattr(limits, f"{kind}_ms"))
    if any(wait.until_seq is None and wait.never_sent and end.closed for wait in waits):
        return False  # it will never be sent, whenever it was stored
    too_long = [wait for wait in waits if wait.waited_us > limit_us and _has_clocks(wait, end)]
    return bool(too_long) and all(_certain_us(wait, end) <= limit_us for wait in too_long)


def _has_clocks(wait: SampledWait, end: End) -> bool:
    """Check whether a clock that is off may have made a wait longer."""
    return bool(wait.published) or end.stepped_back_us > 0 or _jumped_us(wait, end) > 0


def _by_which_clock(waits: Iterable[SampledWait], end: End) -> str:
    if end.stepped_back_us:
        return CLOCK_STEPPED
    return DOUBTS[CLOCK_JUMPED] if any(_jumped_us(wait, end) for wait in waits) else BY_CLOCK


def _jumped_us(wait: SampledWait, end: End) -> int:
    return end.jumped_us(wait.from_t_us, _until_us(wait, end))


def _only_by_limits(kind: str, waits: Sequence[SampledWait], limits: Limits) -> bool:
    """Check whether waits are too long only by the time in which a limit may have held them."""
    limit_us = 1000 * int(getattr(limits, f"{kind}_ms"))
    too_long = [wait for wait in waits if wait.waited_us > limit_us]
    return bool(too_long) and all(wait.waited_us - wait.maybe_limited_us <= limit_us for wait in too_long)


def _only_by_lost_rows(kind: str, waits: Sequence[SampledWait], limits: Limits, end: End) -> bool:
    """Check whether no wait was too long by the last line before lost rows."""
    if end.known_until_us is None:
        return False
    limit_us = 1000 * int(getattr(limits, f"{kind}_ms"))
    return all(
        wait.until_seq is None and end.only_by_lost_rows(wait.waited_us, limit_us)
        for wait in waits
        if wait.until_seq is None or wait.waited_us > limit_us
    )


def _certain_us(wait: SampledWait, end: End) -> int:
    """Return how long entries of a wait waited even if the clocks are off as far as they may be."""
    certain_us = wait.waited_us - max(end.stepped_back_us, _jumped_us(wait, end))
    for stored_us in sorted(us + end.behind_us.get(producer, 0) for producer, us in wait.published)[:1]:
        certain_us = min(certain_us, _until_us(wait, end) - stored_us)
    return certain_us


def _positions(waits: Sequence[SampledWait]) -> list[str]:
    """Return the oldest entry of each hash, in the order of the log."""
    first = {wait.first_position for wait in waits if wait.first_position is not None}
    return sorted(first, key=lambda position: tuple(map(int, position.split(":"))))[:MOST_POSITIONS]


def _until_us(wait: SampledWait, end: End) -> int:
    return end.as_of_us if wait.until_t_us is None else wait.until_t_us


def _seqs(*seqs: int) -> list[int]:
    """Return the lines in order, each once; 0 = before the first."""
    return sorted({seq for seq in seqs if seq > 0}) or [max(seqs)]


def _needless(waits: Sequence[SampledWait], words: Words, limits: Limits, end: End) -> list[Finding]:
    """Find ``unnecessary_blocking``: the message time per consumer and rule that no order needed."""
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
                uncertain=end.doubt is not None or 2 * sum(wait.uncertain for wait in members) > len(members),
                explanation=words.needless(reason, waiting, needless_us, len(hashes)),
                place=2,
            )
        )
    return found
