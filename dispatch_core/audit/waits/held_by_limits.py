"""Find whether a limit in force holds the entries that no gate of the dispatcher holds.

=======================  ============================================================================================
``what``                 holds while it is in force, and
=======================  ============================================================================================
``dispatch_rate``        the messages sent by now use the rate up. Behind that another subscription of the topic or
                         the broker may have used it: the log cannot tell
``unacked_namespace``,   more than half of the limit is unacknowledged: a consumer that reached it gets more when it is
``unacked_topic``        down to half
``entry_filter``         always: it may put off entries, or leave them out
``transactions``         always, if messages of transactions are not marked (``txn``)
``delayed_delivery``     always, if delivery times are not in the log (``deliver_at_ms``)
=======================  ============================================================================================

Example: a rate of 2 messages per second is in force and 6 messages are sent at once. For three seconds the rate holds
everything else.

Source: DispatchRateLimiter, AsyncTokenBucket (a send may take more tokens than there are, and is paid off later);
Consumer.shouldBlockConsumerOnUnackMsgs, PersistentDispatcherMultipleConsumers.addUnAckedMessages.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Protocol

import numpy as np

from dispatch_core.arrays.columns import Ints
from dispatch_core.audit.behaviour_in_force import BehaviourInForce, InForce
from dispatch_core.audit.catalogue import LIMIT_REASONS
from dispatch_core.audit.waits.reasons import REASONS
from dispatch_core.broker.gates import OPEN
from dispatch_core.broker.state import MARK_DELETE, NOBODY, READ_POSITION, State

#: Tokens of a rate are given in periods of this length, and a send that they allow takes a moment.
_PERIOD_US: Final = 2_000_000
_UNACKED: Final = ("unacked_topic", "unacked_namespace")
#: Behaviour that the messages themselves show, by the field that does, where the recorder writes it.
_SHOWN_BY_FIELD: Final = {"transactions": "txn", "delayed_delivery": "deliver_at_ms"}
_CODE: Final = {what: REASONS.index(what) for what in LIMIT_REASONS}


class Dispatcher(Protocol):
    """A dispatcher whose state shows what is unacknowledged."""

    @property
    def state(self) -> State:
        """Its state."""
        ...


class HeldByLimits:
    """The limits of one log. Call ``sent`` for each batch before it is replayed, then ``at`` for each sample in it."""

    def __init__(
        self, in_force: BehaviourInForce, recorded: Collection[str], *, pending_by_holder: bool
    ) -> None:
        """Begin before the first line.

        Args:
            in_force: of the log.
            recorded: what the recorder writes (``records`` of the header).
            pending_by_holder: the dispatcher's state names the consumer of each pending entry (Key_Shared).
        """
        self.know(in_force, recorded)
        self._pending_by_holder = pending_by_holder
        self._paid_us = 0  # until then the messages sent by the end of the last batch use up the rate
        self._sent_us: Ints = np.empty(0, np.int64)  # of this batch
        self._paid_after_us: Ints = np.empty(0, np.int64)  # of this batch, behind each

    def know(self, in_force: BehaviourInForce, recorded: Collection[str]) -> None:
        """Take all limits of the log, where more of it is known; arguments as at the beginning."""
        self._times = [
            time
            for time in in_force.times
            if time.what in _CODE and _SHOWN_BY_FIELD.get(time.what) not in recorded
        ]
        self._rates = [time for time in self._times if time.what == "dispatch_rate" and time.value]

    def sent(self, t_us: Ints, messages: Ints) -> None:
        """Take the deliveries of a batch: their times, and the messages of each."""
        if not self._rates:
            return
        if len(self._paid_after_us):
            self._paid_us = int(self._paid_after_us[-1])
        paid_us, after_us = self._paid_us, []
        for sent_us, count in zip(t_us.tolist(), messages.tolist(), strict=True):
            rate = self._rate_at(sent_us)
            paid_us = max(paid_us, sent_us)
            if rate is not None and rate.value:
                paid_us += count * 1_000_000 // rate.value
            after_us.append(paid_us)
        self._sent_us, self._paid_after_us = np.maximum.accumulate(t_us), np.array(after_us, np.int64)

    def at(self, dispatcher: Dispatcher, before_us: int, t_us: int) -> tuple[int, bool]:
        """Return the code of the limit (``REASONS``) that held entries from one sample to the next; ``OPEN`` = none did.

        The second value is true where a limit may have held them, and the log cannot tell: also within the second before
        its line (``behaviour_in_force.POLLED_US``).
        """
        maybe = False
        for time in self._times:
            # In force for the larger part of the time between the samples.
            inside_us = min(t_us, time.until_us) - max(before_us, time.from_us)
            if 2 * inside_us < t_us - before_us or inside_us < 0:
                # Its line may be late.
                early = time.perhaps_from_us < t_us and before_us < time.from_us
                maybe = maybe or (early and self._may_hold(dispatcher, time))
                continue
            if time.what == "dispatch_rate" and time.value:
                if not self._uses_up(t_us):
                    maybe = True
                    continue
            elif not self._may_hold(dispatcher, time):
                continue
            return _CODE[time.what], False
        return OPEN, maybe

    def _may_hold(self, dispatcher: Dispatcher, time: InForce) -> bool:
        """Check that a limit of unacknowledged messages is reached; of the others this is not known."""
        limited = time.what in _UNACKED and time.value
        return not limited or self._reached(dispatcher.state, int(time.value or 0))

    def _rate_at(self, t_us: int) -> InForce | None:
        return next((rate for rate in self._rates if rate.from_us <= t_us < rate.until_us), None)

    def _uses_up(self, t_us: int) -> bool:
        """Check whether the messages sent before ``t_us`` use up the rate then."""
        behind = int(np.searchsorted(self._sent_us, t_us))
        paid_us = int(self._paid_after_us[behind - 1]) if behind else self._paid_us
        return t_us < paid_us + _PERIOD_US

    def _reached(self, st: State, limit: int) -> bool:
        low, high = int(st.s[MARK_DELETE]) + 1, int(st.s[READ_POSITION])
        pending = st.deleted[low:high] == 0
        if self._pending_by_holder:
            pending &= st.holder[low:high] != NOBODY
        return 2 * int(st.num_messages[low:high][pending].sum()) > limit
