"""Wrong rules for Shared: who has the next turn, how much it gets, and what becomes of the rest."""

from __future__ import annotations

from typing import Final

from tests.wrong_rules.switch import Edit, WrongRule, edit, release

_DISPATCHER: Final = "shared:SharedDispatcher"
_NEXT: Final = "round_robin:next_place"
_TURN: Final = "round_robin:take_turn"
_ENTRIES: Final = "round_robin:entries_of_turn"

WRONG_SHARED: Final[dict[str, WrongRule]] = {
    # --- who is next -------------------------------------------------------------------------------------------------
    "shared_first_of_the_list": edit(
        "every turn goes to the first consumer of the list that is available",
        _TURN,
        "st.s[ROUND_ROBIN_INDEX] = place + 1",
        "pass",
    ),
    "shared_index_at_the_last_turn": edit(
        "the consumer of the last turn has the next one, too",
        _TURN,
        "place + 1",
        "place",
    ),
    "shared_index_of_the_round": edit(
        "every round begins with the first consumer",
        f"{_DISPATCHER}.round",
        "average = round_robin.average_batch(left, len(entries))",
        "average = round_robin.average_batch(left, len(entries))\n    st.s[st_.ROUND_ROBIN_INDEX] = 0",
    ),
    "shared_index_forgotten_by_a_removal": edit(
        "the first consumer is next when one has left",
        f"{_DISPATCHER}.leave",
        "self._requeue_member(consumer)",
        "self._requeue_member(consumer)\n    self.state.s[st_.ROUND_ROBIN_INDEX] = 0",
    ),
    "shared_index_behind_the_end_is_the_last": edit(
        "an index behind the end of the list means the last consumer",
        _NEXT,
        "        index = 0\n",
        "        index = count - 1\n",
    ),
    "shared_new_dispatcher_goes_on": edit(
        "the dispatcher of a subscription that is made again goes on where the old one was",
        f"{_DISPATCHER}.made_anew",
        "self.state.s[st_.ROUND_ROBIN_INDEX] = 0",
        "pass",
    ),
    "shared_passes_over_nobody": edit(
        "a consumer without permits has its turn, too",
        _TURN,
        "int(has_room(st, slot))",
        "1",
    ),
    "shared_serves_blocked_consumers": edit(
        "a consumer that is blocked on unacknowledged messages has its turn, too",
        _TURN,
        "int(has_room(st, slot))",
        "int(st.permits[slot] > 0)",
    ),
    "shared_closed_sends": edit(
        "a dispatcher that is closed sends what it has read",
        _TURN,
        "if st.s[CLOSED] == 1:",
        "if False:",
    ),
    "shared_serves_inactive_connections": edit(
        "a consumer whose connection is not active any more has its turn, too",
        _TURN,
        "int(has_room(st, slot))",
        "int(st.blocked[slot] == 0 and st.permits[slot] > 0)",
    ),
    "shared_reads_for_inactive_connections": edit(
        "a read is attempted for a consumer whose connection is not active any more",
        "permits:first_available_permits",
        "if is_available(st, slot):",
        "if st.blocked[slot] == 0 and st.permits[slot] > 0:",
    ),
    "shared_fills_what_is_not_writable": edit(
        "a consumer whose connection is not writable gets as much as it has permits",
        "round_robin:size_of_turn",
        "st.permits[slot] if is_writable else 1 + WIDE",
        "st.permits[slot]",
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
        "while place < index and levels[order[place]] < level:",
        "while False:",
    ),
    "shared_worse_levels_never": edit(
        "consumers of worse levels get nothing",
        _NEXT,
        "for place in range(behind, count):",
        "for place in range(0):",
    ),
    # --- how many entries --------------------------------------------------------------------------------------------
    "shared_batch_size": release(
        "the round-robin batch size limits (or does not limit) a turn (#24092, #24117)", "shared_batch_size"
    ),
    "shared_batch_size_off": edit(
        "a turn has as many entries as the consumer can take",
        _ENTRIES,
        "min(size, _rounded_up",
        "min(left, _rounded_up",
    ),
    "shared_batch_size_in_messages": edit(
        "the round-robin batch size counts messages",
        _ENTRIES,
        "min(size, _rounded_up(min(left,",
        "min(left, _rounded_up(min(size, left,",
    ),
    "shared_classic_batch_size_in_entries": edit(
        "the round-robin batch size of the classic dispatcher counts entries",
        _ENTRIES,
        "room, size) // average, 1)",
        "room, size * average) // average, 1)",
    ),
    "shared_classic_rounds_up": edit(
        "the classic dispatcher rounds the entries of a turn up",
        _ENTRIES,
        "max(min(left, permits, room, size) // average, 1)",
        "_rounded_up(min(left, permits, room, size), average)",
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
        "messages // max(entries, 1)",
        "-(-messages // max(entries, 1))",
    ),
    "shared_turn_without_permits": edit(
        "a turn has more messages than the consumer has permits",
        _ENTRIES,
        "min(size, _rounded_up(min(left, permits,",
        "min(size, _rounded_up(min(left,",
    ),
    "shared_4_0_0_permits_in_messages": edit(
        "4.0.0 counts the permits in messages, not in entries",
        _ENTRIES,
        "min(permits, _rounded_up(min(max(left, size), room), average))",
        "_rounded_up(min(permits, max(left, size), room), average)",
    ),
    "shared_turn_beyond_the_limit": edit(
        "a turn does not look at the limit of unacknowledged messages",
        "round_robin:size_of_turn",
        "unacked_room(st, slot)",
        "1 << 62",
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
