"""Wrong rules for the permits of Failover and Exclusive where entries are batches, acknowledged in part."""

from __future__ import annotations

from typing import Final

from tests.wrong_rules.switch import WrongRule, edit

_DISPATCHER: Final = "single_active:SingleActiveDispatcher"

WRONG_BATCHES: Final[dict[str, WrongRule]] = {
    # --- what a delivery costs -------------------------------------------------------------------------------------
    "failover_acked_indexes_cost_permits": edit(
        "indexes of a batch that are acknowledged already cost permits when it is sent again",
        f"{_DISPATCHER}.charge",
        "acked - total",
        "-total",
    ),
    "failover_permits_in_entries": edit(
        "a batch costs one permit, not one per message",
        f"{_DISPATCHER}.charge",
        "acked - total",
        "acked - len(stored)",
    ),
    "failover_left_indexes_are_free": edit(
        "of a batch the acknowledged indexes cost permits, and the others do not",
        f"{_DISPATCHER}.acked_indexes",
        "self._sizes[entry] - self._unacked_indexes[entry].bit_count()",
        "self._unacked_indexes[entry].bit_count()",
    ),
    "failover_acked_index_gives_its_permit_back": edit(
        "an index that is acknowledged alone gives the active consumer a permit at once",
        f"{_DISPATCHER}.acknowledge",
        "self._unacked_indexes[entry] = left\n",
        "self._unacked_indexes[entry] = left\n"
        "            if self.active is not None:\n"
        "                self.permits[self.active] += 1\n",
    ),
    # --- which indexes are acknowledged ----------------------------------------------------------------------------
    "failover_last_ack_set_counts_alone": edit(
        "an ack of single indexes takes back those that were acknowledged before",
        f"{_DISPATCHER}.acknowledge",
        "cursor.indexes_left(self.unacked_indexes(entry), ack_set)",
        "cursor.ack_set_bits(ack_set)",
    ),
    "failover_last_index_leaves_the_batch": edit(
        "a batch whose last message is acknowledged by index is not deleted",
        f"{_DISPATCHER}.acknowledge",
        "if left:",
        "if True:",
    ),
    "failover_cumulative_set_is_joined": edit(
        "a cumulative ack inside a batch leaves single indexes behind it acknowledged",
        f"{_DISPATCHER}.acknowledge_up_to",
        "cursor.indexes_left_by_cumulative(",
        "cursor.indexes_left(",
    ),
    "failover_cumulative_set_goes_back": edit(
        "a late cumulative ack inside a batch takes back indexes that a later one acknowledged",
        "cursor:indexes_left_by_cumulative",
        "bits if _first_index(bits) > _first_index(left) else left",
        "bits",
    ),
    "failover_cumulative_takes_the_batch": edit(
        "a cumulative ack inside a batch acknowledges all of it",
        f"{_DISPATCHER}.acknowledge_up_to",
        "entry - 1 if ack_set and cursor.ack_set_bits(ack_set) else entry",
        "entry",
    ),
    "failover_cumulative_leaves_the_batch": edit(
        "a cumulative ack inside a batch acknowledges none of it",
        f"{_DISPATCHER}.acknowledge_up_to",
        "if last < entry and",
        "if False and",
    ),
    # --- whose permits they are ------------------------------------------------------------------------------------
    "failover_request_takes_permits": edit(
        "a redelivery request takes the permits of its consumer",
        f"{_DISPATCHER}.redeliver",
        "self.pending = False",
        "self.pending, self.permits[consumer] = False, 0",
    ),
    "failover_change_takes_permits": edit(
        "a consumer that becomes active loses the permits that it granted before",
        f"{_DISPATCHER}._pick",
        "self.active = choice.active\n",
        "self.active = choice.active\n    self.permits[choice.active] = 0\n",
    ),
    "failover_flow_of_the_active_only": edit(
        "permits of a consumer that is not active are lost",
        f"{_DISPATCHER}.flow",
        "+= count",
        "+= count if consumer == self.active else 0",
    ),
    # --- the end ---------------------------------------------------------------------------------------------------
    "failover_chooses_while_disconnecting": edit(
        "another consumer becomes active while all are disconnected",
        f"{_DISPATCHER}.leave",
        " and not self._closing",
        "",
    ),
}
