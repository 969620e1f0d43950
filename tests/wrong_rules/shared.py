"""Wrong rules for Shared: who has the next turn, how much it gets, and what becomes of the rest."""

from __future__ import annotations

from typing import Final

from tests.wrong_rules.switch import Edit, WrongRule, edit, release

_DISPATCHER: Final = "shared:SharedDispatcher"
_NEXT: Final = "round_robin:next_consumer"
_ENTRIES: Final = "round_robin:entries_of_turn"

WRONG_SHARED: Final[dict[str, WrongRule]] = {
    # --- who is next -------------------------------------------------------------------------------------------------
    "shared_first_of_the_list": edit(
        "every turn goes to the first consumer of the list that is available",
        f"{_DISPATCHER}._next",
        "self._round_robin_index = place + 1",
        "pass",
    ),
    "shared_index_at_the_last_turn": edit(
        "the consumer of the last turn has the next one, too",
        f"{_DISPATCHER}._next",
        "place + 1",
        "place",
    ),
    "shared_index_of_the_round": edit(
        "every round begins with the first consumer",
        f"{_DISPATCHER}.round",
        "average_batch(left, len(entries)) if entries else 1",
        "average_batch(left, len(entries)) if entries else 1\n    self._round_robin_index = 0",
    ),
    "shared_index_forgotten_by_a_removal": edit(
        "the first consumer is next when one has left",
        f"{_DISPATCHER}.leave",
        "self._requeue_member(consumer)",
        "self._requeue_member(consumer)\n    self._round_robin_index = 0",
    ),
    "shared_index_behind_the_end_is_the_last": edit(
        "an index behind the end of the list means the last consumer",
        _NEXT,
        "index if index < len(levels) else 0",
        "min(index, len(levels) - 1)",
    ),
    "shared_new_dispatcher_goes_on": edit(
        "the dispatcher of a subscription that is made again goes on where the old one was",
        f"{_DISPATCHER}.made_anew",
        "self._round_robin_index = 0",
        "pass",
    ),
    "shared_passes_over_nobody": edit(
        "a consumer without permits has its turn, too",
        f"{_DISPATCHER}._is_available",
        "bool(permits.is_available(self.state, slot))",
        "True",
    ),
    "shared_serves_blocked_consumers": edit(
        "a consumer that is blocked on unacknowledged messages has its turn, too",
        f"{_DISPATCHER}._is_available",
        "bool(permits.is_available(self.state, slot))",
        "self.state.permits[slot] > 0",
    ),
    "shared_closed_sends": edit(
        "a dispatcher that is closed sends what it has read",
        f"{_DISPATCHER}._next",
        "if self.state.s[st_.CLOSED]:",
        "if False:",
    ),
    "shared_serves_inactive_connections": edit(
        "a consumer whose connection is not active any more has its turn, too",
        f"{_DISPATCHER}._is_available",
        "slot not in self._inactive",
        "True",
    ),
    "shared_reads_for_inactive_connections": edit(
        "a read is attempted for a consumer whose connection is not active any more",
        f"{_DISPATCHER}._plan_size",
        "self.state.blocked[list(self._inactive)] = 1",
        "pass",
    ),
    "shared_fills_what_is_not_writable": edit(
        "a consumer whose connection is not writable gets as much as it has permits",
        f"{_DISPATCHER}.round",
        "1 if consumer in self._broken else int(st.permits[consumer])",
        "int(st.permits[consumer])",
    ),
    "shared_passed_batch_counts_again": edit(
        "a batch that a move of the cursor passes counts with all of its messages again",
        "cursor_moves:pass_entries",
        "if st.s[COUNTS_REMAINING] == 0:",
        "if True:",
    ),
    "shared_counted_twice_is_not_given_back": edit(
        "a message that two overlapping acks count lowers the counter once more when its batch goes",
        "multiple_consumers:MultipleConsumersDispatcher.count_twice",
        "self.state.s[st_.COUNTS_REMAINING]",
        "False",
    ),
    "shared_level_of_the_index_first": edit(
        "consumers of the level at the index come before those of better levels",
        _NEXT,
        "(*better, *from_index, *worse)",
        "(*from_index, *better, *worse)",
    ),
    "shared_worse_levels_never": edit(
        "consumers of worse levels get nothing",
        _NEXT,
        "(*better, *from_index, *worse)",
        "(*better, *from_index)",
    ),
    # --- how many entries --------------------------------------------------------------------------------------------
    "shared_batch_size": release(
        "the round-robin batch size limits (or does not limit) a turn (#24092, #24117)", "shared_batch_size"
    ),
    "shared_batch_size_off": edit(
        "a turn has as many entries as the consumer can take",
        _ENTRIES,
        "min(batch_size, _rounded_up",
        "min(left, _rounded_up",
    ),
    "shared_batch_size_in_messages": edit(
        "the round-robin batch size counts messages",
        _ENTRIES,
        "min(batch_size, _rounded_up(min(left,",
        "min(left, _rounded_up(min(batch_size, left,",
    ),
    "shared_classic_batch_size_in_entries": edit(
        "the round-robin batch size of the classic dispatcher counts entries",
        _ENTRIES,
        "room.below_limit, batch_size) // average, 1)",
        "room.below_limit, batch_size * average) // average, 1)",
    ),
    "shared_classic_rounds_up": edit(
        "the classic dispatcher rounds the entries of a turn up",
        _ENTRIES,
        "max(min(left, room.permits, room.below_limit, batch_size) // average, 1)",
        "_rounded_up(min(left, room.permits, room.below_limit, batch_size), average)",
    ),
    "shared_rounds_down": edit(
        "4.x rounds the entries of a turn down",
        "round_robin:_rounded_up",
        "messages + average - 1",
        "messages",
    ),
    "shared_average_rounded_up": edit(
        "the average batch of a read result is rounded up",
        "round_robin:average_batch",
        "messages // entries",
        "-(-messages // entries)",
    ),
    "shared_turn_without_permits": edit(
        "a turn has more messages than the consumer has permits",
        _ENTRIES,
        "min(batch_size, _rounded_up(min(left, room.permits,",
        "min(batch_size, _rounded_up(min(left,",
    ),
    "shared_4_0_0_permits_in_messages": edit(
        "4.0.0 counts the permits in messages, not in entries",
        _ENTRIES,
        "min(room.permits, _rounded_up(min(max(left, batch_size), room.below_limit), average))",
        "_rounded_up(min(room.permits, max(left, batch_size), room.below_limit), average)",
    ),
    "shared_turn_beyond_the_limit": edit(
        "a turn does not look at the limit of unacknowledged messages",
        f"{_DISPATCHER}.round",
        "int(permits.unacked_room(st, consumer))",
        "permits.UNLIMITED",
    ),
    "shared_left_in_entries": edit(
        "what is left of a read result is counted in entries",
        f"{_DISPATCHER}.round",
        "left -= turn.messages",
        "left -= len(turn.entries)",
    ),
    "shared_turn_takes_all": edit(
        "the first consumer that is available gets the whole read result",
        f"{_DISPATCHER}.round",
        "array[done : done + size]",
        "array[done:]",
    ),
    # --- the replay set, and what follows ----------------------------------------------------------------------------
    "shared_rest_is_lost": edit(
        "entries that nobody can take are not kept for a replay",
        f"{_DISPATCHER}.round",
        "read_loop.requeue(st, entry, st_.NO_HASH)",
        "pass",
    ),
    "shared_replayed_entries_stay": edit(
        "entries stay in the replay set when they are sent",
        f"{_DISPATCHER}.round",
        'kind == "Replay"',
        "False",
    ),
    "shared_removal_loses_pending": edit(
        "what is pending on a consumer that leaves is not sent again",
        "multiple_consumers:MultipleConsumersDispatcher._requeue_member",
        "if self.state.s[st_.N_CONSUMERS]:",
        "if False:",
    ),
    "shared_no_read_after_a_round": edit(
        "a round is not followed by a read attempt",
        f"{_DISPATCHER}.finish_round",
        "outcome.retry = True",
        "outcome.retry = bool(outcome.to_replay)",
    ),
    "shared_last_holder_only": edit(
        "an entry that is sent a second time is pending on its second consumer only",
        f"{_DISPATCHER}._serve",
        "self._sent_deleted.update(self._several.sent(st, slot, entries.tolist()))",
        "pass",
    ),
    "shared_never_trims": edit(
        "what a move of the cursor has passed stays pending",
        "cursor_moves:trims_after_a_move",
        "profile.dispatcher in _TRIMMING",
        "profile.dispatcher is Dispatcher.KEY_SHARED",
    ),
    "shared_never_trims_in_attempts": edit(
        "a read attempt of 4.0.0 keeps what mark-delete has passed",
        "cursor_moves:trims_in_attempts",
        "profile.dispatcher in _TRIMMING",
        "profile.dispatcher is Dispatcher.KEY_SHARED",
    ),
    "shared_usable_below_the_limit": WrongRule(
        "usable permits end at the limit of unacknowledged messages and are never negative, as those of Key_Shared",
        (
            Edit("shared", "SharedDispatcher.consumers_now", "out[4 * at + 1] = out[4 * at + 2]", "pass"),
            Edit(
                "shared",
                "SharedDispatcher.usable",
                "int(self.state.permits[self.slot(consumer)])",
                "super().usable(consumer)",
            ),
        ),
    ),
}
