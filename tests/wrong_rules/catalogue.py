"""The list of deliberately wrong rules; each one must make ``verify`` find divergent decisions.

``recordings.SHOWN_BY`` lists the recordings that show each rule; ``checks.CHECKS`` has a check for each other rule.
"""

from __future__ import annotations

from typing import Final

from dispatch_core.broker import gates
from tests.wrong_rules.batches import WRONG_BATCHES
from tests.wrong_rules.choices import WRONG_CHOICES
from tests.wrong_rules.counting import WRONG_COUNTING
from tests.wrong_rules.non_persistent import WRONG_NON_PERSISTENT
from tests.wrong_rules.operations import WRONG_OPERATIONS
from tests.wrong_rules.shared import WRONG_SHARED
from tests.wrong_rules.switch import WrongRule, edit, release

_LAST_SENT = "ordering.last_sent_position"
_READ_POSITION = "ordering.read_position"
_RECENTLY_JOINED = "ordering.recently_joined"

WRONG_RULES: Final[dict[str, WrongRule]] = {
    # --- the dispatch loop ---------------------------------------------------------------------------------------
    "r0_off": edit(
        "a normal read overtakes entries that wait in the replay set",
        "gates:replay_order",
        "st.replay_count[hash_id] > 0",
        "False",
    ),
    "r1_off": edit(
        "a read result is sent although a smaller replay position has appeared meanwhile",
        "read_loop:dropped_by_min_replay",
        "0 <= now < st.s[MIN_REPLAYED]",
        "False",
    ),
    "replay_filter_off": edit(
        "every replay position is read again, even if no consumer can take it",
        "read_loop:replayable",
        "if hash_id == NO_HASH or",
        "if True or",
    ),
    "replay_filter_without_permits": edit(
        "the replay filter does not look at permits",
        "read_loop:replayable",
        "!= OPEN",
        f"not in ({gates.OPEN}, {gates.NO_PERMITS})",
    ),
    "replay_read_while_one_is_pending": edit(
        "a replay read is issued while another is under way",
        "read_loop:plan_size",
        " or st.s[PENDING_REPLAY] == 1",
        "",
    ),
    "look_ahead_off": edit(
        "a round that could send nothing never looks ahead",
        "read_loop:wants_look_ahead",
        "if len(entries) == 0:",
        "if True:",
    ),
    "look_ahead_for_empty_results": edit(
        "an empty read result looks ahead too",
        "read_loop:wants_look_ahead",
        "if len(entries) == 0:",
        "if False:",
    ),
    "look_ahead_limit_off": edit(
        "normal reads go on however large the replay set is",
        "permits:look_ahead_limit",
        "consumers = st.s[N_CONSUMERS]",
        "return UNLIMITED",
    ),
    "look_ahead_limit_of_the_subscription_only": edit(
        "the look-ahead limit per consumer is not tested",
        "permits:look_ahead_limit",
        "if per_consumer > 0:",
        "if False:",
    ),
    "read_size_without_look_ahead_room": edit(
        "a normal read may fill the replay set beyond the look-ahead limit",
        "read_loop:plan_normal",
        "min(size, max(look_ahead_limit(st) - st.s[N_REPLAY], 1))",
        "size",
    ),
    "look_ahead_without_more": release(
        "a round looks ahead although the cursor has nothing more, or the other way round (#26236)",
        "look_ahead_needs_more",
    ),
    "blocked_hash_memory": release(
        "a hash held back is (or is not) held back for the rest of the result (#23874)", "blocked_hash_memory"
    ),
    "cancel_clears_replay_read": release(
        "cancelling a read forgets a replay read too, or does not (#23384, #23855)",
        "cancel_clears_replay_read",
    ),
    "trim_at_attempts": release(
        "read attempts drop, or keep, positions that mark-delete has passed (#25581)", "trim_only_on_expiry"
    ),
    # --- permits and unacked counters ----------------------------------------------------------------------------
    "permits_in_entries": edit(
        "a send costs one permit per entry, not per message",
        "permits:charge_send",
        "st.permits[slot] -= messages - acked",
        "st.permits[slot] -= entries",
    ),
    "total_falls_by_what_is_left": edit(
        "the dispatcher's total never falls by acknowledged indexes, also if the write came first",
        "multiple_consumers:MultipleConsumersDispatcher.written_first",
        "self.state, already_acked",
        "self.state, 0",
    ),
    "total_falls_by_the_batch": edit(
        "the dispatcher's total always falls by the whole batch, acknowledged indexes or not",
        "permits:lower_total",
        "messages - acked",
        "messages",
    ),
    "average_rounded_down": edit(
        "the average of messages per entry is rounded down, not half up",
        "permits:messages_per_entry",
        "floor(average + 0.5)",
        "floor(average)",
    ),
    "average_not_smoothed": edit(
        "the average is that of the last send alone",
        "permits:average_after",
        "average * 0.9 + (1 - 0.9) * messages / entries",
        "1.0 * messages / entries",
    ),
    "unacked_room_ignored": edit(
        "usable permits do not look at the room below the unacked limit",
        "permits:usable_permits",
        "return min(permits, ceil(room / average))",
        "return permits",
    ),
    "flow_not_parked": edit(
        "permits count although the consumer is blocked on unacked messages",
        "permits:count_flow",
        "if st.blocked[slot] == 1:",
        "if False:",
    ),
    "unblock_below_half": edit(
        "a blocked consumer waits for less than half of the limit",
        "permits:unblock_if_due",
        "st.unacked[slot] <= limit // 2",
        "st.unacked[slot] < limit // 2",
    ),
    "unblock_below_the_limit": edit(
        "a blocked consumer goes on as soon as it is below the limit",
        "permits:unblock_if_due",
        "st.unacked[slot] <= limit // 2",
        "st.unacked[slot] < limit",
    ),
    "unblock_tested_elsewhere": release(
        "the unblock rule is tested after the counter is lowered where it is tested before, and the other way round",
        "unblock_before_lowering",
    ),
    "unblock_tested_once": release(
        "the unblock rule is tested once where it is tested twice, and the other way round (#23796)",
        "unblock_again_after_lowering",
    ),
    "subscription_limit_off": edit(
        "the unacked limit of the subscription stops no read",
        "read_loop:plan_normal",
        "unacked_limit_subscription(st) or ",
        "",
    ),
    "subscription_unblocks_at_half": edit(
        "the subscription goes on at half of its limit, not below it",
        "permits:add_unacked",
        "st.s[TOTAL_UNACKED] < limit // 2",
        "st.s[TOTAL_UNACKED] <= limit // 2",
    ),
    "leaving_permits_stay": edit(
        "the permits of a consumer that leaves stay with the dispatcher",
        "membership:drop_member",
        "st.s[TOTAL_PERMITS] -= st.permits[slot]",
        "pass",
    ),
    # --- acks, redelivery, leaving -------------------------------------------------------------------------------
    "batch_index_acks_ignored": edit(
        "an ack of some messages of a batch changes nothing",
        "multiple_consumers:MultipleConsumersDispatcher.acknowledge_indexes",
        'not self.profile.settings.get("acknowledgmentAtBatchIndexLevelEnabled")',
        "True",
    ),
    "last_index_leaves_the_entry": edit(
        "an entry whose last message is acknowledged by index is not deleted, and replayed",
        "commands:ack_indexes",
        "if left == 0:",
        "if False:",
    ),
    "nack_keeps_its_hash": edit(
        "a negatively acknowledged entry enters the replay set with its hash",
        "commands:add_requested",
        "add_to_replay(st, entry, NO_HASH)",
        "add_to_replay(st, entry, st.hash_id[entry] + 0)",
    ),
    "redeliver_all_counts_each": release(
        "a request for all entries subtracts pending messages instead of setting 0, and the other way round (#25589)",
        "redeliver_in_one_batch",
    ),
    "disconnect_drops_the_hash": edit(
        "entries of a consumer that leaves enter the replay set without their hash",
        "membership:replay_pending",
        "add_to_replay(st, entry, st.pending_hash[entry] + WIDE)",
        "add_to_replay(st, entry, -1)",
    ),
    "no_rewind": edit(
        "the first consumer after all had left goes on where the last one stopped",
        "membership:add_member",
        "cursor.rewind(st)",
        "pass",
    ),
    "read_stops_at_its_last_entry": edit(
        "a read that found nothing more leaves the acknowledged entries at the end of the topic unread",
        "cursor:moved_by_result",
        "meets_end(st, count, size)",
        "False",
    ),
    "empty_read_stays": edit(
        "a read that finds only acknowledged entries leaves the read position in front of them",
        "cursor:moved_by_result",
        "elif count == 0:",
        "elif False:",
    ),
    "first_read_has_its_size": edit(
        "the first read of a cursor asks for as many entries as the dispatcher does",
        "cursor:asks_for_one",
        "st.s[HAS_READ] == 0",
        "False",
    ),
    "reads_end_in_order": edit(
        "a result is of the oldest read in flight, although that one waits for entries",
        "single_active:SingleActiveDispatcher._read_of",
        "min(possible, key=lambda at: self._unlike(reads[at], entries, dispatched), default=0)",
        "0",
    ),
    "deleted_indexes_are_kept": edit(
        "the cursor keeps the acknowledged batch indexes of an entry that is deleted, also before #25592",
        "commands:ack_indexes",
        "st.deleted[entry] == 0 or",
        "True or",
    ),
    "pending_ack_has_no_count": release(
        "the acknowledgement of an entry lowers the counter by all its messages (#25592), and the other way round",
        "remaining_unacked_count",
    ),
    "old_read_is_dispatched": edit(
        "a read from before all consumers left is sent to the next first one",
        "commands:read_done",
        "if st.s[REWIND_DUE] == 1:",
        "if False:",
    ),
    "replay_set_survives": edit(
        "the replay set is kept when all consumers have left",
        "replay_set:clear_replay",
        "remove_from_replay(st, entry)",
        "pass",
    ),
    # --- draining hashes -----------------------------------------------------------------------------------------
    "draining_off": edit(
        "a hash moves to its new owner at once",
        "ordering.draining_hashes:should_block",
        "if owner == NOBODY:",
        "if True:",
    ),
    "added_ranges": release(
        "a hash that comes back to its owner goes on draining, or is free at once (#24736)", "added_ranges"
    ),
    "draining_is_not_released_on_ack": edit(
        "an ack does not lower the reference count",
        "pending_acks:let_go",
        "return release(st, slot, hash_id, closing)",
        "return release(st, slot, hash_id, closing) if closing else 0",
    ),
    "draining_is_not_released_on_close": edit(
        "the hashes of a consumer that leaves go on draining",
        "pending_acks:let_go",
        "return release(st, slot, hash_id, closing)",
        "return 0 if closing else release(st, slot, hash_id, closing)",
    ),
    "draining_counts_hashes": edit(
        "a draining hash counts once, however many entries are pending",
        "ordering.draining_hashes:drain",
        "st.drain_refs[hash_id] += 1",
        "pass",
    ),
    "third_consumer_takes_over": edit(
        "a draining hash is taken over by the next consumer that loses it",
        "ordering.draining_hashes:should_block",
        "if owner == slot:",
        "if owner != NOBODY:",
    ),
    # --- last sent position --------------------------------------------------------------------------------------
    "last_sent_limit_is_exclusive": edit(
        "a recently joined consumer is not sent the last sent position itself",
        f"{_LAST_SENT}:within",
        "entry <= limit",
        "entry < limit",
    ),
    "last_sent_limit_off": edit(
        "a recently joined consumer is not held back", f"{_LAST_SENT}:within", "entry <= limit", "True"
    ),
    "last_sent_limit_without_the_oldest": edit(
        "in a replay read a recently joined consumer is held to its own limit only",
        f"{_RECENTLY_JOINED}:limit_now",
        "if is_replay:",
        "if False:",
    ),
    "last_sent_never_pruned": edit(
        "mark-delete never frees a recently joined consumer",
        f"{_LAST_SENT}:reached",
        "st.s[MARK_DELETE]",
        "-2",
    ),
    "last_sent_pruned_late": edit(
        "mark-delete frees a recently joined consumer one entry late",
        f"{_LAST_SENT}:reached",
        "st.s[MARK_DELETE]",
        "st.s[MARK_DELETE] - 1",
    ),
    "last_sent_survives": edit(
        "the last sent position is kept when all consumers have left",
        f"{_LAST_SENT}:consumer_left",
        "forget_sent(st)",
        "pass",
    ),
    "last_one_left_stays_held_back": edit(
        "a recently joined consumer that is alone stays held back",
        f"{_LAST_SENT}:consumer_left",
        "if st.s[N_CONSUMERS] <= 1:",
        "if False:",
    ),
    "sent_entries_are_not_noted": edit(
        "entries sent above the last sent position are forgotten",
        f"{_LAST_SENT}:note_sent",
        "if entry > st.s[LAST_SENT]:",
        "if False:",
    ),
    "alone_held_back_too": edit(
        "a consumer that joins one entry past mark-delete is held back too",
        f"{_LAST_SENT}:consumer_joined",
        "st.s[READ_POSITION] - st.s[MARK_DELETE] > 1",
        "True",
    ),
    # --- read position, 3.x and classic ----------------------------------------------------------------------------
    "classic_limit_is_inclusive": edit(
        "a recently joined consumer is sent the entry at its read position too",
        f"{_READ_POSITION}:within",
        "entry < limit",
        "entry <= limit",
    ),
    "classic_limit_off": edit(
        "a recently joined consumer is not held back", f"{_READ_POSITION}:within", "entry < limit", "True"
    ),
    "classic_limit_without_the_first": edit(
        "in a replay read a recently joined consumer is held to its own limit only",
        f"{_RECENTLY_JOINED}:limit_now",
        "if is_replay:",
        "if False:",
    ),
    "classic_never_pruned": edit(
        "mark-delete never frees a recently joined consumer",
        f"{_READ_POSITION}:reached",
        "st.s[MARK_DELETE] + 1",
        "-2",
    ),
    "classic_pruned_late": edit(
        "mark-delete frees a recently joined consumer one entry late",
        f"{_READ_POSITION}:reached",
        "st.s[MARK_DELETE] + 1",
        "st.s[MARK_DELETE]",
    ),
    "classic_last_one_left_stays_held_back": edit(
        "a recently joined consumer that is alone stays held back",
        f"{_READ_POSITION}:consumer_left",
        "if st.s[N_CONSUMERS] == 1:",
        "if False:",
    ),
    "classic_held_back_with_one_entry_read": edit(
        "a consumer that joins one entry past mark-delete is held back too",
        f"{_READ_POSITION}:is_held_back_when_joining",
        "st.s[READ_POSITION] - st.s[MARK_DELETE] > 1",
        "st.s[READ_POSITION] - st.s[MARK_DELETE] > 0",
    ),
    "classic_recently_joined_sorted": release(
        "recently joined consumers are kept by position or as they joined, the wrong way round (#23795, #23802)",
        "recently_joined_sorted",
    ),
    "classic_r0_off": edit(
        "a normal read overtakes entries that wait in the replay set",
        "gates:replay_order",
        "st.replay_count[hash_id] > 0",
        "False",
    ),
    "classic_pre_filter_off": release(
        "a replay read also requests entries that cannot be sent, or does not (#22245)", "replay_pre_filter"
    ),
    "classic_normal_reads_for_recently_joined": edit(
        "a normal read is made for recently joined consumers too",
        "read_loop_classic:normal_read_is_needed",
        " and st.joined_at[slot] == NOT_TRACKED",
        "",
    ),
    "classic_stuck_flag_off": edit(
        "a round that could send nothing tries the replay set again",
        "read_loop_classic:is_stuck",
        "if sent or st.s[N_RECENT] > 0:",
        "if True:",
    ),
    "classic_stuck_with_recently_joined": edit(
        "a round is stuck although a recently joined consumer is the reason",
        "read_loop_classic:is_stuck",
        "if sent or st.s[N_RECENT] > 0:",
        "if sent:",
    ),
    "classic_stuck_consumers": release(
        "consumers without permits are remembered for a round, as only 3.0.0 does (#20335)",
        "no_stuck_consumers",
    ),
    "classic_keeps_the_pending_hash": edit(
        "pending entries of a consumer that leaves a classic dispatcher enter the replay set with their hash",
        "key_shared_classic:keeps_pending_hash",
        '"classic_dispatchers" not in profile.changes',
        "True",
    ),
    "classic_never_retries": edit(
        "a round that could send nothing is not followed by another one at once",
        "commands:classic_goes_on",
        "if sent_to == 0 and (owners > 0 or st.s[N_RECENT] == 0):",
        "if False:",
    ),
    "classic_turns_at_once": edit(
        "all turns of a classic round see what another thread does between two of them",
        "key_shared_classic:ClassicKeySharedDispatcher._choose_in_turns",
        "for turn in range(len(later) + 1):\n        if turn:\n            between(turn)\n",
        "for turn in range(1, len(later) + 1):\n"
        "        between(turn)\n"
        "    for turn in range(len(later) + 1):\n",
    ),
    **WRONG_BATCHES,
    **WRONG_CHOICES,
    **WRONG_COUNTING,
    **WRONG_NON_PERSISTENT,
    **WRONG_OPERATIONS,
    **WRONG_SHARED,
}
