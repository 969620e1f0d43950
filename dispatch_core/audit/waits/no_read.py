"""Find stalls that no rule explains: work is readable, a consumer has permits, no rule holds the work, and nothing is read.

Theory of operation
-------------------
A *stall* begins with the last delivery to anybody. Work takes part in it while no gate holds it (``broker.gates``), or only
what waits before it at a consumer that has permits. That alone is no proof: a message that was left out waits in the same
way once the others have been sent. So a stall needs *fresh* work, which the dispatcher has not passed over:

* nothing behind it was sent to its consumer while no gate held it;
* others got nothing for longer than ``LEFT_US`` while it waited so and its consumer got nothing;

Without a trace, work takes part only while its consumer, and all together, hold no more than half of the unacknowledged
messages that were held before. Otherwise a limit that a policy sets, and the log does not show, may hold it.

Example: 3:7 is for w1, which has permits, and 3:8 for w2. At 12:00:00 w1 gets 3:6, the last delivery. 3:7 and 3:8 wait, no
gate is closed, and at 12:00:10 nothing has come: a stall of ten seconds. Had w2 got 3:8, and 3:9 a second later, then only
the key or the consumer of 3:7 would be stuck. Had w1 got 3:9, then 3:7 would have been left out.

*Classes* are the ways in which a dispatcher is known to come to this:

==================  =====================================================================  ==============================
class               the state of reads                                                     known from
==================  =====================================================================  ==============================
``lost_read``       a read is pending that never completes: the flag havePendingRead or    #26454 (Shared), #26174
                    havePendingReplayRead stays set                                        (Failover)
``read_at_tail``    a normal read waits behind the last stored entry, as it should, while  3.x and classic: the stuck
                    the replay set holds work; the next look at the replay set comes with  flag; 4.x before #26236:
                    the next flow, join, leave or redelivery request                       look-ahead
``look_ahead_full`` the replay set is at its look-ahead limit, so that no normal read is   #23231
                    issued, and no replay read is issued for what it holds
``no_attempt``      no read is pending, and none is attempted                              #9789
==================  =====================================================================  ==============================

A trace shows which one it is. A log without a trace shows which of them it cannot be. A total of permits of zero or less is
no class: it only shrinks reads (max(total, permits of the first available consumer)).

Source: PersistentDispatcherMultipleConsumers(Classic).readMoreEntries, PersistentStickyKeyDispatcherMultipleConsumers
(Classic), PersistentDispatcherSingleActiveConsumer.readMoreEntries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

LOST_READ: Final = "lost_read"
READ_AT_TAIL: Final = "read_at_tail"
LOOK_AHEAD_FULL: Final = "look_ahead_full"
NO_ATTEMPT: Final = "no_attempt"
#: The classes, and what each means as a part of a sentence.
CLASSES: Final[Mapping[str, str]] = {
    LOST_READ: "a read was issued and had not completed, as in #26454",
    READ_AT_TAIL: "a normal read waited behind the last stored entry while the replay set held work",
    LOOK_AHEAD_FULL: "the replay set was at its look-ahead limit (#23231), and nothing of it was read again",
    NO_ATTEMPT: "no read was pending and none was attempted, which unblockStuckSubscriptionEnabled looks for (#9789)",
}

#: Work for which others got something for longer than this, while nothing came for it, was passed over, microseconds.
LEFT_US: Final = 50_000
#: Commands and entries that came so shortly after the last delivery may belong to the rounds before the stall, and what
#: came so short a time ago may still have its effect. Clocks of producers and broker differ by less, microseconds.
SETTLED_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Reads:
    """The state of a dispatcher's reads in a stall.

    Attributes:
        shown: the class that a trace shows; ``None`` = the log has no trace, or it shows none of them.
        seq: the line that issued the pending read; ``None`` = no read is pending, or the log has no trace.
        fits: without a trace, the classes that it may be.
        cannot: without a trace, the classes that it cannot be.
    """

    shown: str | None = None
    seq: int | None = None
    fits: tuple[str, ...] = ()
    cannot: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NoRead:
    """The part of a wait that lies in a stall.

    Attributes:
        us: its length, microseconds: at least so long, as something may have held it until the last line before a look.
        from_us: its beginning, microseconds since the epoch.
        after_seq: the last delivery before; 0 = there was none.
        hashes: number of hashes of which something waited in the stall at once.
        reads: the state of reads.
        is_last: nothing was sent behind it.
    """

    us: int
    from_us: int
    after_seq: int
    hashes: int
    reads: Reads
    is_last: bool


@dataclass(frozen=True, slots=True)
class PendingReads:
    """The reads of a dispatcher at a moment, as a trace shows them.

    Attributes:
        normal: a normal read is pending.
        replay: a replay read is pending.
        seq: the line that issued the pending read; of both kinds that of the replay read.
        attempted_us: the last read attempt, microseconds since the epoch; ``None`` = the trace has no lines of attempts.
    """

    normal: bool
    replay: bool
    seq: int | None
    attempted_us: int | None


def shown(reads: PendingReads, *, stored: bool, replays: bool, full: bool, since_us: int) -> str | None:
    """Return the class that a trace shows; ``None`` = none of them.

    Args:
        reads: the pending reads.
        stored: an entry has been stored from the read position on, for more than ``SETTLED_US``.
        replays: something waits in the replay set, and nothing is stored from the read position on.
        full: the replay set is at its look-ahead limit.
        since_us: beginning of the stall, microseconds since the epoch.

    A normal read is pending. Behind the last stored entry it waits as it should; if there is an entry, it is lost:

    >>> reads = PendingReads(normal=True, replay=False, seq=1346, attempted_us=5)
    >>> [shown(reads, stored=stored, replays=True, full=False, since_us=3) for stored in (False, True)]
    ['read_at_tail', 'lost_read']
    >>> shown(PendingReads(False, False, None, 2), stored=True, replays=False, full=False, since_us=3)
    'no_attempt'
    """
    if reads.replay or (reads.normal and stored):
        return LOST_READ
    if reads.normal:
        return READ_AT_TAIL if replays else None
    if reads.attempted_us is None:
        return None
    if reads.attempted_us <= since_us:
        return NO_ATTEMPT
    return LOOK_AHEAD_FULL if full else None


@dataclass(frozen=True, slots=True)
class Dispatched:
    """The facts by which a log without a trace rules classes out.

    Attributes:
        skips_replays: a round may have the next scan of the replay set skipped without the cursor having more entries.
        may_be_full: the entries that wait are as many as the look-ahead limit; False where the dispatcher has no such limit.
        new_work_alone: for some consumer with permits everything that waits was stored after the stall had begun, and some
            of it ``SETTLED_US`` ago.
        commanded: a command that makes the broker attempt a read came after the stall had begun, ``SETTLED_US`` ago.
    """

    skips_replays: bool
    may_be_full: bool
    new_work_alone: bool
    commanded: bool


def fitting(facts: Dispatched) -> Reads:
    """Return the classes that a log without a trace leaves open, and those that it rules out.

    A read that waits at the tail gets an entry that is stored later, and its consumer gets that, unless other work of this
    consumer waits in the replay set.

    >>> fitting(Dispatched(True, False, False, False))
    Reads(shown=None, seq=None, fits=('lost_read', 'read_at_tail', 'no_attempt'), cannot=('look_ahead_full',))
    """
    may_be = {
        LOST_READ: True,
        READ_AT_TAIL: facts.skips_replays and not facts.new_work_alone,
        LOOK_AHEAD_FULL: facts.may_be_full,
        NO_ATTEMPT: not facts.commanded,
    }
    return Reads(fits=_those(may_be, True), cannot=_those(may_be, False))


def _those(may_be: Mapping[str, bool], wanted: bool) -> tuple[str, ...]:
    return tuple(name for name, fits in may_be.items() if fits is wanted)


def described(reads: Reads) -> str:
    """Return the class as a part of a sentence.

    >>> described(Reads(shown="lost_read", seq=7))
    'this is lost_read: a read was issued and had not completed, as in #26454 (seq 7)'
    >>> described(Reads(fits=("lost_read", "no_attempt"), cannot=("read_at_tail", "look_ahead_full")))
    'of the known classes it may be lost_read (#26454) or no_attempt, it cannot be read_at_tail or look_ahead_full'
    """
    if reads.shown is not None:
        at = "" if reads.seq is None else f" (seq {reads.seq})"
        return f"this is {reads.shown}: {CLASSES[reads.shown]}{at}"
    if not reads.fits and not reads.cannot:
        return "the trace shows none of the known classes"
    text = f"of the known classes it may be {_any_of(reads.fits)}"
    return text + (f", it cannot be {_any_of(reads.cannot)}" if reads.cannot else "")


def _any_of(classes: Sequence[str]) -> str:
    named = [f"{name} (#26454)" if name == LOST_READ else name for name in classes]
    return " or ".join(filter(None, (", ".join(named[:-1]), named[-1])))
