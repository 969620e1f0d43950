"""Requests for redelivery that overlap a decision: what they take, and when their consumer's counter falls.

The thread of a connection handles a request in this order (Consumer.redeliverUnacknowledgedMessages):

1. it takes the entries out of the consumer's pending acks;
2. it lowers the counter of unacknowledged messages, which may unblock the subscription, and clears the consumer's block;
3. it calls the dispatcher, which puts the entries into the replay set: the line ``redeliver``;
4. it counts the permits that were parked.

Before the third step it waits for the dispatcher's lock, while read attempts and rounds go on. So a decision between the
previous line of the connection and ``redeliver`` may have seen the first two. A request that names entries, and until #25589
one for everything, has a line ``pending_ack_removed`` for each entry. Since then a request for everything takes what is
pending at once, without a line. Entries that are sent afterwards, but before ``redeliver``, stay pending. Which these are is
open: in the plain order none are. The other answers, "the last entry stays", "the last two stay" and so on, are open facts
(``races``), until a decision or a shown counter tells. Where hashes drain, the lines ``draining_release`` show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Final, TypeVar

from dispatch_core.broker import state as st_
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.driver import who
from dispatch_core.verify.trace.earlier_positions import HELD_UP_US
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.pending_acks import PendingAcksDriver, Redelivered
from dispatch_core.verify.trace.races import REQUESTS, Command, Outcome

A = TypeVar("A")

#: Number of entries sent last of which it stays open whether a request for everything has taken them.
MAX_OPEN_ENTRIES: Final = 64


@dataclass(frozen=True, slots=True)
class Begun:
    """A request that has begun before its line: entries it took without a line, messages by which it lowered the counter."""

    entries: list[int]
    messages: int


class RedeliveryRequestsDriver(PendingAcksDriver):
    """Place the parts of requests for redelivery that have no line of their own."""

    def __init__(self, entries: Entries, facts: TraceFacts, *, tracked: bool) -> None:
        super().__init__(entries, facts, tracked=tracked)
        self._requests_begun: dict[
            int, Begun
        ] = {}  # consumer → its next request, which a decision has shown to have begun
        # Consumer → entries that it was sent since the last line of its connection, in their order.
        self._sent_since: dict[int, list[int]] = {}
        self._sending: tuple[int, int] | None = (
            None  # consumer, number of entries of the send that has not returned
        )

    def _change_ordinals(self, change: Callable[[int], int]) -> None:
        """See ``Driver``."""
        super()._change_ordinals(change)
        # What is pending on nobody any more, no request takes; a consumer that has left asks for nothing.
        self._sent_since = {
            consumer: [change(entry) for entry in sent if self.core.holder(entry) is not None]
            for consumer, sent in self._sent_since.items()
        }
        self._requests_begun = {
            c: Begun([*map(change, begun.entries)], begun.messages)
            for c, begun in self._requests_begun.items()
        }
        for fact in self._facts:
            fact.stay = tuple(change(entry) for entry in fact.stay)

    # --- what was sent since the connection's last line ----------------------------------------------------------

    def _note_sent(self, line: Line) -> None:
        """Note a send of a round."""
        sent = [entry for entry in line.recorded["positions"] if entry >= 0]
        self._sent_since.setdefault(who(line), []).extend(sent)
        self._sending = who(line), len(sent)

    def _note_returned(self) -> None:
        """Note that the last send has returned."""
        self._sending = None

    def _connection_goes_on(self, line: Line) -> None:
        """Take a line of a connection's thread: a request to come takes what was sent before it."""
        sent = self._sent_since.pop(line.consumer, None) if line.consumer is not None else None
        if sent and self._sending is not None and self._sending[0] == line.consumer:
            self._sent_since[self._sending[0]] = sent[-self._sending[1] :]

    # --- before the line -----------------------------------------------------------------------------------------

    def _under_way(self, steps: int) -> tuple[dict[int, list[Command]], dict[int, list[Command]]]:
        """See ``RacingDriver``. A request may have begun already if its line comes soon, without one of its connection."""
        waiting, late = super()._under_way(steps)
        for consumer in self._requests:
            if self._may_have_begun(consumer) is not None:
                request, what = self._requests[consumer][0], f"the redelivery request of consumer {consumer}"
                waiting[REQUESTS - consumer] = [Command(request.line.seq, consumer, what, requests=True)]
        return waiting, late

    def _may_have_begun(self, consumer: int) -> Begun | None:
        """Return what the next request of a consumer does before its line, if it may have done so by now."""
        requests = self._requests.get(consumer)
        if not requests or consumer in self._requests_begun or not self.acks_are_logged:
            return None
        request = requests[0]
        if not request.previous <= self._at < request.at:
            return None
        comes_soon = request.line.t_us - self._line.t_us <= HELD_UP_US
        return self._begins(request.line) if comes_soon and consumer in self.core.connected() else None

    def _begins(self, request: Line) -> Begun | None:
        """Return what a request does before its line, as of now; ``None`` if it can have done nothing."""
        consumer, named = who(request), request.inputs["positions"]
        if named is None and not self._in_one_batch():
            begun = Begun([], self.core.unacked(consumer))  # clearUnAckedMsgs comes first
        elif named is None and not self._tracked:
            pending = self.core.pending_on(consumer)
            begun = Begun(pending, self._messages(pending))
        elif named is not None:
            removed = self._removed_by_end(consumer, set(named))
            if not set(named).intersection(self.core.pending_on(consumer)).issubset(removed):
                return None
            begun = Begun([], self._messages(removed))
        else:
            return None
        return begun if begun.messages else None

    def _removed_by_end(self, consumer: int, named: Set[int]) -> list[int]:
        """Return the entries that a request which names entries has taken by the end of the present window."""
        removed = list(self._removed.get(consumer, ()))
        for _at, line in self._within(max(self._window_end, self._at)):
            if line.kind == "pending_ack_removed" and line.consumer == consumer:
                removed += [e for e in line.recorded["positions"] if e in named and e not in removed]
        return removed

    def begin_request(self, command: Command) -> Begun | None:
        """Let a request to come do what it does before its line."""
        request = self._requests[command.connection][0].line
        begun = self._begins(request)
        if begun is not None:
            self._begin(command.connection, begun)
        return begun

    def _begin(self, consumer: int, begun: Begun) -> None:
        for entry in begun.entries:
            self.core.pending_ack_removed(entry, consumer)
        self.core.lower_for_redelivery(consumer, begun.messages)

    def _commit(self, outcome: Outcome[A], late: dict[int, list[Command]]) -> None:
        """See ``RacingDriver``."""
        super()._commit(outcome, late)
        for command in outcome.early:
            if command.requests and isinstance(command.result, Begun):
                self._note_begun(command.connection, command.result)

    def _note_begun(self, consumer: int, begun: Begun) -> None:
        self._requests_begun[consumer] = begun
        self._removed.setdefault(consumer, []).extend(begun.entries)

    # --- at the line ---------------------------------------------------------------------------------------------

    def _on_redeliver(self, line: Line) -> None:
        """Finish a redelivery request: what it has not taken before its line it takes now."""
        consumer, everything = who(line), line.inputs["positions"] is None
        self._settle_all()
        begun = self._requests_begun.pop(consumer, None)
        before = set(self._removed.get(consumer, ()))
        is_open = self._in_one_batch() and begun is None and consumer not in self._cleared
        if not everything or (is_open and not self._came_before_sends(consumer)):
            self._let_go_for(line)
        self._let_go(consumer, self._still_cleared(consumer))
        self._cleared.pop(consumer, None)
        self._requests[consumer].popleft()
        asked = self._removed.pop(consumer, [])
        messages = self.core.add_requested(consumer, sorted(asked))
        if everything and not self._in_one_batch():
            messages = self.core.unacked(consumer) - self._messages(self.core.pending_on(consumer))
        if begun is not None:
            messages = max(messages - begun.messages, 0)
        is_lowered = begun is not None and not messages  # and its consumer's block is cleared
        self._finish_later(line, None if is_lowered else Redelivered(messages))
        if everything and not self._tracked:
            self._open_what_stays(line, set(asked) - before)
        if everything and not self._in_one_batch():
            self._open_what_counts(line, set(asked))

    def _came_before_sends(self, consumer: int) -> bool:
        """Check whether a request for everything has taken nothing: where hashes drain, each entry it takes has a release.

        So all that is pending was sent after it.
        """
        pending = self.core.pending_on(consumer)
        return self._tracked and set(pending) <= {*self._sent_since.get(consumer, ())}

    def _open_what_stays(self, request: Line, taken: set[int]) -> None:
        """Open a fact for each number of entries sent last that a request for everything may not have taken."""
        sent = [entry for entry in self._sent_since.get(who(request), ()) if entry in taken]
        for count in range(1, min(len(sent), MAX_OPEN_ENTRIES) + 1):
            stay = tuple(sent[-count:])
            what = f"the redelivery request, before {self._positions(stay)} was sent,"
            self._facts.append(Command(request.seq, who(request), what, stay=stay))

    def _open_what_counts(self, request: Line, taken: set[int]) -> None:
        """Open a fact for each number of entries sent last that may count although a request has let go of them.

        Until #25589 a request for everything clears the counter first. Entries that are sent then, before it lets go of its
        pending acks, raise the counter, and nothing lowers it again.
        """
        sent = [entry for entry in self._sent_since.get(who(request), ()) if entry in taken]
        for count in range(1, min(len(sent), MAX_OPEN_ENTRIES) + 1):
            messages = sum(self.core.unacked_indexes(entry).bit_count() for entry in sent[-count:])
            what = f"the redelivery request, before {self._positions(sent[-count:])} was sent,"
            if messages:  # none if all of these entries were acknowledged
                self._facts.append(Command(request.seq, who(request), what, uncleared=messages))

    # --- what stays pending --------------------------------------------------------------------------------------

    def apply_fact(self, fact: Command) -> None:
        """See ``RacingDriver``."""
        super().apply_fact(fact)
        if fact.stay and fact.connection in self.core.connected():
            self.core.stay_pending(fact.connection, fact.stay)
        if fact.uncleared and fact.connection in self.core.connected():
            self.core.count_unacked(fact.connection, fact.uncleared)

    def _close_facts(self, closed: Sequence[Command]) -> None:
        """See ``RacingDriver``. One of the facts about a request is true at most."""
        super()._close_facts(closed)
        shown = {fact.seq for fact in closed if fact.applied and (fact.stay or fact.uncleared)}
        self._facts = [
            fact for fact in self._facts if not (fact.stay or fact.uncleared) or fact.seq not in shown
        ]

    def _show(self, fact: Command) -> None:
        """Take an open fact as shown by the present line."""
        self.apply_fact(fact)
        fact.applied = True
        self._close_facts([fact])

    def _forget_refuted(self) -> None:
        """Forget what is open about counters of unacknowledged messages: a line shows them all, in the plain order."""
        if any(fact.about_a_counter for fact in self._facts):
            self._facts = [fact for fact in self._facts if not self._is_refuted(fact)]

    def _is_refuted(self, fact: Command) -> bool:
        """Check whether an open fact does not go together with counters as they are in the plain order."""
        return bool(fact.stay) or fact.uncleared != 0

    def _adds(self, fact: Command) -> int:
        """Return by how many messages a counter is higher if an open fact about it is true."""
        return self._messages(fact.stay) + fact.uncleared

    def _show_by_counter(self, consumer: int, plain: int, recorded: int) -> int:
        """Compare a shown counter of unacknowledged messages with what is open.

        Returns the seq of the request about which it shows something, or 0.
        """
        for fact in self._facts:
            own = fact.about_a_counter and fact.connection == consumer
            if own and recorded == plain + self._adds(fact):
                self._show(fact)
                return fact.seq
        begun = self._may_have_begun(consumer)
        if begun is None:
            return 0
        request, entries = self._requests[consumer][0].line, begun.entries
        clears_first = request.inputs["positions"] is None and not self._in_one_batch()
        sent = self._sent_since.get(consumer, ())
        sent = sent if clears_first else [entry for entry in sent if entry in entries]
        for count in range(min(len(sent), MAX_OPEN_ENTRIES) + 1):
            behind = sent[len(sent) - count :]  # sent when the request had lowered the counter
            taken = [entry for entry in entries if entry not in behind]
            messages = begun.messages - self._messages(behind)
            if messages > 0 and recorded == plain - messages:
                self._begin(consumer, Begun(taken, messages))
                self._note_begun(consumer, Begun(taken, messages))
                return request.seq
        return 0

    def _on_ack(self, line: Line) -> None:
        """See ``PendingAcksDriver``. An acknowledgement that removes a pending ack shows that it has stayed."""
        if any(fact.stay for fact in self._facts):
            removed = set(self._removed_for(line)).intersection(line.inputs["positions"])
            facts = [fact for fact in self._facts if removed.intersection(fact.stay)]
            if facts:
                self._show(min(facts, key=lambda fact: len(fact.stay)))
        super()._on_ack(line)

    def _messages(self, entries: Sequence[int]) -> int:
        return sum(self.core.unacked_messages(entry) for entry in entries)

    def _in_one_batch(self) -> bool:
        return bool(self.core.state.s[st_.REDELIVERS_IN_ONE_BATCH])
