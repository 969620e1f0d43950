"""What waited, for how long and why: waits of the oldest entry of each hash, sampled while a log is folded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hold:
    """One wait: the oldest waiting entry of a hash, from when it waited until it was sent or settled.

    A wait has a leading ``reason``, the rule that held it longest, and ``shares``: all of them with the microseconds each
    was in force. What no rule held has the reason ``None``.
    """

    hash: int | None  # None: many hashes together, waits too short to be told one by one
    reason: str | None  # of ``catalogue.STALL_REASONS``
    shares: tuple[tuple[str | None, int], ...]  # longest first
    waiting: int | None  # consumer that should get it
    holder: int | None  # who keeps it from going: drains, pins the join position, has no permits
    holder_positions: tuple[str, ...]  # its pending message ids, at most ``MOST_POSITIONS``
    holder_pending: int  # how many these are in all
    from_seq: int
    from_t_us: int
    until_seq: int | None  # None: it waits still
    until_t_us: int | None
    first_position: str | None  # of the oldest entry; None where hash is
    positions: tuple[str, ...]  # waiting, the oldest first, at most ``MOST_POSITIONS``
    keys: tuple[
        tuple[str, bool], ...
    ]  # their keys as (text, whether base64), distinct; key-less entries have none
    entries: int  # that waited at once at the most
    messages: int
    message_us: int  # each message's microseconds of waiting, together
    needless_us: int  # of these: held by an ordering rule while nothing of the hash was outstanding elsewhere
    attempts: int  # how often it was taken up and refused; 0 unseen
    first_sending: bool  # the oldest entry has never been sent before
    uncertain: bool  # the log cannot tell the reason

    @property
    def waited_us(self) -> int:
        """How long the oldest entry waited, as far as it was looked at."""
        return sum(us for _, us in self.shares)


#: Positions that one hold lists at most.
MOST_POSITIONS = 20
