"""Make the part of a wait that lies in a stall a wait of its own, with the reason ``no_read``.

What a wait is longest for decides its reason, and a stall often comes behind other reasons. Example: 3:7 waits 40 s for
permits, and gets none of them sent for 12 s more. That is a wait of 40 s for the reason ``no_permits``, and one of 12 s for
the reason ``no_read``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from dispatch_core.audit.catalogue import NO_READ
from dispatch_core.audit.limits import Limits
from dispatch_core.audit.waits.no_read import NoRead
from dispatch_core.audit.waits.tracker import GRACE_US, SampledWait

#: Reasons of work that takes part in a stall: none, and permits that what waits before it would use up.
_FREE = (None, "no_permits")


def with_no_read_apart(waits: Iterable[SampledWait], limits: Limits, *, closed: bool) -> list[SampledWait]:
    """Return the waits, those apart that lie in a stall of more than ``stuck_subscription_ms``.

    What waits must be more than one entry, and not of a single key, or a trace must show what the stall is: if a single
    entry or key waits and there is nothing else to send, that entry may have been left out, or that key may be stuck.
    Entries of a key that went on are no part of a stall.

    ``closed``: nothing will ever follow the log, so that a stall at its end does not end, however short it was.
    """
    found = []
    for wait in waits:
        stall = wait.no_read
        if stall is None or not _counts(wait, stall, limits, closed=closed):
            found.append(wait)
        else:
            found += _parts(wait, stall)
    return found


def _counts(wait: SampledWait, stall: NoRead, limits: Limits, *, closed: bool) -> bool:
    if wait.never_passed < wait.never_sent:
        return False
    at_the_end = closed and wait.until_seq is None and stall.is_last and stall.us > GRACE_US
    if not at_the_end and stall.us <= 1000 * limits.stuck_subscription_ms:
        return False
    return stall.reads.shown is not None or _are_several(wait, stall)


def _are_several(wait: SampledWait, stall: NoRead) -> bool:
    """Check that several entries wait in a stall, and that they are not of a single key; of Shared, a key means nothing."""
    if stall.hashes > 1:
        return True
    is_shared = wait.hash is None and wait.waiting is None
    of_keys = len(set(wait.keys)) > 1 or (wait.entries > len(wait.keys) and wait.never_keys != 1)
    return wait.entries > 1 and (is_shared or None in wait.keys or (wait.hash is None and of_keys))


def _parts(wait: SampledWait, stall: NoRead) -> list[SampledWait]:
    """Return the rest of a wait, if there is any, and the part that lies in a stall."""
    shares = dict(wait.shares)
    left_us = stall.us
    for reason in _FREE:
        taken_us = min(left_us, shares.get(reason, 0))
        left_us -= taken_us
        if taken_us:
            shares[reason] -= taken_us
    rest = sorted(
        ((reason, us) for reason, us in shares.items() if us), key=lambda share: (-share[1], share[0] or "")
    )
    whole_us = max(wait.waited_us, 1)
    in_stall = replace(
        wait,
        reason=NO_READ,
        shares=((NO_READ, stall.us),),
        holder=None,
        holder_positions=(),
        holder_pending=0,
        from_seq=stall.after_seq,
        from_t_us=stall.from_us,
        message_us=wait.message_us * stall.us // whole_us,
        needless_us=0,
        attempts=0,
        uncertain=wait.doubt is not None,
        maybe_limited_us=min(wait.maybe_limited_us, stall.us),
        limited=False,
    )
    if not rest:
        return [in_stall]
    others = replace(
        wait,
        reason=rest[0][0],
        shares=tuple(rest),
        message_us=wait.message_us - in_stall.message_us,
        never_sent=0,
        never_passed=0,
        never_of_keys=(),
        never_keys=0,
        again=False,
        no_read=None,
    )
    until_us = stall.from_us + stall.us
    if wait.until_t_us is not None and wait.until_t_us > until_us:
        return [others, in_stall]
    # The stall is its last part.
    until_seq = max(stall.after_seq, wait.from_seq + 1)
    return [replace(others, until_seq=until_seq, until_t_us=wait.from_t_us + others.waited_us), in_stall]
