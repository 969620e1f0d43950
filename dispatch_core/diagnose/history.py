"""A subscription at one or several moments, and what the moments together prove.

Theory of operation
-------------------
The broker reads its counters without a lock, one after the other, so one document may show a state that lasts a microsecond,
or none that ever was: permits of 0 between two flows, a pending read that is about to complete. A state is *settled* if it
cannot be such a transition:

* two moments at least ``SETTLED_US`` apart have the same consumers, and nobody was sent anything in between; of many moments
  the last ones count;
* or the moment's time is known, and no consumer was sent, acknowledged or granted anything for ``QUIET_US`` before it. That
  is longer, as the time may come from another clock.

What has to be settled for an answer to be certain stands with each rule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dispatch_core.diagnose.answers import Evidence
from dispatch_core.diagnose.facts import Consumer, Subscription

SETTLED_US: Final = 1_000_000
QUIET_US: Final = 5_000_000
#: Consumers that are connected for so long are in ``msgRateOut``, which the broker computes once a minute.
RATE_KNOWN_US: Final = 120_000_000


@dataclass(frozen=True, slots=True)
class History:
    """The moments of one subscription, oldest first, and what else is known.

    Attributes:
        broker_version: the release; ``None`` = not known.
        settings: ``broker.conf`` settings that are known to be in force; others may have any value.
    """

    moments: tuple[Subscription, ...]
    broker_version: str | None = None
    settings: Mapping[str, int | bool] = field(default_factory=dict)

    @property
    def now(self) -> Subscription:
        """The last moment."""
        return self.moments[-1]

    @property
    def recent(self) -> tuple[Subscription, ...]:
        """The moments that say whether the state of now is settled: from the last one ``SETTLED_US`` before it on."""
        now_us = self.now.taken_us
        for at in range(len(self.moments) - 2, 0, -1):
            taken_us = self.moments[at].taken_us
            if now_us is None or taken_us is None:
                break
            if now_us - taken_us >= SETTLED_US:
                return self.moments[at:]
        return self.moments

    @property
    def elapsed_us(self) -> int | None:
        """Time from the first moment to the last; ``None`` = not known."""
        return _elapsed_us(self.moments)

    @property
    def progress(self) -> bool | None:
        """True if messages were sent in the ``recent`` moments; ``None`` = not known."""
        first, last = self.recent[0], self.now
        if len(self.moments) < 2:
            return None
        if first.sent is not None and last.sent is not None and first.sent != last.sent:
            return True
        if first.cursor and last.cursor and first.cursor.read_position != last.cursor.read_position:
            return True
        if any(consumer.sent_us != before.sent_us for before, consumer in self._both()):
            return True
        return False if first.sent is not None and last.sent is not None else None

    @property
    def flows(self) -> bool:
        """True if messages are being sent, as far as the moments tell: between them, within a second, or by the rate."""
        now = self.now
        if self.progress is not None:
            return self.progress
        if now.is_utc and now.taken_us is not None and now.consumed_us:
            return now.taken_us - now.consumed_us < SETTLED_US
        if now.consumed_us and now.not_before_us - now.consumed_us >= SETTLED_US:
            return False
        if now.rate_out > 0:
            return True
        # The rate is of whole minutes: of a consumer that has just connected it tells nothing yet.
        young = [c for c in now.consumers if now.not_before_us - c.connected_us < RATE_KNOWN_US]
        acked_us = max((consumer.acked_us for consumer in young), default=0)
        if now.cursor is not None and acked_us and abs(acked_us - now.consumed_us) < SETTLED_US:
            return True  # nothing in the documents is later than messages that were sent and acknowledged
        return any(map(_works, young))

    @property
    def same_consumers(self) -> bool:
        """True if the same consumers are connected at all ``recent`` moments."""
        return len({tuple(sorted(map(_identity, moment.consumers))) for moment in self.recent}) == 1

    @property
    def by_moments(self) -> bool:
        """True if two moments show that the state is settled."""
        elapsed = self._recently_us
        return (
            elapsed is not None and elapsed >= SETTLED_US and self.progress is False and self.same_consumers
        )

    @property
    def settled(self) -> bool:
        """True if the state of now is no transition."""
        if self.by_moments:
            return True
        now = self.now
        if len(self.moments) > 1 and (self.progress is not False or not self.same_consumers):
            return False
        known = now.is_utc and all(consumer.flow_us or consumer.sent_us for consumer in now.consumers)
        return known and bool(now.moved_us) and (now.taken_us or 0) - now.moved_us >= QUIET_US

    def rests(self, consumer: Consumer) -> bool:
        """True if a consumer's own state is settled: it was sent nothing and granted nothing, whatever others were."""
        if self.settled:
            return True
        elapsed = self._recently_us
        before = self.before(consumer)
        if elapsed is None or elapsed < SETTLED_US or len(before) < len(self.recent) - 1:
            return False
        return consumer.sent is not None and {_state(other) for other in before} == {_state(consumer)}

    def idles(self, consumer: Consumer) -> bool:
        """True if a consumer rests, or by its own times got nothing for ``SETTLED_US``: likely, but no proof."""
        taken_us, before = self.now.taken_us, self.before(consumer)
        if self.now.is_utc and taken_us is not None and consumer.moved_us:
            return self.rests(consumer) or taken_us - consumer.moved_us >= SETTLED_US
        same = {_state(other) for other in before} == {_state(consumer)} and len(before) == len(
            self.recent
        ) - 1
        return self.rests(consumer) or (same and self._likely_elapsed_us >= SETTLED_US)

    def lasts(self, holds: Callable[[Subscription], bool]) -> bool:
        """True if something holds at all ``recent`` moments, which are likely to span ``SETTLED_US``: no proof."""
        return self._likely_elapsed_us >= SETTLED_US and self.count(holds) >= len(self.recent)

    @property
    def _recently_us(self) -> int | None:
        """Time from the first of the ``recent`` moments to the last; ``None`` = not known."""
        return _elapsed_us(self.recent)

    @property
    def _likely_elapsed_us(self) -> int:
        """Time from the first moment to the last; if it is not known, by the latest times that they name."""
        elapsed = self.elapsed_us
        return self.now.not_before_us - self.moments[0].not_before_us if elapsed is None else elapsed

    @property
    def unsettled_because(self) -> str:
        """The next step that would make it settled, as a part of a sentence."""
        if len(self.moments) > 1 and self.elapsed_us is None:
            return (
                "two moments whose times are known (name the files by time, or use --admin-url with --every)"
            )
        return "a second moment some seconds later that shows the same"

    def count(self, holds: Callable[[Subscription], bool]) -> int:
        """The number of moments, back from now without a break, at which something holds."""
        number = 0
        for moment in reversed(self.moments):
            if not holds(moment):
                break
            number += 1
        return number

    def since_us(self, holds: Callable[[Subscription], bool]) -> int | None:
        """The time of the first moment from which on something holds at each; ``None`` = of now only, or not known."""
        number = self.count(holds)
        return None if number < 2 else self.moments[-number].taken_us

    def evidence(self, name: str, read: Callable[[Subscription], object]) -> Evidence:
        """The value of a field now, and at how many moments it was the same."""
        value = read(self.now)
        return Evidence(name, value, self.count(lambda moment: read(moment) == value))

    def before(self, consumer: Consumer) -> list[Consumer]:
        """The same connection at the earlier ``recent`` moments."""
        return [
            other
            for moment in self.recent[:-1]
            for other in moment.consumers
            if _identity(other) == _identity(consumer)
        ]

    def _both(self) -> list[tuple[Consumer, Consumer]]:
        """The connections of the first ``recent`` moment that are there now, at both."""
        first = {_identity(consumer): consumer for consumer in self.recent[0].consumers}
        return [
            (first[_identity(consumer)], consumer)
            for consumer in self.now.consumers
            if _identity(consumer) in first
        ]


