"""Verify a trace of the Key_Shared dispatcher of 3.x, or of the classic one of 4.x (read position).

Differences from 4.x: a consumer that leaves counts as recently joined until the first read attempt of its removal is over;
and a round may read on at once depending on writes.

A consumer that joins remembers the cursor's read position. A read moves it when its entries are there, on a thread of the
managed ledger; its ``read_done`` follows when the dispatcher takes them. So a consumer that joins while a normal read is in
flight remembers the position in front of that read, behind it or behind a part of it. The core takes the one that its line
``consumer_added`` shows. The read may move on behind that line, so later positions are open facts (``races``), named by
``read_done``, until a decision shows one or refutes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, pairwise
from typing import ClassVar, Final, TypeVar

from dispatch_core.broker.key_shared import KeySharedDispatcher
from dispatch_core.broker.key_shared_classic import ClassicKeySharedDispatcher
from dispatch_core.broker.multiple_consumers import Between, Read, Round
from dispatch_core.broker.profiles import Profile
from dispatch_core.broker.state import N_REPLAY, NOBODY
from dispatch_core.recording.log import DispatcherLog
from dispatch_core.verify.inputs import Entries, Line
from dispatch_core.verify.trace.driver import who
from dispatch_core.verify.trace.facts import TraceFacts
from dispatch_core.verify.trace.key_shared import MAX_PAUSES
from dispatch_core.verify.trace.races import Command, Difference, Outcome
from dispatch_core.verify.trace.racing import Window
from dispatch_core.verify.trace.recently_joined import RecentlyJoinedVerifier
from dispatch_core.verify.trace.recorded import Recorded
from dispatch_core.verify.trace.unlogged_acks import UnloggedAcksVerifier

A = TypeVar("A")

#: A consumer's turn in a round that gets nothing takes about so long, microseconds.
_A_TURN_US: Final = 100


class ClassicKeySharedVerifier(RecentlyJoinedVerifier):
    """State of one verification, as for 4.x, with another core."""

    core: ClassicKeySharedDispatcher
    dispatcher: ClassVar[type[KeySharedDispatcher]] = ClassicKeySharedDispatcher

    def __init__(self, log: DispatcherLog, profile: Profile, entries: Entries, facts: TraceFacts) -> None:
        super().__init__(log, profile, entries, facts)
        # Pairs of consumers: the first was sent to before the second in some round; whether its first entry came first, too.
        self._served_before: set[tuple[int, int, bool]] = set()
        self._attempts_logged = facts.reads_framed
        # Consumers whose turns in the present round come behind prunes that stand behind sends, by prune.
        self._later_turns: list[set[int]] = []
        # Index of each prune in the present round → step of the turn that it is in.
        self._turn_of_prune: dict[int, int] = {}
        # The read position of the line consumer_added, by consumer, until its selector_added.
        self._shown_at_join: dict[int, int] = {}

    def _on_recently_joined_pruned(self, line: Line) -> None:
        """Free the recently joined consumers that mark-delete has reached: its hook ran."""
        for connection in self._connections.values():
            self._settle(connection)  # mark-delete has moved: the acks that moved it are through
        self.core.prune()
        super()._on_recently_joined_pruned(line)

    # --- membership ----------------------------------------------------------------------------------------------

    def _change_ordinals(self, change: Callable[[int], int]) -> None:
        """See ``Driver``: read positions of open facts."""
        super()._change_ordinals(change)
        for fact in self._facts:
            if fact.held_from is not None:
                fact.held_from = change(fact.held_from)
        self._shown_at_join = {
            consumer: change(position) for consumer, position in self._shown_at_join.items()
        }

    def _on_consumer_added(self, line: Line) -> None:
        shown = line.recorded["read_position"]
        if shown is not None:
            self._shown_at_join[who(line)] = self._read_from(shown)
        super()._on_consumer_added(line)

    def _on_selector_added(self, line: Line) -> None:
        self._settle_all()
        in_flight, mark_delete = self.core.reads_ahead(), self.core.mark_delete()
        super()._on_selector_added(line)
        if in_flight and self.core.may_be_held_back():
            self._open_join(line, mark_delete)
        self._shown_at_join.pop(who(line), None)

    def _open_join(self, line: Line, mark_delete: int) -> None:
        """Open the facts about a consumer that joined while a normal read was in flight.

        The position is remembered if more than one entry lies between mark-delete and it. The broker looks at the read
        position once for the one and once for the other (addConsumer).
        """
        consumer, done = who(line), self._end_of_read()
        at = self.core.read_when_joining(consumer)
        entries = [entry for entry in done.inputs["positions"] if entry >= 0] if done is not None else []
        if done is None or at is None or not entries:
            return
        behind = max(entries) + 1
        is_held = consumer in self.core.recently_joined()
        if behind <= at or behind - mark_delete <= 1:
            return
        if not self._late_entries.may_be_stored(entries[0], line.t_us):
            return
        what = f"the result of the read during which consumer {consumer} joined"
        # The position that was shown a moment before comes first.
        most = self._shown_by_next_join(done)
        held_from = [end for end in self._ends_of_parts(sorted(entries), line, most) if at < end < behind]
        held_from += [] if most is not None and most < behind else [behind]
        held_from += [] if is_held else [at]
        self._facts += [Command(done.seq, consumer, what, held_from=position) for position in held_from]

    def _shown_by_next_join(self, done: Line) -> int | None:
        """Return the read position that the next consumer shows which joins before the end of a read; ``None`` = none does.

        Whoever joined before it remembers no later one.
        """
        for later in self._later_lines():
            if later.seq >= done.seq:
                return None
            if later.kind == "consumer_added" and later.recorded["read_position"] is not None:
                return self._read_from(later.recorded["read_position"])
        return None

    def _ends_of_parts(self, entries: list[int], line: Line, most: int | None) -> list[int]:
        """Return the positions behind the parts of a read that it may have reached when a consumer joined.

        A read of several parts (around acknowledged entries, of two ledgers) moves the read position after each of them. The
        positions that the lines of this and of the next consumer (``most``) show bound which of them it was; without that of
        this one there is none.
        """
        shown = self._shown_at_join.get(who(line))
        if shown is None:
            return []
        most = max(entries) + 1 if most is None else min(most, max(entries) + 1)
        ledgers = self._entries.ledger_ids
        ends = [
            entry + 1
            for entry, following in pairwise(entries)
            if following != entry + 1 or ledgers[following] != ledgers[entry]
        ]
        return [end for end in ends if shown <= end <= most]

    def apply_fact(self, fact: Command) -> None:
        """See ``RacingDriver``: the consumer joined when the read had moved the read position."""
        super().apply_fact(fact)
        if fact.held_from is not None:
            self.core.hold_back_from(fact.connection, fact.held_from)

    def _decide(
        self,
        window: Window,
        steps: int,
        decide: Callable[[Between], A],
        differences: Callable[[A], list[Difference]],
    ) -> Outcome[A]:
        """See ``RacingDriver``. A fact that holds nothing back any more is none."""
        if self._facts:
            reached, connected = self.core.mark_delete() + 1, set(self.core.connected())
            self._facts = [
                fact
                for fact in self._facts
                if fact.held_from is None or (fact.held_from > reached and fact.connection in connected)
            ]
        return super()._decide(window, steps, decide, differences)

    def _step_of_send(self, consumer: int) -> int:
        """See ``RacingDriver``. How much a consumer gets is decided in its turn, right before it is sent."""
        return next((turn for turn, later in enumerate(self._later_turns, 1) if consumer in later), 0)

    def _steps_behind_send(self, consumer: int, logged: int) -> int:
        """See ``RacingDriver``. A send shows that the turns before the next of ``_later_turns`` are over."""
        return max(self._step_of_send(consumer) + 1, logged) if self._later_turns else logged

    def _gone_before(self, at: int, send: Line) -> dict[tuple[int, int], int]:
        """See ``RacingDriver``. A turn of a round prunes, too, and its line shows how far all is acknowledged by then.

        Only the round prunes within a round: the hook of mark-delete waits for the dispatcher's lock.
        """
        gone = super()._gone_before(at, send)
        if send.consumer not in self.core.recently_joined():
            return gone
        for pruned_at, line in self._within(at - 1):
            position = line.recorded["mark_delete"] if line.kind == "recently_joined_pruned" else None
            if position is not None:
                reached = self._entries.last_up_to(*position)
                step = self._turn_of_prune.get(pruned_at, 0)
                for item in self._removed_between(pruned_at):
                    if item[1] <= reached:
                        gone[item] = min(step, gone.get(item, step))
        return gone

    def _pauses(self, recorded: Recorded) -> list[int]:
        """See ``KeySharedVerifier``. The pre-filter of a replay read frees consumers as it goes from one owner to the next.

        So owners that it looks at first may be held back still, while those that it looks at last have been freed by
        mark-delete: they get entries beyond their position.
        """
        if not recorded.prunes or recorded.read.kind != "Replay" or not self.core.pre_filters():
            return []
        return self.core.first_held_back([entry for entry in recorded.read.entries if entry >= 0])[
            :MAX_PAUSES
        ]

    def _allowed_by_rate(self, read: Read) -> Iterable[int]:
        """See ``MultipleConsumersVerifier``. A rate bounds what the pre-filter looks at, not what it leaves."""
        if read.kind != "Replay" or not self.core.pre_filters():
            return super()._allowed_by_rate(read)
        return range(len(read.entries), int(self.core.state.s[N_REPLAY]) + 1)

    def _read_moved_on(self, entry: int) -> None:
        """See ``MultipleConsumersVerifier``: whoever joins now remembers that position or one behind it."""
        self.core.read_position_seen(entry)

    def _inferred_attempt(self, line: Line) -> None:
        """Verify the attempt of a line; of the two attempts of a removal the first has made the read, if it could."""
        if self._leaving is not None and not self._attempts_logged:
            saved = self.core.save()
            first = self.core.attempt_read()
            self.core.restore(saved)
            if first.kind == "None":
                self._forget_leaving()
        super()._inferred_attempt(line)
        self._forget_leaving()

    # --- rounds --------------------------------------------------------------------------------------------------

    def _round_lines(self, window: Window) -> Recorded:
        """See ``MultipleConsumersVerifier``. A prune behind a send begins the turn of another consumer."""
        self._later_turns, self._turn_of_prune, sent = [], {}, False
        connected = set(self.core.connected())
        for at, line in self._within(window.end) if connected else ():
            if line.kind == "recently_joined_pruned":
                if sent:
                    self._later_turns.append(set())
                self._turn_of_prune[at], sent = len(self._later_turns), False
            elif line.kind == "sent":
                sent = True
                if self._later_turns:
                    self._later_turns[-1] |= {who(line)} & connected
        return super()._round_lines(window)

    def _steps_of_round(self, recorded: Recorded) -> int:
        """See ``MultipleConsumersVerifier``."""
        return super()._steps_of_round(recorded) + len(self._later_turns)

    def _dispatch(self, kind: str, entries: list[int], between: Between, steps: int) -> Round:
        """See ``MultipleConsumersVerifier``. Mark-delete may move between two turns of a round.

        What was refused in a turn before is in the replay set; how much that is, the end of the round shows.
        """
        passed = self.core.mark_delete()
        if self._later_turns:
            outcome = self.core.round_in_turns(kind, entries, self._later_turns, between)
        else:
            outcome = super()._dispatch(kind, entries, between, steps)
        recorded = self._lines[self._window_end].recorded
        refused = [entry for entry in outcome.to_replay if passed < entry <= self.core.mark_delete()]
        if kind == "Normal" and refused and recorded.get("in_replay") is not None:
            before = max(recorded["in_replay"] - outcome.in_replay, 0)
            self.core.refused_before_move(outcome, refused[:before])
        return outcome

    def _on_round_begin(self, line: Line) -> None:
        super()._on_round_begin(line)
        served = [consumer for consumer, _seq in sorted(self._sent_at.items(), key=lambda item: item[1])]
        if len(served) > 1:
            first_at = self._first_entries()
            for earlier, later in combinations(served, 2):
                comes_first = first_at.get(earlier, 0) < first_at.get(later, 0)
                self._served_before.add((earlier, later, comes_first))

    def _first_entries(self) -> dict[int, int]:
        """Return the place of each owner's first entry among the entries of the round that the present line begins."""
        state = self.core.state
        first_at: dict[int, int] = {}
        entries = [entry for entry in self._line.recorded["positions"] or () if entry >= 0]
        owners = state.hash_owner[state.hash_id[entries]].tolist()
        for at, slot in enumerate(owners):
            if slot != NOBODY:
                first_at.setdefault(self.core.number_of(slot), at)
        return first_at

    def _go_on(self, outcome: Round, window: Window) -> None:
        """Note whether all writes are done by the end of the round, if some consumers were sent entries and others nothing.

        In the plain order the writes are done if their calls returned with them done, and the round had turns to come.
        """
        super()._go_on(outcome, window)
        returned = [line for _at, line in self._within(window.end) if line.kind == "send_returned"]
        done = bool(returned) and all(line.inputs["written"] for line in returned)
        if done and self._lines[window.end].t_us - returned[-1].t_us >= _A_TURN_US:
            self.core.all_written(outcome)

    def _unlogged_at_end(self, outcome: Round, end: Line) -> Command | None:
        """A round reads on by itself if its writes were complete before the turn of the last consumer without entries.

        Writes complete on I/O threads, from the line of the send on: the trace does not show when. No excuse is taken
        where the turns of all those consumers come before the last send, as earlier rounds have shown. The broker's order of
        consumers is that of a hash map: two consumers have the same order in every round, or, if they share a bucket, the
        reverse order of their first entries (``HashMap.computeIfAbsent`` puts a new key in front).
        """
        if not outcome.waits_for_writes or outcome.look_ahead_due != end.recorded["look_ahead"]:
            return None
        last = max(self._sent_at, key=lambda consumer: self._sent_at[consumer], default=NOBODY)
        first_at = self._first_entries()
        if end.recorded["retry"] and all(
            (consumer, last, first_at.get(consumer, 0) < first_at.get(last, 0)) in self._served_before
            for consumer in self._got_nothing(outcome)
        ):
            return None
        return Command(self._sent_at.get(last, end.seq), 0, "the write of what was sent")

    def _take_end(self, outcome: Round) -> None:
        """See ``MultipleConsumersVerifier``: nothing follows from it."""

    def _got_nothing(self, answer: Round) -> set[int]:
        state = self.core.state
        owners = state.hash_owner[state.hash_id[answer.to_replay]].tolist()
        return {self.core.number_of(slot) for slot in owners if slot != NOBODY} - set(answer.sent)


class ReadPositionVerifier(UnloggedAcksVerifier, ClassicKeySharedVerifier):
    """State of one verification of a trace of 3.x: as for the classic dispatcher of 4.x, except for the effect of acks."""
