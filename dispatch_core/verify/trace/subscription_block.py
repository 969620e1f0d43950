"""Say when the block of a subscription on unacked messages depends on the order of acks and a send.

The block is set when the unacked messages of all consumers reach ``maxUnackedMessagesPerSubscription``, and cleared when
they fall below half of it (``permits.add_unacked``). In between it stays what it was. So two orders of the same acks and the
same send may leave the same number of messages, one with the block and one without, and that shows only in a later read
attempt.

The limit is 72 and the subscription is blocked, with 36 messages; one ack of a message overlaps a send of three. Before the
send it clears the block, behind it it does not:

>>> blocked = Unacked(limit=72, messages=36, blocked=True)
>>> blocked.may_be_unblocked(sent=3, acked=1), blocked.may_be_blocked(sent=3, acked=1)
(True, True)

Of two blocks that differ only one is left as soon as the number reaches the limit, or falls below half of it:

>>> blocked.keeps_block(), Unacked(limit=72, messages=35, blocked=True).keeps_block()
(True, False)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unacked:
    """Unacked messages of a subscription. ``limit``: ``maxUnackedMessagesPerSubscription``; 0 or less = there is none."""

    limit: int
    messages: int
    blocked: bool

    def keeps_block(self) -> bool:
        """Check whether the number neither sets nor clears the block."""
        return self.limit > 0 and self.limit // 2 <= self.messages < self.limit

    def may_be_unblocked(self, sent: int, acked: int) -> bool:
        """Check whether the subscription may be unblocked after a send of so many messages that so many acks overlap."""
        least = self.messages - acked
        starts_unblocked = not self.blocked or least < self.limit // 2
        return starts_unblocked and least + sent < self.limit

    def may_be_blocked(self, sent: int, acked: int) -> bool:
        """Check whether the subscription may be blocked after a send of so many messages that so many acks overlap."""
        most = self.messages + sent
        return (self.blocked or most >= self.limit) and most - acked >= self.limit // 2
