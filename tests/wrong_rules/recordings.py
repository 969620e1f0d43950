"""Recordings on which each wrong rule shows, as ``<release>/<scenario>``: small ones, of several releases."""

from __future__ import annotations

from typing import Final

SHOWN_BY: Final[dict[str, tuple[str, ...]]] = {
    "r0_off": (
        "4.2.4/designed-drain-one-by-one-ch",
        "4.0.0/designed-all-leave-range",
        "4.0.0-preview.1/random-0018-ch-quiet",
    ),
    "total_falls_by_what_is_left": (
        "4.2.4/random-2019-classic-range-racing",
        "4.2.4/random-1010-classic-range-quiet",
    ),
    "total_falls_by_the_batch": (
        "4.2.4/random-0008-classic-ch-quiet",
        "4.2.4/random-1010-classic-range-quiet",
    ),
    "passed_indexes_stay_unacked": ("4.2.4/ops-24022-clear-classic-ch",),
    "last_index_leaves_the_entry": ("4.2.4/random-2062-ch-quiet",),
    "r1_off": (
        "4.0.0-preview.1/designed-negative-acks-range",
        "4.0.0/designed-same-name-batches-range",
        "4.2.4/designed-negative-acks-classic-ch",
    ),
    "replay_filter_off": (
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0/designed-slow-owner-newcomer-range",
        "4.2.4/designed-slow-owner-newcomer-range",
    ),
    "replay_filter_without_permits": (
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0/designed-slow-owner-newcomer-range",
        "4.2.4/designed-slow-owner-newcomer-range",
    ),
    "replay_read_while_one_is_pending": (
        "4.0.0-preview.1/designed-negative-acks-range",
        "4.0.0/designed-negative-acks-range",
        "4.0.0-preview.1/designed-negative-acks-ch",
    ),
    "look_ahead_off": (
        "4.0.0-preview.1/designed-all-leave-ch",
        "4.2.4/designed-auto-split-out-of-order",
        "4.0.0/designed-auto-split-out-of-order",
    ),
    "look_ahead_for_empty_results": (
        "4.0.0/designed-away-and-back-ch",
        "4.0.0/designed-drain-one-by-one-ch",
    ),
    "look_ahead_limit_off": (
        "4.0.0-preview.1/random-0024-range-quiet",
        "4.2.4/random-0018-ch-quiet",
        "4.0.0/random-0018-ch-quiet",
    ),
    "look_ahead_limit_of_the_subscription_only": (
        "4.0.0-preview.1/random-0018-ch-quiet",
        "4.2.4/random-0018-ch-quiet",
        "4.0.0/random-0018-ch-quiet",
    ),
    "read_size_without_look_ahead_room": (
        "4.0.0-preview.1/random-0024-range-quiet",
        "4.2.4/random-0018-ch-quiet",
        "4.0.0/random-0018-ch-quiet",
    ),
    "look_ahead_without_more": (
        "4.0.0/designed-same-name-batches-range",
        "4.0.0-preview.1/designed-same-name-batches-ch",
        "4.0.0/designed-all-leave-range",
    ),
    "blocked_hash_memory": (
        "4.2.4/designed-drain-one-by-one-ch",
        "4.0.0/designed-slow-owner-newcomer-ch",
        "4.2.4/designed-slow-owner-newcomer-ch",
    ),
    "cancel_clears_replay_read": (
        "4.0.0/designed-same-name-batches-range",
        "4.0.0/designed-same-name-batches-ch",
    ),
    "trim_at_attempts": ("4.2.4/designed-zero-permits-lookahead-range",),
    "permits_in_entries": (
        "4.2.4/random-0000-range-quiet",
        "4.0.0-preview.1/random-0008-range-quiet",
        "4.0.0/random-0020-ch-quiet",
        "4.0.0/random-0008-classic-ch-quiet",
    ),
    "average_not_smoothed": ("4.2.4/random-0040-range-quiet",),
    "unacked_room_ignored": (
        "4.0.0-preview.1/designed-max-unacked-half-ch",
        "4.2.4/designed-max-unacked-half-range",
        "4.0.0/designed-max-unacked-half-ch",
    ),
    "flow_not_parked": (
        "4.0.0-preview.1/designed-max-unacked-half-ch",
        "4.2.4/designed-max-unacked-half-range",
        "4.0.0/designed-max-unacked-half-ch",
    ),
    "unblock_below_half": (
        "4.0.0-preview.1/designed-max-unacked-half-ch",
        "4.2.4/designed-max-unacked-half-range",
        "4.0.0/designed-max-unacked-half-ch",
    ),
    "unblock_below_the_limit": (
        "4.0.0-preview.1/designed-max-unacked-half-ch",
        "4.2.4/designed-max-unacked-half-range",
        "4.0.0/designed-max-unacked-half-ch",
    ),
    "unblock_tested_elsewhere": (
        "4.0.0-preview.1/designed-max-unacked-half-ch",
        "4.0.0/designed-max-unacked-half-ch",
        "4.0.0-preview.1/designed-max-unacked-half-range",
    ),
    "unblock_tested_once": (
        "4.0.0-preview.1/designed-max-unacked-half-ch",
        "4.0.0/designed-max-unacked-half-ch",
        "4.0.0-preview.1/designed-max-unacked-half-range",
    ),
    "subscription_limit_off": (
        "4.0.0-preview.1/designed-subscription-unacked-ch",
        "4.2.4/designed-subscription-unacked-ch",
        "4.0.0/designed-subscription-unacked-ch",
    ),
    "leaving_permits_stay": (
        "4.2.4/designed-sticky-in-order",
        "4.0.0-preview.1/designed-sticky-in-order",
        "4.0.0/designed-sticky-in-order",
    ),
    "batch_index_acks_ignored": (
        "4.2.4/random-0000-range-quiet",
        "4.2.4/random-0008-classic-ch-quiet",
    ),
    "nack_keeps_its_hash": (
        "4.2.4/designed-negative-acks-ch",
        "4.0.0/designed-negative-acks-ch",
        "4.0.0-preview.1/designed-redeliver-all-priorities-binary-range",
    ),
    "disconnect_drops_the_hash": (
        "4.0.0/designed-same-name-batches-range",
        "4.0.0-preview.1/random-0008-range-quiet",
        "4.2.4/random-0038-range-quiet",
    ),
    "replay_set_survives": (
        "4.0.0-preview.1/designed-all-leave-ch",
        "4.2.4/designed-all-leave-range",
        "4.0.0/designed-all-leave-range",
    ),
    "draining_off": (
        "4.2.4/designed-drain-one-by-one-ch",
        "4.0.0/designed-away-and-back-range",
        "4.2.4/designed-slow-owner-newcomer-ch",
    ),
    "added_ranges": (
        "4.0.0/designed-away-and-back-ch",
        "4.2.4/designed-away-and-back-range",
        "4.0.0/designed-away-and-back-range",
    ),
    "draining_is_not_released_on_ack": (
        "4.2.4/designed-negative-acks-ch",
        "4.0.0/designed-slow-owner-newcomer-range",
        "4.2.4/designed-negative-acks-range",
    ),
    "draining_is_not_released_on_close": (
        "4.2.4/designed-slow-owner-newcomer-ch",
        "4.0.0/designed-slow-owner-newcomer-ch",
        "4.0.0/designed-order-at-risk-q4-ch",
    ),
    "draining_counts_hashes": (
        "4.2.4/designed-drain-one-by-one-ch",
        "4.0.0/designed-slow-owner-newcomer-range",
        "4.2.4/designed-negative-acks-range",
    ),
    "third_consumer_takes_over": (
        "4.2.4/designed-drain-one-by-one-ch",
        "4.0.0/designed-away-and-back-range",
        "4.2.4/designed-slow-owner-newcomer-ch",
    ),
    "last_sent_limit_is_exclusive": (
        "4.0.0-preview.1/random-0024-range-quiet",
        "4.0.0-preview.1/random-0008-range-quiet",
        "4.0.0-preview.1/random-0004-range-quiet",
    ),
    "last_sent_limit_off": (
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0-preview.1/designed-away-and-back-range",
        "4.0.0-preview.1/designed-drain-one-by-one-range",
    ),
    "last_sent_limit_without_the_oldest": (
        "4.0.0-preview.1/designed-rolling-restart-range",
        "4.0.0-preview.1/designed-rolling-restart-ch",
    ),
    "last_sent_never_pruned": (
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0-preview.1/designed-away-and-back-range",
        "4.0.0-preview.1/designed-drain-one-by-one-range",
    ),
    "last_sent_pruned_late": (
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0-preview.1/designed-away-and-back-range",
        "4.0.0-preview.1/designed-drain-one-by-one-range",
    ),
    "last_sent_survives": (
        "4.0.0-preview.1/designed-all-leave-ch",
        "4.0.0-preview.1/designed-all-leave-range",
    ),
    "last_one_left_stays_held_back": (
        "4.0.0-preview.1/random-0024-range-quiet",
        "4.0.0-preview.1/random-0008-range-quiet",
        "4.0.0-preview.1/random-0004-range-quiet",
    ),
    "sent_entries_are_not_noted": (
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0-preview.1/designed-away-and-back-range",
        "4.0.0-preview.1/designed-drain-one-by-one-range",
    ),
    "classic_limit_is_inclusive": (
        "4.2.4/designed-all-leave-classic-ch",
        "4.0.0/designed-all-leave-classic-ch",
    ),
    "classic_limit_off": (
        "4.2.4/designed-away-and-back-classic-range",
        "4.0.0/designed-away-and-back-classic-range",
    ),
    "classic_limit_without_the_first": (
        "4.2.4/random-0008-classic-ch-quiet",
        "4.0.0/random-0008-classic-ch-quiet",
    ),
    "classic_never_pruned": (
        "4.2.4/designed-away-and-back-classic-range",
        "4.0.0/designed-away-and-back-classic-range",
    ),
    "classic_pruned_late": (
        "4.2.4/designed-away-and-back-classic-range",
        "4.0.0/designed-away-and-back-classic-range",
    ),
    "classic_last_one_left_stays_held_back": (
        "4.0.0/random-0024-classic-ch-quiet",
        "4.2.4/random-0024-classic-ch-quiet",
    ),
    "classic_r0_off": (
        "4.2.4/designed-all-leave-classic-ch",
        "4.0.0/designed-same-name-batches-classic-ch",
    ),
    "classic_pre_filter_off": (
        "4.0.0/designed-slow-owner-newcomer-classic-ch",
        "4.2.4/designed-slow-owner-newcomer-classic-range",
    ),
    "classic_normal_reads_for_recently_joined": (
        "4.2.4/designed-all-leave-classic-ch",
        "4.0.0/designed-all-leave-classic-range",
    ),
    "classic_stuck_flag_off": (
        "4.2.4/designed-all-leave-classic-ch",
        "4.0.0/designed-all-leave-classic-ch",
    ),
    "classic_stuck_with_recently_joined": (
        "4.2.4/random-0008-classic-ch-quiet",
        "4.0.0/random-0008-classic-ch-quiet",
    ),
    "classic_stuck_consumers": (
        "4.2.4/designed-same-name-batches-classic-range",
        "4.0.0/designed-same-name-batches-classic-range",
    ),
    "classic_keeps_the_pending_hash": (
        "4.2.4/random-0008-classic-ch-quiet",
        "4.0.0/random-0022-classic-range-quiet",
    ),
    "classic_never_retries": (
        "4.2.4/designed-all-leave-classic-ch",
        "4.0.0/designed-all-leave-classic-ch",
    ),
    "classic_turns_at_once": ("4.2.4/soak-82645-classic-range-racing",),
    "highest_of_equal_ranges_is_split": (
        "4.0.0-preview.1/designed-slow-owner-newcomer-range",
        "4.2.4/designed-negative-acks-range",
        "4.0.0/designed-slow-owner-newcomer-range",
    ),
    "joining_gets_the_upper_half": (
        "4.0.0-preview.1/designed-negative-acks-range",
        "4.2.4/designed-negative-acks-range",
        "4.0.0/designed-slow-owner-newcomer-range",
    ),
    "freed_range_goes_down": (
        "4.2.4/random-0000-range-quiet",
        "4.0.0-preview.1/random-0004-range-quiet",
        "4.0.0/random-0030-range-quiet",
    ),
    "name_index_never_reused": (
        "4.0.0/designed-away-and-back-ch",
        "4.2.4/designed-away-and-back-ch",
    ),
    "joining_wins_a_point": (
        "4.2.4/random-0067-ch-racing",
        "4.2.4/random-0049-ch-racing",
    ),
    "equal_names_do_not_share": (
        "4.0.0-preview.1/designed-same-name-batches-ch",
        "4.0.0-preview.1/random-0000-ch-quiet",
    ),
    "ring_without_separator": (
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0-preview.1/designed-negative-acks-ch",
        "4.0.0-preview.1/designed-away-and-back-ch",
    ),
    "sticky_ranges": (
        "4.2.4/designed-sticky-in-order",
        "4.0.0-preview.1/designed-sticky-in-order",
        "4.0.0/designed-sticky-in-order",
    ),
    "fallback_key": (
        "4.0.0/designed-same-name-batches-range",
        "4.0.0-preview.1/designed-same-name-batches-ch",
        "4.2.4/designed-same-name-batches-ch",
    ),
    "ordering_key_ignored": (
        "4.0.0/designed-same-name-batches-range",
        "4.0.0-preview.1/designed-same-name-batches-ch",
        "4.2.4/designed-same-name-batches-ch",
    ),
    "binary_key_is_text": (
        "4.0.0/designed-same-name-batches-range",
        "4.0.0-preview.1/designed-redeliver-all-priorities-binary-range",
        "4.2.4/designed-redeliver-all-priorities-binary-range",
    ),
    "failover_by_join_order": (
        "4.2.4/designed-failover-modulo-p1",
        "4.0.0/designed-failover-modulo-p-1",
        "4.0.0-preview.1/designed-failover-modulo-p-1",
    ),
    "failover_without_priority": (
        "4.2.4/designed-failover-modulo-p1",
        "4.0.0/designed-failover-modulo-p-1",
        "4.0.0-preview.1/designed-failover-modulo-p-1",
    ),
    "failover_all_levels": (
        "4.2.4/designed-failover-modulo-p1",
        "4.0.0/designed-failover-modulo-p-1",
        "4.0.0-preview.1/designed-failover-modulo-p-1",
    ),
    "failover_ring_for_modulo": (
        "4.2.4/designed-failover-modulo-p1",
        "4.0.0/designed-failover-modulo-p1",
        "4.0.0-preview.1/designed-failover-modulo-p1",
    ),
    "failover_first_keeps_the_point": (
        "4.0.0-preview.1/random-0042-failover-modulo-quiet",
        "4.2.4/random-0028-failover-ring-quiet",
        "4.2.4/random-0002-failover-ring-quiet",
    ),
    "failover_delay_holds_reads": (
        "4.0.0/random-0035-failover-modulo-racing",
        "4.2.4/random-0035-failover-modulo-racing",
    ),
    "failover_delay_does_not_hold_flow": (
        "4.0.0/random-0035-failover-modulo-racing",
        "4.2.4/random-0035-failover-modulo-racing",
        "4.0.0-preview.1/random-0035-failover-modulo-racing",
    ),
    "failover_without_delay": (
        "4.2.4/designed-failover-modulo-p1",
        "4.0.0/designed-failover-modulo-p-1",
        "4.0.0-preview.1/designed-failover-modulo-p-1",
    ),
    "failover_without_rewind": (
        "4.2.4/designed-failover-modulo-p1",
        "4.0.0/designed-failover-modulo-p1",
        "4.0.0-preview.1/designed-failover-modulo-p-1",
    ),
    "failover_everybody_is_served": (
        "4.2.4/designed-failover-modulo-p1",
        "4.0.0/designed-failover-modulo-p-1",
        "4.0.0-preview.1/designed-failover-modulo-p-1",
    ),
    "failover_notifies_no_consumer": (
        "4.2.4/designed-failover-modulo-p1",
        "4.0.0/designed-failover-modulo-p-1",
        "4.0.0-preview.1/designed-failover-modulo-p-1",
    ),
    "failover_acks_of_others_ignored": (
        "4.2.4/designed-failover-modulo-p1",
        "4.0.0/designed-failover-modulo-p1",
        "4.0.0-preview.1/designed-failover-modulo-p-1",
    ),
    # --- operations on the cursor, policies (``../shared/operations``) ---------------------------------------------
    "skip_counts_acknowledged": (
        "4.0.0/ops-0000-skip-ch",
        "4.2.4/ops-0000-skip-ch",
        "4.2.4/ops-0009-skip-classic-ch",
    ),
    "clear_ends_at_the_read_position": ("4.2.4/ops-0019-clear-failover", "4.0.0/ops-0019-clear-failover"),
    "expiry_moves_nothing": (
        "4.2.4/ops-0003-expire-to-ch",
        "4.0.0/ops-0012-expire-to-classic-ch",
        "4.2.4/ops-0020-expire-failover",
        "4.2.4/ops-0001-clear-ch",
    ),
    "passed_entries_are_not_pending": (
        "4.2.4/ops-0003-expire-to-ch",
        "4.0.0/ops-0000-skip-ch",
    ),
    "reset_keeps_acknowledgements": (
        "4.2.4/ops-0022-reset-back-failover",
        "4.2.4/ops-0004-reset-back-ch",
        "4.0.0/ops-0015-seek-back-classic-ch",
        "4.0.0/ops-0025-seek-earliest-failover",
    ),
    "reset_keeps_mark_delete": (
        "4.2.4/ops-0022-reset-back-failover",
        "4.0.0/ops-0014-reset-forward-classic-ch",
        "4.2.4/ops-0017-seek-end-classic-ch",
        "4.2.4/ops-0026-seek-end-failover",
    ),
    "reset_chooses_the_active_consumer": (
        "4.2.4/ops-0022-reset-back-failover",
        "4.0.0/ops-0026-seek-end-failover",
    ),
    "reset_disconnects_nobody_active": (
        "4.2.4/ops-0022-reset-back-failover",
        "4.0.0/ops-0024-seek-back-failover",
    ),
    "trim_after_a_move": ("4.2.4/ops-0003-expire-to-ch", "4.2.4/ops-0001-clear-ch"),
    "trim_forgets_all_hashes": ("4.2.4/ops-0003-expire-to-ch", "4.0.0/ops-0003-expire-to-ch"),
    "round_without_consumers_goes_on": (
        "4.2.4/ops-0013-reset-back-classic-ch",
        "4.0.0/ops-0016-seek-earliest-classic-ch",
        "4.2.4/random-2013-classic-range-racing",
    ),
    "policy_limit_ignored": (
        "4.2.4/legal-0002-unacked-policy-ch",
        "4.0.0/legal-0017-unacked-policy-classic-ch",
    ),
    "blocked_flow_is_lost": (
        "4.0.0-preview.1/designed-max-unacked-half-ch",
        "4.2.4/legal-3002-unacked-policy-ch",
        "4.2.4/legal-0002-unacked-policy-ch",
    ),
    "unblocked_without_parked_permits": (
        "4.0.0-preview.1/designed-max-unacked-half-ch",
        "4.2.4/legal-3002-unacked-policy-ch",
        "4.2.4/legal-0002-unacked-policy-ch",
    ),
    "acked_indexes_cost_permits": (
        "4.2.4/random-2019-classic-range-racing",
        "4.2.4/random-0008-classic-ch-quiet",
        "4.2.4/random-0000-range-quiet",
    ),
    "acked_indexes_are_unacked": (
        "4.2.4/random-2019-classic-range-racing",
        "4.2.4/random-0008-classic-ch-quiet",
        "4.2.4/random-0000-range-quiet",
    ),
    "last_send_weighs_most": (
        "4.0.0-preview.1/random-0043-ch-racing",
        "4.2.4/random-0040-range-quiet",
    ),
    "room_rounded_down": (
        "4.0.0-preview.1/random-0011-ch-racing",
        "4.0.0-preview.1/random-0015-range-racing",
    ),
    "room_in_messages": (
        "4.0.0-preview.1/random-0011-ch-racing",
        "4.0.0-preview.1/random-0015-range-racing",
    ),
    "classic_room_ignored": ("4.0.0/designed-max-unacked-classic-ch",),
    "available_without_permits": (
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0/designed-slow-owner-newcomer-classic-ch",
        "4.2.4/designed-slow-owner-newcomer-ch",
    ),
    "read_size_of_the_first_consumer": (
        "4.0.0-preview.1/designed-negative-acks-range",
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0/designed-slow-owner-newcomer-classic-ch",
    ),
    "flow_of_who_left_counts": (
        "4.0.0-preview.1/random-0041-range-racing",
        "4.0.0-preview.1/random-0045-ch-racing",
    ),
    "sends_miss_the_subscription": ("4.2.4/soak-0002-range-quiet",),
    "indexes_are_acked_at_the_end": (
        "4.2.4/random-2019-classic-range-racing",
        "4.2.4/ops-0008-seek-end-ch",
        "4.2.4/random-0008-classic-ch-quiet",
    ),
    "redelivered_stay_unacked": (
        "4.0.0-preview.1/designed-negative-acks-range",
        "4.2.4/designed-negative-acks-ch",
        "4.2.4/soak-0002-range-quiet",
    ),
    "request_does_not_unblock": ("4.2.4/soak-21582-classic-shared-quiet", "4.0.0/soak-5376-ch-quiet"),
    "subscription_unblocks_below_the_limit": ("4.0.0/designed-subscription-unacked-classic-range",),
    "larger_look_ahead_limit": ("4.0.0-preview.1/random-0024-range-quiet",),
    "look_ahead_up_to_the_limit": ("4.2.4/designed-zero-permits-lookahead-ch",),
    "replayed_keeps_its_hash": (
        "4.0.0-preview.1/designed-all-leave-ch",
        "4.2.4/designed-sticky-in-order",
        "4.2.4/legal-3002-unacked-policy-ch",
    ),
    "trim_leaves_passed_positions": ("4.0.0/ops-2017-clear-ch",),
    "deleted_are_read_again": ("4.2.4/ops-0010-clear-classic-ch",),
    "mark_delete_moves_by_one": (
        "4.0.0-preview.1/designed-negative-acks-range",
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0/designed-slow-owner-newcomer-classic-ch",
    ),
    "mark_delete_leaves_the_read_position": ("4.2.4/ops-0011-expire-classic-ch",),
    "round_beyond_permits": (
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0-preview.1/designed-max-unacked-half-ch",
        "4.0.0-preview.1/designed-all-leave-ch",
    ),
    "look_ahead_without_permits": ("4.0.0-preview.1/random-0024-range-quiet",),
    "look_ahead_for_who_joined": (
        "4.0.0-preview.1/designed-all-leave-ch",
        "4.0.0-preview.1/random-0024-range-quiet",
    ),
    "empty_round_does_not_retry": (
        "4.0.0-preview.1/designed-negative-acks-range",
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0-preview.1/designed-max-unacked-half-ch",
    ),
    "look_ahead_scans_again": (
        "4.0.0-preview.1/designed-all-leave-ch",
        "4.2.4/designed-all-leave-classic-ch",
        "4.2.4/designed-sticky-in-order",
    ),
    "priorities_ignored": ("4.2.4/soak-0002-range-quiet",),
    "min_replay_of_any_read": ("4.2.4/random-0043-ch-racing",),
    "drains_for_its_owner": (
        "4.0.0/random-0023-ch-racing",
        "4.0.0/random-0030-range-quiet",
    ),
    "free_with_one_pending": (
        "4.2.4/designed-negative-acks-ch",
        "4.2.4/designed-drain-one-by-one-ch",
        "4.0.0/random-3012-range-quiet",
    ),
    "limit_of_the_later_consumer": (
        "4.2.4/random-0008-classic-ch-quiet",
        "4.2.4/designed-rolling-restart-classic-ch",
    ),
    "who_left_is_held_back": ("4.0.0-preview.1/designed-rolling-restart-range",),
    "gaps_are_passed": (
        "4.0.0-preview.1/designed-slow-owner-newcomer-ch",
        "4.0.0-preview.1/designed-all-leave-ch",
    ),
    "failover_acked_indexes_cost_permits": (
        "4.2.4/soak-5011-third-failover-ring-racing",
        "4.2.4/failover-batches-0001-modulo-racing",
    ),
    "read_stops_at_its_last_entry": ("4.2.4/soak-5115-failover-ring-racing",),
    "empty_read_stays": ("4.0.0/soak-5431-failover-racing",),
    "first_read_has_its_size": ("4.0.0/soak-5367-third-ch-racing",),
    "reads_end_in_order": ("4.0.0/soak-5324-failover-quiet",),
    "deleted_indexes_are_kept": ("4.0.0/soak-5376-ch-quiet",),
    "pending_ack_has_no_count": ("4.2.4/ops-24022-clear-classic-ch",),
    "failover_permits_in_entries": ("4.0.0/failover-batches-0000-modulo-quiet",),
    "failover_left_indexes_are_free": (
        "4.2.4/failover-batches-0001-modulo-racing",
        "4.2.4/failover-batches-0002-ring-quiet",
    ),
    "failover_acked_index_gives_its_permit_back": (
        "4.2.4/failover-batches-0001-modulo-racing",
        "4.2.4/failover-batches-0000-ring-quiet",
    ),
    "failover_last_ack_set_counts_alone": ("4.2.4/soak-5011-second-failover-ring-racing",),
    "failover_last_index_leaves_the_batch": ("4.2.4/soak-5011-second-failover-ring-racing",),
    "failover_cumulative_takes_the_batch": (
        "4.2.4/failover-batches-0001-modulo-racing",
        "4.2.4/failover-batches-0002-ring-quiet",
    ),
    "failover_cumulative_leaves_the_batch": (
        "4.2.4/failover-batches-0001-modulo-racing",
        "4.2.4/failover-batches-0002-ring-quiet",
    ),
    "failover_chooses_while_disconnecting": ("4.2.4/soak-unload-failover-quiet",),
    "failover_request_takes_permits": ("4.2.4/soak-5004-third-exclusive-quiet",),
    "failover_change_takes_permits": ("4.0.0/failover-batches-0000-modulo-quiet",),
    "failover_flow_of_the_active_only": ("4.0.0/failover-batches-0000-modulo-quiet",),
    "shared_first_of_the_list": (
        "4.2.4/shared-0014-quiet",
        "4.0.0/shared-0014-quiet",
        "4.2.4/shared-0026-classic-quiet",
    ),
    "shared_index_at_the_last_turn": (
        "4.2.4/shared-0014-quiet",
        "4.0.0/shared-0014-quiet",
    ),
    "shared_index_of_the_round": (
        "4.2.4/shared-0014-quiet",
        "4.0.0/shared-0014-quiet",
    ),
    "shared_index_forgotten_by_a_removal": (
        "4.2.4/shared-0014-quiet",
        "4.0.0/shared-0014-quiet",
    ),
    "shared_index_behind_the_end_is_the_last": (
        "4.2.4/shared-0014-quiet",
        "4.2.4/shared-0026-classic-quiet",
    ),
    "shared_passes_over_nobody": (
        "4.2.4/shared-0005-racing",
        "4.2.4/shared-0014-quiet",
        "4.0.0/shared-0014-quiet",
    ),
    "shared_serves_blocked_consumers": ("4.2.4/shared-0005-racing",),
    "shared_batch_size": (
        "4.0.0/shared-0014-quiet",
        "4.2.4/shared-0014-quiet",
    ),
    "shared_batch_size_off": ("4.2.4/shared-0014-quiet",),
    "shared_batch_size_in_messages": ("4.2.4/shared-0014-quiet",),
    "shared_classic_batch_size_in_entries": ("4.2.4/shared-0026-classic-quiet",),
    "shared_classic_rounds_up": ("4.2.4/shared-0026-classic-quiet",),
    "shared_rounds_down": ("4.2.4/shared-0014-quiet",),
    "shared_average_rounded_up": (
        "4.2.4/shared-0014-quiet",
        "4.0.0/shared-0014-quiet",
        "4.2.4/shared-0026-classic-quiet",
    ),
    "shared_turn_without_permits": ("4.2.4/shared-0014-quiet",),
    "shared_4_0_0_permits_in_messages": ("4.0.0/shared-0014-quiet",),
    "shared_turn_beyond_the_limit": ("4.2.4/shared-0005-racing",),
    "shared_left_in_entries": ("4.2.4/shared-0026-classic-quiet",),
    "shared_turn_takes_all": (
        "4.2.4/shared-0005-racing",
        "4.2.4/shared-0014-quiet",
        "4.2.4/shared-0026-classic-quiet",
    ),
    "shared_rest_is_lost": (
        "4.2.4/shared-0005-racing",
        "4.2.4/shared-0014-quiet",
    ),
    "shared_replayed_entries_stay": (
        "4.2.4/shared-0005-racing",
        "4.0.0/shared-0014-quiet",
        "4.2.4/shared-0014-quiet",
    ),
    "shared_removal_loses_pending": (
        "4.2.4/shared-0005-racing",
        "4.0.0/shared-0014-quiet",
        "4.2.4/shared-0014-quiet",
    ),
    "shared_no_read_after_a_round": (
        "4.2.4/shared-0005-racing",
        "4.0.0/shared-0014-quiet",
        "4.2.4/shared-0014-quiet",
    ),
    "shared_never_trims": ("4.2.4/ops-0027-skip-shared",),
    "shared_never_trims_in_attempts": ("4.0.0/ops-0027-skip-shared",),
    "shared_usable_below_the_limit": ("4.2.4/shared-0014-quiet",),
    "shared_passed_batch_counts_again": ("4.2.4/soak-13161-classic-shared-racing",),
    "shared_counted_twice_is_not_given_back": ("4.2.4/soak-24695-classic-shared-racing",),
    "shared_closed_sends": ("4.2.4/soak-7013-second-classic-shared-racing",),
    "shared_serves_inactive_connections": ("4.2.4/soak-8645-shared-racing",),
    "shared_reads_for_inactive_connections": ("4.0.0/soak-reload-0225-fourth-shared-racing",),
    "shared_fills_what_is_not_writable": (
        "4.0.0/soak-reload-0231-third-shared-racing",
        "4.2.4/soak-0067-classic-shared-racing",
    ),
    "shared_level_of_the_index_first": ("4.2.4/soak-0051-shared-racing",),
    "shared_worse_levels_never": ("4.2.4/soak-0051-shared-racing",),
}