def _elapsed_us(moments: Sequence[Subscription]) -> int | None:
    first_us, last_us = moments[0].taken_us, moments[-1].taken_us
    return None if first_us is None or last_us is None or len(moments) < 2 else last_us - first_us


def _works(consumer: Consumer) -> bool:
    """True if a consumer holds messages and acknowledged some about when it was sent the last."""
    return (
        (consumer.unacked or 0) > 0
        and abs(consumer.acked_us - consumer.sent_us) < SETTLED_US
        and bool(consumer.acked_us)
    )


def _state(consumer: Consumer) -> tuple[int | None, int | None, bool | None]:
    return consumer.sent, consumer.permits, consumer.blocked


def _identity(consumer: Consumer) -> tuple[str, str, int]:
    return consumer.name, consumer.address or "", consumer.connected_us


def histories_of(
    moments: Sequence[Sequence[Subscription]],
    broker_version: str | None = None,
    settings: Mapping[str, int | bool] | None = None,
) -> list[History]:
    """Collect the moments of each subscription; those of one topic come in the order of their moments."""
    by_name: dict[tuple[str | None, str], list[Subscription]] = {}
    for subscriptions in moments:
        for subscription in subscriptions:
            by_name.setdefault((subscription.topic, subscription.name), []).append(subscription)
    return [History(tuple(own), broker_version, settings or {}) for own in by_name.values()]
