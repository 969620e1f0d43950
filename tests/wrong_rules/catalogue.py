"""The list of deliberately wrong rules; each one must make ``verify`` find divergent decisions.

``recordings.SHOWN_BY`` says on which recordings, ``checks.CHECKS`` holds a check for each that no recording shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.wrong_rules.switch import Edit, Release, Switch


@dataclass(frozen=True, slots=True)
class WrongRule:
    """``meaning``: what the broker would do if it were so."""

    meaning: str
    switches: tuple[Switch, ...]


def _edit(meaning: str, where: str, old: str, new: str) -> WrongRule:
    module, _, function = where.partition(":")
    return WrongRule(meaning, (Edit(module, function, old, new),))


def _release(meaning: str, change: str) -> WrongRule:
    return WrongRule(meaning, (Release(change),))


_LAST_SENT = "ordering.last_sent_position"
_READ_POSITION = "ordering.read_position"

WRONG_RULES: Final[dict[str, WrongRule]] = {
    # --- the dispatch loop ---------------------------------------------------------------------------------------
    "r0_off": _edit(
        "a normal read overtakes what waits in the replay set",
        "dispatch_loop:choose",
        "and st.replay_count[hash_id] > 0",
        "and False",
    ),
    "r1_off": _edit(
        "a read result is sent although a smaller replay position has appeared meanwhile",
        "dispatch_loop:dropped_by_min_replay",
        "0 <= now < st.s[MIN_REPLAYED]",
        "False",
    ),
    "replay_filter_off": _edit(
        "every replay position is read again, whoever could take it",
        "dispatch_loop:replayable",
        "if hash_id == NO_HASH or",
        "if True or",
    ),
    "replay_filter_without_permits": _edit(
        "the replay filter does not look at permits",
        "dispatch_loop:replayable",
        "or entries_left(st, slot) <= 0\n",
        "\n",
    ),
    "replay_read_while_one_is_pending": _edit(
        "a replay read is issued while another is under way",
        "dispatch_loop:plan_size",
        " or st.s[PENDING_REPLAY] == 1",
        "",
    ),
    "look_ahead_off": _edit(
        "a round that could send nothing never looks ahead",
        "dispatch_loop:wants_look_ahead",
        "if len(entries) == 0:",
        "if True:",
    ),
    "look_ahead_for_empty_results": _edit(
        "an empty read result looks ahead too",
        "dispatch_loop:wants_look_ahead",
        "if len(entries) == 0:",
        "if False:",
    ),
    "look_ahead_limit_off": _edit(
        "normal reads go on however large the replay set is",
        "permits:look_ahead_limit",
        "consumers = st.s[N_CONSUMERS]",
        "return UNLIMITED",
    ),
    "look_ahead_limit_of_the_subscription_only": _edit(
        "the look-ahead limit per consumer is not asked",
        "permits:look_ahead_limit",
        "if per_consumer > 0:",
        "if False:",
    ),
    "read_size_without_look_ahead_room": _edit(
        "a normal read may fill the replay set beyond the look-ahead limit",
        "dispatch_loop:plan_normal",
        "min(size, max(look_ahead_limit(st) - st.s[N_REPLAY], 1))",
        "size",
    ),
    "look_ahead_without_more": _release(
        "a round looks ahead although the cursor has nothing more, or the other way round (#26236)",
        "look_ahead_needs_more",
    ),
    "blocked_hash_memory": _release(
        "a hash held back is (or is not) held back for the rest of the result (#23874)", "blocked_hash_memory"
    ),
    "cancel_clears_replay_read": _release(
        "cancelling a read forgets a replay read too, or does not (#23384, #23855)",
        "cancel_clears_replay_read",
    ),
    "trim_at_attempts": _release(
        "read attempts drop, or keep, what mark-delete has passed (#25581)", "trim_only_on_expiry"
    ),
    # --- permits and unacked counters ----------------------------------------------------------------------------
    "permits_in_entries": _edit(
        "a send costs one permit per entry, not per message",
        "permits:charge_send",
        "st.permits[slot] -= messages - acked",
        "st.permits[slot] -= entries",
    ),
    "average_rounded_down": _edit(
        "the average of messages per entry is rounded down, not half up",
        "permits:usable_permits",
        "floor(st.average[slot] + 0.5)",
        "floor(st.average[slot])",
    ),
    "average_not_smoothed": _edit(
        "the average is that of the last send alone",
        "permits:charge_send",
        "st.average[slot] * 0.9 + (1 - 0.9) * messages / entries",
        "1.0 * messages / entries",
    ),
    "unacked_room_ignored": _edit(
        "usable permits do not look at the room below the unacked limit",
        "permits:usable_permits",
        "return min(permits, ceil(room / average))",
        "return permits",
    ),
    "flow_not_parked": _edit(
        "permits count although the consumer is blocked on unacked messages",
        "permits:count_flow",
        "if st.blocked[slot] == 1:",
        "if False:",
    ),
    "unblock_below_half": _edit(
        "a blocked consumer waits for less than half of the limit",
        "permits:unblock_if_due",
        "st.unacked[slot] <= limit // 2",
        "st.unacked[slot] < limit // 2",
    ),
    "unblock_below_the_limit": _edit(
        "a blocked consumer goes on as soon as it is below the limit",
        "permits:unblock_if_due",
        "st.unacked[slot] <= limit // 2",
        "st.unacked[slot] < limit",
    ),
    "unblock_tested_elsewhere": _release(
        "the unblock rule is tested after the counter is lowered where it is tested before, and the other way round",
        "unblock_before_lowering",
    ),
    "unblock_tested_once": _release(
        "the unblock rule is tested once where it is tested twice, and the other way round (#23796)",
        "unblock_again_after_lowering",
    ),
    "subscription_limit_off": _edit(
        "the unacked limit of the subscription stops no read",
        "dispatch_loop:plan_normal",
        "st.s[BLOCKED_ON_UNACKED] == 1 or ",
        "",
    ),
    "subscription_unblocks_at_half": _edit(
        "the subscription goes on at half of its limit, not below it",
        "permits:add_unacked",
        "st.s[TOTAL_UNACKED] < limit // 2",
        "st.s[TOTAL_UNACKED] <= limit // 2",
    ),
    "leaving_permits_stay": _edit(
        "the permits of a consumer that leaves stay with the dispatcher",
        "multiple_consumers:MultipleConsumersDispatcher._drop_member",
        "s[st_.TOTAL_PERMITS] -= st.permits[slot]",
        "pass",
    ),
    # --- acks, redelivery, leaving -------------------------------------------------------------------------------
    "batch_index_acks_ignored": _edit(
        "an ack of some messages of a batch changes nothing",
        "multiple_consumers:MultipleConsumersDispatcher.acknowledge_indexes",
        'not self.profile.settings.get("acknowledgmentAtBatchIndexLevelEnabled")',
        "True",
    ),
    "nack_keeps_its_hash": _edit(
        "a negatively acknowledged entry enters the replay set with its hash",
        "multiple_consumers:MultipleConsumersDispatcher.redeliver",
        "st_.NO_HASH",
        "int(self.state.hash_id[entry])",
    ),
    "redeliver_all_counts_each": _release(
        "a request for everything subtracts what is pending where it sets 0, and the other way round (#25589)",
        "redeliver_in_one_batch",
    ),
    "disconnect_drops_the_hash": _edit(
        "entries of a consumer that leaves enter the replay set without their hash",
        "key_shared:KeySharedDispatcher.drop",
        "replay_set.add_to_replay(st, entry, int(st.pending_hash[entry]))",
        "replay_set.add_to_replay(st, entry, st_.NO_HASH)",
    ),
    "no_rewind": _edit(
        "the first consumer after all had left goes on where the last one stopped",
        "multiple_consumers:MultipleConsumersDispatcher._add_member",
        "cursor.rewind(self.state)",
        "pass",
    ),
    "old_read_is_dispatched": _edit(
        "a read from before all consumers left is sent to the next first one",
        "multiple_consumers:MultipleConsumersDispatcher.read_done",
        "if s[st_.REWIND_DUE]:",
        "if False:",
    ),
    "replay_set_survives": _edit(
        "the replay set is kept when all consumers have left",
        "replay_set:clear_replay",
        "remove_from_replay(st, entry)",
        "pass",
    ),
    # --- draining hashes -----------------------------------------------------------------------------------------
    "draining_off": _edit(
        "a hash moves to its new owner at once",
        "ordering.draining_hashes:should_block",
        "if owner == NOBODY:",
        "if True:",
    ),
    "added_ranges": _release(
        "a hash that comes back to its owner goes on draining, or is free at once (#24736)", "added_ranges"
    ),
    "draining_is_not_released_on_ack": _edit(
        "an ack does not lower the reference count",
        "pending_acks:let_go",
        "return release(st, slot, hash_id, closing)",
        "return release(st, slot, hash_id, closing) if closing else 0",
    ),
    "draining_is_not_released_on_close": _edit(
        "the hashes of a consumer that leaves go on draining",
        "pending_acks:let_go",
        "return release(st, slot, hash_id, closing)",
        "return 0 if closing else release(st, slot, hash_id, closing)",
    ),
    "draining_counts_hashes": _edit(
        "a draining hash counts once, however many entries are pending",
        "ordering.draining_hashes:drain",
        "st.drain_refs[hash_id] += 1",
        "pass",
    ),
    "third_consumer_takes_over": _edit(
        "a hash that drains is taken over by whoever loses it next",
        "ordering.draining_hashes:should_block",
        "if owner == slot:",
        "if owner != NOBODY:",
    ),
    # --- last sent position --------------------------------------------------------------------------------------
    "last_sent_limit_is_exclusive": _edit(
        "a newcomer is not sent the last sent position itself",
        f"{_LAST_SENT}:within",
        "entry <= limit",
        "entry < limit",
    ),
    "last_sent_limit_off": _edit(
        "a newcomer is not held back", f"{_LAST_SENT}:within", "entry <= limit", "True"
    ),
    "last_sent_limit_without_the_oldest": _edit(
        "in a replay read a newcomer is held to its own limit only",
        f"{_LAST_SENT}:position_limit",
        "if is_replay:",
        "if False:",
    ),
    "last_sent_never_pruned": _edit(
        "mark-delete never frees a newcomer",
        f"{_LAST_SENT}:is_passed",
        "joined_at <= st.s[MARK_DELETE]",
        "False",
    ),
    "last_sent_pruned_late": _edit(
        "mark-delete frees a newcomer one entry late",
        f"{_LAST_SENT}:is_passed",
        "joined_at <= st.s[MARK_DELETE]",
        "joined_at < st.s[MARK_DELETE]",
    ),
    "last_sent_survives": _edit(
        "the last sent position is kept when all consumers have left",
        f"{_LAST_SENT}:consumer_left",
        "forget_sent(st)",
        "pass",
    ),
    "last_one_left_is_still_a_newcomer": _edit(
        "a newcomer that is alone stays held back",
        f"{_LAST_SENT}:consumer_left",
        "if st.s[N_CONSUMERS] <= 1:",
        "if False:",
    ),
    "sent_entries_are_not_noted": _edit(
        "what is sent above the last sent position is forgotten",
        f"{_LAST_SENT}:note_sent",
        "if entry > st.s[LAST_SENT]:",
        "if False:",
    ),
    "alone_a_newcomer_too": _edit(
        "a consumer that joins one entry past mark-delete is held back too",
        f"{_LAST_SENT}:consumer_joined",
        "st.s[READ_POSITION] - st.s[MARK_DELETE] > 1",
        "True",
    ),
    # --- read position, 3.x and classic ----------------------------------------------------------------------------
    "classic_limit_is_inclusive": _edit(
        "a newcomer is sent the entry at its read position too",
        f"{_READ_POSITION}:within",
        "entry < limit",
        "entry <= limit",
    ),
    "classic_limit_off": _edit(
        "a newcomer is not held back", f"{_READ_POSITION}:within", "entry < limit", "True"
    ),
    "classic_limit_without_the_first": _edit(
        "in a replay read a newcomer is held to its own limit only",
        f"{_READ_POSITION}:position_limit",
        "if is_replay:",
        "if False:",
    ),
    "classic_never_pruned": _edit(
        "mark-delete never frees a newcomer",
        f"{_READ_POSITION}:is_passed",
        "joined_at <= st.s[MARK_DELETE] + 1",
        "False",
    ),
    "classic_pruned_late": _edit(
        "mark-delete frees a newcomer one entry late",
        f"{_READ_POSITION}:is_passed",
        "st.s[MARK_DELETE] + 1",
        "st.s[MARK_DELETE]",
    ),
    "classic_last_one_left_is_still_a_newcomer": _edit(
        "a newcomer that is alone stays held back",
        f"{_READ_POSITION}:consumer_left",
        "if st.s[N_CONSUMERS] == 1:",
        "if False:",
    ),
    "classic_a_newcomer_with_one_entry_read": _edit(
        "a consumer that joins one entry past mark-delete is held back too",
        f"{_READ_POSITION}:is_restricted_newcomer",
        "st.s[READ_POSITION] - st.s[MARK_DELETE] > 1",
        "st.s[READ_POSITION] - st.s[MARK_DELETE] > 0",
    ),
    "classic_newcomers_sorted": _release(
        "newcomers are kept by position where they are kept as they joined, and the other way round (#23795, #23802)",
        "recently_joined_sorted",
    ),
    "classic_r0_off": _edit(
        "a normal read overtakes what waits in the replay set",
        "dispatch_loop_classic:waits_for_replay",
        "st.replay_count[hash_id] > 0",
        "False",
    ),
    "classic_pre_filter_off": _release(
        "a replay read asks for what cannot be sent too, or not (#22245)", "replay_pre_filter"
    ),
    "classic_normal_reads_for_newcomers": _edit(
        "a normal read is made for newcomers too",
        "dispatch_loop_classic:normal_read_is_needed",
        "and st.joined_at[slot] == NOT_TRACKED ",
        "",
    ),
    "classic_stuck_flag_off": _edit(
        "a round that could send nothing tries the replay set again",
        "dispatch_loop_classic:is_stuck",
        "if sent or st.s[N_RECENT] > 0:",
        "if True:",
    ),
    "classic_stuck_with_newcomers": _edit(
        "a round is stuck although a newcomer is the reason",
        "dispatch_loop_classic:is_stuck",
        "if sent or st.s[N_RECENT] > 0:",
        "if sent:",
    ),
    "classic_stuck_consumers": _release(
        "consumers without permits are remembered for a round, as only 3.0.0 does (#20335)",
        "no_stuck_consumers",
    ),
    "classic_keeps_the_pending_hash": _edit(
        "what a leaving consumer of the classic dispatcher held enters the replay set with its hash",
        "key_shared_classic:keeps_pending_hash",
        '"classic_dispatchers" not in profile.changes',
        "True",
    ),
    "classic_never_retries": _edit(
        "a round that could send nothing is not followed by another one at once",
        "key_shared_classic:ClassicKeySharedDispatcher._go_on",
        "result.retry = bool(not result.sent and (owners > 0 or st.s[st_.N_RECENT] == 0))",
        "result.retry = False",
    ),
    # --- selectors -----------------------------------------------------------------------------------------------
    "highest_of_equal_ranges_is_split": _edit(
        "of several widest ranges the highest is split",
        "selectors.auto_split:AutoSplitSelector._widest",
        "key=lambda pair: pair[1] - pair[0]",
        "key=lambda pair: (pair[1] - pair[0], pair[1])",
    ),
    "newcomer_gets_the_upper_half": _edit(
        "the newcomer gets the upper half of the range that is split",
        "selectors.auto_split:AutoSplitSelector.add",
        "self._owners[boundary] = consumer\n    self._note(consumer, boundary)",
        "self._owners[boundary] = consumer\n"
        "    self._note(consumer, boundary)\n"
        "    if boundary != self._size:\n"
        "        owner = self._owners[upper]\n"
        "        self._owners[upper], self._owners[boundary] = consumer, owner\n"
        "        self._note(owner, boundary)\n"
        "        self._note(consumer, upper)",
    ),
    "freed_range_goes_down": _edit(
        "the range of a consumer that leaves goes to the next lower one",
        "selectors.auto_split:AutoSplitSelector.remove",
        "boundary = self._of.pop(key)\n",
        "boundary = self._of.pop(key)\n"
        "    at = self._boundaries.index(boundary)\n"
        "    if 0 < at < len(self._boundaries) - 1:\n"
        "        lower = self._boundaries[at - 1]\n"
        "        self._owners[boundary] = self._owners[lower]\n"
        "        self._note(self._owners[lower], boundary)\n"
        "        boundary = lower\n",
    ),
    "name_index_never_reused": _edit(
        "a consumer that comes back gets another index, so other points",
        "selectors.names:NameIndexes.release",
        "self._used[name].discard(index)",
        "pass",
    ),
    "newcomer_wins_a_point": _edit(
        "a newcomer takes a point that is taken",
        "selectors.consistent_hashing:ConsistentHashingSelector._meet",
        "queue.append(newcomer)",
        "queue.insert(0, newcomer)",
    ),
    "equal_names_do_not_share": _edit(
        "of consumers with one name only the first is chosen",
        "selectors.consistent_hashing_shared:SharedPointsSelector._share",
        "sticky_hash % consumers",
        "0",
    ),
    "ring_without_separator": _release(
        "ring points have, or lack, the NUL of #22053", "ring_point_separator"
    ),
    "sticky_ranges": _release(
        "sticky ranges are matched by their end points where they are exact, and the other way round (#24730)",
        "sticky_ranges_exact",
    ),
    # --- hashing -------------------------------------------------------------------------------------------------
    "fallback_key": _release(
        "entries without a key are hashed as one key where each has its own, and the other way round (#23219)",
        "fallback_key",
    ),
    "hash_zero": _edit(
        "the hash 0 stays 0",
        "hashing:HashSpace.sticky_array",
        "(values == NOT_SET) & self.reserve_zero",
        "values < 0",
    ),
    "ordering_key_ignored": _edit(
        "the ordering key does not go before the key",
        "hashing:entry_h31",
        "(ordering, True, np.ones(messages.num_rows, dtype=bool)),",
        "",
    ),
    "binary_key_is_text": _edit(
        "a base64 key is hashed as the text that it stands for",
        "hashing:entry_h31",
        "h31(_decode(word) if decode else utf8(word))",
        "h31(utf8(word))",
    ),
    # --- Failover and Exclusive ----------------------------------------------------------------------------------
    "failover_by_join_order": _edit(
        "consumers stay in the order in which they joined",
        "selectors.failover:sort_key",
        "utf16(candidate.name)",
        "b''",
    ),
    "failover_without_priority": _edit(
        "priority levels do not sort consumers",
        "selectors.failover:sort_key",
        "candidate.priority_level, utf16",
        "0, utf16",
    ),
    "failover_all_levels": _edit(
        "consumers of a worse level take part",
        "selectors.failover:takes_part",
        "candidate.priority_level == first.priority_level",
        "True",
    ),
    "failover_ring_for_modulo": _edit(
        "partitions use the ring where they use the modulo, and the other way round",
        "selectors.failover:pick",
        "if ring else",
        "if ring != (partition_index >= 0) else",
    ),
    "failover_first_keeps_the_point": _edit(
        "of two consumers on one point the lower index keeps it",
        "selectors.failover:wins_point",
        "newcomer > holder",
        "False",
    ),
    "failover_delay_holds_reads": _edit(
        "the failover delay holds the read after a written batch",
        "single_active_rules:delay_holds_reads",
        "return False",
        "return True",
    ),
    "failover_delay_does_not_hold_flow": _edit(
        "a flow command makes a read while the failover delay runs",
        "single_active_rules:delay_holds_flow",
        "return True",
        "return False",
    ),
    "failover_without_delay": _edit(
        "a hand-over rewinds at once",
        "single_active:SingleActiveDispatcher.hand_over",
        "if not self._delayed:",
        "if True:",
    ),
    "failover_without_rewind": _edit(
        "the new active consumer goes on where the old one stopped",
        "single_active:SingleActiveDispatcher._rewind",
        "cursor.rewind(self.state)",
        "pass",
    ),
    "failover_old_read_is_sent": _edit(
        "a read for the old active consumer is sent to the new one",
        "single_active_rules:handed_over_elsewhere",
        "reader != active",
        "False",
    ),
    "failover_everybody_is_served": _edit(
        "flow and redelivery requests of consumers that are not active count",
        "single_active_rules:only_the_active_is_served",
        "consumer == active",
        "True",
    ),
    "failover_epochs": _release(
        "a read that a redelivery request has replaced is sent, or is not (#26174)", "failover_read_epoch"
    ),
    "failover_nobody_is_told": _edit(
        "a hand-over tells nobody",
        "single_active:SingleActiveDispatcher.told_all",
        "if active is None or self._exclusive:",
        "if True:",
    ),
    "failover_acks_of_others_ignored": _edit(
        "an ack does not move the cursor",
        "single_active:SingleActiveDispatcher.acknowledge",
        "cursor.acknowledge(self.state, entry)",
        "pass",
    ),
}
