"""The permits of one connection as its lines give them: granted, used, returned.

Every change of the permits is a *movement*: a flow adds what the client grants, a delivery takes one permit for each message
that is not acknowledged yet. A movement is logged twice: where it arrives, and where it has taken effect. Between the two
lines a value may have it or not. Flows that arrive while the consumer is blocked on unacknowledged messages are parked:
they count when it is unblocked, for which there is no line; a later flow that is not parked shows it.

Source: Consumer.flowPermits, Consumer.sendMessages, Consumer.updateBlockedConsumerOnUnackedMsgs.

A client grants 10 permits and is sent a batch of four, one of which is acknowledged already; a flow of 5 is on its way:

>>> account = Account(7)
>>> account.grant(1, 10); account.count(2, blocked=False)
>>> account.charge(3, 4, (1,)); account.charged_by(4)
>>> account.grant(5, 5)
>>> sorted(account.values(4, 4))
[7, 12]
>>> account.granted, account.used, account.returned, account.client_expects
(15, 3, 1, 11)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dispatch_core.audit.permits.offsets import Offsets

#: ``Movement.certain_seq`` of a movement whose effect no line has shown yet.
NOT_YET: Final = 1 << 62
#: A value that may be one of more numbers says nothing.
MOST_VALUES: Final = 4096
#: Sums that are made to find these numbers.
_MOST_SUMS: Final = 1 << 16
#: Movements of a connection that may be under way at once. With more of them the log lacks lines.
_MOST_MOVING: Final = 256


def sums(found: Collection[int], numbers: Collection[int]) -> set[int]:
    """Add each of ``numbers`` to each of ``found``; empty = there are too many.

    >>> sorted(sums({0, 2}, (1, 3)))
    [1, 3, 5]
    """
    if len(found) * len(numbers) > _MOST_SUMS:
        return set()
    made = {value + number for value in found for number in numbers}
    return made if len(made) <= MOST_VALUES else set()


@dataclass(slots=True)
class Movement:
    """A change of a consumer's permits.

    Attributes:
        seq: the line at which it arrived.
        amounts: by how much it changes the permits, the likeliest last; several where acknowledgements were under way.
        certain_seq: the line at which it had taken effect, ``NOT_YET`` = none.
        is_charge: for a delivery; else a flow.
        granted: what the client had granted by then, this flow included.
    """

    seq: int
    amounts: tuple[int, ...]
    certain_seq: int = NOT_YET
    is_charge: bool = False
    granted: int = 0


@dataclass(slots=True)
class Account:
    """The permits of one connection.

    Attributes:
        consumer: its number.
        first_grant: permits of its first flow: the client's receiver queue.
        granted: permits of all its flows.
        messages: messages that were sent to it.
        returned: of these, the ones that were acknowledged already and cost no permit.
        applied: permits that reached the dispatcher's total; of a trace.
        charged: what deliveries took from the dispatcher's total, as far as it is certain; 0 or below.
        settled: the permits by all movements that are certain.
        moving: the movements that may not have taken effect yet.
        shown: the difference of the broker's count.
    """

    consumer: int
    first_grant: int = 0
    granted: int = 0
    messages: int = 0
    returned: int = 0
    applied: int = 0
    charged: int = 0
    settled: int = 0
    moving: list[Movement] = field(default_factory=list)
    shown: Offsets[Any] = field(default_factory=Offsets)

    @property
    def used(self) -> int:
        """Permits that deliveries took."""
        return self.messages - self.returned

    @property
    def client_expects(self) -> int:
        """The permits that the client counts as granted and not yet taken.

        A client takes every message of a batch that it gets, also the ones that were acknowledged before, and grants them
        again (ConsumerImpl.increaseAvailablePermits). So the broker counts more than the client by ``returned``.
        """
        return self.granted - self.messages

    @property
    def expected(self) -> int:
        """The permits that it has when every movement has taken effect."""
        return self.settled + sum(movement.amounts[-1] for movement in self.moving)

    @property
    def not_counted(self) -> int:
        """Permits of flows that no line shows as counted: they arrive now, or are parked."""
        flows = (movement for movement in self.moving if not movement.is_charge)
        return sum(movement.amounts[0] for movement in flows if movement.certain_seq == NOT_YET)

    def grant(self, seq: int, permits: int) -> None:
        """Take a flow as it arrives."""
        if not self.granted:
            self.first_grant = permits
        self.granted += permits
        self._move(Movement(seq, (permits,), granted=self.granted))

    def count(self, seq: int, *, blocked: bool) -> None:
        """Take the line at which the consumer has counted its flow; ``blocked``: it may have been parked instead."""
        if not blocked:
            for movement in self.moving:
                if not movement.is_charge and movement.certain_seq == NOT_YET:
                    movement.certain_seq = seq

    def apply(self, seq: int, permits: int) -> None:
        """Take permits that have reached the dispatcher's total: the consumer had counted them before."""
        self.applied += permits
        for movement in self.moving:
            if (
                not movement.is_charge
                and movement.certain_seq == NOT_YET
                and movement.granted <= self.applied
            ):
                movement.certain_seq = seq

    def charge(self, seq: int, messages: int, acked: Sequence[int]) -> None:
        """Take a delivery as it begins.

        Args:
            seq: its line.
            messages: that it sends.
            acked: how many of them may count as acknowledged, the likeliest number last.
        """
        self.messages += messages
        self.returned += acked[-1]
        amounts = tuple(count - messages for count in acked)
        self._move(Movement(seq, amounts, is_charge=True))

    def charged_by(self, seq: int) -> None:
        """Take the line behind which all deliveries so far are charged."""
        for movement in self.moving:
            if movement.is_charge and movement.certain_seq == NOT_YET:
                movement.certain_seq = seq

    def values(self, flows_since: int, charges_since: int) -> frozenset[int]:
        """Return the permits that a line may show; empty = too many numbers.

        ``flows_since``, ``charges_since``: its value was sampled behind these lines. Flows and deliveries that had taken
        effect by them are part of it; later ones may be.
        """
        found = {self.settled}
        for movement in self.moving:
            amounts = movement.amounts
            if movement.certain_seq > (charges_since if movement.is_charge else flows_since):
                amounts = (0, *amounts)
            found = sums(found, amounts)
        return frozenset(found)

    def show(self, seq: int, t_us: int, permits: int, flows_since: int, charges_since: int) -> frozenset[int]:
        """Take a line that shows the permits; return the differences from the ledger that it leaves possible.

        The last two arguments are those of ``values``. Empty = it says nothing.
        """
        if self.shown.offset is None:
            self._assume()
        if not self.moving:
            differences = frozenset((permits - self.settled,))
        else:
            values = self.values(flows_since, charges_since)
            if not values:
                self.lose()
                return values
            differences = frozenset([permits - value for value in values])
            self._choose(permits, flows_since, charges_since)
            self._settle(min(flows_since, charges_since))
        self.shown.show(seq, t_us, differences)
        return differences

    def lose(self) -> None:
        """Take note that lines are missing: what the consumer has is not known, until lines show it again."""
        self.moving.clear()
        self.settled = self.charged = self.applied = self.granted = 0
        self.shown = Offsets(None)

    @property
    def has_charges(self) -> bool:
        """True if a delivery is not part of ``charged`` yet."""
        return any(movement.is_charge for movement in self.moving)

    def charges(self) -> set[int]:
        """Return by how much deliveries that are not part of ``charged`` may change the total; empty = too many numbers."""
        found = {0}
        for movement in self.moving:
            if movement.is_charge:
                found = sums(found, movement.amounts)
        return found

    def _move(self, movement: Movement) -> None:
        if len(self.moving) >= _MOST_MOVING:
            self.lose()
        self.moving.append(movement)

    def _assume(self) -> None:
        """Take the likeliest amounts: while the permits are not known, no value shows which ones are right."""
        for movement in self.moving:
            movement.amounts = movement.amounts[-1:]

    def _choose(self, permits: int, flows_since: int, charges_since: int) -> None:
        """Settle how many messages of the last delivery counted as acknowledged, where the value shows it."""
        open_ = [movement for movement in self.moving if len(movement.amounts) > 1]
        if len(open_) != 1 or open_[0].certain_seq > charges_since or self.shown.offset is None:
            return
        movement, amounts = open_[0], open_[0].amounts
        movement.amounts = (0,)
        others = self.values(flows_since, charges_since)
        fitting = tuple(amount for amount in amounts if permits - self.shown.offset - amount in others)
        movement.amounts = fitting or amounts[-1:]
        self.returned += movement.amounts[-1] - amounts[-1]

    def _settle(self, since_seq: int) -> None:
        """Take the movements that had taken effect by line ``since_seq`` for certain from now on."""
        left = []
        for movement in self.moving:
            if movement.certain_seq > since_seq or len(movement.amounts) > 1:
                left.append(movement)
                continue
            self.settled += movement.amounts[0]
            if movement.is_charge:
                self.charged += movement.amounts[0]
        self.moving = left
