"""Wrong rules for operations on the cursor, and for policies."""

from __future__ import annotations

from typing import Final

from tests.wrong_rules.switch import WrongRule, edit, release

WRONG_OPERATIONS: Final[dict[str, WrongRule]] = {
    "skip_counts_acknowledged": edit(
        "a skip counts acknowledged entries, too",
        "cursor_moves:target_of_skip",
        "st.deleted[first:stored] == 0",
        "st.deleted[first:stored] >= 0",
    ),
    "clear_ends_at_the_read_position": edit(
        "clearing the backlog passes only what was read",
        "cursor_moves:target_of_clear",
        "max(stored - 1, int(st.s[MARK_DELETE]))",
        "int(st.s[READ_POSITION]) - 1",
    ),
    "expiry_moves_nothing": edit(
        "a move of the cursor forward deletes nothing",
        "cursor_moves:pass_entries",
        "cursor.acknowledge_up_to(st, target)",
        "pass",
    ),
    "passed_entries_are_not_pending": edit(
        "what the cursor has passed is pending on nobody",
        "multiple_consumers:MultipleConsumersDispatcher.move_forward",
        "self._sent_deleted.update(",
        "list(",
    ),
    "reset_keeps_acknowledgements": edit(
        "what was acknowledged stays so after a reset backwards",
        "cursor_moves:reset",
        "st.deleted[entry:] = 0",
        "pass",
    ),
    "reset_keeps_mark_delete": edit(
        "a reset leaves mark-delete where it was",
        "cursor_moves:reset",
        "st.s[MARK_DELETE] = entry - 1",
        "pass",
    ),
    "reset_chooses_the_active_consumer": edit(
        "the active consumer is chosen again when a reset disconnects it",
        "cursor_moves:chooses_active_consumer",
        "not by_reset",
        "True",
    ),
    "reset_disconnects_nobody_active": edit(
        "the consumer that leaves before a reset of a Failover subscription left by itself",
        "cursor_moves:disconnects",
        "consumer == active or not single_active",
        "not single_active",
    ),
    "trim_after_a_move": release(
        "a move forward trims at once where it did not, and the reverse", "trim_only_on_expiry"
    ),
    "trim_forgets_all_hashes": edit(
        "the hashes of positions that are trimmed from the replay set are never counted on",
        "replay_set:remove_up_to",
        "if not forgets:",
        "if False:",
    ),
    "trim_keeps_unacked": edit(
        "a trim leaves the counters of unacknowledged messages",
        "cursor_moves:lower_for_trim",
        "if messages <= 0:",
        "if True:",
    ),
    "round_without_consumers_goes_on": edit(
        "a round that begins when all consumers have left keeps its entries",
        "key_shared:KeySharedDispatcher._round",
        "if entries and not st.s[st_.N_CONSUMERS]:",
        "if False:",
    ),
    "policy_limit_ignored": edit(
        "a policy's limit of unacknowledged messages has no effect",
        "multiple_consumers:MultipleConsumersDispatcher.limit_unacked",
        "own if messages is None else messages",
        "own",
    ),
}
