"""Shared dispatcher of all releases: events in, decisions out.

Adds to ``multiple_consumers`` rounds in which consumers take turns (``round_robin``). No order is kept: the replay set has
no hashes, a replay read takes its first positions, and no entry waits for another one.

Differences between releases are flags of the profile:

* how many entries a turn has (``round_robin``);
* 4.x drops what mark-delete has passed, the classic dispatcher and 3.x do not (``cursor_moves``).

*What is random* is named here, and bounded. With ``preciseDispatcherFlowControl`` the broker divides the permits by the
average batch of a consumer that it picks at random (getRandomConsumer): ``read_sizes`` returns the numbers of entries that
the next read may ask for. Everything else follows from the events.

Not replayed: chunked messages, which the broker hands out by SharedConsumerAssignor.

Source: PersistentDispatcherMultipleConsumers, …Classic, AbstractDispatcherMultipleConsumers.

Two consumers, and a setting of two entries per turn:

>>> import numpy as np
>>> from dispatch_core.broker import profiles
>>> profile = profiles.resolve("4.2.4", {"dispatcherMaxRoundRobinBatchSize": 2}, subscription_type="Shared")
>>> d = SharedDispatcher(profile, np.zeros(5, np.int64), np.ones(5, np.int64), 2)
>>> for consumer, permits in ((1, 3), (2, 1)):
...     d.join(consumer, f"c{consumer}")
...     _ = d.flow(consumer, permits)
...     d.flow_applied(consumer, permits)
>>> d.attempt_read().max_entries
4
>>> d.read_done("Normal", [0, 1, 2, 3, 4])
True
>>> result = d.round("Normal", [0, 1, 2, 3, 4])
>>> [(turn.consumer, turn.entries) for turn in result.turns], result.to_replay
([(1, [0, 1]), (2, [2]), (1, [3])], [4])
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Final

import numpy as np
import numpy.typing as npt

from dispatch_core.broker import commands, permits, read_loop, read_loop_classic, round_robin
from dispatch_core.broker import state as st_
from dispatch_core.broker.multiple_consumers import (
    Between,
    MultipleConsumersDispatcher,
    Round,
    Saved,
    Turn,
    nothing_between,
)
from dispatch_core.broker.profiles import Dispatcher, Profile
from dispatch_core.broker.round_robin import TurnRule
from dispatch_core.errors import UnsupportedRuleError

#: A turn chooses a consumer and how much it gets, then sends: other threads may come before each of them.
STEPS_OF_TURN: Final = 2


class SharedDispatcher(MultipleConsumersDispatcher):
    """A Shared dispatcher; see ``MultipleConsumersDispatcher`` for what consumers and entries are.

    Raises ``UnsupportedRuleError`` for profiles of other dispatchers.
    """

    def __init__(
        self,
        profile: Profile,
        hashes: npt.NDArray[np.int64],
        num_messages: npt.NDArray[np.int64],
        max_consumers: int,
    ) -> None:
        if not profile.is_shared:
            raise UnsupportedRuleError(f"{profile.name}: not a Shared dispatcher")
        super().__init__(profile, hashes, num_messages, max_consumers)
        self.state.s[st_.TURN_RULE] = turn_rule(profile)
        self.state.s[st_.TURN_SIZE] = profile.number("dispatcherMaxRoundRobinBatchSize")
        self._before_reset: int | None = (
            None  # mark-delete in front of a reset that takes effect after the next round
        )

    def _new_hashes(self, known: int) -> None:
        """See ``MultipleConsumersDispatcher``: nobody owns a hash."""

    # --- membership ------------------------------------------------------------------------------------------

    def join(self, consumer: int, name: str, priority_level: int = 0) -> None:
        """Add a consumer to the list. It causes no read: its first flow does."""
        self._add_member(consumer, name, priority_level)

    def leave(self, consumer: int) -> None:
        """Remove a consumer: its pending entries enter the replay set, unless nobody is left."""
        self._requeue_member(consumer)

    def connection_broke(self, consumer: int, *, inactive: bool) -> None:
        """Take a connection that has broken, before its consumer is removed: it is not writable, and soon not active either.

        A consumer whose connection is not writable gets one entry a turn (Consumer.isWritable). If the connection is not
        active, either (``inactive``), 4.x passes it over (Consumer.cnx().isActive); the classic dispatcher and 3.x do not.
        """
        self._broken |= {self.slot(consumer)}
        if inactive and self.profile.dispatcher is Dispatcher.SHARED:
            self.state.inactive[self.slot(consumer)] = 1

    def reset_later(self, mark_delete: int) -> None:
        """Have the last reset of the cursor take effect after the next round only; mark-delete was here before."""
        self._before_reset = mark_delete

    def restore(self, saved: Saved) -> None:
        """See ``MultipleConsumersDispatcher``."""
        super().restore(saved)
        self._before_reset = None

    def made_anew(self) -> None:
        """Begin as a new dispatcher does: the subscription was deleted, and is made again."""
        self.state.s[st_.ROUND_ROBIN_INDEX] = 0

    # --- reads -----------------------------------------------------------------------------------------------

    def _plan_normal(self) -> None:
        read_loop_classic.plan_normal(self.state, self._plan)

    def read_sizes(self) -> list[int]:
        """Return the numbers of entries that the next read may have, ascending: more than one only if the choice is random.

        Empty if no read is possible. Source: calculateToRead, getRandomConsumer.
        """
        st, slots = self.state, self._connected_slots()
        first = int(permits.first_available_permits(st))
        if first <= 0:
            return []
        total = max(int(st.s[st_.TOTAL_PERMITS]), first)
        averages = {1}
        if self.profile.settings["preciseDispatcherFlowControl"]:
            averages = {max(permits.messages_per_entry(float(st.average[slot])), 1) for slot in slots}
        most = int(st.s[st_.READ_BATCH_SIZE])
        return sorted({max(min(ceil(total / average), most), 1) for average in averages})

    # --- rounds ----------------------------------------------------------------------------------------------

    def round(self, kind: str, entries: Sequence[int], between: Between = nothing_between) -> Round:
        """Dispatch one read result, turn by turn. ``finish_round`` follows.

        ``between(step)`` is called twice in each turn, before its consumer and entries are chosen and before they are sent
        (``STEPS_OF_TURN``), and before the look at the consumers that ends the round.
        """
        for entry in (min(entries), max(entries)) if entries else ():
            self._check_stored(entry)
        st, result = self.state, Round(look_ahead_due=None)
        array, done = np.asarray(entries, dtype=np.int64), 0
        left = int(st.num_messages[array].sum())
        average = round_robin.average_batch(left, len(entries))
        while done < len(entries):
            between(STEPS_OF_TURN * len(result.turns))
            slot = round_robin.take_turn(st)
            if slot == st_.NOBODY:
                break
            size = round_robin.size_of_turn(st, slot, slot not in self._broken, left, average)
            between(STEPS_OF_TURN * len(result.turns) + 1)
            turn = self._serve(slot, kind == "Replay", array[done : done + size])
            left -= turn.messages
            done += len(turn.entries)
            result.turns.append(turn)
            result.sent.setdefault(turn.consumer, []).extend(turn.entries)
        mark_delete = int(st.s[st_.MARK_DELETE])
        if self._before_reset is not None:
            st.s[st_.MARK_DELETE], self._before_reset = self._before_reset, None
        for entry in entries[done:]:
            read_loop.requeue(st, entry, st_.NO_HASH)
        st.s[st_.MARK_DELETE] = mark_delete
        result.to_replay = list(entries[done:])
        result.in_replay = int(st.s[st_.N_REPLAY])
        return result

    def _serve(self, slot: int, is_replay: bool, entries: st_.I64) -> Turn:
        """Send the entries of a turn to its consumer."""
        st = self.state
        self._outcome[: len(entries)] = slot
        messages = int(st.num_messages[entries].sum())
        acked = int(st.acked_indexes[entries].sum())
        before, blocked = int(st.permits[slot]), bool(st.blocked[slot])
        average = float(st.average[slot])
        self._sent_deleted.update(self._several.sent(st, slot, entries.tolist()))
        read_loop.send_groups(st, is_replay, entries, self._outcome)
        for entry in entries.tolist():
            self._note_sent(entry)
        return Turn(
            consumer=self._numbers[slot],
            entries=entries.tolist(),
            messages=messages,
            already_acked=acked,
            permits_before=before,
            average_before=average,
            blocks=bool(st.blocked[slot]) and not blocked,
        )

    def finish_round(self, outcome: Round, *, has_more: bool = False) -> bool:
        """End a round: another read attempt follows, whatever was sent. Returns False: Shared never looks ahead."""
        commands.finish_round(self.state, False)
        outcome.retry = True
        return False

    # --- queries ---------------------------------------------------------------------------------------------

    def usable(self, consumer: int) -> int:
        """Return the consumer's permits: no room below a limit is taken off (Consumer.getAvailablePermits)."""
        return int(self.state.permits[self.slot(consumer)])

    def consumers_now(self, out: st_.I64) -> None:
        """See ``MultipleConsumersDispatcher.consumers_now``."""
        super().consumers_now(out)
        for at in range(int(self.state.s[st_.N_CONSUMERS])):
            out[4 * at + 1] = out[4 * at + 2]


def turn_rule(profile: Profile) -> TurnRule:
    """Return the rule by which the profile's release counts the entries of a turn.

    >>> from dispatch_core.broker.profiles import resolve
    >>> [turn_rule(resolve(version, subscription_type="Shared")).name for version in ("3.0.17", "4.0.3", "4.0.4", "4.2.4")]
    ['MESSAGES', 'PERMITS', 'ENTRIES', 'ENTRIES']
    >>> classic = {"subscriptionSharedUseClassicPersistentImplementation": True}
    >>> turn_rule(resolve("4.2.4", classic, subscription_type="Shared")).name
    'MESSAGES'
    """
    if profile.dispatcher is Dispatcher.SHARED_CLASSIC or "draining_hashes" not in profile.changes:
        return TurnRule.MESSAGES
    return TurnRule.ENTRIES if "shared_batch_size" in profile.changes else TurnRule.PERMITS
