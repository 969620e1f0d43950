"""Thirty mutants of the newest Key_Shared dispatcher: each has a changed rule, and breaks a promise that ``hunt`` must find.

Each is a wrong rule (``tests.wrong_rules.switch``) of the functions that 4.2.4 runs: gates, rounds, read attempts, draining
hashes, replay set, permits and counters, membership, cursor. Where the catalogue of wrong rules has it, it is that.
"""

from __future__ import annotations

from typing import Final

from tests.wrong_rules.catalogue import WRONG_RULES
from tests.wrong_rules.switch import WrongRule, edit

_DRAINING: Final = "ordering.draining_hashes"
#: Names of the catalogue of wrong rules.
_KNOWN: Final = (
    "r0_off",
    "r1_off",
    "replay_read_while_one_is_pending",
    "look_ahead_off",
    "permits_in_entries",
    "leaving_permits_stay",
    "no_rewind",
    "old_read_is_dispatched",
    "replay_set_survives",
    "draining_off",
    "added_ranges",
    "draining_is_not_released_on_ack",
    "draining_is_not_released_on_close",
    "draining_counts_hashes",
    "third_consumer_takes_over",
    "pending_ack_has_no_count",
    "trim_keeps_unacked",
)

MUTANTS: Final[dict[str, WrongRule]] = {
    **{name: WRONG_RULES[name] for name in _KNOWN},
    "round_forgets_blocked_hashes": edit(
        "a hash that was held back in a round is not for the rest of it",
        "read_loop:choose",
        "if st.s[BLOCKED_HASH_MEMORY] == 1:",
        "if False:",
    ),
    "scan_forgets_blocked_hashes": edit(
        "a hash that was held back in a scan of the replay set is not for the rest of it",
        "read_loop:replayable",
        "if st.s[BLOCKED_HASH_MEMORY] == 1 and st.s[IN_ORDER] == 1:",
        "if False:",
    ),
    "requeued_without_hash": edit(
        "an entry that cannot be sent enters the replay set without its hash",
        "read_loop:requeue",
        "if st.s[IN_ORDER] == 1 or st.s[REPLAY_BY_PERMITS] == 1:",
        "if False:",
    ),
    "replayed_entries_stay": edit(
        "an entry that is sent from the replay set stays in it",
        "read_loop:send_groups",
        "if is_replay:",
        "if False:",
    ),
    "requests_are_lost": edit(
        "an entry that is requested again is in no set",
        "commands:add_requested",
        "if add_to_replay(st, entry, NO_HASH):",
        "if False:",
    ),
    "rounds_do_not_end": edit(
        "after a round the dispatcher goes on as if it were sending",
        "commands:finish_round",
        "st.s[SEND_IN_PROGRESS] = 0",
        "pass",
    ),
    "no_notice_of_free_hashes": edit(
        "a draining hash that had refused an entry is free, and nobody reads",
        f"{_DRAINING}:release",
        "if not closing and st.drain_attempts[hash_id] > 0:",
        "if False:",
    ),
    "draining_survives_all": edit(
        "hashes go on draining when all consumers have left",
        f"{_DRAINING}:clear_draining",
        "st.drain_owner[:] = NOBODY",
        "pass",
    ),
    "rewinds_too_far": edit(
        "a rewind leaves out the first entry behind mark-delete",
        "cursor:rewind",
        "st.s[MARK_DELETE] + 1",
        "st.s[MARK_DELETE] + 2",
    ),
    "reads_the_last_entry_again": edit(
        "the read position stays at the last entry that was read",
        "cursor:moved_by_read",
        "last_entry + 1",
        "last_entry",
    ),
    "parked_permits_are_lost": edit(
        "permits that were parked while the consumer was blocked are dropped",
        "permits:count_parked",
        "st.permits[slot] += parked",
        "pass",
    ),
    "acks_do_not_unblock": edit(
        "no acknowledgement unblocks a consumer",
        "permits:unblock_if_due",
        "st.blocked[slot] == 1 and",
        "False and",
    ),
    "leaving_counters_stay": edit(
        "what a consumer that leaves held stays in the total of unacknowledged messages",
        "membership:drop_member",
        "add_unacked(st, slot, -st.unacked[slot])",
        "pass",
    ),
}
