"""Wrong rules of what is counted: permits, unacknowledged messages, redeliveries, references, and limits of a round."""

from __future__ import annotations

from typing import Final

from tests.wrong_rules.switch import WrongRule, edit

WRONG_COUNTING: Final[dict[str, WrongRule]] = {
    # --- permits ---------------------------------------------------------------------------------------------------
    "blocked_flow_is_lost": edit(
        "permits that a consumer grants while it is blocked are lost",
        "permits:count_flow",
        "st.parked_permits[slot] += permits",
        "pass",
    ),
    "unblocked_without_parked_permits": edit(
        "a consumer that is unblocked does not get the permits that it granted meanwhile",
        "permits:unblock",
        "count_parked(st, slot)",
        "pass",
    ),
    "acked_indexes_cost_permits": edit(
        "indexes of a batch that are acknowledged already cost permits when it is sent again",
        "permits:charge_send",
        "st.permits[slot] -= messages - acked",
        "st.permits[slot] -= messages",
    ),
    "acked_indexes_are_unacked": edit(
        "indexes of a batch that are acknowledged already count as unacknowledged when it is sent again",
        "permits:charge_send",
        "add_unacked(st, slot, messages - acked)",
        "add_unacked(st, slot, messages)",
    ),
    "last_send_weighs_most": edit(
        "the average of messages per entry gives the last send nine tenths, not the earlier ones",
        "permits:average_after",
        "average * 0.9 + (1 - 0.9) * messages / entries",
        "average * (1 - 0.9) + 0.9 * messages / entries",
    ),
    "room_rounded_down": edit(
        "the room below the unacked limit is divided by the average and rounded down",
        "permits:usable_permits",
        "ceil(room / average)",
        "floor(room / average)",
    ),
    "room_in_messages": edit(
        "the room below the unacked limit is not divided by the average of messages per entry",
        "permits:usable_permits",
        "ceil(room / average)",
        "room",
    ),
    "classic_room_ignored": edit(
        "usable permits of the classic dispatcher do not look at the room below the unacked limit",
        "permits:room_in_messages",
        "min(max(st.permits[slot], 0), unacked_room(st, slot))",
        "max(st.permits[slot], 0)",
    ),
    "available_without_permits": edit(
        "a consumer without permits counts as available",
        "permits:is_available",
        "st.permits[slot] > 0",
        "st.permits[slot] >= 0",
    ),
    "read_size_of_the_first_consumer": edit(
        "a read asks for no more than the first available consumer has permits",
        "read_loop:plan_size",
        "max(st.s[TOTAL_PERMITS], first)",
        "first",
    ),
    "flow_of_who_left_counts": edit(
        "a flow that is applied after its consumer has left raises the dispatcher's total",
        "commands:apply_flow",
        "st.connected[slot] == 1",
        "True",
    ),
    # --- unacknowledged messages -----------------------------------------------------------------------------------
    "sends_miss_the_subscription": edit(
        "the subscription's count of unacknowledged messages never changes",
        "permits:add_unacked",
        "st.s[TOTAL_UNACKED] += messages",
        "pass",
    ),
    "indexes_are_acked_at_the_end": edit(
        "the count of unacknowledged messages does not fall by acknowledged indexes of a batch",
        "commands:ack_indexes",
        "add_unacked(st, slot, -newly)",
        "pass",
    ),
    "passed_indexes_stay_unacked": edit(
        "acknowledged indexes of a batch that the cursor has passed do not lower the count of unacknowledged messages",
        "multiple_consumers:MultipleConsumersDispatcher.acknowledge_indexes",
        "self.state.deleted[entry] and not is_pending",
        "self.state.deleted[entry]",
    ),
    "redelivered_stay_unacked": edit(
        "the count of unacknowledged messages does not fall by a redelivery request",
        "commands:lower_for_redelivery",
        "add_unacked(st, slot, -messages)",
        "pass",
    ),
    "request_does_not_unblock": edit(
        "a redelivery request does not unblock its consumer",
        "commands:lower_for_redelivery",
        "st.blocked[slot] = 0",
        "pass",
    ),
    "subscription_unblocks_below_the_limit": edit(
        "the subscription goes on as soon as it is below its limit",
        "permits:add_unacked",
        "st.s[TOTAL_UNACKED] < limit // 2",
        "True",
    ),
    # --- the replay set and reads ----------------------------------------------------------------------------------
    "larger_look_ahead_limit": edit(
        "of the two look-ahead limits the larger one holds",
        "permits:look_ahead_limit",
        "limit = min(limit, per_subscription)",
        "limit = max(limit, per_subscription)",
    ),
    "look_ahead_up_to_the_limit": edit(
        "normal reads stop only when the replay set is above the look-ahead limit",
        "gates:replay_set_is_full",
        ">= look_ahead_limit(st)",
        "> look_ahead_limit(st)",
    ),
    "replayed_keeps_its_hash": edit(
        "an entry that leaves the replay set still makes new entries of its hash wait",
        "replay_set:remove_from_replay",
        "st.replay_count[known] -= 1",
        "pass",
    ),
    "trim_leaves_passed_positions": edit(
        "a trim of the replay set leaves positions that mark-delete has passed",
        "commands:trim",
        "remove_up_to(st, st.s[MARK_DELETE], ledger_start)",
        "pass",
    ),
    "deleted_are_read_again": edit(
        "a replay read also asks for entries that are acknowledged meanwhile",
        "commands:issue_replay",
        "st.deleted[plan[at]] == 1",
        "False",
    ),
    "mark_delete_moves_by_one": edit(
        "mark-delete moves over one acknowledged entry at a time",
        "cursor:acknowledge",
        "first_left(st, st.s[MARK_DELETE] + 1)",
        "min(first_left(st, st.s[MARK_DELETE] + 1), st.s[MARK_DELETE] + 2)",
    ),
    "mark_delete_leaves_the_read_position": edit(
        "mark-delete does not push the read position",
        "cursor:acknowledge",
        "max(st.s[READ_POSITION], at)",
        "st.s[READ_POSITION]",
    ),
    # --- rounds ----------------------------------------------------------------------------------------------------
    "round_beyond_permits": edit(
        "entries that a round gives a consumer do not use up its permits within the round",
        "read_loop:choose",
        "st.left[slot] -= 1",
        "pass",
    ),
    "look_ahead_without_permits": edit(
        "a round looks ahead for consumers that have no permits",
        "read_loop:wants_look_ahead",
        " and not no_permits(st, False, slot, 0)",
        "",
    ),
    "look_ahead_for_who_joined": edit(
        "a consumer that is held to the last sent position may look ahead",
        "read_loop:choose",
        "gate in (REPLAY_ORDER, DRAINING_HASH)",
        "True",
    ),
    "empty_round_does_not_retry": edit(
        "a round that delivered nothing and does not look ahead is not followed by another",
        "commands:end_round",
        "looks_ahead or sent_to == 0",
        "looks_ahead",
    ),
    "look_ahead_scans_again": edit(
        "the read after a look-ahead scans the replay set first",
        "commands:finish_round",
        "st.s[SKIP_NEXT_REPLAY] = 1",
        "pass",
    ),
    "priorities_ignored": edit(
        "priority levels do not sort the consumers of a Key_Shared subscription",
        "membership:add_member",
        "st.level[st.order[place - 1]] > st.level[slot]",
        "False",
    ),
    "min_replay_of_any_read": edit(
        "a replay position that has appeared meanwhile drops read results out of order, too",
        "read_loop:dropped_by_min_replay",
        "st.s[IN_ORDER] == 1 and ",
        "",
    ),
    # --- draining hashes, consumers that joined --------------------------------------------------------------------
    "drains_for_its_owner": edit(
        "a hash that is back at the consumer that it drains for blocks that consumer, too",
        "ordering.draining_hashes:should_block",
        "if owner == slot:",
        "if False:",
    ),
    "free_with_one_pending": edit(
        "a draining hash is free when one of its entries is still pending",
        "ordering.draining_hashes:release",
        "if before == 1:",
        "if before <= 2:",
    ),
    "limit_of_the_later_consumer": edit(
        "in a replay read a recently joined consumer is held to the higher of its own and the first one's position",
        "ordering.recently_joined:limit_now",
        "min(limit, st.joined_at[st.recent[first]])",
        "max(limit, st.joined_at[st.recent[first]])",
    ),
    "who_left_is_held_back": edit(
        "a recently joined consumer that leaves still limits the others",
        "ordering.last_sent_position:consumer_left",
        "recently_joined.forget(st, slot)",
        "pass",
    ),
    "gaps_are_passed": edit(
        "the last sent position moves over entries that were not sent",
        "ordering.last_sent_position:advance",
        "while at < st.s[SENT_HIGH] and st.sent_above[at] == 1:",
        "while at < st.s[SENT_HIGH]:",
    ),
}
